"""Overlap messages with steps on CPUs, where XLA does not overlap collectives with compute.

A call is split into several programs, with a boundary at each launch and merge of a message. A background thread runs
the programs that communicate, in the same order in all processes. Meanwhile, the main thread runs the other programs.
"""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ddl.api import Algorithm, Tree
from ddl.engine.calls import Kind
from ddl.engine.compiled_program import collectives
from ddl.engine.device_functions import Carry
from ddl.engine.execution import compiled
from ddl.engine.keys import step_keys
from ddl.engine.replication import pack, unpack
from ddl.engine.rounds import Rounds, over_unit
from ddl.engine.workers import Workers
from ddl.group import Group
from ddl.group_recorder import record

Program = Callable[..., Any]


def is_needed(algorithm: Algorithm, workers: Workers, independent: bool) -> bool:
  """Return whether only a background thread can overlap the algorithm's messages with steps.

  independent: whether local steps neither communicate nor depend on a worker's rank.
  """
  delayed = any(exchange.delay for exchange in algorithm.exchanges)
  return independent and delayed and workers.members == 1 and workers.platform == "cpu" and workers.processes > 1


class BackgroundCalls:
  """The calls of `Rounds`, each split into several programs, with the same results."""

  def __init__(self, rounds: Rounds, algorithm: Algorithm, params: Tree):
    """Determine which leaves of a worker's state a local step changes.

    Args:
      algorithm: the algorithm of `rounds`.
      rounds: the compiled calls, for workers of one device each.
      params: shapes of one worker's parameters.
    """
    self._unchanged = _unchanged_by_steps(algorithm, params, rounds.workers.count)
    self.compile_seconds = 0.0
    self._rounds, self._functions, self._workers = rounds, rounds.functions, rounds.workers
    self._params, self._state, self._messages = rounds.replication
    self._thread = ThreadPoolExecutor(1, "collectives")
    self._programs: dict[Any, tuple[Program, bool]] = {}

  def make_call(self, kind: Kind) -> Callable[..., tuple[Carry, jax.Array]]:
    """Return a function like that of `Rounds.make_call`, except that it does not donate the carry.

    The kind's `unit` must not be empty.
    """
    return partial(self._call, kind)

  def _call(
    self, kind: Kind, carry: Carry, batches: Tree, step: jax.Array, keys: jax.Array, _: tuple[()]
  ) -> tuple[Carry, jax.Array]:
    losses: list[jax.Array] = []
    for begin in range(0, kind.repeat * len(kind.unit), len(kind.unit)):
      # `_steps` ignores its last argument, `overlapped`: it is a hint for the compilers of GPUs and TPUs.
      steps = partial(self._steps, begin, batches, step, keys)
      carry, unit_losses = over_unit(kind, carry, steps, self._launch, self._merge, self._exchange)
      losses += unit_losses
    messages = tuple(tuple(map(_arrived, slots)) for slots in carry.messages)
    return carry._replace(messages=messages), self._run(self._program("losses", 0, losses), losses)

  def _steps(
    self, begin: int, batches: Tree, step: jax.Array, keys: jax.Array, carry: Carry, first: int, last: int, _: bool
  ) -> tuple[Carry, jax.Array]:
    at = self._workers.replicate(np.int32(begin + first))
    args = carry._replace(messages=()), batches, at, step, keys
    after, losses = self._run(self._program("steps", last - first, *args), *args)
    return after._replace(state=_filled(after.state, carry.state), messages=carry.messages), losses

  def _launch(self, i: int, carry: Carry) -> tuple[Future[Tree], Carry]:
    args = carry.params, carry.state
    message = self._thread.submit(_finished, self._program("message", i, *args)[0], *args)
    if not self._rounds.execution.overlap:
      wait([message])
    state = self._run(self._program("state", i, *args), *args)
    return message, carry._replace(state=_filled(state, carry.state))

  def _merge(self, i: int, message: Any, carry: Carry) -> Carry:
    args = _arrived(message), carry.params, carry.state
    params, state = self._run(self._program("merge", i, *args), *args)
    return carry._replace(params=_filled(params, carry.params), state=_filled(state, carry.state))

  def _exchange(self, i: int, carry: Carry) -> Carry:
    return self._merge(i, *self._launch(i, carry))

  def _run(self, program: tuple[Program, bool], *args: Any) -> Any:
    executable, communicates = program
    return self._thread.submit(_finished, executable, *args).result() if communicates else executable(*args)

  def _program(self, name: str, number: int, *args: Any) -> tuple[Program, bool]:
    """Compile the method `_on_device_<name>` for `number` and `args`; return (program, whether it communicates)."""
    key = (name, number, jax.tree.structure(args), *[(x.shape, x.dtype) for x in jax.tree.leaves(args)])
    if key not in self._programs:
      began = time.perf_counter()
      split = jax.tree.map(lambda x: not x.sharding.is_fully_replicated or len(x.sharding.spec) > 0, args)
      out, sharding = (True, self._workers.split()) if name != "losses" else (False, self._workers.everywhere)
      lifted = self._workers.lift(partial(getattr(self, f"_on_device_{name}"), number), split, out)
      program = compiled(jax.jit(lifted, out_shardings=sharding).lower(*args))
      self._programs[key] = program, bool(collectives(program.as_text() or "", self._workers.mesh))
      self.compile_seconds += time.perf_counter() - began
    return self._programs[key]

  def _on_device_steps(self, length: int, carry: Carry, batches: Tree, at: Any, step: Any, keys: Any) -> Any:
    part = jax.tree.map(lambda x: lax.dynamic_slice_in_dim(x, at, length, 1), batches)
    carry = carry._replace(params=unpack(carry.params, self._params), state=unpack(carry.state, self._state))
    carry, losses = self._functions.steps(carry, part, step_keys(keys, step + at, length))
    state = jax.tree.map(lambda unchanged, x: None if unchanged else x, self._unchanged, pack(carry.state, self._state))
    return carry._replace(params=pack(carry.params, self._params), state=state), losses

  def _on_device_message(self, i: int, params: Tree, state: Tree) -> Tree:
    return pack(self._functions.launch(i, self._unpacked(params, state))[0], self._messages[i])

  def _on_device_state(self, i: int, params: Tree, state: Tree) -> Tree:
    before = self._unpacked(params, state)
    return _changed(before.state, self._functions.launch(i, before)[1].state, self._state)

  def _on_device_merge(self, i: int, message: Tree, params: Tree, state: Tree) -> tuple[Tree, Tree]:
    before = self._unpacked(params, state)
    after = self._functions.merge(i, unpack(message, self._messages[i]), before)
    return _changed(before.params, after.params, self._params), _changed(before.state, after.state, self._state)

  def _unpacked(self, params: Tree, state: Tree) -> Carry:
    return Carry(unpack(params, self._params), unpack(state, self._state), (), ())

  def _on_device_losses(self, _: int, losses: Sequence[jax.Array]) -> jax.Array:
    return self._functions.mean(jnp.concatenate(losses, axis=1))


