"""signSGD with majority vote."""

from typing import Any

import jax
import jax.numpy as jnp

from ddl.algorithms.wrappers.compressed import CompressedState, compressed
from ddl.algorithms.wrappers.vectors import majority, of_vector
from ddl.api import Algorithm, Tree, Wrapper
from ddl.group import Group
from ddl.ranges import Momentum, checked, is_set


@checked
def sign(algorithm: Algorithm, *, momentum: Momentum = 0.0) -> Algorithm:
  """Send only the signs of the gradients and apply the majority's sign (signSGD with majority vote, Signum).

  mean(g) becomes sign(sum_i sign(v_i)), v_i <- beta v_i + (1 - beta) g_i

  Bernstein et al. 2018, arXiv 1802.04434 and 1810.05291. Worker j acts as the papers' server for slice j: it receives 1
  bit per value from each worker, counts the votes and sends 1 bit per value back. As in the authors' code, zeros count
  as +1, and a tie is +1. As the algorithm's optimizer, use SGD without momentum, with a learning rate as for Adam.

  Args:
    algorithm: a collective algorithm that averages only gradients, in its local step: a vote has no magnitude.
    momentum: momentum of each worker's vote (beta); 0 is signSGD, above 0 it is Signum.
  """
  moving = is_set(momentum)

  def start(vector: jax.Array, key: Any) -> Tree:
    return jnp.zeros_like(vector) if moving else ()

  def mean(group: Group, vector: jax.Array, memory: Tree) -> tuple[jax.Array, Tree]:
    v = momentum * memory + (1 - momentum) * vector if moving else vector  # v_i <- beta v_i + (1 - beta) g_i
    return majority(group, v), v if moving else memory  # sign(sum_i sign(v_i))

  # Means in exchanges, including those of models, are rejected below.
  voting = compressed(algorithm, of_vector("sign", start, mean, models=lambda size: True))

  def init(group: Group, params: Tree, key: Any) -> CompressedState:
    state = voting.init(group, params, key)
    if any(state.memory.launch) or any(state.memory.merge):
      raise ValueError(
        "sign.algorithm must average only gradients, and only in its local step (as sync_sgd does), got an algorithm "
        "that averages in its `exchanges`."
      )
    return state

  return voting._replace(init=init)


SPEC = Wrapper(
  factory=sign,
  title="signSGD with majority vote, Signum",
  citation="Bernstein et al. 2018, arXiv 1802.04434 and 1810.05291",
  symbols={"momentum": "beta"},
)
