"""NoLoCo."""

from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from ddl.api import MOST_EXCHANGES, Algorithm, Exchange, Spec, Taxonomy, Tree, inner_step
from ddl.group import Group
from ddl.ranges import STATIC, Momentum, OuterRate, PositiveFloat, PositiveInt, Range, check, checked, integers


class NoLoCoState(NamedTuple):
  inner: optax.OptState
  slow: Tree  # phi_i
  momentum: Tree  # delta_i
  outer: optax.OptState  # the count of outer steps, if the rate is a schedule


@checked
def noloco(
  inner: optax.GradientTransformation,
  *,
  period: PositiveInt = 50,
  outer_learning_rate: OuterRate = 0.7,
  outer_momentum: Annotated[Momentum, STATIC] = 0.5,  # determines the valid range of attraction
  attraction: PositiveFloat = 0.7,
  pairings: Annotated[int, integers(1, MOST_EXCHANGES)] = 8,
  workers: PositiveInt,
) -> Algorithm:
  """Replace DiLoCo's all-reduce by exchanges between random pairs of workers (NoLoCo).

  delta_i <- alpha delta_i + beta mean(theta - phi) + gamma (mean(phi) - phi_i); phi_i <- phi_i + delta_i

  Kolehmainen et al. 2025, arXiv 2506.10911. phi_i are the slow weights of worker i, theta_i its weights after H inner
  steps from phi_i; means are over the n = 2 workers of a pair. The term with gamma pulls a pair's slow weights together
  and requires sqrt(n / (2 (n - 1))) alpha < gamma < sqrt(n / (2 (n - 1))) (2 + alpha). The paper draws pairs in each
  round; here a fixed number of random pairings repeats, because they are part of the compiled program. With an odd
  number of workers, one of them has no partner in each pairing. With two workers this is DiLoCo with heavy ball
  momentum. The evaluated model is the mean of the phi_i.

  Args:
    inner: optimizer of each worker; its state stays local.
    period: local steps per exchange (H); 50 in the paper.
    outer_learning_rate: rate of the outer steps (beta), or an optax schedule of it; 0.7 in the paper.
    outer_momentum: momentum of the outer steps (alpha); 0.5 in the paper.
    attraction: strength of the pull between a pair's slow weights (gamma), in (alpha, 2 + alpha); 0.7 in the authors'
      code.
    pairings: number of random pairings of the workers before they repeat.
    workers: number of workers (p).
  """
  pull = Range(outer_momentum, 2 + outer_momentum, open_low=True, open_high=True)  # otherwise the slow weights diverge
  check(f"noloco.attraction with outer_momentum {outer_momentum:g}", attraction, pull)
  outer = optax.scale_by_learning_rate(outer_learning_rate, flip_sign=False)

  def init(group: Group, params: Tree, key: Any) -> NoLoCoState:
    return NoLoCoState(inner.init(params), params, jax.tree.map(jnp.zeros_like, params), outer.init(params))

  def exchange(k: int, sources: list[int]) -> Exchange:
    def launch(group: Group, state: NoLoCoState, params: Tree) -> tuple[tuple[Tree, Tree], NoLoCoState]:
      message = jax.tree.map(lambda x, phi: x - phi, params, state.slow), state.slow  # Delta_i, phi_i
      received = group.permute(message, sources)
      return jax.tree.map(lambda a, b: (a + b) / 2, message, received), state  # mean(Delta), mean(phi)

    return Exchange(launch, merge, period * pairings, offset=(k + 1 - pairings) * period)

  def merge(group: Group, message: tuple[Tree, Tree], state: NoLoCoState, params: Tree) -> tuple[Tree, NoLoCoState]:
    moved, middle = message
    moved, outer_state = outer.update(moved, state.outer)  # beta mean(Delta)
    momentum = jax.tree.map(  # delta_i <- alpha delta_i + beta mean(Delta) + gamma (mean(phi) - phi_i)
      lambda m, d, mean, phi: outer_momentum * m + d + attraction * (mean - phi),
      *(state.momentum, moved, middle, state.slow),
    )
    slow = jax.tree.map(lambda phi, m: phi + m, state.slow, momentum)  # phi_i <- phi_i + delta_i
    return slow, NoLoCoState(state.inner, slow, momentum, outer_state)  # theta_i <- phi_i

  def evaluate(group: Group, state: NoLoCoState, params: Tree) -> Tree:
    return group.mean(state.slow)

  return Algorithm(
    init, inner_step(inner), tuple(map(exchange, range(pairings), partners(workers, pairings))), evaluate
  )


def partners(workers: int, pairings: int) -> list[list[int]]:
  """Return random pairings, equal in all processes: the partner of each rank, or the rank itself if it has none."""
  generator, result = np.random.default_rng(0), []
  for _ in range(pairings):
    order = generator.permutation(workers).tolist()
    partner = list(range(workers))
    for i, j in zip(order[0::2], order[1::2], strict=False):
      partner[i], partner[j] = j, i
    result.append(partner)
  return result


SPEC = Spec(
  factory=noloco,
  title="NoLoCo",
  citation="Kolehmainen et al. 2025, arXiv 2506.10911",
  taxonomy=Taxonomy("data", "decentralized", "synchronous", "peer to peer", "parameters"),
  symbols={"period": "H", "outer_learning_rate": "beta", "outer_momentum": "alpha", "attraction": "gamma"},
)
