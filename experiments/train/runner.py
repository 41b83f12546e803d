"""What runs an experiment's calls, how long its training takes, and a rehearsal."""

import time
from collections.abc import Iterator
from typing import Any, Protocol

import jax
import numpy as np
from tqdm import tqdm

from ddl.runtime.consensus import Consensus
from ddl.runtime.execution import ExecutionConfig
from ddl.runtime.hosts import is_main
from ddl.runtime.workers import Workers
from experiments.config.experiment import initial_key, training_key


class Runner(Protocol):
  """What `Trainer` and `Simulator` have in common: a run as a sequence of compiled calls."""

  workers: Workers
  execution: ExecutionConfig
  compile_seconds: float

  def start(self, key: jax.Array) -> Any: ...
  def shapes(self, carry: Any) -> Any: ...
  def consensus(self, carry: Any) -> Consensus: ...
  def plan(self, first: int, last: int, every: int) -> list[Any]: ...
  def run(self, carry: Any, calls: list[Any], feed: Any, key: jax.Array) -> Iterator[tuple[Any, Any, jax.Array]]: ...
  def losses(self, call: Any, losses: jax.Array) -> np.ndarray: ...
  def nbytes(self, call: Any) -> float: ...


class Clock:
  """Seconds of training: evaluation, saving and compilation do not count."""

  def __init__(self, trainer: Runner, seconds: float):
    """Starts stopped, at `seconds`."""
    self._trainer, self.seconds = trainer, seconds

  def go(self) -> None:
    """Starts."""
    self._since, self._compiled = time.perf_counter(), self._trainer.compile_seconds

  def stop(self) -> None:
    """Stops; call it once the devices are done."""
    self.seconds += time.perf_counter() - self._since - (self._trainer.compile_seconds - self._compiled)


def rehearse(components: Any, trainer: Runner, label: str) -> None:
  """Makes the first calls of a run and forgets them: the first time is slower, and seconds are to be compared."""
  experiment = components.experiment
  calls = trainer.plan(0, experiment.steps, experiment.eval_every)  # of the whole run, as that decides on the kinds
  calls = [call for call in calls if call.end <= 2 * experiment.eval_every]
  feed, key = components.training_feed(trainer.workers.local), training_key(experiment.seed)
  hidden = None if is_main() else True
  with tqdm(total=len(calls), disable=hidden, desc=f"{label}: compiling", leave=False) as bar:
    for _, carry, _ in trainer.run(trainer.start(initial_key(experiment.seed)), calls, feed, key):
      jax.block_until_ready(carry)
      bar.update()
