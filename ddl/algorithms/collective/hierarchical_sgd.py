"""Hierarchical local SGD."""

from typing import Any

import jax
import jax.numpy as jnp
import optax

from ddl.algorithms.collective.local_sgd import local_sgd
from ddl.api import Algorithm, Exchange, Spec, Taxonomy, Tree
from ddl.group import Group
from ddl.ranges import ByWorkers, PositiveInt, checked


def largest_divisor_below_root(workers: int) -> int:
  """Return the largest divisor g of the number of workers with g^2 <= workers."""
  return max(g for g in range(1, workers + 1) if workers % g == 0 and g * g <= workers)


GROUP_SIZE: Any = ByWorkers("largest divisor of p up to sqrt(p)", largest_divisor_below_root)


@checked
def hierarchical_sgd(
  inner: optax.GradientTransformation,
  *,
  group_size: PositiveInt = GROUP_SIZE,
  period: PositiveInt = 2,
  outer_period: PositiveInt = 8,
  workers: PositiveInt,
) -> Algorithm:
  """Average within groups of workers often, and over all workers rarely (hierarchical local SGD).

  x_i <- x_i + inner(g_i); after every tau-th step x_i <- the mean of its group; after every tau_o-th, the mean of all

  Lin, Stich, Patel, Jaggi 2018, arXiv 1808.07217, section 5; Castiglia, Das, Patterson 2020, arXiv 2007.13819. A group
  consists of g workers with consecutive ranks; in the papers, the workers of a node. If both means are due, the group's
  mean is computed first. If tau_o is a multiple of tau, one group gives local SGD with period tau; groups of one worker
  give local SGD with period tau_o. The evaluated model is the mean of all models.

  Args:
    inner: optimizer of each worker; its state stays local.
    group_size: workers per group (g), a divisor of p; by default the largest one up to sqrt(p).
    period: local steps between averages within groups (tau).
    outer_period: local steps between averages over all workers (tau_o), a multiple of tau in the papers.
    workers: number of workers (p).
  """
  if workers % group_size:
    raise ValueError(f"hierarchical_sgd.group_size must divide the number of workers ({workers}), got {group_size}.")

  def launch(group: Group, state: optax.OptState, params: Tree) -> tuple[Tree, optax.OptState]:
    return group_mean(group, params, group_size), state  # (1/g) sum_{j in group} x_j

  def merge(group: Group, message: Tree, state: optax.OptState, params: Tree) -> tuple[Tree, optax.OptState]:
    return message, state

  algorithm = local_sgd(inner, period=outer_period)
  return algorithm._replace(exchanges=(Exchange(launch, merge, period), *algorithm.exchanges))


def group_mean(group: Group, tree: Tree, size: int) -> Tree:
  """Average a tree over groups of `size` consecutive ranks.

  Each group is a ring, on which a reduce-scatter is followed by an all-gather. Each worker sends 2 (size - 1) messages,
  each with 1/size of the tree.
  """
  if size == 1:
    return tree
  workers = group.size()
  before = [i - i % size + (i - 1) % size for i in range(workers)]  # predecessor of each worker on its group's ring
  rank = group.index() % size
  strips = jax.tree.map(lambda x: jnp.pad(jnp.ravel(x), (0, -x.size % size)).reshape(size, -1), tree)

  def receive(k: int) -> Tree:
    return group.permute(jax.tree.map(lambda x: x[(rank + k) % size], strips), before)

  for k in range(size - 1):  # afterwards slice rank + 1 is complete
    strips = jax.tree.map(lambda x, received, k=k: x.at[(rank - k - 1) % size].add(received), strips, receive(-k))
  strips = jax.tree.map(lambda x: x.at[(rank + 1) % size].divide(size), strips)
  for k in range(size - 1):
    strips = jax.tree.map(lambda x, received, k=k: x.at[(rank - k) % size].set(received), strips, receive(1 - k))
  return jax.tree.map(lambda x, whole: x.ravel()[: whole.size].reshape(whole.shape), strips, tree)


SPEC = Spec(
  factory=hierarchical_sgd,
  title="Hierarchical local SGD",
  citation="Lin et al. 2018, arXiv 1808.07217",
  taxonomy=Taxonomy("data", "decentralized", "synchronous", "all-reduce", "parameters"),
  symbols={"group_size": "g", "period": "tau", "outer_period": "tau_o"},
)
