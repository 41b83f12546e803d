"""Trainers that run server algorithms in real time: on threads (`--runtime=threads`) or on Ray (`--runtime=ray`).

`RealTimeTrainer` implements `ddl.engine.trainer.Trainer` for both. Its carry is a `RunSnapshot`.
"""

import bisect
import itertools
import json
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from queue import SimpleQueue
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ddl import memory
from ddl.algorithms import SERVER
from ddl.api import ServerAlgorithm, Tree
from ddl.asynchronous.threads import Threads
from ddl.config.experiment import Experiment, training_key
from ddl.config.options import RunOptions
from ddl.engine import execution
from ddl.engine.consensus import Consensus, Progress
from ddl.engine.keys import step_key
from ddl.engine.traffic import exchange_nbytes
from ddl.engine.trainer import SingleRunTrainer
from ddl.errors import OptionError
from ddl.events.barriers import Quorum
from ddl.events.cluster import worker_periods
from ddl.events.record import Events
from ddl.events.schedule import visits
from ddl.names import pluralize
from ddl.run import metrics, replay, virtual_time
from ddl.run.batch import NEW_RUN, Batch
from ddl.run.build import Components, build, param_shapes, params_bytes
from ddl.run.checkpoints import Restored, Store, checkpoint_note
from ddl.run.folder import METRICS, RunFolder
from ddl.run.processes import say

IGNORED = ("slow", "straggler_rate", "death_rate")  # keys of config.times that real time ignores


def check(experiment: Experiment, runtime: str) -> None:
  """Raise OptionError for a collective algorithm or config.ema; warn about settings that real time ignores."""
  if not experiment.has_server:
    name, advice = experiment.algorithm.short_name, f"Server algorithms are {', '.join(SERVER)}."
    raise OptionError("runtime", f"simulator with the collective algorithm {name}", runtime, advice)
  if experiment.ema:
    raise OptionError("config.ema", f"0 with runtime={runtime}", experiment.ema)
  settings = [key for key in IGNORED if experiment.times.get(key)]
  if "slow" in settings and experiment.make_algorithm().periods:  # pyright: ignore[reportAttributeAccessIssue]
    settings.remove("slow")  # determines the workers' periods
  if ignored := ", ".join(f"config.times.{key}" for key in settings):
    warnings.warn(f"runtime={runtime} runs in real time and ignores {ignored} and config.network", stacklevel=3)


class RunSnapshot(NamedTuple):
  """The consensus model and the progress after a worker's visit to the server."""

  consensus: Consensus
  progress: Progress
  model: tuple[Tree, Tree] | None = None  # initial parameters and non-trained state; None after the first visit


class Interval(NamedTuple):
  """The steps first..end-1 between two evaluations, for which a real-time trainer runs without a pause."""

  first: int
  end: int
  visits: int  # from the start of the run to the end of the interval
  exchanges: int = 0  # visits in the interval that sent a message


