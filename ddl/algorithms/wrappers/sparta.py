"""SPARTA: after every step the workers average a small random share of their parameters.

Beton et al. 2025, SPARTA: sparse parameter averaging (exo labs; openreview stFPf3gzq1, no arXiv id). For k places J of
each array, which all workers draw from one seed after each step:
x_i at J <- (1/p) sum_j x_j at J;  all else stays.
A worker's optimizer is its own. Alone it is `sparta` of `independent`; the authors also put it below DiLoCo. Around an
algorithm whose workers agree after every step, as synchronous SGD's do, it sends for nothing. The authors' places are
drawn one by one and broadcast as a mask; here their number is fixed, and the seed takes the mask's place.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ddl.algorithms.draws import Draws, choose, draw, start
from ddl.api import Algorithm, Exchange, Hyper, Tree, Wrapper
from ddl.group import Group
from ddl.ranges import Share, checked


class SpartaState(NamedTuple):
  algorithm: Tree
  draws: Draws  # equal on all workers


@checked
def sparta(algorithm: Algorithm, *, share: Share) -> Algorithm:
  """x_i at J <- (1/p) sum_j x_j at J after every step, before the algorithm's own exchanges: k values, no places.

  Args:
    algorithm: any; its exchanges stay.
    share: of each array's values that are averaged, k = max(1, round(share n)); above 0, and 1 averages all.

  Returns:
    An `Algorithm` with one more exchange. Arrays of integers, and empty ones, are left alone.

  Raises:
    ValueError: if the share is not above 0 and at most 1.
  """

  def init(group: Group, params: Tree, key: Any) -> SpartaState:
    return SpartaState(algorithm.init(group, params, key), start(jax.random.fold_in(key, 2)))

  def local(group: Group, grads: Tree, state: SpartaState, params: Tree) -> tuple[Tree, SpartaState]:
    params, inner = algorithm.local(group, grads, state.algorithm, params)
    return params, state._replace(algorithm=inner)

  def send_share(group: Group, state: SpartaState, params: Tree) -> tuple[Tree, SpartaState]:
    key, draws = draw(state.draws)
    arrays = {i: x.reshape(-1) for i, x in enumerate(jax.tree.leaves(params)) if _averaged(x)}
    places = {i: choose(jax.random.fold_in(key, i), x.size, share) for i, x in arrays.items()}  # J
    values = group.mean({i: x[places[i]] for i, x in arrays.items()})  # (1/p) sum_j x_j at J
    return (values, places), state._replace(draws=draws)

  def put_share(group: Group, message: Tree, state: SpartaState, params: Tree) -> tuple[Tree, SpartaState]:
    del group
    (values, places), (arrays, structure) = message, jax.tree.flatten(params)
    for i, at in places.items():
      new = arrays[i].reshape(-1).at[at].set(values[i], unique_indices=True)  # x_i at J <- (1/p) sum_j x_j at J
      arrays[i] = new.reshape(arrays[i].shape)
    return structure.unflatten(arrays), state

  def passed_on(exchange: Exchange) -> Exchange:
    def launch(group: Group, state: SpartaState, params: Tree) -> tuple[Tree, SpartaState]:
      message, inner = exchange.launch(group, state.algorithm, params)
      return message, state._replace(algorithm=inner)

    def merge(group: Group, message: Tree, state: SpartaState, params: Tree) -> tuple[Tree, SpartaState]:
      params, inner = exchange.merge(group, message, state.algorithm, params)
      return params, state._replace(algorithm=inner)

    return exchange._replace(launch=launch, merge=merge)

  def evaluate(group: Group, state: SpartaState, params: Tree) -> Tree:
    return algorithm.evaluate(group, state.algorithm, params)

  exchanges = (Exchange(send_share, put_share), *map(passed_on, algorithm.exchanges))
  return Algorithm(init, local, exchanges, evaluate)


def _averaged(x: Any) -> bool:
  return x.size > 0 and jnp.issubdtype(x.dtype, jnp.floating)


SPEC = Wrapper(
  factory=sparta,
  title="SPARTA, sparse parameter averaging",
  citation="Beton et al. 2025, exo labs (openreview stFPf3gzq1)",
  hyper={"share": Hyper("k / n", 0.005, "share of each array's values that are averaged after a step")},
  payload="parameters",
)
