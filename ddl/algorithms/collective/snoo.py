"""SNOO."""

import jax
import optax

from ddl.algorithms.collective.diloco import DiLoCoState, diloco_with
from ddl.api import Algorithm, Spec, Taxonomy, Tree, descend
from ddl.group import Group
from ddl.ranges import Momentum, OuterRate, Period, checked


@checked
def snoo(
  inner: optax.GradientTransformation,
  *,
  period: Period = 30,
  outer_learning_rate: OuterRate = 0.7,
  outer_momentum: Momentum = 0.6,
) -> Algorithm:
  """Apply an outer Nesterov step to the change that synchronous SGD makes in K steps (SNOO).

  x <- x + inner((1/p) sum_i g_i); s = w - x, b <- mu b + s, w <- w - eta_out (s + mu b), x <- w, after every K-th step

  Kallusky, Rao, Nandavanam, Shi 2025, arXiv 2510.15830: the outer step of DiLoCo also helps a single worker. With p
  workers the inner steps use the mean gradient, so the outer step sends nothing, and the traffic is that of `sync_sgd`.
  With one worker this is `diloco`. Without outer momentum this is Lookahead (arXiv 1907.08610), and if the outer rate
  is also 1, synchronous SGD. With Muon as `inner`, this is MuLoCo with one worker (arXiv 2505.23725). The evaluated
  model is w, which changes only every K steps; as in `diloco`, evaluate at multiples of K.

  Args:
    inner: optimizer, the same on all workers; its state is not reset.
    period: steps per outer step (K), or a function of the round such as `ddl.qsr`; 30 as in MuLoCo.
    outer_learning_rate: rate of the outer steps (eta_out), or an optax schedule of it; 0.7 as in MuLoCo.
    outer_momentum: Nesterov momentum of the outer steps (mu); 0.6 as in MuLoCo with one worker; use 0.8 with AdamW.
  """
  diloco = diloco_with(inner, optax.sgd(outer_learning_rate, outer_momentum, nesterov=True), period=period)
  (exchange,) = diloco.exchanges

  def local(group: Group, grads: Tree, state: DiLoCoState, params: Tree) -> tuple[Tree, DiLoCoState]:
    params, inner_state = descend(inner, group.mean(grads), state.inner, params)  # x <- x - eta (1/p) sum_i g_i
    return params, state._replace(inner=inner_state)

  def launch(group: Group, state: DiLoCoState, params: Tree) -> tuple[Tree, DiLoCoState]:
    return jax.tree.map(lambda w, x: w - x, state.anchor, params), state  # s = w - x

  return diloco._replace(local=local, exchanges=(exchange._replace(launch=launch),))


SPEC = Spec(
  factory=snoo,
  title="SNOO (step-K Nesterov outer optimizer)",
  citation="Kallusky et al. 2025, arXiv 2510.15830",
  taxonomy=Taxonomy("data", "centralized", "synchronous", "all-reduce", "gradients"),
  symbols={"period": "K", "outer_learning_rate": "eta_out", "outer_momentum": "mu"},
)
