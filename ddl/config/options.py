"""Options of a run's execution, as opposed to its experiment: results agree up to rounding whatever they are."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, NamedTuple, get_origin, get_type_hints

from ddl.errors import OptionError
from ddl.ranges import NonNegativeFloat, NonNegativeInt, PositiveInt, Range, check_fields

ALL = ("train", "compare", "sweep")  # the commands that take `RunOptions`
RUNS = ("train", "compare")
READ_BY = {  # runtime: options that no other one reads
  "ray": ("shards",),
  "simulator": ("members", "sharding", "virtual_grad", "step_loop", "steps_per_call", "overlap", "replay"),
}
ON_RAY = ("ray_address", "worker_cpus", "worker_gpus")  # options of workers, or processes, that Ray starts
SAVED = ("checkpoint_every", "max_restarts", "resume")  # options of a runtime that saves models


class Flag(NamedTuple):
  """What a flag of an option needs besides its name, type and default."""

  help: str
  choices: Sequence[str] = ()  # valid values, where they are few
  commands: Sequence[str] = ALL  # that read it


@dataclass(frozen=True)
class RunOptions:
  """Execution options. Most are flags of `python run.py train`, whose --help explains them."""

  workdir: Annotated[str, Flag("folder of what is written; default: runs/<what>-<time>")] = ""
  resume: Annotated[bool, Flag("continue what is in --workdir")] = False
  allow_changed_inputs: Annotated[bool, Flag("resume with other data or code files than the folder records")] = False
  trust_code: Annotated[bool, Flag("resume with user-defined code that lies in the folder, or has no hash there")] = (
    False
  )
  devices: Annotated[NonNegativeInt, Flag("devices over all processes that carry the workers; 0: automatic")] = 0
  members: Annotated[PositiveInt, Flag("devices of a worker, which hold its parameters in pieces")] = 1
  sharding: Annotated[str, Flag("how they do: fsdp, auto, or rules of the model such as tensor or hybrid")] = "fsdp"
  processes: Annotated[PositiveInt, Flag("local processes, joined by jax.distributed")] = 1
  join_timeout: Annotated[float, Range(1, 1e6), Flag("seconds in which all processes must join")] = 60.0
  peer_timeout: Annotated[float, Range(3, 1e6), Flag("seconds of silence after which a process is lost")] = 30.0
  max_restarts: Annotated[
    NonNegativeInt, Flag("restarts from the last checkpoint, or replacements, after a process has failed")
  ] = 0
  virtual_grad: Annotated[
    str, Flag("gradients of a device's workers: one copy each, batched, a loop", ("auto", "unroll", "vmap", "map"))
  ] = "auto"
  step_loop: Annotated[str, Flag("steps of a compiled call", ("auto", "unroll", "scan"))] = "auto"
  steps_per_call: Annotated[NonNegativeInt, Flag("longest compiled call, in steps; 0: automatic")] = 0
  overlap: Annotated[bool, Flag("off: the steps after a launch wait for its message")] = True
  batch_stats: Annotated[
    str, Flag("batch-norm statistics of the tested model: the workers' mean, or re-estimated", ("mean", "reestimate"))
  ] = "mean"
  checkpoint_every: Annotated[
    NonNegativeInt, Flag("steps between checkpoints; 0: only when a run stops, or train's ends", commands=RUNS)
  ] = 0
  runtime: Annotated[
    str, Flag("of server algorithms: virtual time, real threads, or Ray", ("simulator", "threads", "ray"), ("train",))
  ] = "simulator"
  replay: Annotated[
    str, Flag("events.npz of a run whose order this one repeats, in virtual time", commands=("train",))
  ] = ""
  init_from: Annotated[
    str, Flag("initial parameters: a run of the same model, or its model.msgpack", commands=RUNS)
  ] = ""
  keep_models: Annotated[
    bool, Flag("keep the final model of each run, for ddl.load and --init_from", commands=("compare",))
  ] = False
  shards: Annotated[PositiveInt, Flag("Ray actors that the master consists of", commands=("train",))] = 1
  ray_address: Annotated[str, Flag("host:port of a Ray cluster; default: this machine", commands=("train",))] = ""
  worker_cpus: Annotated[
    NonNegativeFloat, Flag("CPUs that each worker, or process, asks of Ray", commands=("train",))
  ] = 1.0
  worker_gpus: Annotated[
    NonNegativeFloat, Flag("GPUs that each worker, or process, asks of Ray", commands=("train",))
  ] = 0.0
  compilation_cache: Annotated[
    str, Flag("folder of compiled programs; auto: JAX_COMPILATION_CACHE_DIR, else ~/.cache/ddl/jax; off: none")
  ] = "auto"
  hooks: Annotated[
    tuple[Callable[..., object] | str, ...],
    Flag("functions called after each evaluation, as FILE.py:NAME or MODULE:NAME", commands=RUNS),
  ] = ()
  print_table: bool = True  # at the end of a comparison
  command: tuple[str, ...] = ()  # recorded as the command of a run
  recorded: Mapping[str, Any] = field(default_factory=dict)  # what a resume of the folder needs

  def __post_init__(self) -> None:
    """Raise OptionError for a value out of its range, or an option that the runtime does not read."""
    check_fields(self, "")
    for name, flag in FLAGS.items():
      if flag.choices and (value := getattr(self, name)) not in flag.choices:
        raise OptionError(name, f"one of {', '.join(flag.choices)}", repr(value))
    for name in ("allow_changed_inputs", "trust_code"):
      if getattr(self, name) and not self.resume:
        raise OptionError(name, "False without resume", True)
    changed = self.changed()
    for runtime, names in READ_BY.items():
      for name in names:
        if name in changed and self.runtime != runtime:
          advice = f"Only runtime={runtime} reads it."
          raise OptionError(name, f"left out with runtime={self.runtime}", changed[name], advice)
    for name in ON_RAY:
      if name in changed and self.runtime != "ray" and self.processes == 1:
        raise OptionError(name, f"left out with runtime={self.runtime} and processes=1", changed[name])
    if self.members == 1 and "sharding" in changed:
      raise OptionError("sharding", "left out with members=1, as it is over the devices of a worker", self.sharding)
    for name in SAVED:
      if self.runtime == "threads" and name in changed:
        advice = "Threads save no models, runtime=ray and runtime=simulator do."
        raise OptionError(name, "left out with runtime=threads", changed[name], advice)

  def changed(self) -> dict[str, Any]:
    """Return the options that are flags too and differ from their defaults."""
    values = {name: getattr(self, name) for name in FLAGS}
    return {name: value for name, value in values.items() if value != getattr(RunOptions, name)}


FLAGS: dict[str, Flag] = {  # of the options that are flags
  name: next(item for item in annotation.__metadata__ if isinstance(item, Flag))
  for name, annotation in get_type_hints(RunOptions, include_extras=True).items()
  if get_origin(annotation) is Annotated
}


def check_read(command: str, options: RunOptions) -> None:
  """Raise OptionError for an option that the command does not read."""
  for name, value in options.changed().items():
    if command not in FLAGS[name].commands:
      raise OptionError(name, "left out", value, f"{command} does not read it.")
