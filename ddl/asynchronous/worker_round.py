"""A worker round of a server algorithm, from one visit to the next, as one pure function."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ddl.api import Model, ServerAlgorithm, Tree, at_step
from ddl.engine.local_step import make_local_step, over_steps

REST, FULL, DROPPED, RESTART = range(4)  # modes of a worker in a wave: no steps; a round; a dropped round; a restart


class Worker(NamedTuple):
  """The state of a worker between rounds."""

  params: Tree
  state: Tree
  extra: Tree  # the model's non-trained state


def first_step(delay: int, round_: Any, period: Any) -> Any:
  """Return the first step of the round before a worker's visit `round_` (from 0); negative if no round precedes it."""
  return (round_ - 1 if delay else round_) * period


def visit_step(delay: int, round_: Any, period: Any) -> np.ndarray:
  """Return `Visit.step`, the middle step of the round before each visit number `round_` (from 0): [...] int32.

  If no round precedes the visit, the step is 0. For an even period, successive visits alternate between the two middle
  steps.
  """
  round_ = np.asarray(round_) - (delay > 0)
  return np.maximum(round_ * period + (period - 1 + round_ % 2) // 2, 0).astype(np.int32)


def make_worker_round(
  algorithm: ServerAlgorithm, model: Model, steps: str, drops: bool, varies: bool
) -> Callable[..., tuple[Worker, jax.Array]]:
  """Return worker_round(mode, first, count, worker, reply, fresh, take) -> (worker, losses [period]).

  mode: [] int32, one of REST, FULL, DROPPED, RESTART; first: [] int32, the round's first step, as from `first_step`;
  count: [] int32, the number of steps in each of the worker's rounds; reply: the reply to the last visit; fresh: the
  parameters from which the worker restarts, None if no worker of the run restarts; take() returns the batches
  [period, batch, ...] and keys [period]. Losses of steps that did not run are 0. After a restart or a dropped
  round the worker's optimizer schedules continue at its next step.

  steps: how steps are compiled, "scan" or "unroll". drops: whether `mode` can be DROPPED; a dropped worker merges
  the last reply and computes no steps. varies: whether `count` can be less than `period`.
  """
  step, delay = make_local_step(model, algorithm.local), algorithm.delay

  def step_if(carry: Any, batch_key_and_condition: Any) -> tuple[Any, Any]:
    """Run the step if the condition holds; else return the carry and a loss of 0."""
    *batch_and_key, condition = batch_key_and_condition
    loss = jax.eval_shape(step, carry, batch_and_key)[1]
    nothing = jnp.zeros(loss.shape, loss.dtype)
    return lax.cond(condition, lambda: step(carry, batch_and_key), lambda: (carry, nothing))

  def run(worker: Worker, batches_and_keys: Any) -> tuple[Worker, list[jax.Array]]:
    if not len(batches_and_keys[1]):
      return worker, []
    one = step_if if varies else step
    carry, losses = over_steps(one, (worker.params, worker.state, worker.extra), batches_and_keys, steps)
    params, state, extra = carry
    return Worker(params, state, extra), [losses]

  def full(worker: Worker, reply: Tree, batches_and_keys: Any) -> tuple[Worker, jax.Array]:
    worker, before = run(worker, jax.tree.map(lambda x: x[:delay], batches_and_keys))
    params, state = algorithm.merge(reply, worker.state, worker.params)
    worker = worker._replace(params=params, state=state)
    worker, after = run(worker, jax.tree.map(lambda x: x[delay:], batches_and_keys))
    return worker, jnp.concatenate(before + after)

  def worker_round(
    mode: Any, first: Any, count: Any, worker: Worker, reply: Tree, fresh: Tree | None, take: Callable[[], Any]
  ) -> Any:
    def inputs() -> Any:
      return (*take(), jnp.arange(algorithm.period, dtype=count.dtype) < count) if varies else take()

    losses = jax.eval_shape(lambda: full(worker, reply, inputs())[1])
    nothing = jnp.zeros(losses.shape, losses.dtype)

    def restart() -> tuple[Worker, jax.Array]:
      state, _, first_reply = algorithm.init(fresh)
      restarted = worker._replace(params=fresh, state=at_step(state, first + count if delay else first))
      return (restarted, nothing) if delay else full(restarted, reply if algorithm.read else first_reply, inputs())

    def rest() -> tuple[Worker, jax.Array]:
      return worker, nothing

    def dropped() -> tuple[Worker, jax.Array]:
      params, state = algorithm.merge(reply, worker.state, worker.params)
      return worker._replace(params=params, state=at_step(state, first + count)), nothing

    branches = [rest, lambda: full(worker, reply, inputs()), dropped if drops else rest, restart]
    return lax.switch(mode, branches[: (3 if drops else 2) if fresh is None else 4])

  return worker_round
