"""A batch of runs that one program trains together; they differ in seeds or numeric settings."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from ddl.api import Tree
from ddl.config.experiment import initial_key, training_key
from ddl.data.stream import StreamFeed
from ddl.engine.consensus import Consensus, NotFinite, host_distance
from ddl.engine.injected import RunKey
from ddl.engine.trainer import Trainer
from ddl.hosts import exchange
from ddl.run.build import Components
from ddl.run.folder import RunFolder
from ddl.run.virtual_time import RunClock

NEW_RUN: dict[str, Any] = {  # counters of a run before its first step; checkpoints store a run's counters
  "step": 0, "lines": 0, "crc": 0, "nbytes": 0.0, "seconds": 0.0, "loss_sum": 0.0, "loss_count": 0, "noise": [],
  "last": {},
}  # fmt: skip


NO_CHECKPOINT = "no checkpoint was saved"


class Diverged(ValueError):
  """Raised when a loss, metric or parameter of a run is not finite."""


class BatchRun(NamedTuple):
  """One run of a batch."""

  components: Components
  folder: RunFolder
  clock: RunClock
  resume: bool = False  # whether to continue the run in its folder
  values: Mapping[str, float] = {}  # values of this run for the settings that are arguments of the program


class Batch:
  """The state of the runs that one trainer executes together.

  The compiled program has `width` lanes, each of which computes one run; an unused lane repeats the first run. A run's
  result does not depend on the other runs, except that rounding may depend on the run's lane and on the width.
  """

  def __init__(self, runs: Sequence[BatchRun], trainer: Trainer, lanes: Sequence[int] = (0,), width: int = 1):
    """Create a batch. lanes: the lane of each run; width: the number of lanes of the compiled program."""
    self.runs, self.trainer, self.lanes = runs, trainer, lanes
    self._in_lane = [lanes.index(lane) if lane in lanes else 0 for lane in range(width)]
    self.figures: list[dict[str, Any]] = [dict(NEW_RUN) for _ in runs]
    self.averages: list[Tree] = []  # the averaged parameters of each lane, see `ddl.run.average`; [] if none
    self.diverged: dict[int, Diverged] = {}
    self.ending: set[int] = set()  # runs that a hook ends at this step, before their last step
    self.ended: set[int] = set()  # complete runs
    self._streams: list[StreamFeed] = []
    # Returns the last part of the error message of a diverged run.
    self.checkpoint_note: Callable[[], str] = lambda: NO_CHECKPOINT

  @property
  def experiment(self) -> Any:
    """The experiment of the first run; the other runs differ from it only in the seed and in traced settings."""
    return self.runs[0].components.experiment

  @property
  def width(self) -> int:
    """The number of lanes of the compiled program."""
    return len(self._in_lane)

  @property
  def initial_key(self) -> jax.Array:
    """The PRNG key of the first run's initial parameters."""
    return initial_key(self.experiment.seed)

  @property
  def active(self) -> list[int]:
    """The indices of the runs that have neither diverged nor ended."""
    return [run for run in range(len(self.runs)) if run not in self.diverged and run not in self.ended]

  def for_active(self, do: Callable[[int], object]) -> None:
    """Call `do` with each active run; if it raises NotFinite, mark the run as diverged; re-raise if no run is left."""
    for run in self.active:
      try:
        do(run)
      except NotFinite as error:
        self.diverge(run, error)
        if not self.active:
          raise

  def diverge(self, run: int, error: NotFinite) -> None:
    """Mark a run as diverged because of `error`."""
    experiment = self.runs[run].components.experiment
    rate = experiment.optimizer.get("learning_rate")  # None for an optax optimizer
    advice = f"config.optimizer.learning_rate below {rate}" if rate else "a lower learning rate"
    self.diverged[run] = Diverged(f"{experiment.label} diverged: {error}; try {advice}; {self.checkpoint_note()}")
    self.diverged[run].__cause__ = error

  def start(self) -> Any:
    """Return the initial carry of all lanes, the state that the first call of the program takes."""
    keys = [initial_key(run.components.experiment.seed) for run in self.runs]
    pairs = zip(self.runs, keys, strict=True)
    return self.join([self.trainer.start(RunKey(key, run.values) if run.values else key) for run, key in pairs])

  def join(self, carries: Sequence[Any]) -> Any:
    """Stack the carries of the runs into the carry of all lanes."""
    return self.trainer.join(self.by_lane(carries))

  def by_lane(self, values: Sequence[Any]) -> list[Any]:
    """Convert a list with a value for each run to a list with a value for each lane."""
    return [values[run] for run in self._in_lane]

  def carry_of(self, carry: Any, run: int) -> Any:
    """Return one run's part of the carry of all lanes."""
    return self.trainer.part(carry, self.lanes[run])

  def key(self) -> jax.Array:
    """Return the PRNG keys of training: an array of shape [] with one lane, else [lanes]."""
    keys = [training_key(run.components.experiment.seed) for run in self.runs]
    return keys[0] if self.width == 1 else jnp.stack([keys[run] for run in self._in_lane])

  def feed(self, streams: Sequence[tuple[int, dict[str, Any]]] = (), joined: bool = False) -> Any:
    """Return the function (a `Feed` or `RoundFeed`) that loads the training examples of all lanes.

    It returns arrays [workers, steps, ...] with one lane, else [workers, lanes, steps, ...].

    streams: each run's (step, stream states) to resume from; joined: whether workers without a saved stream state may
    join; they read their streams from the start.
    """
    feeds = [run.components.training_feed([*self.trainer.fed]) for run in self.runs]
    self._streams = [feed for feed in feeds if isinstance(feed, StreamFeed)]
    for stream, saved in zip(self._streams, streams, strict=False):  # `streams` is empty at step 0
      stream.restore(*saved, begin=joined)
    if self.width == 1:
      return feeds[0]

    def feed(first: int, steps: int) -> dict[str, np.ndarray]:
      batches = [of_run(first, steps) for of_run in feeds]
      return {name: np.stack([batches[run][name] for run in self._in_lane], axis=1) for name in batches[0]}

    return feed

  def stream_states(self, run: int) -> dict[str, Any]:
    """Return the positions of the streams of this process's workers; {} if the training set is not a stream."""
    return self._streams[run].states() if self._streams else {}

  def saved_figures(self, run: int) -> dict[str, Any]:
    """Return a run's counters to store in a checkpoint. Collective: all processes must call it."""
    figures = dict(self.figures[run])
    if self._streams:
      texts = exchange(json.dumps(self.stream_states(run)))  # each process has only its own workers' states
      figures["streams"] = {worker: state for text in texts for worker, state in json.loads(text).items()}
    return figures

  def consensuses(self, step: int, carry: Any) -> list[Consensus]:
    """Return each lane's consensus model after `step` steps; mark runs with non-finite parameters as diverged.

    Raises NotFinite if no run is left.
    """
    models = self.trainer.consensuses(carry)

    def check(run: int) -> None:
      # The distance is finite only if all parameters are; the loss may be finite even if some are not.
      distance = host_distance(models[self.lanes[run]])
      if distance is not None and not math.isfinite(distance):
        raise NotFinite(f"its parameters are not finite after step {step}")

    self.for_active(check)
    return models

  def close(self) -> None:
    """Stop the processes that the streams and the trainer have started."""
    for stream in self._streams:
      stream.close()
    self._streams = []
    self.trainer.close()


