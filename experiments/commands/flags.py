"""Flags that say how to run, as opposed to what: results agree up to rounding whatever they are."""

from absl import flags

from experiments.commands import shared_flags

DEVICES = flags.DEFINE_integer(
  "devices", 0, "devices over all processes that carry the workers; 0: chosen", lower_bound=0
)
PROCESSES = flags.DEFINE_integer("processes", 1, "local processes, joined by jax.distributed", lower_bound=1)
GRADIENTS = flags.DEFINE_enum(
  "virtual_grad",
  "auto",
  ["auto", "unroll", "vmap", "map"],
  "gradients of a device's workers: one copy each, batched, a loop",
)
STEPS = flags.DEFINE_enum("step_loop", "auto", ["auto", "unroll", "scan"], "steps of a compiled call")
STEPS_PER_CALL = flags.DEFINE_integer("steps_per_call", 0, "longest compiled call, in steps; 0: chosen", lower_bound=0)
OVERLAP = shared_flags.overlap()
BATCH_STATS = flags.DEFINE_enum(
  "batch_stats", "mean", ["mean", "reestimate"], "batch-norm statistics of the tested model: the workers' mean, or anew"
)
WORKDIR = shared_flags.workdir()
RESUME = flags.DEFINE_bool("resume", False, "continue what is in --workdir")
