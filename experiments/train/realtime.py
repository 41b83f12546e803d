"""`--runtime=threads` and `ray`: a server algorithm for real, in real time, with the run folder of any other run."""

import json
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ddl import memory
from ddl.api import ServerAlgorithm
from ddl.events.barriers import Quorum
from ddl.events.record import Events
from ddl.events.schedule import visits
from ddl.runtime import execution
from ddl.runtime.consensus import Consensus, NotFinite, Progress
from ddl.runtime.threads.worker_threads import Threads
from ddl.runtime.traffic import exchange_nbytes
from experiments.config.experiment import initial_key, training_key
from experiments.config.options import RunOptions
from experiments.costs.cluster_clock import params_bytes
from experiments.train import replay, train_loop, virtual_time
from experiments.train.build import Components, build
from experiments.train.evaluate import Evaluator
from experiments.train.exit_codes import Stopped
from experiments.train.run_dir import METRICS, RunFolder
from experiments.train.signals import Asked


class Lines:
  """Writes a line of metrics each time that the workers have made another `eval_every` steps on average."""

  def __init__(self, components: Components, folder: RunFolder, done: int = -1):
    """done: visits of the last line that is there."""
    algorithm, config = components.algorithm, components.experiment
    assert isinstance(algorithm, ServerAlgorithm)
    self._components, self._config, self._folder = components, config, folder
    self._evaluate = Evaluator(components.model, components.data.test)
    self._nbytes = exchange_nbytes(algorithm, components.model) / config.workers
    ends = [*range(0, config.steps, config.eval_every), config.steps]
    self._due = [(visits(algorithm, config.workers, step), step) for step in ends]
    self._due = [(count, step) for count, step in self._due if count > done]
    self._losses, self.last = list[np.ndarray](), dict[str, Any]()

  @property
  def marks(self) -> list[int]:
    """The visits at which lines are due."""
    return [count for count, _ in self._due]

  def steps(self, done: int) -> int:
    """Steps that the workers have made on average after so many visits."""
    algorithm, workers = self._components.algorithm, self._config.workers
    assert isinstance(algorithm, ServerAlgorithm)
    return sum(visits(algorithm, workers, step) <= done for step in range(1, self._config.steps + 1))

  def __call__(self, progress: Progress, losses: Any, snapshot: Callable[[], Consensus]) -> None:
    """After a visit: notes its losses, and tests the snapshot where a line is due. ValueError if it diverged."""
    self._losses.append(np.asarray(losses, np.float64).ravel())
    step = None
    while self._due and progress.visits >= self._due[0][0]:
      step = self._due.pop(0)[1]
    if step is None:
      return
    consensus, config, seen = snapshot(), self._config, np.concatenate(self._losses)
    examples = step * config.workers * config.batch
    line = {"step": step, "examples": examples, "epoch": examples / self._components.data.train.size}
    if seen.size:
      line["train_loss"] = float(seen.mean())
    line |= {f"test_{k}": v for k, v in self._evaluate(consensus).items()}
    if not math.isnan(distance := float(consensus.distance)):
      line["distance"] = distance  # Ray's workers keep their models to themselves
    line["bytes_sent"] = progress.exchanges * self._nbytes
    line |= {"seconds": round(progress.seconds, 6), "visits": progress.visits}
    bad = [name for name, value in line.items() if not math.isfinite(value)]
    if bad:
      raise NotFinite(f"its {bad[0]} is {line[bad[0]]} after step {step}")
    self._losses, self.last = [], line
    self._folder.line(line)
    told = ", ".join(f"{k} {line[k]:.4g}" for k in ("train_loss", "test_loss", "test_accuracy") if k in line)
    print(f"step {step} of {config.steps}: {told}", flush=True)


def threads(components: Components, folder: RunFolder, _options: RunOptions, about: dict[str, Any]) -> dict[str, Any]:
  """A thread per worker; returns the last line.

  Raises:
    Diverged: if a loss is not finite; threads keep no checkpoint.
    Stopped: after SIGTERM or Ctrl-C; metrics and events are kept.
    ValueError: if the barrier does not go with threads.
  """
  algorithm, config, take = components.algorithm, components.experiment, _take(components)
  assert isinstance(algorithm, ServerAlgorithm)
  execution.check_threads(config.workers, f"config.workers={config.workers}: workers of --runtime=threads")
  runner = Threads(
    algorithm, components.model, workers=config.workers, seed=config.seed, barrier=virtual_time.barrier_of(config),
  )  # fmt: skip
  params, extra = _init(components)
  folder.create(config, about)
  lines, total = Lines(components, folder), visits(algorithm, config.workers, config.steps)

  def watch(_: int, losses: np.ndarray, snapshot: Callable[[], Consensus]) -> None:
    lines(runner.progress(), losses, snapshot)

  lines(Progress(0, 0, 0.0), (), lambda: _initial(algorithm, params, extra))
  with Asked(runner.stop) as asked:
    try:
      events, _ = runner.run(params, extra, take, total, watch)
    except NotFinite as error:
      raise train_loop.diverged(config, str(error), "threads keep no checkpoints") from error
    return _finish(components, folder, events, lines, total, asked)


