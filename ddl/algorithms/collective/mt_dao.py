"""MT-DAO."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from ddl.algorithms.collective.des_loc import des_loc
from ddl.api import Algorithm, Spec, Taxonomy, Tree
from ddl.ranges import Momentum, PositiveFloat, PositiveInt, UnitInterval, checked


class QuasiHyperbolicState(NamedTuple):
  count: jax.Array  # [] int32: steps
  mu: Tree  # u, the slow momentum
  nu: Tree  # v


@checked
def mt_dao(
  inner: optax.GradientTransformation,
  *,
  period: PositiveInt = 32,
  momentum_period: PositiveInt | None = None,
  variance_period: PositiveInt | None = None,
  b1: Momentum = 0.999,
  b2: Momentum = 0.999,
  weight: UnitInterval = 0.7,
  eps: PositiveFloat = 1e-8,
) -> Algorithm:
  """Average models and moments, and mix each gradient with a momentum that outlasts several rounds (MT-DAO).

  u_i <- b1 u_i + (1 - b1) g_i; v_i <- b2 v_i + (1 - b2) g_i^2;
  x_i <- x_i + inner([(1 - w) g_i + w u_i] / (sqrt(v_i) + eps)); means of x_i, u_i and v_i as in `des_loc`

  Iacob, Jovanovic, Safaryan et al. 2025, arXiv 2510.05361, with one slow momentum, the quasi-hyperbolic form. The usual
  momentum of Adam forgets the mean of the workers' moments within a round; a slow one remembers it, and the gradient's
  own share 1 - w keeps the optimizer responsive. u and v have Adam's bias correction, which the formula omits. With w =
  1 and plain SGD as `inner`, this is `des_loc` with Adam. Each average is an all-reduce of n bytes, the size of the
  model. The evaluated model is the mean of the models.

  Args:
    inner: optimizer that receives the direction, such as `optax.sgd`; if it has moments, they are averaged too.
    period: local steps per average of the models (K_x); 32 in the paper.
    momentum_period: local steps per average of the first moments (K_u); by default K_x, as in the paper.
    variance_period: local steps per average of the second moments (K_v); by default K_x, as in the paper.
    b1: decay of the slow momentum (beta_1).
    b2: decay of the second moment (beta_2).
    weight: weight of the slow momentum (w); 0.7 in the authors' code.
    eps: constant in the denominator.
  """

  def init(params: Tree) -> QuasiHyperbolicState:
    zeros = jax.tree.map(jnp.zeros_like, params)
    return QuasiHyperbolicState(jnp.zeros((), jnp.int32), zeros, zeros)

  def update(updates: Tree, state: Any, params: Tree | None = None) -> tuple[Tree, QuasiHyperbolicState]:
    mu = jax.tree.map(lambda u, g: b1 * u + (1 - b1) * g, state.mu, updates)  # u <- b1 u + (1 - b1) g
    nu = jax.tree.map(lambda v, g: b2 * v + (1 - b2) * g**2, state.nu, updates)  # v <- b2 v + (1 - b2) g^2
    steps = (state.count + 1).astype(jnp.result_type(float))

    def direction(g: jax.Array, u: jax.Array, v: jax.Array) -> jax.Array:
      u, v = (m / (1 - b**steps).astype(m.dtype) for m, b in ((u, b1), (v, b2)))  # bias correction
      return ((1 - weight) * g + weight * u) / (jnp.sqrt(v) + eps)  # [(1 - w) g + w u] / (sqrt(v) + eps)

    return jax.tree.map(direction, updates, mu, nu), QuasiHyperbolicState(state.count + 1, mu, nu)

  optimizer = optax.chain(optax.GradientTransformation(init, update), inner)
  return des_loc(
    optimizer, period=period, momentum_period=momentum_period or period, variance_period=variance_period or period
  )


SPEC = Spec(
  factory=mt_dao,
  title="MT-DAO",
  citation="Iacob et al. 2025, arXiv 2510.05361",
  taxonomy=Taxonomy("data", "decentralized", "synchronous", "all-reduce", "parameters"),
  symbols={
    "period": "K_x",
    "momentum_period": "K_u",
    "variance_period": "K_v",
    "b1": "beta_1",
    "b2": "beta_2",
    "weight": "w",
  },
)
