"""DES-LOC, and Local Adam as a special case."""

from typing import Any

import jax
import jax.numpy as jnp
import optax

from ddl.algorithms.collective.independent import independent
from ddl.algorithms.collective.local_sgd import local_sgd
from ddl.api import Algorithm, Exchange, Spec, Taxonomy, Tree
from ddl.group import Group
from ddl.ranges import PositiveInt, checked

FIRST = ("mu", "trace", "m1", "m2")  # fields of optax states that hold a first moment: Adam, Lion, SGD, AdEMAMix
SECOND = ("nu",)  # fields that hold a second moment: Adam, RMSProp


@checked
def des_loc(
  inner: optax.GradientTransformation,
  *,
  period: PositiveInt = 32,
  momentum_period: PositiveInt | None = None,
  variance_period: PositiveInt | None = None,
) -> Algorithm:
  """Average the models often, and the moments of the inner optimizer rarely (DES-LOC).

  x_i <- x_i + inner(g_i); after every K_x-th step x_i <- (1/p) sum_j x_j, after every K_u-th step
  u_i <- (1/p) sum_j u_j, after every K_v-th step v_i <- (1/p) sum_j v_j

  Iacob, Sani, Safaryan et al. 2025, arXiv 2505.22549. u and v are the first and the second moment of Adam; a moment
  that decays slowly differs little between the workers, so it can be averaged rarely. If the three periods are equal,
  this is Local Adam. If both periods of the moments are longer than the run, it is `local_sgd`. The moments are those
  that optax calls mu, trace, m1, m2 (first) and nu (second), wherever they are in the state; v is averaged as it is,
  not as sqrt(v). Counters are not averaged. If the optimizer has no moments, tracing the step raises ValueError. Models
  and moments are averaged before the next gradient is computed. A worker sends n bytes per average: n (1 / K_x + 1 /
  K_u + 1 / K_v) per step (times 2 (p - 1) / p for an all-reduce). With the default periods this is half of Local Adam's
  traffic. Where a worker's v is still 0 because the worker has not seen a feature, such as a rare token, the averaged u
  is divided by eps, and the model can diverge. If features are missing on a worker, use equal periods, a larger eps, or
  K_v <= K_u. The paper clips each entry of a gradient; use `optax.clip` in a chain for that. The paper's optional outer
  optimizer is omitted. The evaluated model is the mean of the models.

  Args:
    inner: optimizer of each worker with moments, such as `optax.adamw`.
    period: local steps per average of the models (K_x); 16 to 256 in the paper.
    momentum_period: local steps per average of the first moments (K_u); by default 3 K_x, as in the paper.
    variance_period: local steps per average of the second moments (K_v); by default 6 K_x, as in the paper.
  """

  def average(names: tuple[str, ...], steps: int) -> Exchange:
    def launch(group: Group, state: optax.OptState, params: Tree) -> tuple[Tree, optax.OptState]:
      if not moments(state, FIRST + SECOND):
        raise ValueError(
          f"des_loc.inner must have moments (fields {', '.join(FIRST + SECOND)} of its optax state), got an optimizer "
          "without them. Use SGD with momentum, Adam, or the algorithm local_sgd."
        )
      return group.mean(moments(state, names)), state  # (1/p) sum_j u_j

    def merge(group: Group, message: Tree, state: optax.OptState, params: Tree) -> tuple[Tree, optax.OptState]:
      return params, with_moments(state, names, message)  # u_i <- (1/p) sum_j u_j

    return Exchange(launch, merge, steps)

  models = local_sgd(inner, period=period).exchanges  # x_i <- (1/p) sum_j x_j
  first, second = average(FIRST, momentum_period or 3 * period), average(SECOND, variance_period or 6 * period)
  return independent(inner)._replace(exchanges=(*models, first, second))


def moments(state: optax.OptState, names: tuple[str, ...]) -> list[jax.Array]:
  """Return the floating-point arrays of an optax state that are in a field with one of these names, in order."""
  leaves = jax.tree_util.tree_leaves_with_path(state)
  return [x for path, x in leaves if _is_moment(path, x, names)]


def with_moments(state: optax.OptState, names: tuple[str, ...], values: list[jax.Array]) -> optax.OptState:
  """Return the state with the arrays that `moments` returns replaced by `values`."""
  remaining = iter(values)
  return jax.tree_util.tree_map_with_path(lambda path, x: next(remaining) if _is_moment(path, x, names) else x, state)


def _is_moment(path: tuple[Any, ...], x: jax.Array, names: tuple[str, ...]) -> bool:
  """Return whether a leaf is a floating-point array in a moment with one of these names.

  The outermost moment on the path counts, because parameters inside a moment may have such names too.
  """
  fields = [key.name for key in path if isinstance(key, jax.tree_util.GetAttrKey)]
  name = next((field for field in fields if field in FIRST + SECOND), None)
  return name in names and jnp.issubdtype(x.dtype, jnp.floating)


SPEC = Spec(
  factory=des_loc,
  title="DES-LOC",
  citation="Iacob et al. 2025, arXiv 2505.22549",
  taxonomy=Taxonomy("data", "decentralized", "synchronous", "all-reduce", "parameters"),
  symbols={"period": "K_x", "momentum_period": "K_u", "variance_period": "K_v"},
)
