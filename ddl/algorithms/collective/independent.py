"""Independent workers: no communication, the control of every comparison.

Local SGD whose first average never comes; what is tested is the mean of the models, as if they were averaged once,
at the end (Zinkevich et al. 2010).
"""

from typing import NamedTuple

import optax

from ddl import collectives
from ddl.api import Algorithm, AxisName, Spec, Taxonomy, Tree, descend


class IndependentState(NamedTuple):
  inner: optax.OptState


def independent(inner: optax.GradientTransformation, *, axis_name: AxisName) -> Algorithm:
  """x_i <- x_i + inner(g_i), and nothing else.

  Args:
    inner: optimizer of each worker.
    axis_name: the workers' named axis, or a tuple of axes; only `evaluate` communicates.

  Returns:
    An `Algorithm` with period 1 that sends nothing.
  """

  def init(params: Tree) -> IndependentState:
    return IndependentState(inner.init(params))

  def local(grads: Tree, state: IndependentState, params: Tree) -> tuple[Tree, IndependentState]:
    params, inner_state = descend(inner, grads, state.inner, params)  # x_i <- x_i - eta g_i
    return params, IndependentState(inner_state)

  def evaluate(state: IndependentState, params: Tree) -> Tree:
    del state
    return collectives.pmean(params, axis_name)

  return Algorithm(init, local, None, None, evaluate)


SPEC = Spec(
  factory=independent,
  title="Independent workers (control)",
  citation="Zinkevich et al. 2010 (one average at the end)",
  taxonomy=Taxonomy("data", "decentralized", "asynchronous", "none", "nothing"),
  hyper={},
)
