"""Execution of a run, as opposed to its experiment: results agree up to rounding whatever these options are."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Annotated, Any

from ddl.ranges import NonNegativeFloat, NonNegativeInt, PositiveInt, Range, check_fields

RAY = ("shards", "ray_address", "worker_cpus", "worker_gpus")  # read by that runtime alone
UNREAD = {  # command: options that it does not read
  "train": ("keep_models",),
  "compare": ("runtime", "replay"),
  "sweep": ("hooks", "runtime", "replay", "init_from", "checkpoint_every", "keep_models"),
}
SIMULATOR = ("members", "sharding", "virtual_grad", "step_loop", "steps_per_call", "overlap", "replay")


@dataclass(frozen=True)
class RunOptions:
  """Named as the flags of `python run.py train`, whose --help explains them."""

  workdir: str = ""  # "": a new folder under runs/
  resume: bool = False
  allow_changed_inputs: bool = False  # resume with other data or user-defined files than the folder records
  trust_code: bool = False  # import user-defined files that a run folder contains, or of which it has no hash
  devices: NonNegativeInt = 0  # 0: automatic
  members: PositiveInt = 1  # devices of a worker
  sharding: str = "fsdp"  # of a worker's parameters over its members, or a name of the model's own rules
  processes: PositiveInt = 1
  join_timeout: Annotated[float, Range(1, 1e6)] = 60.0  # seconds in which all of several processes have to come
  peer_timeout: Annotated[float, Range(3, 1e6)] = 30.0  # seconds of silence after which one of them is lost
  max_restarts: NonNegativeInt = 0  # of the processes, from the last checkpoint, after one was killed or lost
  virtual_grad: str = "auto"  # or "unroll", "vmap", "map": the gradients of a device's workers
  step_loop: str = "auto"  # or "unroll", "scan"
  steps_per_call: NonNegativeInt = 0  # 0: automatic
  overlap: bool = True
  batch_stats: str = "mean"  # or "reestimate"
  checkpoint_every: NonNegativeInt = 0  # steps; 0: only where a run stops or ends
  runtime: str = "simulator"  # or "threads", "ray": of server algorithms
  replay: str = ""  # file of a schedule
  init_from: str = ""  # a run's folder, or its model.msgpack
  keep_models: bool = False  # of a comparison
  shards: PositiveInt = 1
  ray_address: str = ""
  worker_cpus: NonNegativeFloat = 1.0
  worker_gpus: NonNegativeFloat = 0.0
  compilation_cache: str = "auto"  # a folder, or "off"
  hooks: tuple[Callable[..., object] | str, ...] = ()  # functions of a `StepInfo`, or their addresses
  print_table: bool = True  # that a comparison prints it at its end
  command: tuple[str, ...] = ()  # that is recorded as the one that made a run
  recorded: Mapping[str, Any] = field(default_factory=dict)  # what the command line needs to go on with the folder

  def __post_init__(self) -> None:
    """Raises ValueError for a number out of its range, or an option that the chosen runtime would not read."""
    check_fields(self, "--")
    for name in ("allow_changed_inputs", "trust_code"):
      if getattr(self, name) and not self.resume:
        raise ValueError(f"--{name} is read with --resume alone")
    changed = [each.name for each in fields(self) if each.init and getattr(self, each.name) != _default(each)]
    for runtime, names in (("ray", RAY), ("simulator", SIMULATOR)):
      foreign = [name for name in names if name in changed]
      if foreign and self.runtime != runtime:
        raise ValueError(f"--{foreign[0]} is read by --runtime={runtime} alone, not by {self.runtime}")
    if self.members == 1 and "sharding" in changed:
      raise ValueError(f"--sharding={self.sharding} is read with --members above 1 alone: the devices of a worker")
    if self.runtime == "threads" and self.checkpoint_every:
      raise ValueError("--checkpoint_every is not read by --runtime=threads, which saves no models")
    if self.runtime == "threads" and self.max_restarts:
      raise ValueError("--max_restarts is not read by --runtime=threads, which saves no models")
    if self.runtime == "threads" and self.resume:
      raise ValueError("--runtime=threads does not resume; --runtime=ray and --runtime=simulator do")


def check_read(command: str, options: RunOptions) -> None:
  """Raises ValueError for an option that the command does not read."""
  default = RunOptions()
  for name in UNREAD[command]:
    if getattr(options, name) != getattr(default, name):
      raise ValueError(f"{command} does not read --{name}={getattr(options, name)}")


def _default(each: Any) -> Any:
  return {} if each.name == "recorded" else each.default
