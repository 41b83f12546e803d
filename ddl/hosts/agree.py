"""Agreement of all processes: texts that each reads of every other, and votes beside the steps."""

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax._src import distributed  # its key-value store has no public name
from jax.experimental import multihost_utils

from ddl.hosts.join import in_order

_exchanges = itertools.count()


def exchange(text: str, seconds: float = 60.0) -> list[str]:
  """Return the texts of all processes by rank, through their coordinator; all call this equally often.

  ValueError, which names the process, if one of them does not come to this in time.
  """
  joined, limit = distributed.global_state, int(1000 * seconds)
  if joined.client is None:
    return [text]
  name = f"ddl/exchange/{next(_exchanges)}"
  joined.client.key_value_set(f"{name}/{joined.process_id}", text)
  said = []
  for rank in range(joined.num_processes):
    try:
      said.append(joined.client.blocking_key_value_get(f"{name}/{rank}", limit))
    except jax.errors.JaxRuntimeError:
      raise ValueError(f"process {rank} has ended, or did nothing for {seconds:g} s, before the first step") from None
  joined.client.wait_at_barrier(name, limit)  # all have read them, so that each may end
  return said


def share(tree: Any, like: Any) -> Any:
  """Return a tree of host arrays that one process has, in all of them. tree: None in the others; like: its shapes."""
  zeros = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), like)
  mine = zeros if tree is None else jax.tree.map(lambda x, y: np.asarray(x, y.dtype), tree, like)
  found = multihost_utils.broadcast_one_to_all(mine, is_source=tree is not None)
  return jax.tree.map(np.array, found)


class Vote:
  """An agreement of all processes on whether any of them has to stop, without waiting for the devices."""

  def __init__(self) -> None:
    """Compile the vote, unless there is one process only."""
    self._alone = jax.process_count() == 1
    if not self._alone:
      mesh = jax.make_mesh((jax.process_count(),), ("process",), devices=[_first_device(r) for r in _ranks()])
      self._split = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("process"))
      self._any = jax.jit(jnp.max, out_shardings=jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec()))

  def cast(self, stop: bool, after: Any = None) -> object:
    """Start a vote, whose result goes to `count` later, in the same order in all processes.

    after: what was dispatched before, see `in_order`.
    """
    if self._alone:
      return stop
    in_order(after)
    return in_order(self._any(jax.make_array_from_process_local_data(self._split, np.array([stop]))))

  def count(self, vote: object) -> bool:
    """Return the outcome."""
    return bool(np.asarray(vote.addressable_data(0))) if isinstance(vote, jax.Array) else bool(vote)


def _ranks() -> range:
  return range(jax.process_count())


def _first_device(rank: int) -> Any:
  return next(d for d in jax.devices() if d.process_index == rank)