@dataclass
class LoopStep:
  """The argument of the loop's hooks: the state of a batch of runs after a call of the compiled program."""

  batch: Batch
  first: int  # the first step of the call
  step: int  # steps completed so far; for asynchronous workers, their mean
  losses: np.ndarray  # [lanes, steps of the call]
  nbytes: float  # mean bytes that a worker has sent since step 0, plus those that a server has sent to it
  seconds: float  # training time per run since step 0, excluding compilation, evaluation and saving
  carry: Any = None  # state of the trainer; None if the next call has already started and may have donated it
  stopping: bool = False  # whether this is the last call before a requested stop

  @cached_property
  def models(self) -> list[Consensus]:
    """The consensus model of each lane; available only if `carry` is not None."""
    return self.batch.consensuses(self.step, self.carry)


class LoopHook(Protocol):
  """A hook that the loop calls after each call of the compiled program; by default its methods do nothing."""

  def due(self, first: int, step: int) -> bool:
    """Return whether the hook needs the carry after the call of the steps first..step-1.

    If it does, the loop waits for the devices before it calls the hook. The result must depend only on the arguments,
    because all processes must agree.
    """
    del first, step
    return False

  def __call__(self, state: LoopStep) -> None:
    """Handle the state after a call of the compiled program."""

  def finished(self, run: int) -> None:
    """Handle the end of a run, once its folder is complete."""

  def close(self) -> None:
    """Release files and other resources at the end of the loop, even after an error."""
