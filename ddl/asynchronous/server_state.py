"""The server in the simulator: its state, and the execution of the operations of a wave (`ddl.events.operations`)."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from ddl.api import ServerAlgorithm, Tree, Visit
from ddl.events.operations import ADD, APPLY, COLLECT, DROP, LOOK, READ, RESTART, SERVE
from ddl.precision import ravel


class SentMessage(NamedTuple):
  """A worker's message in a quorum round, or the round's weighted sum of messages."""

  message: Tree
  extra: Tree  # the model's non-trained state; dropped workers receive the mean over the served ones


class ServerState(NamedTuple):
  """A device's copy of the server and of the replies to its workers.

  The axis [slots] has one entry per worker of the device, and a last entry that workers of other devices share.
  """

  server: Tree
  replies: Tree  # [slots, ...]
  total: Any  # for a quorum: a `SentMessage`, the weighted sum of the round so far; else ()
  extra: Tree  # for a quorum: the mean non-trained state of the workers served in the last round; else ()
  fresh: Tree  # [slots, ...]: the parameters from which workers restart; () if none restarts
  seen: Any  # [workers, blocks, size]: the center as read in each worker's last visit; () with a lock


class ServerOperations(NamedTuple):
  """Server operations as arrays [...], all of the same shape."""

  kind: Any  # int32: SERVE, ..., ADD
  worker: Any  # int32
  peer: Any  # int32
  step: Any  # int32: `Visit.step`
  block: Any  # int32
  weight: Any  # float


def open_server(
  algorithm: ServerAlgorithm, params: Tree, extra: Tree, kinds: frozenset[int], slots: int, workers: int, blocks: int
) -> ServerState:
  """Return the state of a device's server before the first operation.

  params, extra: the initial parameters and non-trained state; kinds: the kinds of operations in the schedule; slots:
  length of the axis [slots] of `ServerState`; workers: number of all workers; blocks: number of blocks of a lock-free
  center.
  """
  _, server, reply = algorithm.init(params)
  message = jax.eval_shape(algorithm.request, *jax.eval_shape(lambda p: (algorithm.init(p)[0], p), params))

  def several(tree: Tree, count: int) -> Tree:
    return jax.tree.map(lambda x: jnp.broadcast_to(x, (count, *x.shape)), tree)

  total, extra = (nothing(SentMessage(message, extra)), extra) if COLLECT in kinds else ((), ())
  fresh = several(params, slots) if RESTART in kinds else ()
  seen = several(to_blocks(params, blocks), workers) if LOOK in kinds else ()
  return ServerState(server, several(reply, slots), total, extra, fresh, seen)


def nothing(sent: SentMessage) -> SentMessage:
  """Return zeros with the shapes of a message, as the initial value of a sum."""
  return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), sent)


def collect(total: SentMessage, sent: SentMessage, weight: Any) -> SentMessage:
  """Return total + weight * sent or, for leaves that are not floating-point (counters), the maximum of both."""

  def leaf(t: jax.Array, x: jax.Array) -> jax.Array:
    return t + jnp.asarray(weight, x.dtype) * x if jnp.issubdtype(x.dtype, jnp.floating) else jnp.maximum(t, x)

  return jax.tree.map(leaf, total, sent)


def to_blocks(tree: Tree, blocks: int) -> jax.Array:
  """Concatenate the leaves into an array [blocks, size], padded with zeros."""
  flat = ravel(tree)[0]
  size = -(-flat.size // blocks)
  return jnp.pad(flat, (0, blocks * size - flat.size)).reshape(blocks, size)


def from_blocks(array: jax.Array, like: Tree) -> Tree:
  """Convert an array [blocks, size] to a tree with the shapes of `like`; drop the padding."""
  flat, unravel = ravel(like)
  return unravel(array.reshape(-1)[: flat.size])


def make_serving(
  algorithm: ServerAlgorithm, kinds: frozenset[int], blocks: int
) -> Callable[[ServerState, Tree, ServerOperations, Any, Any], ServerState]:
  """Return serving(state, messages, steps, count, first) -> state, which executes the first `count` operations.

  messages: one per worker, [workers, ...]; for a quorum, a stacked `SentMessage`. steps: the operations, as arrays
  [operations]. first: rank of the device's first worker. kinds and blocks: as in `open_server`.
  """
  if LOOK in kinds:
    return _lock_free(algorithm, kinds, blocks)

  def one(i: Any, state: ServerState, messages: Tree, steps: ServerOperations, first: Any) -> ServerState:
    at = jax.tree.map(lambda x: x[i], steps)
    visit, slot = Visit(at.worker, at.peer, at.step), _slot(state.replies, at.worker, first)

    def message() -> Tree:
      return jax.tree.map(lambda m: m[at.worker], messages)

    def answer(state: ServerState, server_and_reply: tuple[Tree, Tree]) -> ServerState:
      server, reply = server_and_reply
      return state._replace(server=server, replies=_put(state.replies, slot, reply))

    def apply() -> ServerState:
      applied = answer(state, algorithm.serve(state.server, state.total.message, visit))
      return applied._replace(total=nothing(state.total), extra=state.total.extra)

    def read(state: ServerState) -> ServerState:
      reply = jax.tree.map(lambda r: r[slot], state.replies)
      return answer(state, algorithm.read(state.server, reply, visit)) if algorithm.read else state

    branches = {
      SERVE: lambda: answer(state, algorithm.serve(state.server, message(), visit)),
      COLLECT: lambda: state._replace(total=collect(state.total, message(), at.weight)),
      APPLY: apply,
      DROP: lambda: state,
      READ: lambda: read(state),
      RESTART: lambda: read(state._replace(fresh=_put(state.fresh, slot, algorithm.evaluate(state.server)))),
    }
    return _choose(at.kind, branches, kinds)

  def serving(state: ServerState, messages: Tree, steps: ServerOperations, count: Any, first: Any) -> ServerState:
    return lax.fori_loop(0, count, lambda i, state: one(i, state, messages, steps, first), state)

  return serving


def _lock_free(algorithm: ServerAlgorithm, kinds: frozenset[int], blocks: int) -> Any:
  rule = algorithm.lock_free
  assert rule

  def serving(state: ServerState, messages: Tree, steps: ServerOperations, count: Any, first: Any) -> ServerState:
    sent = jax.vmap(lambda m: to_blocks(m, blocks))(messages)  # [workers, blocks, size]

    def one(i: Any, carry: tuple[Any, Any, Tree]) -> tuple[Any, Any, Tree]:
      center, seen, fresh = carry
      at = jax.tree.map(lambda x: x[i], steps)
      worker, block = at.worker, at.block

      def restart() -> tuple[Any, Any, Tree]:
        slot, params = _slot(fresh, worker, first), algorithm.evaluate(from_blocks(center, state.server))
        return center, seen.at[worker].set(center), _put(fresh, slot, params)

      def add() -> tuple[Any, Any, Tree]:
        return center.at[block].add(rule.increment(sent[worker, block], seen[worker, block])), seen, fresh

      branches = {
        LOOK: lambda: (center, seen.at[worker, block].set(center[block]), fresh),
        ADD: add,
        RESTART: restart,
        READ: lambda: (center, seen.at[worker].set(center), fresh),
      }
      return _choose(at.kind, branches, kinds)

    start = (to_blocks(state.server, blocks), state.seen, state.fresh)
    center, seen, fresh = lax.fori_loop(0, count, one, start)
    return state._replace(server=from_blocks(center, state.server), seen=seen, fresh=fresh)

  return serving


def _choose(kind: Any, branches: dict[int, Callable[[], Any]], kinds: frozenset[int]) -> Any:
  """Run the branch for this kind of operation, without `lax.switch` if the schedule has only one kind."""
  present = sorted(k for k in branches if k in kinds)
  if len(present) == 1:
    return branches[present[0]]()
  return lax.switch(jnp.searchsorted(jnp.asarray(present, jnp.int32), kind), [branches[k] for k in present])


def _slot(tree: Tree, worker: Any, first: Any) -> Any:
  """Return a worker's index on the axis [slots]; the last one if the worker runs on another device."""
  count = jax.tree.leaves(tree)[0].shape[0] - 1
  return jnp.where((worker >= first) & (worker < first + count), worker - first, count)


def _put(tree: Tree, slot: Any, value: Tree) -> Tree:
  return jax.tree.map(lambda t, v: t.at[slot].set(v), tree, value)
