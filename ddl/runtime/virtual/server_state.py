"""The server's side of a wave: its operations carried out one after the other, in order."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.flatten_util import ravel_pytree

from ddl.api import ServerAlgorithm, Tree, Visit
from ddl.events.operations import ADD, APPLY, COLLECT, DROP, LOOK, READ, RESTART, SERVE


class Sent(NamedTuple):
  """What a worker gives to a round of a quorum, or the round's weighted sum of it."""

  message: Tree
  extra: Tree  # the model's non-trained state; that of the served is what those who are dropped go on with


class ServerState(NamedTuple):
  """The server and what it has told; [slots] are a device's own workers and one more for those of others."""

  server: Tree
  replies: Tree  # [slots, ...]
  total: Any  # of a quorum: Sent, summed over the round so far, else ()
  extra: Tree  # of a quorum: the mean over the last round's served workers, else ()
  anew: Tree  # [slots, ...]: what a worker that comes back starts from, else ()
  seen: Any  # [workers, blocks, size]: what a lock-free visit has read, else ()


class Step(NamedTuple):
  """Arrays of operations: [...] of each."""

  kind: Any  # int32
  worker: Any  # int32
  peer: Any  # int32
  block: Any  # int32
  weight: Any  # float


def open_server(
  algorithm: ServerAlgorithm, params: Tree, extra: Tree, kinds: frozenset[int], slots: int, workers: int, blocks: int
) -> ServerState:
  """The desk before the first operation. params, extra: the initial model."""
  _, server, reply = algorithm.init(params)
  message = jax.eval_shape(algorithm.request, *jax.eval_shape(lambda p: (algorithm.init(p)[0], p), params))

  def several(tree: Tree, count: int) -> Tree:
    return jax.tree.map(lambda x: jnp.broadcast_to(x, (count, *x.shape)), tree)

  total, extra = (nothing(Sent(message, extra)), extra) if COLLECT in kinds else ((), ())
  anew = several(params, slots) if RESTART in kinds else ()
  seen = several(to_blocks(params, blocks), workers) if LOOK in kinds else ()
  return ServerState(server, several(reply, slots), total, extra, anew, seen)


def nothing(sent: Sent) -> Sent:
  """The sum of no worker."""
  return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), sent)


def collect(total: Sent, sent: Sent, weight: Any) -> Sent:
  """total + weight * sent; of leaves that are not floating-point (counters) the largest, as in `consensus.agree`."""

  def leaf(t: jax.Array, x: jax.Array) -> jax.Array:
    return t + jnp.asarray(weight, x.dtype) * x if jnp.issubdtype(x.dtype, jnp.floating) else jnp.maximum(t, x)

  return jax.tree.map(leaf, total, sent)


