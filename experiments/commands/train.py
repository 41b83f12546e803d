"""`python run.py train`: one run of one algorithm."""

from dataclasses import replace

from absl import flags

from ddl.config import unread_keys
from ddl.config.experiment import Experiment
from ddl.config.registry import has_server
from ddl.report import schedule
from ddl.run.train import train
from experiments.command_line import shared_flags
from experiments.command_line.config_flag import CommandLine
from experiments.command_line.flags import run_options
from experiments.command_line.resume import record

shared_flags.checkpoint_every()
flags.DEFINE_enum(
  "runtime", "simulator", ["simulator", "threads", "ray"], "of server algorithms: virtual time, real threads, or Ray"
)
flags.DEFINE_integer("shards", 1, "Ray actors that the master is made of", lower_bound=1)
flags.DEFINE_string("ray_address", "", "host:port of a Ray cluster; default: this machine")
flags.DEFINE_float("worker_cpus", 1.0, "CPUs that each of Ray's workers asks for", lower_bound=0.0)
flags.DEFINE_float("worker_gpus", 0.0, "GPUs that each of Ray's workers asks for", lower_bound=0.0)
flags.DEFINE_bool("elastic", False, "config.elastic=True: the others go on without a process that is lost")
EXPLAIN = flags.DEFINE_bool("explain", False, "print memory, FLOP, bytes and collectives of the compiled step")
flags.DEFINE_string("replay", "", "events.npz of a run whose order this one makes again, in virtual time")


def main(line: CommandLine) -> int:
  """Runs it; returns the exit code."""
  if flags.FLAGS.elastic:
    line.config.elastic = True
  options = run_options(line.words, record(line))
  if EXPLAIN.value:
    if has_server(line.config.algorithm.name):
      raise ValueError(f"--explain must be passed with a collective algorithm, got {line.config.algorithm.name}.")
    from experiments.dryrun.explain import explain  # here: most runs need none of it

    options = replace(options, hooks=(*options.hooks, explain))
  options = replace(options, hooks=(*options.hooks, schedule.draw))
  unread_keys.check_virtual("train", line.paths, [line.config.algorithm.name])
  train(Experiment.from_config(line.config), options)
  return 0
