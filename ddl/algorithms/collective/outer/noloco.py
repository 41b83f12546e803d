"""NoLoCo: DiLoCo without an all-reduce; after each round every worker meets one other, drawn at random.

Kolehmainen et al. 2025, arXiv 2506.10911. phi_i are the slow weights of worker i, theta_i what tau inner steps made of
them. With Delta = theta - phi, and means over the n = 2 workers of a pair:
delta_i <- alpha delta_i + beta mean(Delta) + gamma (mean(phi) - phi_i),
phi_i <- phi_i + delta_i,  theta_i <- phi_i.
The last term draws the two slow weights to each other and keeps their mean. By the paper it needs
sqrt(n / (2 (n - 1))) alpha < gamma < sqrt(n / (2 (n - 1))) (2 + alpha): for pairs alpha < gamma < 2 + alpha.
The paper draws new pairs for each round; here a fixed number of drawn pairings take turns, since who sends to whom is
part of the compiled program. Of an odd number of workers one stays alone, with the mean of its own.
"""

from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from ddl.api import MOST_EXCHANGES, Algorithm, Exchange, Hyper, Spec, Taxonomy, Tree, descend
from ddl.group import Group
from ddl.ranges import Momentum, NonNegativeFloat, PositiveFloat, PositiveInt, Range, check, checked, integers


class NoLoCoState(NamedTuple):
  inner: optax.OptState
  slow: Tree  # phi_i
  momentum: Tree  # delta_i


@checked
def noloco(
  inner: optax.GradientTransformation,
  *,
  period: PositiveInt,
  outer_learning_rate: NonNegativeFloat,
  outer_momentum: Momentum,
  attraction: PositiveFloat,
  pairings: Annotated[int, integers(1, MOST_EXCHANGES)],
  workers: PositiveInt,
) -> Algorithm:
  """delta_i <- alpha delta_i + beta mean(theta - phi) + gamma (mean(phi) - phi_i); phi_i <- phi_i + delta_i.

  Two workers are DiLoCo with heavy ball momentum as its outer optimizer.

  Args:
    inner: optimizer of each worker; its state stays there.
    period: local steps per meeting (H).
    outer_learning_rate: beta.
    outer_momentum: alpha.
    attraction: gamma, in alpha..2 + alpha without its ends.
    pairings: drawn ones, which take turns.
    workers: number of workers p.

  Returns:
    An `Algorithm` whose workers send both their Delta and phi to one other after every H-th step, tested at the mean
    of the phi_i.

  Raises:
    ValueError: for an attraction outside of its bounds, or pairings outside of 1..MOST_EXCHANGES.
  """
  pull = Range(outer_momentum, 2 + outer_momentum, open_low=True, open_high=True)  # else the slow weights drift apart
  check(f"noloco.attraction with outer_momentum {outer_momentum:g}", attraction, pull)

  def init(group: Group, params: Tree, key: Any) -> NoLoCoState:
    del group, key
    return NoLoCoState(inner.init(params), params, jax.tree.map(jnp.zeros_like, params))

  def local(group: Group, grads: Tree, state: NoLoCoState, params: Tree) -> tuple[Tree, NoLoCoState]:
    del group
    params, inner_state = descend(inner, grads, state.inner, params)  # theta_i <- InnerOpt(theta_i, g_i)
    return params, state._replace(inner=inner_state)

  def exchange(k: int, sources: list[int]) -> Exchange:
    def launch(group: Group, state: NoLoCoState, params: Tree) -> tuple[tuple[Tree, Tree], NoLoCoState]:
      own = jax.tree.map(lambda x, phi: x - phi, params, state.slow), state.slow  # Delta_i, phi_i
      heard = group.permute(own, sources)
      return jax.tree.map(lambda a, b: (a + b) / 2, own, heard), state  # mean(Delta), mean(phi)

    return Exchange(launch, merge, period * pairings, offset=(k + 1 - pairings) * period)

  def merge(group: Group, message: tuple[Tree, Tree], state: NoLoCoState, params: Tree) -> tuple[Tree, NoLoCoState]:
    del group, params
    moved, middle = message
    momentum = jax.tree.map(  # delta_i <- alpha delta_i + beta mean(Delta) + gamma (mean(phi) - phi_i)
      lambda m, d, mean, phi: outer_momentum * m + outer_learning_rate * d + attraction * (mean - phi),
      *(state.momentum, moved, middle, state.slow),
    )
    slow = jax.tree.map(lambda phi, m: phi + m, state.slow, momentum)  # phi_i <- phi_i + delta_i
    return slow, NoLoCoState(state.inner, slow, momentum)  # theta_i <- phi_i

  def evaluate(group: Group, state: NoLoCoState, params: Tree) -> Tree:
    del params
    return group.mean(state.slow)

  return Algorithm(init, local, tuple(map(exchange, range(pairings), partners(workers, pairings))), evaluate)


def partners(workers: int, pairings: int) -> list[list[int]]:
  """The partner of each rank in each drawn pairing, the same in every process; alone: the rank itself."""
  generator, found = np.random.default_rng(0), []
  for _ in range(pairings):
    order = generator.permutation(workers).tolist()
    partner = list(range(workers))
    for i, j in zip(order[0::2], order[1::2], strict=False):
      partner[i], partner[j] = j, i
    found.append(partner)
  return found


SPEC = Spec(
  factory=noloco,
  title="NoLoCo",
  citation="Kolehmainen et al. 2025, arXiv 2506.10911",
  taxonomy=Taxonomy("data", "decentralized", "synchronous", "peer to peer", "parameters"),
  hyper={
    "period": Hyper("H", 50, "local steps per meeting; the authors' choice is 50"),
    "outer_learning_rate": Hyper("beta", 0.7, "rate of the outer steps; the authors' choice is 0.7"),
    "outer_momentum": Hyper("alpha", 0.5, "momentum of the outer steps; the authors' choice is 0.5"),
    "attraction": Hyper("gamma", 0.7, "pull of the slow weights of a pair at each other; 0.7 as in the authors' code"),
    "pairings": Hyper("-", 8, "pairings of the workers, drawn at random, that take turns"),
  },
)
