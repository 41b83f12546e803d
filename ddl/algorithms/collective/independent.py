"""Independent workers: no communication, the control of every comparison.

Local SGD whose first average never comes; what is tested is the mean of the models, as if they were averaged once,
at the end (Zinkevich et al. 2010).
"""

from typing import Any, NamedTuple

import optax

from ddl.api import Algorithm, Spec, Taxonomy, Tree, descend
from ddl.group import Group


class IndependentState(NamedTuple):
  inner: optax.OptState


def independent(inner: optax.GradientTransformation) -> Algorithm:
  """x_i <- x_i + inner(g_i), and nothing else.

  Args:
    inner: optimizer of each worker.

  Returns:
    An `Algorithm` that sends nothing; only `evaluate` communicates.
  """

  def init(group: Group, params: Tree, key: Any) -> IndependentState:
    del group, key
    return IndependentState(inner.init(params))

  def local(group: Group, grads: Tree, state: IndependentState, params: Tree) -> tuple[Tree, IndependentState]:
    del group
    params, inner_state = descend(inner, grads, state.inner, params)  # x_i <- x_i - eta g_i
    return params, IndependentState(inner_state)

  def evaluate(group: Group, state: IndependentState, params: Tree) -> Tree:
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
