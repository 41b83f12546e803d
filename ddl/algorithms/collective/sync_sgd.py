"""Synchronous SGD: every worker applies the mean of all gradients, so all replicas stay equal.

Das et al. 2016, arXiv 1602.06709: no change of algorithm, only of where the minibatch lives.
"""

import optax

from ddl.algorithms.collective.independent import independent
from ddl.api import Algorithm, Spec, Taxonomy, Tree, descend
from ddl.group import Group
from ddl.ranges import checked


@checked
def sync_sgd(inner: optax.GradientTransformation) -> Algorithm:
  """Mean gradient at each step: x <- x + inner((1/p) sum_i g_i).

  With equal batches this is SGD on the global minibatch of p times the size.

  Args:
    inner: optimizer, the same on all workers.

  Returns:
    An `Algorithm` whose collective is in `local`.
  """

  def local(group: Group, grads: Tree, state: optax.OptState, params: Tree) -> tuple[Tree, optax.OptState]:
    mean = group.mean(grads)  # g = (1/p) sum_i g_i
    return descend(inner, mean, state, params)  # x <- x - eta g

  def evaluate(group: Group, state: optax.OptState, params: Tree) -> Tree:
    del group, state
    return params

  return independent(inner)._replace(local=local, evaluate=evaluate)


SPEC = Spec(
  factory=sync_sgd,
  title="Synchronous SGD",
  citation="Das et al. 2016, arXiv 1602.06709",
  taxonomy=Taxonomy("data", "centralized", "synchronous", "all-reduce", "gradients"),
  hyper={},
)
