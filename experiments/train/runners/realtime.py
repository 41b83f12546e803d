"""What `--runtime=threads` and `ray` share: a server algorithm in real time reports, and keeps what happened."""

import bisect
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from ddl import memory
from ddl.api import ServerAlgorithm, Tree
from ddl.events.barriers import Quorum
from ddl.events.presence import Presence
from ddl.events.record import Events
from ddl.events.schedule import visits
from ddl.runtime.rounds.consensus import Consensus, Progress
from ddl.runtime.traffic import exchange_nbytes
from experiments.config.experiment import initial_key, training_key
from experiments.train import virtual_time
from experiments.train.build import Components, params_bytes
from experiments.train.folder.run_dir import RunFolder
from experiments.train.runners import replay
from experiments.train.runners.runner import Report, StopRequest


class RealTimeRun:
  """Reports each time that the workers have made another `eval_every` steps on average."""

  lanes: Sequence[int] = (0,)
  presence: Presence | None = None

  def __init__(self, components: Components):
    """Raises ValueError for a barrier that drops messages."""
    config = components.experiment
    barrier = virtual_time.barrier_of(config)
    if isinstance(barrier, Quorum):
      raise ValueError(
        f"config.barrier.name is {config.barrier.name}, which drops late messages: --runtime=simulator alone can"
      )
    assert isinstance(components.algorithm, ServerAlgorithm)
    self.components, self.algorithm, self.barrier = components, components.algorithm, barrier
    self.total = self._visits(config.steps)
    self._nbytes = exchange_nbytes(self.algorithm, components.model) / config.workers
    self._losses = list[np.ndarray]()

  def _visits(self, step: int) -> int:
    return visits(self.algorithm, self.components.experiment.workers, step)

  def _init(self, folder: RunFolder) -> None:
    """Make the first model. ValueError where this process's memory cannot hold it, on CPUs one for each worker."""
    model, workers = self.components.model, self.components.experiment.workers
    here = workers if jax.default_backend() == "cpu" else 1
    size = params_bytes(model)
    memory.require(size * here, f"a model of {size / 1e6:,.1f} MB for {workers} workers")
    self.folder = folder.path
    self.model: tuple[Tree, Tree] = jax.jit(model.init)(initial_key(self.components.experiment.seed))

  def _begin(self, figures: dict[str, Any], report: Callable[[Report], object], distance: jax.Array | None) -> None:
    """Report the first line, of this distance; `due`: (visits, step) of those to come."""
    config, done = self.components.experiment, figures["last"].get("visits", -1)
    ends = [*range(0, config.steps, config.eval_every), config.steps]
    self.due = [(count, step) for count, step in ((self._visits(step), step) for step in ends) if count > done]
    if done < 0:
      params, extra = self.model
      start = Consensus(self.algorithm.evaluate(self.algorithm.init(params)[1]), extra, distance)
      self._add(Progress(0, 0, 0.0), np.zeros(0), lambda: start, report)

  def _add(
    self, progress: Progress, losses: np.ndarray, consensus: Callable[[], Consensus], report: Callable[[Report], object]
  ) -> None:
    """After a visit; losses: since the last one."""
    self._losses.append(losses)
    step = None
    while self.due and progress.visits >= self.due[0][0]:
      step = self.due.pop(0)[1]
    if step is not None:
      losses, self._losses = np.concatenate(self._losses), []
      nbytes = progress.exchanges * self._nbytes
      at = Report(step, losses[None], nbytes, progress.seconds, lambda: [consensus()], visits=progress.visits)
      report(at._replace(line=True))

  def _end(self, events: Events) -> int | None:
    """Keep the schedule; return the steps of an early stop."""
    replay.keep(self.folder, events)
    if len(events.worker) >= self.total:
      return None
    steps = range(1, self.components.experiment.steps + 1)
    return bisect.bisect_right(steps, len(events.worker), key=self._visits)


def stop_when(asked: StopRequest, stop: Callable[[], None]) -> None:
  """Call `stop` when the user asks, at once if that was before."""
  asked.then = stop
  if asked.number is not None:
    stop()


def take_batches(components: Components) -> Callable[[int, int], tuple[Any, Any]]:
  """Return the function (worker, step) -> its batch and key."""
  key = training_key(components.experiment.seed)

  def take(worker: int, step: int) -> tuple[Any, Any]:
    batch = jax.tree.map(lambda x: x[0, 0], components.feed([worker])(step, 1))
    return batch, jax.random.fold_in(jax.random.fold_in(key, worker), step)

  return take
