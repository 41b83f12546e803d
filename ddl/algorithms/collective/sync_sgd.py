"""Synchronous SGD."""

import optax

from ddl.algorithms.collective.independent import independent
from ddl.api import Algorithm, Spec, Taxonomy, Tree, descend
from ddl.group import Group
from ddl.ranges import checked


@checked
def sync_sgd(inner: optax.GradientTransformation) -> Algorithm:
  """Apply the mean of all gradients at each step, which keeps all replicas equal (synchronous SGD).

  x <- x + inner((1/p) sum_i g_i)

  Das et al. 2016, arXiv 1602.06709. With equal batches this is SGD on a minibatch that is p times as large.

  Args:
    inner: optimizer, the same on all workers.
  """

  def local(group: Group, grads: Tree, state: optax.OptState, params: Tree) -> tuple[Tree, optax.OptState]:
    mean = group.mean(grads)  # g = (1/p) sum_i g_i
    return descend(inner, mean, state, params)  # x <- x - eta g

  def evaluate(group: Group, state: optax.OptState, params: Tree) -> Tree:
    return params

  return independent(inner)._replace(local=local, evaluate=evaluate)


SPEC = Spec(
  factory=sync_sgd,
  title="Synchronous SGD",
  citation="Das et al. 2016, arXiv 1602.06709",
  taxonomy=Taxonomy("data", "centralized", "synchronous", "all-reduce", "gradients"),
)
