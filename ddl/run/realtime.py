"""Server algorithms in real time: on threads of this process (`--runtime=threads`) or on Ray (`--runtime=ray`)."""

import bisect
import json
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ddl import memory
from ddl.api import ServerAlgorithm, Tree
from ddl.asynchronous.threads import Threads
from ddl.config.experiment import initial_key, training_key
from ddl.config.options import RunOptions
from ddl.engine import execution
from ddl.engine.consensus import Consensus, Progress
from ddl.engine.traffic import exchange_nbytes
from ddl.events.barriers import Quorum
from ddl.events.presence import Presence
from ddl.events.record import Events
from ddl.events.schedule import visits
from ddl.perf.units import counted
from ddl.run import metrics, replay, virtual_time
from ddl.run.build import Components, build, params_bytes
from ddl.run.folder import METRICS, RunFolder
from ddl.run.metrics import FIGURES
from ddl.run.processes import say
from ddl.run.runner import Report, StopRequest


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
        f"config.barrier.name is {config.barrier.name}, which drops late messages: runtime=simulator alone can"
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


class ThreadsRun(RealTimeRun):
  """A thread per worker; keeps no checkpoints."""

  def __init__(self, components: Components):
    """Raises ValueError for too many threads, or a barrier that does not go with them."""
    super().__init__(components)
    config = components.experiment
    execution.check_threads(config.workers, f"config.workers={config.workers}: workers of runtime=threads")
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


class RayRun(RealTimeRun):
  """Actors of Ray; the shards of its master save themselves."""

  def __init__(self, components: Components, options: RunOptions):
    """Raises ValueError for a barrier that does not go with Ray, or a model too small for so many shards."""
    from ddl.asynchronous.ray_transport import cut

    super().__init__(components)
    self._options, self._cluster = options, None
    self.layout: dict[str, Any] = {"shards": options.shards}
    sizes = [x.size for x in jax.tree.leaves(jax.eval_shape(components.model.init, initial_key(0))[0])]
    cut(sum(sizes), options.shards)

  def open(self, folders: Sequence[RunFolder], resume: bool) -> Sequence[dict[str, Any]] | None:
    """See `Runner`. ValueError if Ray is missing, too small or out of reach."""
    from ddl.asynchronous.ray_cluster import RayCluster

    folder, config, options = folders[0], self.components.experiment, self._options

    def make(worker: int) -> tuple[Any, Any]:
      del worker
      own = build(config)
      return own.model, take_batches(own)

    self._cluster = RayCluster(
      self.algorithm, make, workers=config.workers, folder=folder.checkpoints, resume=resume, seed=config.seed,
      barrier=self.barrier, shards=options.shards, address=options.ray_address or None, cpus=options.worker_cpus,
      gpus=options.worker_gpus, checkpoint_every=options.checkpoint_every * config.workers // self.algorithm.period,
    )  # fmt: skip
    self._init(folder)
    found = covered(folder, self._cluster.label or 0) if resume else None
    return [found] if found else None

  def run(
    self, figures: Sequence[dict[str, Any]], report: Callable[[Report], object], asked: StopRequest
  ) -> int | None:
    """See `Runner`. ValueError if a shard dies."""
    assert self._cluster
    self._begin(figures[0], report, None)

    def watch(snapshot: Any) -> None:
      params, extra = jax.tree.map(jnp.asarray, (snapshot.params, snapshot.extra))
      losses = np.concatenate([np.zeros(0, np.float32), *snapshot.losses])
      self._add(snapshot.progress, losses, lambda: Consensus(params, extra, None), report)

    stop_when(asked, self._cluster.stop)
    say(f"starting {counted(self.components.experiment.workers, 'worker')}, each of which loads the model and compiles")
    return self._end(self._cluster.run(*self.model, self.total, watch, [count for count, _ in self.due]))

  def kept(self) -> str:
    """See `Runner`."""
    visit = self._cluster and self._cluster.newest()
    return "there was no checkpoint yet" if visit is None else f"the last good checkpoint, of visit {visit}, is kept"

  def close(self) -> None:
    """End Ray's processes."""
    if self._cluster:
      self._cluster.close()


def covered(folder: RunFolder, done: int) -> dict[str, Any] | None:
  """Figures of the last line of metrics that a checkpoint of so many visits covers; a line that a crash cut is none."""
  try:
    whole = (line for line in (folder.path / METRICS).read_text().splitlines(keepends=True) if line.endswith("\n"))
    lines = [line for line in map(json.loads, whole) if int(line["visits"]) <= done]
    if not lines:
      return None
    last = lines[-1]
    more = {"step": last["step"], "nbytes": last["bytes_sent"], "seconds": last["seconds"]}
    more["noise"] = reduce(metrics.recent, lines, FIGURES["noise"])
  except (ValueError, KeyError, TypeError, RecursionError) as error:
    raise ValueError(f"{folder.path / METRICS} is damaged ({error}); train again in another workdir") from error
  return FIGURES | more | {"lines": len(lines), "crc": None, "last": last}
