"""Agreement of all processes: all-gathers of texts, broadcasts of host arrays, and votes on whether to stop."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils

from ddl.hosts.join import wait_on_cpu


def exchange(text: str) -> list[str]:
  """Return the texts of all processes in the order of ranks. Collective: all processes must call it."""
  if jax.process_count() == 1:
    return [text]
  data = np.frombuffer(text.encode(), np.uint8)
  sizes = np.ravel(multihost_utils.process_allgather(np.int32(data.size)))
  padded = np.zeros(1 << int(sizes.max()).bit_length(), np.uint8)  # a power of two, to limit the sizes to compile
  padded[: data.size] = data
  rows = multihost_utils.process_allgather(padded)
  return [row[:size].tobytes().decode() for row, size in zip(rows, sizes, strict=True)]


def share(tree: Any, like: Any) -> Any:
  """Broadcast a pytree of host arrays to all processes. Collective: all processes must call it.

  tree: the pytree in one process, None in all others; like: its shapes and dtypes.
  """
  zeros = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), like)
  mine = zeros if tree is None else jax.tree.map(lambda x, y: np.asarray(x, y.dtype), tree, like)
  shared = multihost_utils.broadcast_one_to_all(mine, is_source=tree is not None)
  return jax.tree.map(np.array, shared)


class Vote:
  """Votes of all processes on whether to stop; except on CPUs, casting a vote does not wait for the devices."""

  def __init__(self) -> None:
    """Define the program that counts votes, if there are several processes."""
    count = jax.process_count()
    self._single = count == 1
    if not self._single:
      first = [next(d for d in jax.devices() if d.process_index == rank) for rank in range(count)]
      mesh = jax.make_mesh((count,), ("process",), devices=first)
      self._split = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("process"))
      self._any = jax.jit(jnp.max, out_shardings=jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec()))

  def cast(self, stop: bool, after: Any = None) -> object:
    """Start a vote and return a handle for `count`. All processes must cast and count votes in the same order.

    stop: this process's vote; after: the result of the previously dispatched program, see `wait_on_cpu`.
    """
    if self._single:
      return stop
    wait_on_cpu(after)
    return wait_on_cpu(self._any(jax.make_array_from_process_local_data(self._split, np.array([stop]))))

  def count(self, vote: object) -> bool:
    """Wait for a vote that `cast` has started; return whether any process voted to stop."""
    return bool(np.asarray(vote.addressable_data(0))) if isinstance(vote, jax.Array) else bool(vote)
