"""`--runtime=threads` and `ray`: a server algorithm for real, in real time, with the run folder of any other run."""

import json
import math
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ddl.api import ServerAlgorithm
from ddl.events import record
from ddl.runtime.trainer import Consensus
from ddl.runtime.wave_plan import visits
from experiments import timeline
from experiments.config import Experiment, initial_key, training_key
from experiments.evaluate import Evaluator
from experiments.folder import EVENTS, METRICS, RunFolder
from experiments.parts import Config


class Lines:
  """Writes a line of metrics each time that the workers have made another `eval_every` steps on average."""

  def __init__(self, experiment: Experiment, config: Config, folder: RunFolder, done: int = 0):
    """done: visits that an earlier run has made."""
    algorithm = experiment.algorithm
    assert isinstance(algorithm, ServerAlgorithm)
    self._experiment, self._config, self._folder = experiment, config, folder
    self._evaluate = Evaluator(experiment.model, experiment.data.test)
    ends = [*range(config.eval_every, config.steps, config.eval_every), config.steps]
    self._due = [(visits(algorithm, config.workers, step), step) for step in ends]
    self._due = [(count, step) for count, step in self._due if count > done]
    self._losses: list[np.ndarray] = []
    self._began, self.last = time.perf_counter(), dict[str, Any]()

  def __call__(self, done: int, losses: Any, snapshot: Any) -> None:
    """After a visit: notes its losses, and tests the snapshot where a line is due."""
    self._losses.append(np.asarray(losses, np.float64).ravel())
    step = None
    while self._due and done >= self._due[0][0]:
      step = self._due.pop(0)[1]
    if step is None:
      return
    consensus, config = snapshot(), self._config
    examples = step * config.workers * config.batch
    line = {"step": step, "examples": examples, "epoch": examples / self._experiment.data.train.size}
    seen = np.concatenate(self._losses)
    if seen.size:
      line["train_loss"] = float(seen.mean())
    line |= {f"test_{k}": v for k, v in self._evaluate(consensus).items()}
    if math.isfinite(distance := float(consensus.distance)):
      line["distance"] = distance  # Ray's workers keep their models to themselves
    line["visits"] = done
    line["seconds"] = round(time.perf_counter() - self._began, 6)
    self._losses, self.last = [], line
    self._folder.line(line)
    told = ", ".join(f"{k} {line[k]:.4g}" for k in ("train_loss", "test_loss", "test_accuracy") if k in line)
    print(f"step {step} of {config.steps}: {told}", flush=True)


def threads(experiment: Experiment, config: Config, folder: RunFolder, about: dict[str, Any]) -> dict[str, Any]:
  """A thread per worker; returns the last line.

  Raises:
    ValueError: if a loss is not finite, or the barrier does not go with threads.
  """
  from ddl.runtime.threads import Threads

  algorithm, key = experiment.algorithm, training_key(config.seed)
  assert isinstance(algorithm, ServerAlgorithm)
  feeds = [experiment.feed([worker]) for worker in range(config.workers)]

  def take(worker: int, step: int) -> tuple[Any, Any]:
    batch = jax.tree.map(lambda x: x[0, 0], feeds[worker](step, 1))
    return batch, jax.random.fold_in(jax.random.fold_in(key, worker), step)

  runner = Threads(
    algorithm, experiment.model, workers=config.workers, blocks=config.network.blocks if algorithm.lock_free else 0,
    seed=config.seed, barrier=timeline.barrier_of(config),
  )  # fmt: skip
  params, extra = jax.jit(experiment.model.init)(initial_key(config.seed))
  folder.create(experiment.resolved, about)
  lines = Lines(experiment, config, folder)
  events, _ = runner.run(params, extra, take, visits(algorithm, config.workers, config.steps), lines)
  return _finish(folder, events, lines)


def ray(
  experiment: Experiment, config: Config, folder: RunFolder, about: dict[str, Any], *, resume: bool, **cluster: Any
) -> dict[str, Any]:
  """Actors of Ray; cluster: shards, address, cpus, gpus, checkpoint_every. Returns the last line.

  Raises:
    ValueError: if Ray is missing or can't be reached, a shard dies, or something is not finite.
  """
  from ddl.runtime.ray_cluster import RayCluster

  algorithm, resolved = experiment.algorithm, config.to_dict()
  assert isinstance(algorithm, ServerAlgorithm)
  done = 0
  if resume:
    folder.reopen(experiment.resolved)
    written = (folder.path / METRICS).read_text().splitlines()
    done = max((json.loads(line)["visits"] for line in written), default=0)
  else:
    folder.create(experiment.resolved, about)

  def make(worker: int) -> tuple[Any, Any]:
    import ml_collections

    from experiments.config import build

    own = build(ml_collections.ConfigDict(resolved))
    feed, key = own.feed([worker]), training_key(resolved["seed"])

    def take(worker: int, step: int) -> tuple[Any, Any]:
      batch = jax.tree.map(lambda x: x[0, 0], feed(step, 1))
      return batch, jax.random.fold_in(jax.random.fold_in(key, worker), step)

    return own.model, take

  runner = RayCluster(
    algorithm, make, workers=config.workers, folder=folder.checkpoints, resume=resume, seed=config.seed, **cluster
  )
  params, extra = jax.jit(experiment.model.init)(initial_key(config.seed))
  lines = Lines(experiment, config, folder, done)
  total = visits(algorithm, config.workers, config.steps)
  every = max(visits(algorithm, config.workers, config.eval_every) // 4, 1)

  def watch(done: int, snapshot: Any, losses: Any) -> None:
    params, extra = jax.tree.map(jnp.asarray, (snapshot.params, snapshot.extra))
    lines(done, losses, lambda: Consensus(params, extra, jnp.asarray(jnp.nan)))

  try:
    events = runner.run(params, extra, total, watch, every)
  finally:
    runner.close()
  return _finish(folder, events, lines)


def _finish(folder: RunFolder, events: record.Events, lines: Lines) -> dict[str, Any]:
  record.save(folder.path / EVENTS, events)
  folder.finish(lines.last)
  return lines.last
