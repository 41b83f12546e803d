"""Runs of the compiled runtime on the twins' problem, recorded after each call; for the tests of ddl.engine."""

from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from helpers.twins import INNER, build, close, defaults, flat_of, tree_of
from reference import collective as reference

from ddl.algorithms import COLLECTIVE
from ddl.api import Model
from ddl.engine.compiled_trainer import CompiledTrainer
from ddl.engine.execution import ExecutionConfig
from ddl.engine.workers import make_workers

WORKERS, STEPS = 8, 12
OUTER = {"outer_learning_rate": 0.7, "outer_momentum": 0.9}
HYPER = {  # dasgd: its message is in flight between two calls, where calls are shorter than 3 steps
  "local_sgd": {"period": 4},
  "post_local_sgd": {"period": 3, "start": 4},
  "hierarchical_sgd": {"group_size": 4, "period": 2, "outer_period": 6},
  "fedavg": {"period": 3, "share": 1.0},
  "scaffold": {"period": 3, "share": 1.0, "server_rate": 0.8},
  "adaptive_local_sgd": {"periods": ((0, 4), (4, 2), (7, 1))},
  "dasgd": {"period": 4, "delay": 3, "keep": 0.25},
  "diloco": {"period": 3, **OUTER},
  "streaming_diloco": {"period": 4, **OUTER, "fragments": 2, "delay": 3, "keep": 0.25},
  "cocod": {"period": 3},
  "overlap_local_sgd": {"period": 3, "pull": 0.6, "momentum": 0.7},
  "pipe_sgd": {"width": 3},
  "slowmo": {"period": 3, "slow_rate": 0.9, "slow_momentum": 0.5},
  "bmuf": {"period": 3, "block_learning_rate": 0.9, "block_momentum": 0.5, "nesterov": True},
  "eager_diloco": {"period": 3, **OUTER},
  "noloco": {"period": 2, "outer_learning_rate": 0.7, "outer_momentum": 0.5, "attraction": 0.7, "pairings": 3},
  "sma": {"alpha": 0.1, "momentum": 0.9, "period": 2},
  "d_psgd": {"graph": "one_peer_exponential"},
  "overlap_sgp": {"overlap": 2},
  "easgd": {"alpha": 0.1, "period": 3},
  "eamsgd": {"alpha": 0.1, "momentum": 0.9, "period": 3},
  "round_robin_easgd": {"alpha": 0.3},
}
HYPER |= {name: defaults(name, WORKERS) for name in COLLECTIVE if name not in HYPER}


class Record(NamedTuple):
  """The results of a run, in NumPy."""

  ends: list[int]  # the step after each call
  params: np.ndarray  # [calls, local workers, n]
  evaluate: np.ndarray  # [calls, n]
  distance: np.ndarray  # [calls]
  losses: np.ndarray  # [steps]


@cache
def model(workers: int = WORKERS, steps: int = STEPS) -> Model:
  """A model whose gradient for worker i at step t is the problem's, so that a misplaced batch shows."""
  x0, grad = reference.problem(workers, steps)

  def init(key: Any) -> Any:
    return tree_of(jnp.asarray(x0)), {}

  def loss(params: Any, extra: Any, batch: Any, key: Any) -> Any:
    flat = flat_of(params)
    slope = jax.lax.stop_gradient(grad(batch["worker"][0], batch["step"][0], flat))
    return jnp.sum(slope * flat), extra

  return Model(init, loss)


def feed(first: int, steps: int, workers: Any = range(WORKERS)) -> dict[str, np.ndarray]:
  """Batches [workers, steps, 1] that say whose they are."""
  numbers = np.arange(first, first + steps, dtype=np.int32)
  worker, step = np.meshgrid(np.array(workers, np.int32), numbers, indexing="ij")
  return {"worker": worker[..., None], "step": step[..., None]}


def make(
  name: str, devices: int, how: ExecutionConfig, *, inner: str = "momentum", model: Model | None = None, **hyper: Any
):
  """A CompiledTrainer of eight workers."""
  algorithm = build(name, INNER[inner][0], WORKERS, **(hyper or HYPER.get(name, {})))
  return CompiledTrainer(algorithm, model or globals()["model"](), make_workers(WORKERS, devices), how)


def record(trainer: CompiledTrainer, steps: int = STEPS, every: int = STEPS) -> Record:
  """Runs it from step 0 and keeps everything that lives in this process."""
  start, ends, rows, losses = trainer.start(jax.random.key(0)), [], [], []
  mine = partial(feed, workers=trainer.workers.local)
  for call, carry, loss in trainer.run(start, trainer.plan(0, steps, every), mine, jax.random.key(1)):
    consensus = jax.tree.map(lambda x: np.asarray(x.addressable_data(0)), trainer.consensus(carry))
    params = each(trainer, carry.params, trainer.replication.params)
    rows.append((flat_rows(params), flat_rows(consensus.params, 0), consensus.distance))
    losses.append(trainer.losses(call, loss))
    ends.append(call.end)
  return Record(ends, *map(np.stack, zip(*rows, strict=True)), np.concatenate(losses))


def equals_twin(trainer: CompiledTrainer, kept: Record, name: str, inner: str, **hyper: Any) -> None:
  """Asserts that each recorded figure is the twin's."""
  history = twin(name, inner, **hyper)
  at = np.array(kept.ends) - 1
  assert kept.ends[-1] == STEPS
  close(kept.params, history.params[at][:, trainer.workers.local])
  close(kept.evaluate, history.evaluate[at])
  apart = history.params[at] - history.params[at].mean(axis=1, keepdims=True)
  close(kept.distance, np.sqrt(np.mean(np.sum(apart**2, axis=-1), axis=-1)))
  close(kept.losses, slopes(name, inner, **hyper))


def each(trainer: CompiledTrainer, tree: Any, copies: Any) -> Any:
  """[copies, ...] -> [local workers, ...] in NumPy: a device's one copy counts for all of its workers."""

  def leaf(own: bool, x: jax.Array) -> np.ndarray:
    shards = sorted(x.addressable_shards, key=lambda shard: shard.index[0].start or 0)
    return np.repeat(np.concatenate([s.data for s in shards]), 1 if own else trainer.workers.virtual, axis=0)

  return jax.tree.map(leaf, copies, tree)


def flat_rows(tree: Any, lead: int = 1) -> np.ndarray:
  """Leaves [..., *shape] -> [..., n], in the order of `tree_of`."""
  return np.concatenate([np.reshape(x, (*x.shape[:lead], -1)) for x in jax.tree.leaves(tree)], axis=-1)


@cache
def twin(name: str, inner: str, steps: int = STEPS, **hyper: Any) -> reference.History:
  """The NumPy twin's history."""
  x0, grad = reference.problem(WORKERS, steps)
  return reference.TWINS[name](x0, grad, workers=WORKERS, steps=steps, inner=INNER[inner][1], **hyper)


@cache
def slopes(name: str, inner: str, steps: int = STEPS, **hyper: Any) -> np.ndarray:
  """[steps]: the twin's mean over the workers of g . x, which is the model's loss."""
  x0, grad = reference.problem(WORKERS, steps)
  history = twin(name, inner, steps, **hyper).params
  before = np.concatenate([np.broadcast_to(x0, (1, WORKERS, len(x0))), history[:-1]])
  return np.array([np.mean([grad(i, t, before[t, i]) @ before[t, i] for i in range(WORKERS)]) for t in range(steps)])