def ray(components: Components, folder: RunFolder, options: RunOptions, about: dict[str, Any]) -> dict[str, Any]:
  """Actors of Ray; returns the last line.

  Raises:
    Diverged: if something is not finite; the last good checkpoint stays.
    Stopped: after SIGTERM or Ctrl-C; the run is saved.
    ValueError: if Ray is missing or can't be reached, a shard dies, or the barrier does not go with Ray.
  """
  from ddl.runtime.ray_ps.cluster import RayCluster
  from ddl.runtime.ray_ps.transport import cut

  algorithm, config, resume = components.algorithm, components.experiment, options.resume
  barrier = virtual_time.barrier_of(config)
  assert isinstance(algorithm, ServerAlgorithm)
  if isinstance(barrier, Quorum):
    raise ValueError("--runtime=ray can't drop a late message, as the barriers backup and cutoff do: use another one")
  if resume:
    folder.reopen(config)
  sizes = [x.size for x in jax.tree.leaves(jax.eval_shape(components.model.init, initial_key(0))[0])]
  cut(sum(sizes), options.shards)

  def make(worker: int) -> tuple[Any, Any]:
    del worker
    own = build(config)
    return own.model, _take(own)

  with Asked() as asked:
    runner = RayCluster(
      algorithm, make, workers=config.workers, folder=folder.checkpoints, resume=resume, seed=config.seed,
      barrier=barrier, shards=options.shards, address=options.ray_address or None, cpus=options.worker_cpus,
      gpus=options.worker_gpus, checkpoint_every=options.checkpoint_every * config.workers // algorithm.period,
    )  # fmt: skip
    asked.listen()
    try:
      asked.then = runner.stop
      params, extra = _init(components)
      if not resume:
        folder.create(config, about)
      lines = Lines(components, folder, _kept(folder, runner.label) if resume else -1)
      if not resume:
        lines(Progress(0, 0, 0.0), (), lambda: _initial(algorithm, params, extra, jnp.nan))
      total = visits(algorithm, config.workers, config.steps)

      def watch(snapshot: Any) -> None:
        params, extra = jax.tree.map(jnp.asarray, (snapshot.params, snapshot.extra))
        losses = np.concatenate([np.zeros(0, np.float32), *snapshot.losses])
        lines(snapshot.progress, losses, lambda: Consensus(params, extra, jnp.asarray(jnp.nan)))

      if asked.number is not None:
        runner.stop()
      print(f"starting {config.workers} workers, each of which loads the model and compiles", flush=True)
      events = runner.run(params, extra, total, watch, lines.marks)
      return _finish(components, folder, events, lines, total, asked)
    except NotFinite as error:
      kept = runner.newest()
      good = "there was no checkpoint yet" if kept is None else f"the last good checkpoint, of visit {kept}, is kept"
      raise train_loop.diverged(config, str(error), good) from error
    finally:
      runner.close()


def _init(components: Components) -> tuple[Any, Any]:
  """The first model. ValueError where this process's memory cannot hold it, on CPUs one for each worker."""
  workers = components.experiment.workers
  here = workers if jax.default_backend() == "cpu" else 1
  size = params_bytes(components.model) * here
  memory.require(size, f"a model of {size / here / 1e6:,.1f} MB for {workers} workers")
  return jax.jit(components.model.init)(initial_key(components.experiment.seed))


def _take(components: Components) -> Callable[[int, int], tuple[Any, Any]]:
  """(worker, step) -> its batch and key."""
  key = training_key(components.experiment.seed)

  def take(worker: int, step: int) -> tuple[Any, Any]:
    batch = jax.tree.map(lambda x: x[0, 0], components.feed([worker])(step, 1))
    return batch, jax.random.fold_in(jax.random.fold_in(key, worker), step)

  return take


def _initial(algorithm: ServerAlgorithm, params: Any, extra: Any, distance: float = 0.0) -> Consensus:
  return Consensus(algorithm.evaluate(algorithm.init(params)[1]), extra, jnp.asarray(distance))


def _kept(folder: RunFolder, visits: int | None) -> int:
  """Drops the lines that the checkpoint of so many visits does not know; returns the visits of the last that stays."""
  try:
    counts = [int(json.loads(line)["visits"]) for line in (folder.path / METRICS).read_text().splitlines()]
  except (ValueError, KeyError, TypeError, RecursionError) as error:
    raise ValueError(f"{folder.path / METRICS} is damaged ({error}); train anew in another --workdir") from error
  counts = [count for count in counts if count <= (visits or 0)]
  folder.truncate(len(counts))
  return max(counts, default=-1)


def _finish(
  components: Components, folder: RunFolder, events: Events, lines: Lines, total: int, asked: Asked
) -> dict[str, Any]:
  replay.keep(folder.path, events)
  replay.draw(folder.path, components, events, "time")
  if len(events.worker) < total:
    folder.close()
    raise Stopped(lines.steps(len(events.worker)), asked.number)
  folder.finish(lines.last)
  return lines.last
