"""`--runtime=threads`: a server algorithm in real time in one process."""

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from ddl.runtime import execution
from ddl.runtime.rounds.consensus import Consensus
from ddl.runtime.threads.worker_threads import Threads
from experiments.train.build import Components
from experiments.train.folder.run_dir import RunFolder
from experiments.train.runners.realtime import RealTimeRun, stop_when, take_batches
from experiments.train.runners.runner import Report, StopRequest


class ThreadsRun(RealTimeRun):
  """A thread per worker; keeps no checkpoints."""

  def __init__(self, components: Components):
    """Raises ValueError for too many threads, or a barrier that does not go with them."""
    super().__init__(components)
    config = components.experiment
    execution.check_threads(config.workers, f"config.workers={config.workers}: workers of --runtime=threads")
    self._threads = Threads(
      self.algorithm, components.model, workers=config.workers, seed=config.seed, barrier=self.barrier
    )
    self.layout: dict[str, Any] = {"devices": len({*self._threads.devices})}

  def open(self, folders: Sequence[RunFolder], resume: bool) -> None:
    """See `Runner`."""
    assert not resume
    self._init(folders[0])

  def run(
    self, figures: Sequence[dict[str, Any]], report: Callable[[Report], object], asked: StopRequest
  ) -> int | None:
    """See `Runner`."""
    self._begin(figures[0], report, jnp.zeros(()))

    def watch(_: int, losses: np.ndarray, snapshot: Callable[[], Consensus]) -> None:
      self._add(self._threads.progress(), losses, snapshot, report)

    stop_when(asked, self._threads.stop)
    events, _ = self._threads.run(*self.model, take_batches(self.components), self.total, watch)
    return self._end(events)

  def kept(self) -> str:
    """See `Runner`."""
    return "threads keep no checkpoints"

  def close(self) -> None:
    """Nothing to end."""
