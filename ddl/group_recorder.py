"""A group that records what it is asked: the bytes of an algorithm's messages are derived, never declared."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import get_opaque_trace_state

from ddl.api import Tree
from ddl.errors import OptionError
from ddl.group import Group


class Sent(NamedTuple):
  """A collective that a worker takes part in."""

  kind: str  # all_reduce, all_gather, reduce_scatter or permute
  nbytes: int  # of the whole vector; for an all_gather of the result
  messages: int  # arrays
  sources: tuple[int | None, ...] = ()  # of a permute: whom each worker hears
  senders: int | None = None  # of an all-reduce: workers whose values are summed; None: all

  def per_worker(self, workers: int) -> float:
    """Return the least bytes that each of p workers sends: n (p - 1) / p, twice that for an all-reduce.

    A sum over m < p workers counts as 2 n m / p: the mean over all workers of what the m send to a server and receive.
    """
    if self.kind == "permute":
      return float(self.nbytes)
    if self.senders is not None:
      return 2 * self.nbytes * self.senders / workers
    return (2 if self.kind == "all_reduce" else 1) * self.nbytes * (workers - 1) / workers


class Recorder(Group):
  """A group without communication that records its collectives and returns values of the right shapes."""

  def __init__(self, workers: int):
    """workers: p."""
    super().__init__("workers")
    self.workers, self.sent, self.used = workers, list[Sent](), False
    self._trace = get_opaque_trace_state(convention="flax")

  def size(self) -> int:
    """Number of workers p."""
    return self.workers

  def index(self) -> jax.Array:
    """Rank 0."""
    self.used = True
    return jnp.int32(0)

  def sum(self, tree: Tree) -> Tree:
    """The value itself."""
    return self._keep("all_reduce", tree)

  mean = max = sum

  def partial_sum(self, tree: Tree, member: Any, count: int) -> Tree:
    """The value itself."""
    del member
    return self._keep("all_reduce", tree, senders=count if count < self.workers else None)

  def gather(self, tree: Tree) -> Tree:
    """The value p times."""
    self._keep("all_gather", tree, self.workers)
    return jax.tree.map(lambda x: jnp.broadcast_to(x, (self.workers, *jnp.shape(x))), tree)

  def reduce_scatter(self, tree: Tree) -> Tree:
    """The first strip."""
    self._keep("reduce_scatter", tree)
    return jax.tree.map(lambda x: x[: x.shape[0] // self.workers], tree)

  def shift(self, tree: Tree, steps: int) -> Tree:
    """The value itself."""
    return self.permute(tree, [(rank - steps) % self.workers for rank in range(self.workers)])

  def permute(self, tree: Tree, sources: Sequence[int | None]) -> Tree:
    """The value itself."""
    moves = any(s not in (None, i) for i, s in enumerate(sources))
    return self._keep("permute", tree, sources=tuple(sources)) if moves else tree

  def _keep(
    self, kind: str, tree: Tree, times: int = 1, sources: tuple[int | None, ...] = (), senders: int | None = None
  ) -> Tree:
    self.used = True
    if get_opaque_trace_state(convention="flax") != self._trace:
      condition = "outside loops, conditions and jit of JAX"
      raise OptionError(
        "a collective of an algorithm", condition, advice="Use Python's loops and conditions around it."
      )
    leaves = jax.tree.leaves(tree)
    if leaves and self.workers > 1:
      nbytes = sum(int(np.prod(jnp.shape(x))) * jnp.result_type(x).itemsize for x in leaves)
      self.sent.append(Sent(kind, nbytes * times, len(leaves), sources, senders))
    return tree


def record(fn: Callable[..., Tree], *args: Tree, workers: int) -> tuple[Recorder, Tree]:
  """Return the record of fn(group, *args) for this number of workers, and the shapes of its result.

  Raises:
    ValueError: for a collective inside a loop, a condition or a jit, whose repetitions are not seen.
  """
  recorders: list[Recorder] = []

  def traced(*args: Tree) -> Tree:
    recorders.append(Recorder(workers))
    return fn(recorders[-1], *args)

  shapes = jax.eval_shape(traced, *args)
  return recorders[-1], shapes
