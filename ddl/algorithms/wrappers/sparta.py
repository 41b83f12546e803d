"""SPARTA, sparse parameter averaging."""

from typing import Any, NamedTuple

import jax

from ddl.algorithms.draws import Draws, choose, draw, start
from ddl.algorithms.wrappers.compressed import compressible, regrouped
from ddl.api import Algorithm, Exchange, Tree, Wrapper
from ddl.group import Group
from ddl.ranges import Share, checked


class SpartaState(NamedTuple):
  algorithm: Tree
  draws: Draws  # equal on all workers


@checked
def sparta(algorithm: Algorithm, *, share: Share = 0.005) -> Algorithm:
  """Average a small random share of the parameters after every step (SPARTA).

  x_i[J] <- (1/p) sum_j x_j[J] in every step, after the algorithm merges delayed messages and before its other exchanges

  Beton et al. 2025, exo labs (openreview stFPf3gzq1). J is k indices per array, which all workers draw from one seed;
  only values are sent. The authors draw each index independently and broadcast a mask; here the number of indices is
  fixed. SPARTA without another algorithm is `sparta` of `independent`; the authors also combine it with DiLoCo. It has
  no effect if the workers agree after every step, as in synchronous SGD. Integer and empty arrays are not averaged.

  Args:
    algorithm: any collective algorithm.
    share: share of each array's values to average, k = max(1, round(share n)); 1 averages all.
  """

  def init(group: Group, params: Tree, key: Any) -> SpartaState:
    return SpartaState(algorithm.init(group, params, key), start(jax.random.fold_in(key, 2)))

  def local(group: Group, grads: Tree, state: SpartaState, params: Tree) -> tuple[Tree, SpartaState]:
    params, inner = algorithm.local(group, grads, state.algorithm, params)
    return params, state._replace(algorithm=inner)

  def send_share(group: Group, state: SpartaState, params: Tree) -> tuple[Tree, SpartaState]:
    key, draws = draw(state.draws)
    arrays = {i: x.reshape(-1) for i, x in enumerate(jax.tree.leaves(params)) if compressible(x)}
    places = {i: choose(jax.random.fold_in(key, i), x.size, share) for i, x in arrays.items()}  # J
    values = group.mean({i: x[places[i]] for i, x in arrays.items()})  # (1/p) sum_j x_j at J
    return (values, places), state._replace(draws=draws)

  def put_share(group: Group, message: Tree, state: SpartaState, params: Tree) -> tuple[Tree, SpartaState]:
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
  return Algorithm(init, local, exchanges, evaluate, regrouped(algorithm), algorithm.takes_step)


SPEC = Wrapper(
  factory=sparta,
  title="SPARTA, sparse parameter averaging",
  citation="Beton et al. 2025, exo labs (openreview stFPf3gzq1)",
  symbols={"share": "k / n"},
  payload="parameters",
)
