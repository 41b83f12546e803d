"""Independent workers: no communication, the control of every comparison.

Local SGD without its averages; evaluation takes the mean of the models, as if they were averaged once, at the end
(Zinkevich et al. 2010). Algorithms whose workers step alone between their exchanges build on this file.
"""

from typing import Any

import optax

from ddl.api import Algorithm, Spec, Taxonomy, Tree, descend
from ddl.group import Group
from ddl.ranges import checked


@checked
def independent(inner: optax.GradientTransformation) -> Algorithm:
  """x_i <- x_i + inner(g_i), and nothing else.

  Args:
    inner: optimizer of each worker.

  Returns:
    An `Algorithm` that sends nothing; only `evaluate` communicates.
  """

  def init(group: Group, params: Tree, key: Any) -> optax.OptState:
    del group, key
    return inner.init(params)

  def local(group: Group, grads: Tree, state: optax.OptState, params: Tree) -> tuple[Tree, optax.OptState]:
    del group
    return descend(inner, grads, state, params)  # x_i <- x_i - eta g_i

  def evaluate(group: Group, state: optax.OptState, params: Tree) -> Tree:
    del state
    return group.mean(params)

  return Algorithm(init, local, (), evaluate)


SPEC = Spec(
  factory=independent,
  title="Independent workers (control)",
  citation="Zinkevich et al. 2010 (one average at the end)",
  taxonomy=Taxonomy("data", "decentralized", "asynchronous", "none", "nothing"),
  hyper={},
)
