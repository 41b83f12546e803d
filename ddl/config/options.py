"""Options for executing a run, such as its folder, devices, checkpoints and runtime; no hyperparameters."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, NamedTuple, get_origin, get_type_hints

from ddl.errors import OptionError
from ddl.ranges import NonNegativeFloat, NonNegativeInt, PositiveInt, Range, check_fields

ALL = ("train", "compare", "sweep")  # the commands that take `RunOptions`
RUNS = ("train", "compare")
READ_BY = {  # runtime: options that only this runtime supports
  "ray": ("shards",),
  "simulator": ("members", "sharding", "virtual_grad", "step_loop", "steps_per_call", "overlap", "replay"),
}
ON_RAY = ("ray_address", "worker_cpus", "worker_gpus")  # options of workers or processes on Ray
SAVED = ("checkpoint_every", "max_restarts", "resume")  # options that require checkpoints


class Flag(NamedTuple):
  """The command-line flag of an option: its help, valid values, and the commands that take it."""

  help: str
  choices: Sequence[str] = ()  # valid values; (): any value of the type
  commands: Sequence[str] = ALL  # commands with this flag


@dataclass(frozen=True)
class RunOptions:
  """Execution options. Most are flags of `python run.py train`, whose --help explains them."""

  workdir: Annotated[str, Flag("output folder; default: runs/<command>-<name>-<time>")] = ""
  resume: Annotated[bool, Flag("resume the run, comparison or sweep in --workdir")] = False
  allow_changed_inputs: Annotated[bool, Flag("resume although data or code files have changed")] = False
  trust_code: Annotated[bool, Flag("resume even if user-defined code is inside the folder or has no recorded hash")] = (
    False
  )
  devices: Annotated[NonNegativeInt, Flag("number of devices over all processes; 0: automatic")] = 0
  members: Annotated[PositiveInt, Flag("devices per worker, over which its model is sharded")] = 1
  sharding: Annotated[str, Flag("how a worker's model is sharded: fsdp, auto, or the model's rules such as tensor")] = (
    "fsdp"
  )
  processes: Annotated[PositiveInt, Flag("local processes, joined by jax.distributed")] = 1
  join_timeout: Annotated[float, Range(1, 1e6), Flag("seconds within which all processes must join")] = 60.0
  peer_timeout: Annotated[
    float, Range(3, 1e6), Flag("seconds without a heartbeat after which a process counts as lost")
  ] = 30.0
  max_restarts: Annotated[
    NonNegativeInt,
    Flag(
      "maximum restarts from the last checkpoint after a process fails; if elastic, maximum replacements of processes"
    ),
  ] = 0
  virtual_grad: Annotated[
    str,
    Flag(
      "how a device computes its workers' gradients: unrolled, vmapped or in a loop", ("auto", "unroll", "vmap", "map")
    ),
  ] = "auto"
  step_loop: Annotated[str, Flag("how a compiled call loops over its steps", ("auto", "unroll", "scan"))] = "auto"
  steps_per_call: Annotated[NonNegativeInt, Flag("maximum steps of a compiled call; 0: automatic")] = 0
  overlap: Annotated[bool, Flag("overlap delayed messages with the steps after their launch")] = True
  batch_stats: Annotated[
    str, Flag("batch-norm statistics for evaluation: the workers' mean, or re-estimated", ("mean", "reestimate"))
  ] = "mean"
  checkpoint_every: Annotated[
    NonNegativeInt,
    Flag("steps between checkpoints; 0: only when a run is interrupted and at the end of train", commands=RUNS),
  ] = 0
  runtime: Annotated[
    str, Flag("runtime of server algorithms: virtual time, threads or Ray", ("simulator", "threads", "ray"), ("train",))
  ] = "simulator"
  replay: Annotated[
    str, Flag("events.npz or presence.json of a run, to replay its schedule in virtual time", commands=("train",))
  ] = ""
  init_from: Annotated[
    str, Flag("initial parameters: the folder of a run with the same model, or a model.msgpack", commands=RUNS)
  ] = ""
  keep_best: Annotated[bool, Flag("save each run's model with the best test metric as best.msgpack", commands=RUNS)] = (
    False
  )
  keep_models: Annotated[
    bool, Flag("save the final model of each run, for ddl.load and --init_from", commands=("compare",))
  ] = False
  shards: Annotated[PositiveInt, Flag("Ray actors over which the server is sharded", commands=("train",))] = 1
  ray_address: Annotated[str, Flag("host:port of a Ray cluster; default: this machine", commands=("train",))] = ""
  worker_cpus: Annotated[NonNegativeFloat, Flag("CPUs per worker or process on Ray", commands=("train",))] = 1.0
  worker_gpus: Annotated[NonNegativeFloat, Flag("GPUs per worker or process on Ray", commands=("train",))] = 0.0
  compilation_cache: Annotated[
    str, Flag("compilation cache folder; auto: JAX_COMPILATION_CACHE_DIR or ~/.cache/ddl/jax; off: disabled")
  ] = "auto"
  hooks: Annotated[
    tuple[Callable[..., object] | str, ...],
    Flag("functions called after each evaluation, as FILE.py:NAME or MODULE:NAME", commands=RUNS),
  ] = ()
  print_table: bool = True  # print the table at the end of a comparison
  command: tuple[str, ...] = ()  # the command line, recorded in the folder
  recorded: Mapping[str, Any] = field(default_factory=dict)  # written to the folder, to resume the run

  def __post_init__(self) -> None:
    """Raise OptionError for a value out of range, or an option that the other options do not support."""
    check_fields(self, "")
    for name, flag in FLAGS.items():
      if flag.choices and (value := getattr(self, name)) not in flag.choices:
        raise OptionError(name, f"one of {', '.join(flag.choices)}", repr(value))
    for name in ("allow_changed_inputs", "trust_code"):
      if getattr(self, name) and not self.resume:
        raise OptionError(name, "False unless resume is set", True)
    changed = self.changed()
    for runtime, names in READ_BY.items():
      for name in names:
        if name in changed and self.runtime != runtime:
          advice = f"Only runtime={runtime} supports it."
          raise OptionError(name, f"unset with runtime={self.runtime}", changed[name], advice)
    for name in ON_RAY:
      if name in changed and self.runtime != "ray" and self.processes == 1:
        raise OptionError(name, f"unset with runtime={self.runtime} and processes=1", changed[name])
    if self.members == 1 and "sharding" in changed:
      raise OptionError(
        "sharding", "unset with members=1", self.sharding, "Sharding needs members > 1 (several devices per worker)."
      )
    for name in SAVED:
      if self.runtime == "threads" and name in changed:
        advice = "Only runtime=ray and runtime=simulator save checkpoints."
        raise OptionError(name, "unset with runtime=threads", changed[name], advice)

  def changed(self) -> dict[str, Any]:
    """Return the options that have a flag and whose value differs from the default."""
    values = {name: getattr(self, name) for name in FLAGS}
    return {name: value for name, value in values.items() if value != getattr(RunOptions, name)}


FLAGS: dict[str, Flag] = {  # options with a flag
  name: next(item for item in annotation.__metadata__ if isinstance(item, Flag))
  for name, annotation in get_type_hints(RunOptions, include_extras=True).items()
  if get_origin(annotation) is Annotated
}


def check_read(command: str, options: RunOptions) -> None:
  """Raise OptionError if an option is set that the command does not take."""
  for name, value in options.changed().items():
    if command not in FLAGS[name].commands:
      raise OptionError(name, f"unset for {command}", value)
