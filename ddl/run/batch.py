"""The runs that one program trains: one, or several that differ in their seeds or numeric settings."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from ddl.config.experiment import initial_key, training_key
from ddl.data.stream import StreamFeed
from ddl.engine.consensus import Consensus, NotFinite, host_distance
from ddl.engine.injected import RunKey
from ddl.engine.trainer import Trainer
from ddl.hosts import exchange
from ddl.run.build import Components
from ddl.run.folder import RunFolder
from ddl.run.virtual_time import RunClock

NEW_RUN: dict[str, Any] = {  # the figures of a run before its first step; a checkpoint stores them
  "step": 0, "lines": 0, "crc": 0, "nbytes": 0.0, "seconds": 0.0, "loss_sum": 0.0, "loss_count": 0, "noise": [],
  "last": {},
}  # fmt: skip


class Diverged(ValueError):
  """A loss, a metric or a parameter of a run is no longer finite."""


class BatchRun(NamedTuple):
  """One run of a batch."""

  components: Components
  folder: RunFolder
  clock: RunClock
  resume: bool = False  # whether it continues from what is in its folder
  values: Mapping[str, float] = {}  # of traced settings


class Batch:
  """The state of runs that one trainer executes together.

  The compiled program has `width` lanes, one per run; an unused lane repeats the first run. The result of a run does
  not depend on the other runs, but its last bits may depend on its lane and the width.
  """

  def __init__(self, runs: Sequence[BatchRun], trainer: Trainer, lanes: Sequence[int] = (0,), width: int = 1):
    """lanes: of the runs; width: the number of lanes of the compiled program."""
    self.runs, self.trainer, self.lanes = runs, trainer, lanes
    self._in_lane = [lanes.index(lane) if lane in lanes else 0 for lane in range(width)]
    self.figures: list[dict[str, Any]] = [dict(NEW_RUN) for _ in runs]
    self.diverged: dict[int, Diverged] = {}
    self._streams: list[StreamFeed] = []
    self.checkpoint_note: Callable[[], str] = lambda: "there was no checkpoint yet"  # ends a divergence's message

  @property
  def experiment(self) -> Any:
    """The experiment of the first run, from which the others differ in their seeds and traced settings."""
    return self.runs[0].components.experiment

  @property
  def width(self) -> int:
    """The number of lanes of the compiled program."""
    return len(self._in_lane)

  @property
  def initial_key(self) -> jax.Array:
    """The key of the first run's initial parameters."""
    return initial_key(self.experiment.seed)

  @property
  def active(self) -> list[int]:
    """The runs that have not diverged."""
    return [run for run in range(len(self.runs)) if run not in self.diverged]

  def for_active(self, do: Callable[[int], object]) -> None:
    """Call a function of each active run; one that raises NotFinite has diverged. Raises NotFinite if none is left."""
    for run in self.active:
      try:
        do(run)
      except NotFinite as error:
        self.diverge(run, error)
        if not self.active:
          raise

  def diverge(self, run: int, error: NotFinite) -> None:
    """Mark a run as diverged."""
    experiment = self.runs[run].components.experiment
    self.diverged[run] = Diverged(
      f"{experiment.label} diverged: {error}; a config.optimizer.learning_rate below "
      f"{experiment.optimizer.learning_rate} may help; {self.checkpoint_note()}"
    )
    self.diverged[run].__cause__ = error

  def start(self) -> Any:
    """Return the carry before the first step."""
    keys = [initial_key(run.components.experiment.seed) for run in self.runs]
    pairs = zip(self.runs, keys, strict=True)
    return self.join([self.trainer.start(RunKey(key, run.values) if run.values else key) for run, key in pairs])

  def join(self, carries: Sequence[Any]) -> Any:
    """Return the carry of all lanes from those of the runs."""
    return self.trainer.join([carries[run] for run in self._in_lane])

  def carry_of(self, carry: Any, run: int) -> Any:
    """Return the carry of one run."""
    return self.trainer.part(carry, self.lanes[run])

  def key(self) -> jax.Array:
    """Return the training key, or those of all lanes."""
    keys = [training_key(run.components.experiment.seed) for run in self.runs]
    return keys[0] if self.width == 1 else jnp.stack([keys[run] for run in self._in_lane])

  def feed(self, streams: Sequence[tuple[int, dict[str, Any]]] = (), joined: bool = False) -> Any:
    """Return the batches of all lanes: [workers, steps, ...], or [workers, runs, steps, ...].

    streams: (step, states of the streams) of each run, from which to continue; joined: whether some workers are new.
    """
    feeds = [run.components.training_feed([*self.trainer.fed]) for run in self.runs]
    self._streams = [feed for feed in feeds if isinstance(feed, StreamFeed)]
    for stream, place in zip(self._streams, streams, strict=False):  # none at step 0
      stream.restore(*place, begin=joined)
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
    """Return the figures that a checkpoint stores with the carry; all processes call it together."""
    figures = dict(self.figures[run])
    if self._streams:
      texts = exchange(json.dumps(self.stream_states(run)))  # each process has those of its workers
      figures["streams"] = {worker: state for text in texts for worker, state in json.loads(text).items()}
    return figures

  def consensuses(self, step: int, carry: Any) -> list[Consensus]:
    """Return the consensus of each lane after a step; runs whose parameters are not finite have diverged."""
    models = self.trainer.consensuses(carry)

    def check(run: int) -> None:
      # The distance is finite only if all parameters are; the loss may be finite although some are not.
      distance = host_distance(models[self.lanes[run]])
      if distance is not None and not math.isfinite(distance):
        raise NotFinite(f"its parameters are not finite after step {step}")

    self.for_active(check)
    return models

  def close(self) -> None:
    """End the processes of streams, and the trainer's."""
    for stream in self._streams:
      stream.close()
    self._streams = []
    self.trainer.close()


@dataclass
class LoopStep:
  """The state of a batch after a call: what the hooks of the loop receive."""

  batch: Batch
  first: int  # the first step of the call
  step: int  # steps completed after the call: the mean over workers if they are asynchronous
  losses: np.ndarray  # [lanes, steps of the call]
  nbytes: float  # sent and received by a worker since step 0, on average
  seconds: float  # of training since step 0, per run: without compilation, evaluation and saving
  carry: Any = None  # None if the next call has already started
  stopping: bool = False  # this is the last step before a requested stop

  @cached_property
  def models(self) -> list[Consensus]:
    """The consensus of each lane, if the carry is known."""
    return self.batch.consensuses(self.step, self.carry)


class LoopHook(Protocol):
  """A function of the loop's state after each call; a subclass inherits methods that do nothing."""

  def due(self, first: int, step: int) -> bool:
    """Return whether the hook needs the carry after a call of the steps first..step-1; the loop then waits for it."""
    del first, step
    return False

  def __call__(self, state: LoopStep) -> None:
    """React to a call."""

  def finished(self, run: int) -> None:
    """React to the end of a run, when its folder is complete."""
