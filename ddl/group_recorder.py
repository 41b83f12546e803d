"""A group that records an algorithm's collectives, so that message sizes are derived instead of declared."""

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
  """A recorded collective, in which all workers take part."""

  kind: str  # all_reduce, all_gather, reduce_scatter or permute
  nbytes: int  # of the input; for an all_gather, of the result
  messages: int  # number of arrays
  sources: tuple[int | None, ...] = ()  # of a permute: the rank that each worker receives from
  senders: int | None = None  # of an all-reduce: number of workers whose values are summed; None: all

  def per_worker(self, workers: int) -> float:
    """Return the minimum number of bytes that a worker sends, with n = `nbytes` and p = `workers`.

    All-reduce: 2 n (p - 1) / p; permute: n; others: n (p - 1) / p. A sum over m < p workers counts as 2 n m / p:
    m workers send n bytes each to a server, which sends the sum back to each, and this traffic is divided by p.
    """
    if self.kind == "permute":
      return float(self.nbytes)
    if self.senders is not None:
      return 2 * self.nbytes * self.senders / workers
    return (2 if self.kind == "all_reduce" else 1) * self.nbytes * (workers - 1) / workers


class Recorder(Group):
  """A group without communication that records its collectives and returns values of the right shapes."""

  def __init__(self, workers: int):
    """Record the collectives of p = `workers` workers."""
    super().__init__("workers")
    self.workers, self.sent, self.used = workers, list[Sent](), False
    self._trace = get_opaque_trace_state(convention="flax")

  def size(self) -> int:
    """Return the number of workers p."""
    return self.workers

  def index(self) -> jax.Array:
    """Return rank 0."""
    self.used = True
    return jnp.int32(0)

  def sum(self, tree: Tree) -> Tree:
    """Record an all-reduce; return `tree` unchanged."""
    return self._record("all_reduce", tree)

  mean = max = sum

  def partial_sum(self, tree: Tree, member: Any, count: int) -> Tree:
    """Record an all-reduce of the values of `count` workers; return `tree` unchanged."""
    del member
    return self._record("all_reduce", tree, senders=count if count < self.workers else None)

  def gather(self, tree: Tree) -> Tree:
    """Record an all-gather; return `tree` repeated p times along a new leading axis."""
    self._record("all_gather", tree, self.workers)
    return jax.tree.map(lambda x: jnp.broadcast_to(x, (self.workers, *jnp.shape(x))), tree)

  def reduce_scatter(self, tree: Tree) -> Tree:
    """Record a reduce-scatter; return the first of the p slices of `tree`."""
    self._record("reduce_scatter", tree)
    return jax.tree.map(lambda x: x[: x.shape[0] // self.workers], tree)

  def shift(self, tree: Tree, steps: int) -> Tree:
    """Record a permute; return `tree` unchanged."""
    return self.permute(tree, [(rank - steps) % self.workers for rank in range(self.workers)])

  def permute(self, tree: Tree, sources: Sequence[int | None]) -> Tree:
    """Record a permute, unless no value moves; return `tree` unchanged."""
    moves = any(s not in (None, i) for i, s in enumerate(sources))
    return self._record("permute", tree, sources=tuple(sources)) if moves else tree

  def _record(
    self, kind: str, tree: Tree, times: int = 1, sources: tuple[int | None, ...] = (), senders: int | None = None
  ) -> Tree:
    self.used = True
    if get_opaque_trace_state(convention="flax") != self._trace:
      condition = "outside JAX transformations such as scan, cond and jit"
      raise OptionError(
        "a collective of an algorithm", condition, advice="Use Python's loops and if statements instead."
      )
    leaves = jax.tree.leaves(tree)
    if leaves and self.workers > 1:
      nbytes = sum(int(np.prod(jnp.shape(x))) * jnp.result_type(x).itemsize for x in leaves)
      self.sent.append(Sent(kind, nbytes * times, len(leaves), sources, senders))
    return tree


def record(fn: Callable[..., Tree], *args: Tree, workers: int) -> tuple[Recorder, Tree]:
  """Trace fn(group, *args) for this number of workers; return the recorder and the result's shapes.

  Raises:
    ValueError: for a collective inside a JAX transformation such as scan, cond or jit, where its executions cannot be
      counted.
  """
  recorders: list[Recorder] = []

  def traced(*args: Tree) -> Tree:
    recorders.append(Recorder(workers))
    return fn(recorders[-1], *args)

  shapes = jax.eval_shape(traced, *args)
  return recorders[-1], shapes