def to_blocks(tree: Tree, blocks: int) -> jax.Array:
  """All coordinates as [blocks, size], padded with zeros."""
  flat = ravel_pytree(tree)[0]
  size = -(-flat.size // blocks)
  return jnp.pad(flat, (0, blocks * size - flat.size)).reshape(blocks, size)


def from_blocks(array: jax.Array, like: Tree) -> Tree:
  """The inverse of `to_blocks`."""
  flat, unravel = ravel_pytree(like)
  return unravel(array.reshape(-1)[: flat.size])


def make_serving(
  algorithm: ServerAlgorithm, kinds: frozenset[int], blocks: int
) -> Callable[[ServerState, Tree, Step, Any, Any], ServerState]:
  """serving(desk, messages, steps, count, first): carries out the first `count` of the steps.

  messages: [workers, ...], of a quorum as `Sent`; steps: [most, ...]; first: rank of the device's first worker.
  """
  if LOOK in kinds:
    return _lock_free(algorithm, kinds, blocks)

  def one(i: Any, desk: ServerState, messages: Tree, steps: Step, first: Any) -> ServerState:
    at = jax.tree.map(lambda x: x[i], steps)
    visit, slot = Visit(at.worker, at.peer), _slot(desk.replies, at.worker, first)

    def message() -> Tree:
      return jax.tree.map(lambda m: m[at.worker], messages)

    def serve(desk: ServerState, sent: Tree) -> ServerState:
      server, reply = algorithm.serve(desk.server, sent, visit)
      return desk._replace(server=server, replies=_put(desk.replies, slot, reply))

    def add() -> ServerState:
      return desk._replace(total=collect(desk.total, message(), at.weight))

    def apply() -> ServerState:
      return serve(desk, desk.total.message)._replace(total=nothing(desk.total), extra=desk.total.extra)

    def read() -> ServerState:
      assert algorithm.read
      told = jax.tree.map(lambda r: r[slot], desk.replies)
      server, reply = algorithm.read(desk.server, told, visit)
      return desk._replace(server=server, replies=_put(desk.replies, slot, reply))

    def restart() -> ServerState:
      fresh = desk._replace(anew=_put(desk.anew, slot, algorithm.evaluate(desk.server)))
      if algorithm.read is None:
        return fresh
      told = jax.tree.map(lambda r: r[slot], desk.replies)
      server, reply = algorithm.read(desk.server, told, visit)
      return fresh._replace(server=server, replies=_put(desk.replies, slot, reply))

    what = {SERVE: lambda: serve(desk, message()), COLLECT: add, APPLY: apply, DROP: lambda: desk}
    return _choose(at.kind, what | {READ: read, RESTART: restart}, kinds)

  return _each(one)


def _lock_free(algorithm: ServerAlgorithm, kinds: frozenset[int], blocks: int) -> Any:
  rule = algorithm.lock_free
  assert rule

  def serving(desk: ServerState, messages: Tree, steps: Step, count: Any, first: Any) -> ServerState:
    sent = jax.vmap(lambda m: to_blocks(m, blocks))(messages)  # [workers, blocks, size]

    def one(i: Any, state: tuple[Any, Any, Tree], steps: Step) -> tuple[Any, Any, Tree]:
      center, seen, anew = state
      at = jax.tree.map(lambda x: x[i], steps)
      worker, block = at.worker, at.block

      def look() -> tuple[Any, Any, Tree]:
        return center, seen.at[worker, block].set(center[block]), anew

      def add() -> tuple[Any, Any, Tree]:
        return center.at[block].add(rule.increment(sent[worker, block], seen[worker, block])), seen, anew

      def restart() -> tuple[Any, Any, Tree]:
        slot, fresh = _slot(desk.anew, worker, first), algorithm.evaluate(from_blocks(center, desk.server))
        return center, seen.at[worker].set(center), _put(desk.anew, slot, fresh)

      def read() -> tuple[Any, Any, Tree]:
        return center, seen.at[worker].set(center), anew

      return _choose(at.kind, {LOOK: look, ADD: add, RESTART: restart, READ: read}, kinds)

    start = (to_blocks(desk.server, blocks), desk.seen, desk.anew)
    center, seen, anew = lax.fori_loop(0, count, lambda i, s: one(i, s, steps), start)
    return desk._replace(server=from_blocks(center, desk.server), seen=seen, anew=anew)

  return serving


def _each(one: Callable[..., ServerState]) -> Callable[[ServerState, Tree, Step, Any, Any], ServerState]:
  return lambda desk, messages, steps, count, first: lax.fori_loop(
    0, count, lambda i, d: one(i, d, messages, steps, first), desk
  )


def _choose(kind: Any, what: dict[int, Callable[[], Any]], kinds: frozenset[int]) -> Any:
  """The branch of this kind; a schedule's only kind needs no choice."""
  there = sorted(k for k in what if k in kinds)
  if len(there) == 1:
    return what[there[0]]()
  return lax.switch(jnp.searchsorted(jnp.asarray(there, jnp.int32), kind), [what[k] for k in there])


def _slot(tree: Tree, worker: Any, first: Any) -> Any:
  """The place of a worker on this device; the last one for those of other devices."""
  own = jax.tree.leaves(tree)[0].shape[0] - 1
  return jnp.where((worker >= first) & (worker < first + own), worker - first, own)


def _put(tree: Tree, slot: Any, value: Tree) -> Tree:
  return jax.tree.map(lambda t, v: t.at[slot].set(v), tree, value)
