"""Runs of the compiled trainer on the references' problem, recorded after each call."""

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
HYPER = {  # dasgd: its message is in flight between two calls if calls are shorter than 3 steps
  "local_sgd": {"period": 4},
  "post_local_sgd": {"period": 3, "start": 4},
  "hierarchical_sgd": {"group_size": 4, "period": 2, "outer_period": 6},
  "fedavg": {"period": 3, "share": 1.0},
  "fedadam": {"period": 3, "share": 1.0, "server_rate": 0.3, "b1": 0.8, "b2": 0.9, "adaptivity": 0.01},
  "fedyogi": {"period": 3, "share": 1.0, "server_rate": 0.2, "b1": 0.8, "b2": 0.9, "adaptivity": 0.01},
  "fedadagrad": {"period": 3, "share": 1.0, "server_rate": 0.3, "b1": 0.6, "adaptivity": 0.01},
  "des_loc": {"period": 2, "momentum_period": 3, "variance_period": 4},
  "mt_dao": {
    "period": 2,
    "momentum_period": 3,
    "variance_period": 4,
    "b1": 0.95,
    "b2": 0.9,
    "weight": 0.6,
    "eps": 0.01,
  },
  "fedprox": {"proximal": 0.2, "period": 3, "share": 1.0, "local_steps": (3, 1, 2)},
  "fednova": {"period": 4, "share": 1.0, "local_steps": (1, 4, 2)},
  "scaffold": {"period": 3, "share": 1.0, "server_rate": 0.8},
  "adaptive_local_sgd": {"periods": ((0, 4), (4, 2), (7, 1))},
  "dasgd": {"period": 4, "delay": 3, "keep": 0.25},
  "diloco": {"period": 3, **OUTER},
  "streaming_diloco": {"period": 4, **OUTER, "fragments": 2, "delay": 3, "keep": 0.25},
  "edit": {
    "period": 2,
    **OUTER,
    "temperature": 0.7,
    "clip": 0.5,
    "threshold": 1.0,
    "detector_rate": 0.5,
    "detector_warmup": 2,
    "local_steps": (2, 1),
  },
  "cocod": {"period": 3},
  "one_bit_adam": {"freeze_step": 4, "b1": 0.9, "b2": 0.99, "eps": 1e-8},
  "sparseloco": {
    "period": 3,
    "kept": 2730,
    "decay": 0.9,
    "outer_learning_rate": 0.7,
    "quantize": True,
    "aggregate": "senders",
  },
  "overlap_local_sgd": {"period": 3, "pull": 0.6, "momentum": 0.7},
  "pipe_sgd": {"width": 3},
  "snoo": {"period": 3, **OUTER},
  "muloco": {"period": 3, **OUTER},
  "gpa": {"train_weight": 0.7, "average_weight": 0.8},
  "slowmo": {"period": 3, "slow_rate": 0.9, "slow_momentum": 0.5},
  "bmuf": {"period": 3, "block_learning_rate": 0.9, "block_momentum": 0.5, "nesterov": True},
  "eager_diloco": {"period": 3, **OUTER},
  "noloco": {"period": 2, "outer_learning_rate": 0.7, "outer_momentum": 0.5, "attraction": 0.7, "pairings": 3},
  "sma": {"alpha": 0.1, "momentum": 0.9, "period": 2},
  "d_psgd": {"graph": "one_peer_exponential"},
  "overlap_sgp": {"overlap": 2},
  "gradient_tracking": {"graph": "one_peer_exponential", "adapt_first": False},
  "exact_diffusion": {"graph": "one_peer_exponential", "consensus_rate": 0.6},
  "quasi_global_momentum": {"graph": "one_peer_exponential", "momentum": 0.8, "buffer_decay": 0.7, "nesterov": True},
  "choco_sgd": {"graph": "ring", "compressor": "topk", "share": 0.34, "consensus_rate": 0.3, "adapt_first": False},
  "relay_sgd": {"tree": "binary_tree"},
  "gossip_pga": {"graph": "one_peer_exponential", "period": 4},
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
  """Return a model with the problem's gradient of worker i at step t, so that a misplaced batch is detected."""
  x0, grad = reference.problem(workers, steps)

  def init(key: Any) -> Any:
    return tree_of(jnp.asarray(x0)), {}

  def loss(params: Any, extra: Any, batch: Any, key: Any) -> Any:
    flat = flat_of(params)
    slope = jax.lax.stop_gradient(grad(batch["worker"][0], batch["step"][0], flat))
    return jnp.sum(slope * flat), extra

  return Model(init, loss)


def make(
  name: str, devices: int, how: ExecutionConfig, *, inner: str = "momentum", model: Model | None = None, **hyper: Any
):
  """Return a CompiledTrainer of eight workers."""
  algorithm = build(name, INNER[inner][0], WORKERS, **(hyper or HYPER.get(name, {})))
  return CompiledTrainer(algorithm, model or globals()["model"](), make_workers(WORKERS, devices), how)


def feed(first: int, steps: int, workers: Any = range(WORKERS)) -> dict[str, np.ndarray]:
  """Return batches [workers, steps, 1] that contain their worker and step."""
  numbers = np.arange(first, first + steps, dtype=np.int32)
  worker, step = np.meshgrid(np.array(workers, np.int32), numbers, indexing="ij")
  return {"worker": worker[..., None], "step": step[..., None]}


def record(trainer: CompiledTrainer, steps: int = STEPS, every: int = STEPS, take: Any = feed) -> Record:
  """Run from step 0 on the batches of `take`, and record the results of this process's workers."""
  start, ends, rows, losses = trainer.start(jax.random.key(0)), [], [], []
  batches = partial(take, workers=trainer.workers.local)
  for call, carry, loss in trainer.run(start, trainer.plan(0, steps, every), batches, jax.random.key(1)):
    consensus = jax.tree.map(lambda x: np.asarray(x.addressable_data(0)), trainer.consensus(carry))
    params = each(trainer, carry.params, trainer.replication.params)
    rows.append((flat_rows(params), flat_rows(consensus.params, 0), consensus.distance))
    losses.append(trainer.losses(call, loss))
    ends.append(call.end)
  return Record(ends, *map(np.stack, zip(*rows, strict=True)), np.concatenate(losses))


def equals_twin(trainer: CompiledTrainer, result: Record, name: str, inner: str, **hyper: Any) -> None:
  """Assert that each recorded value equals that of the NumPy reference."""
  history = twin(name, inner, **hyper)
  at = np.array(result.ends) - 1
  assert result.ends[-1] == STEPS
  close(result.params, history.params[at][:, trainer.workers.local])
  close(result.evaluate, history.evaluate[at])
  deviations = history.params[at] - history.params[at].mean(axis=1, keepdims=True)
  close(result.distance, np.sqrt(np.mean(np.sum(deviations**2, axis=-1), axis=-1)))
  close(result.losses, slopes(name, inner, **hyper))


def each(trainer: CompiledTrainer, tree: Any, copies: Any) -> Any:
  """Return [local workers, ...] in NumPy from [copies, ...], repeating copies that workers share."""

  def leaf(per_worker: bool, x: jax.Array) -> np.ndarray:
    shards = sorted(x.addressable_shards, key=lambda shard: shard.index[0].start or 0)
    return np.repeat(np.concatenate([s.data for s in shards]), 1 if per_worker else trainer.workers.virtual, axis=0)

  return jax.tree.map(leaf, copies, tree)


def flat_rows(tree: Any, lead: int = 1) -> np.ndarray:
  """Concatenate leaves [..., *shape] to [..., n], in the order of `tree_of`."""
  return np.concatenate([np.reshape(x, (*x.shape[:lead], -1)) for x in jax.tree.leaves(tree)], axis=-1)


@cache
def twin(name: str, inner: str, steps: int = STEPS, **hyper: Any) -> reference.History:
  """Return the history of the NumPy reference."""
  x0, grad = reference.problem(WORKERS, steps)
  return reference.TWINS[name](x0, grad, workers=WORKERS, steps=steps, inner=INNER[inner][1], **hyper)


@cache
def slopes(name: str, inner: str, steps: int = STEPS, **hyper: Any) -> np.ndarray:
  """Return the model's losses in the reference, [steps]: the workers' mean of g . x."""
  x0, grad = reference.problem(WORKERS, steps)
  history = twin(name, inner, steps, **hyper).params
  before = np.concatenate([np.broadcast_to(x0, (1, WORKERS, len(x0))), history[:-1]])
  return np.array([np.mean([grad(i, t, before[t, i]) @ before[t, i] for i in range(WORKERS)]) for t in range(steps)])
