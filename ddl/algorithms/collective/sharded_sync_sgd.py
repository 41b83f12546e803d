"""Synchronous SGD with a sharded optimizer."""

from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import lax

from ddl.algorithms.collective.sync_sgd import sync_sgd
from ddl.api import Algorithm, Spec, Taxonomy, Tree
from ddl.elementwise import is_elementwise
from ddl.group import Group
from ddl.precision import ravel
from ddl.ranges import checked


@checked
def sharded_sync_sgd(inner: optax.GradientTransformation) -> Algorithm:
  """Reduce-scatter the gradient, update one slice of the parameters per worker, and all-gather the updates.

  Worker i updates its slice s: x_s <- x_s + inner((1/p) sum_j g_j)_s; then all workers gather all updates

  Das et al. 2016, arXiv 1602.06709. The packed parameter vector is split into p slices. With an element-wise optimizer
  (SGD, momentum, Adam, weight decay of all parameters) the result equals that of `sync_sgd`, and each worker needs 1/p
  of the optimizer's memory and work. `init` must run where the group's axis is bound, because the length of a slice
  depends on the number of workers. `init` raises ValueError if the optimizer is not known to be element-wise (see
  `ddl.elementwise`), as with clipping by a norm, masks, LARS, LAMB or Adafactor.

  Args:
    inner: element-wise optimizer; its state covers this worker's slice, in the packed vector's dtype.
  """

  def pad(group: Group, packed: jax.Array) -> jax.Array:
    return jnp.pad(packed, (0, -packed.shape[0] % group.size()))

  def strip(group: Group, packed: jax.Array) -> jax.Array:
    padded = pad(group, packed)
    length = padded.shape[0] // group.size()
    return lax.dynamic_slice_in_dim(padded, group.index() * length, length)

  def init(group: Group, params: Tree, key: Any) -> optax.OptState:
    if not is_elementwise(inner, params):
      raise ValueError(
        "sharded_sync_sgd.inner must be element-wise, got an optimizer that is not known to be (as with masks, norms, "
        "layer-wise rules or random numbers). "
        "Use SGD, Adam, or AdamW with weight decay on all parameters, or use the algorithm sync_sgd."
      )
    return inner.init(strip(group, ravel(params)[0]))  # for this worker's slice: [ceil(n / p)]

  def local(group: Group, grads: Tree, state: optax.OptState, params: Tree) -> tuple[Tree, optax.OptState]:
    packed, unpack = ravel(params)
    total = group.reduce_scatter(pad(group, ravel(grads)[0]))  # sum_j g_j on slice i
    mean = total / group.size()  # g = (1/p) sum_j g_j
    strip_updates, state = inner.update(mean, state, strip(group, packed))  # u_s = -eta g_s, by its owner
    updates = group.gather(jnp.asarray(strip_updates)).reshape(-1)[: packed.shape[0]]  # all-gather
    return unpack(packed + updates), state  # x <- x + u

  return sync_sgd(inner)._replace(init=init, local=local)


SPEC = Spec(
  factory=sharded_sync_sgd,
  title="Synchronous SGD, sharded optimizer",
  citation="Das et al. 2016, arXiv 1602.06709",
  taxonomy=Taxonomy("data", "centralized", "synchronous", "reduce-scatter + all-gather", "gradients"),
)
