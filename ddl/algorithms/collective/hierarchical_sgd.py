"""Hierarchical local SGD: averages within groups of workers every tau steps, over all workers less often.

Lin, Stich, Patel, Jaggi 2018, arXiv 1808.07217, section 5; Castiglia, Das, Patterson 2020, arXiv 2007.13819. Groups are
the workers of one node, g consecutive ranks. Every worker takes steps x_i <- x_i - eta g_i(x_i);
after every tau-th step    x_i <- (1/g) sum_{j in group of i} x_j;
after every tau_o-th step  x_i <- (1/p) sum_j x_j, after the mean of the group where both are due.
The papers' tau_o is a multiple of tau. One group is then local SGD with tau, groups of one worker local SGD with tau_o.
The mean of a group is a ring of its own, a reduce-scatter and an all-gather in 2 (g - 1) messages of 1/g of the
parameters, as many bytes as any all-reduce of g workers has to send.
"""

import jax
import jax.numpy as jnp
import optax

from ddl.algorithms.collective.local_sgd import local_sgd
from ddl.api import Algorithm, Exchange, Hyper, Spec, Taxonomy, Tree
from ddl.group import Group
from ddl.ranges import PositiveInt, checked


@checked
def hierarchical_sgd(
  inner: optax.GradientTransformation,
  *,
  group_size: PositiveInt,
  period: PositiveInt,
  outer_period: PositiveInt,
  workers: PositiveInt,
) -> Algorithm:
  """x_i <- x_i + inner(g_i); a group's mean after every tau-th step, the mean of all after every tau_o-th.

  Args:
    inner: optimizer of each worker; its state stays there.
    group_size: workers of a group (g), of consecutive ranks.
    period: local steps per average of the groups (tau).
    outer_period: local steps per average of all workers (tau_o).
    workers: number of workers p.

  Returns:
    An `Algorithm` that sends parameters within the group and to all on two clocks, tested at the mean of the models.

  Raises:
    ValueError: if group_size does not divide the workers.
  """
  if workers % group_size:
    raise ValueError(f"hierarchical_sgd.group_size must divide the {workers} workers, got {group_size}.")

  def launch(group: Group, state: optax.OptState, params: Tree) -> tuple[Tree, optax.OptState]:
    return group_mean(group, params, group_size), state  # (1/g) sum_{j in group} x_j

  def merge(group: Group, message: Tree, state: optax.OptState, params: Tree) -> tuple[Tree, optax.OptState]:
    del group, params
    return message, state

  algorithm = local_sgd(inner, period=outer_period)
  return algorithm._replace(exchanges=(Exchange(launch, merge, period), *algorithm.exchanges))


def group_mean(group: Group, tree: Tree, size: int) -> Tree:
  """The mean of a tree over `size` consecutive ranks, by a ring of messages of 1/size of it."""
  if size == 1:
    return tree
  workers = group.size()
  before = [i - i % size + (i - 1) % size for i in range(workers)]  # who each worker hears, of its own group
  rank = group.index() % size
  strips = jax.tree.map(lambda x: jnp.pad(jnp.ravel(x), (0, -x.size % size)).reshape(size, -1), tree)

  def hear(k: int) -> Tree:
    return group.permute(jax.tree.map(lambda x: x[(rank + k) % size], strips), before)

  for k in range(size - 1):  # at last strip rank + 1 is complete
    strips = jax.tree.map(lambda x, heard, k=k: x.at[(rank - k - 1) % size].add(heard), strips, hear(-k))
  strips = jax.tree.map(lambda x: x.at[(rank + 1) % size].divide(size), strips)
  for k in range(size - 1):
    strips = jax.tree.map(lambda x, heard, k=k: x.at[(rank - k) % size].set(heard), strips, hear(1 - k))
  return jax.tree.map(lambda x, whole: x.ravel()[: whole.size].reshape(whole.shape), strips, tree)


def square(workers: int) -> int:
  """The largest size of groups that are at least as many as their workers."""
  return max(g for g in range(1, workers + 1) if workers % g == 0 and g * g <= workers)


SPEC = Spec(
  factory=hierarchical_sgd,
  title="Hierarchical local SGD",
  citation="Lin et al. 2018, arXiv 1808.07217",
  taxonomy=Taxonomy("data", "decentralized", "synchronous", "all-reduce", "parameters"),
  hyper={
    "group_size": Hyper("g", square, "workers of a group, of consecutive ranks: those of a node"),
    "period": Hyper("tau", 2, "local steps per average of the groups"),
    "outer_period": Hyper("tau_o", 8, "local steps per average of all workers; a multiple of tau"),
  },
)