def _unchanged_by_steps(algorithm: Algorithm, params: Tree, workers: int) -> Tree:
  """Return a tree of bools: True for leaves of a worker's state unchanged by local steps, such as outer momentum."""
  _, state = record(lambda group, x: algorithm.init(group, x, jax.random.key(0)), params, workers=workers)
  outputs: list[Tree] = []

  def step(group: Group, grads: Tree, before: Tree, params: Tree) -> None:
    outputs.append(jax.tree.map(lambda x, y: y is x, before, algorithm.local(group, grads, before, params)[1]))

  record(step, params, state, params, workers=workers)
  return outputs[0]


def _changed(before: Tree, after: Tree, replication: Tree) -> Tree:
  """Pack the leaves that a function changed; replace the others by None, so that the program does not copy them."""
  return jax.tree.map(lambda x, y, packed: None if y is x else packed, before, after, pack(after, replication))


def _filled(changed: Tree, before: Tree) -> Tree:
  return jax.tree.map(lambda x, y: y if x is None else x, changed, before, is_leaf=lambda x: x is None)


def _finished(program: Program, *args: Any) -> Any:
  """Run a program and wait for its result, so that the thread's next program starts only afterwards."""
  return jax.block_until_ready(program(*args))


def _arrived(message: Any) -> Any:
  return message.result() if isinstance(message, Future) else message