class RealTimeTrainer(SingleRunTrainer, virtual_time.FixedClock):
  """Base class of real-time trainers, in which each worker loads its batches.

  An `Interval` ends once the workers have completed `end` steps on average.
  """

  compile_seconds = 0.0

  def __init__(self, components: Components, folder: RunFolder):
    """Create a trainer. Raises ValueError for a barrier that drops messages."""
    config = components.experiment
    barrier = virtual_time.barrier_of(config)
    if isinstance(barrier, Quorum):
      condition = "a barrier that drops no messages for a run in real time"
      raise OptionError("config.barrier.name", condition, config.barrier.short_name)
    self.components, self.barrier, self.folder, self.workers = components, barrier, folder, config.workers
    self.algorithm: ServerAlgorithm = components.algorithm  # pyright: ignore[reportAttributeAccessIssue]
    self.layout: dict[str, Any] = {}
    self.visits = 0  # number of visits until the last evaluation
    self._nbytes = exchange_nbytes(self.algorithm, components.model) / config.workers
    self._exchanges, self._seconds, self._stopping = 0, 0.0, False

  def start(self, key: jax.Array) -> RunSnapshot:
    """Initialize the model. Raises ValueError if it does not fit into memory (on CPUs, one copy per worker)."""
    model, copies = self.components.model, self.workers if jax.default_backend() == "cpu" else 1
    size = params_bytes(model)
    memory.require(size * copies, f"a model of {size / 1e6:,.1f} MB for {self.workers} workers")
    params, extra = jax.jit(model.init)(key)
    center = self.algorithm.evaluate(self.algorithm.init(params)[1])
    return RunSnapshot(Consensus(center, extra, self._first_distance()), Progress(0, 0, 0.0), (params, extra))

  def plan(self, first: int, last: int, every: int) -> list[Interval]:
    """Return the intervals between evaluations; of intervals that end at the same visit, return only the last."""
    del first
    ends = [*range(0, last, every), last]
    by_visits = {self._visits_of(b): Interval(a, b, self._visits_of(b)) for a, b in itertools.pairwise(ends)}
    return list(by_visits.values())

  def run(
    self, carry: RunSnapshot, calls: Sequence[Interval], feed: Any, key: jax.Array
  ) -> Iterator[tuple[Interval, RunSnapshot | None, np.ndarray]]:
    """Run the workers from a thread that pauses during evaluations; see `Trainer.run`.

    If the run is stopped early, its last interval ends at the last visit and is yielded with the carry None.
    """
    del feed, key
    queue, resume, x64 = SimpleQueue[Any](), threading.Semaphore(0), jnp.result_type(float) == jnp.float64
    left, losses, item, interrupted = list(calls), list[np.ndarray](), None, False
    ended, abandoned = threading.Event(), threading.Event()  # the loop has ended; it ended with an error

    def watch(progress: Progress, more: np.ndarray, consensus: Callable[[], Consensus]) -> None:
      losses.append(more)
      call = None
      while left and progress.visits >= left[0].visits:
        call = left.pop(0)
      if call is not None:
        queue.put((call, RunSnapshot(consensus(), progress), np.concatenate(losses)))
        losses.clear()
        if not ended.is_set():
          resume.acquire()
        if abandoned.is_set():
          raise _Abandoned

    def execute() -> None:
      try:
        with jax.enable_x64(x64):
          queue.put(self._run(carry.model, [call.visits for call in calls], watch))
      except BaseException as error:
        queue.put(error)

    thread = threading.Thread(target=execute, daemon=True)
    thread.start()
    try:
      while not isinstance(item := queue.get(), Events | BaseException):
        call, snapshot, values = item
        new = snapshot.progress.exchanges - self._exchanges
        self.visits, self._exchanges, self._seconds = snapshot.progress
        yield call._replace(exchanges=new), snapshot, values
        resume.release()
    except KeyboardInterrupt:  # the second Ctrl-C: exit without waiting for the workers
      interrupted = True
      raise
    finally:
      ended.set()
      if interrupted or not self._stopping:
        abandoned.set()
      resume.release()
      self.stop()
      while not interrupted and not isinstance(item, Events | BaseException):
        item = queue.get()
      if isinstance(item, Events):
        replay.save(self.folder.path, item)
    if isinstance(item, BaseException):
      raise item
    if left and isinstance(item, Events):  # stopped early
      steps = range(1, self.components.experiment.steps + 1)
      done = -(-int(item.period.sum()) // self.algorithm.period)  # see `visits_until`
      end = bisect.bisect_right(steps, done, key=self._visits_of)
      yield Interval(left[0].first, end, len(item.worker)), None, np.zeros(0)

  def losses(self, call: Interval, losses: np.ndarray) -> np.ndarray:
    """Return the losses of the worker steps in an interval, in an array with one axis."""
    del call
    return losses

  def nbytes(self, call: Interval) -> float:
    """Return the mean bytes that a worker sends and receives in an interval."""
    return call.exchanges * self._nbytes

  def seconds(self, carry: RunSnapshot | None) -> float:
    """Return the seconds from the start of the first worker round to the last evaluation."""
    del carry
    return self._seconds

  def resume_after(self, figures: dict[str, Any]) -> None:
    """Continue to count exchanges from the counters of a resumed run."""
    self._exchanges = round(figures["nbytes"] / self._nbytes) if self._nbytes else 0

  def consensus(self, carry: RunSnapshot) -> Consensus:
    """Return the consensus model."""
    return carry.consensus

  def _unsupported(self, *_: Any) -> Any:
    """Raise NotImplementedError: on Ray, the server shards save the checkpoints; threads save none."""
    raise NotImplementedError

  saved = saved_shapes = restored = _unsupported

  def describe(self) -> str:
    """Describe the workers in one line."""
    return pluralize(self.workers, "worker")

  def columns(self, step: int) -> dict[str, float]:
    """Return the number of visits so far."""
    del step
    return {"visits": self.visits}

  def _step_times(self) -> tuple[float, ...]:
    """Return the workers' mean step times if the algorithm's periods depend on step times, else ()."""
    return virtual_time.step_times(self.components.experiment).means if self.algorithm.periods else ()

  def _visits_of(self, step: int) -> int:
    return visits(self.algorithm, self.workers, step)

  def _first_distance(self) -> jax.Array | None:
    """Return the workers' initial distance from their mean; None if the runtime does not measure it."""
    return None

  def _run(self, model: Any, marks: Sequence[int], watch: Callable[..., None]) -> Events:
    """Run until the last of `marks` (the numbers of visits at which intervals end); return the schedule.

    watch: a callback (progress, losses since the last call of `watch`, function that returns the consensus model).
    """
    raise NotImplementedError


class _Abandoned(Exception):
  """Raised in the thread that runs the workers, to end it after the loop has ended with an error."""


def take_batches(components: Components) -> Callable[[int, int], tuple[Any, Any]]:
  """Return a function (worker, step) -> (batch, PRNG key) that loads a batch: arrays [examples, ...]."""
  key = training_key(components.experiment.seed)

  def take(worker: int, step: int) -> tuple[Any, Any]:
    batch = jax.tree.map(lambda x: x[0, 0], components.feed([worker])(step, 1))
    return batch, step_key(key, worker, step)

  return take


class ThreadsTrainer(RealTimeTrainer):
  """A trainer that runs each worker in a thread and saves no checkpoints."""

  def __init__(self, components: Components, folder: RunFolder):
    """Create the trainer. Raises ValueError for too many workers or an unsupported barrier."""
    super().__init__(components, folder)
    config = components.experiment
    execution.check_threads("config.workers with runtime=threads", config.workers)
    how: Any = {"workers": config.workers, "seed": config.seed, "step_times": self._step_times()}
    self._threads = Threads(self.algorithm, components.model, barrier=self.barrier, **how)
    self.layout = {"devices": len({*self._threads.devices})}

  def describe(self) -> str:
    """Describe the workers in one line."""
    return f"{super().describe()} on threads"

  def stop(self) -> None:
    """Stop the run once the workers have completed their current exchanges with the server (visits)."""
    self._stopping = True
    self._threads.stop()

  def _first_distance(self) -> jax.Array:
    return jnp.zeros(())

  def _run(self, model: Any, marks: Sequence[int], watch: Callable[..., None]) -> Events:
    def visited(_: int, losses: np.ndarray, snapshot: Callable[[], Consensus]) -> None:
      watch(self._threads.progress(), losses, snapshot)

    return self._threads.run(model[0], model[1], take_batches(self.components), marks[-1], visited)[0]


class RayTrainer(RealTimeTrainer):
  """A trainer that runs workers and server shards as Ray actors; the shards save checkpoints."""

  def __init__(self, components: Components, folder: RunFolder, options: RunOptions):
    """Create a trainer. Raises ValueError for an unsupported barrier or too many shards for the model."""
    from ddl.asynchronous.ray_transport import cut

    super().__init__(components, folder)
    periods = worker_periods(self.algorithm, self._step_times())
    if any(period != self.algorithm.period for period in periods):
      raise OptionError("runtime", "simulator or threads for workers with different periods", "ray")
    self._options, self.cluster = options, None
    self.layout = {"shards": options.shards}
    shapes = param_shapes(components.model)
    cut(sum(x.size for x in jax.tree.leaves(shapes)), options.shards)

  def connect(self, resume: bool) -> Any:
    """Start or join Ray and return the cluster.

    Raises ValueError if Ray is missing, or its cluster is too small or unreachable.
    """
    from ddl.asynchronous.ray_cluster import RayCluster

    config, options = self.components.experiment, self._options
    say("starting Ray and its processes")

    def make(worker: int) -> tuple[Any, Any]:
      del worker
      components = build(config)
      return components.model, take_batches(components)

    self.cluster = RayCluster(
      self.algorithm, make, workers=config.workers, folder=self.folder.checkpoints, resume=resume, seed=config.seed,
      barrier=self.barrier, shards=options.shards, address=options.ray_address or None, cpus=options.worker_cpus,
      gpus=options.worker_gpus, checkpoint_every=options.checkpoint_every * config.workers // self.algorithm.period,
    )  # fmt: skip
    return self.cluster

  def describe(self) -> str:
    """Describe the workers in one line."""
    return f"{super().describe()} on ray"

  def stop(self) -> None:
    """Save a checkpoint and stop the run."""
    self._stopping = True
    if self.cluster:
      self.cluster.stop()

  def close(self) -> None:
    """Stop Ray's processes."""
    if self.cluster:
      self.cluster.close()

  def _run(self, model: Any, marks: Sequence[int], watch: Callable[..., None]) -> Events:
    def show(snapshot: Any) -> None:
      params, extra = jax.tree.map(jnp.asarray, (snapshot.params, snapshot.extra))
      losses = np.concatenate([np.zeros(0, np.float32), *snapshot.losses])
      watch(snapshot.progress, losses, lambda: Consensus(params, extra, None))

    assert self.cluster
    say(f"starting {super().describe()}; each one loads the model and compiles")
    return self.cluster.run(model[0], model[1], marks[-1], show, marks)


class NoStore(Store):
  """A store that saves nothing, for runs on threads."""

  def restore(self, batch: Batch, resume: bool) -> Restored | None:
    """Return None, because a run on threads always starts at step 0."""
    assert not resume
    batch.checkpoint_note = lambda: "threads save no checkpoints"
    return None


class RayStore(NoStore):
  """The store of a run on Ray, where the server shards save the checkpoints."""

  def restore(self, batch: Batch, resume: bool) -> Restored | None:
    """Start Ray; return the counters at the shards' newest checkpoint, or None to start at step 0.

    The carry of the result is an initial one: the shards restore the parameters themselves.
    """
    trainer: Any = batch.trainer
    cluster = trainer.connect(resume)
    batch.checkpoint_note = lambda: checkpoint_note("visit", cluster.newest())
    figures = covered(batch.runs[0].folder, cluster.label or 0) if resume else None
    if figures is None:
      return None
    trainer.resume_after(figures)
    return Restored(batch.start(), [figures])


def covered(folder: RunFolder, visits: int) -> dict[str, Any] | None:
  """Return a run's counters after its last line of metrics with at most `visits` visits; None without such a line.

  An incomplete last line is ignored. Raises ValueError for damaged metrics.
  """
  try:
    complete = (line for line in (folder.path / METRICS).read_text().splitlines(keepends=True) if line.endswith("\n"))
    lines = [line for line in map(json.loads, complete) if int(line["visits"]) <= visits]
    if not lines:
      return None
    last = lines[-1]
    more = {"step": last["step"], "nbytes": last["bytes_sent"], "seconds": last["seconds"]}
    more["noise"] = reduce(metrics.recent, lines, NEW_RUN["noise"])
  except (ValueError, KeyError, TypeError, RecursionError) as error:
    raise ValueError(f"{folder.path / METRICS} is damaged ({error}); train again in another workdir") from error
  return NEW_RUN | more | {"lines": len(lines), "crc": None, "last": last}
