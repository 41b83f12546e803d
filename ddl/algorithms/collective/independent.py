"""Independent workers, whose local steps other algorithms reuse."""

from typing import Any

import optax

from ddl.api import Algorithm, Spec, Taxonomy, Tree, descend
from ddl.group import Group
from ddl.ranges import checked


@checked
def independent(inner: optax.GradientTransformation) -> Algorithm:
  """Train without communication, as a baseline.

  x_i <- x_i + inner(g_i)

  Zinkevich et al. 2010 average the models once, at the end. Here `evaluate` returns their mean without changing them.

  Args:
    inner: optimizer of each worker.
  """

  def init(group: Group, params: Tree, key: Any) -> optax.OptState:
    return inner.init(params)

  def local(group: Group, grads: Tree, state: optax.OptState, params: Tree) -> tuple[Tree, optax.OptState]:
    return descend(inner, grads, state, params)  # x_i <- x_i - eta g_i

  def evaluate(group: Group, state: optax.OptState, params: Tree) -> Tree:
    return group.mean(params)

  return Algorithm(init, local, (), evaluate)


SPEC = Spec(
  factory=independent,
  title="Independent workers (control)",
  citation="Zinkevich et al. 2010 (one average at the end)",
  taxonomy=Taxonomy("data", "decentralized", "asynchronous", "none", "nothing"),
)
