"""Sequential reference for the simulator: the same events one at a time, in plain Python."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from ddl.api import Model, ServerAlgorithm, Tree, Visit, at_step
from ddl.asynchronous.server_state import SentMessage, collect, from_blocks, nothing, to_blocks
from ddl.asynchronous.worker_round import first_step, visit_step
from ddl.engine.local_step import make_local_step
from ddl.errors import OptionError
from ddl.events.operations import ADD, APPLY, COLLECT, DROP, LOOK, READ, RESTART, SERVE, Operations
from ddl.events.record import Events
from ddl.events.schedule import check_schedule

Take = Callable[[int, int], tuple[Tree, Tree]]  # (worker, step) -> (batch, key)


class Sequential:
  """A server and a list of workers that run one operation after the other; a visit begins with its worker round."""

  def __init__(self, algorithm: ServerAlgorithm, model: Model, events: Events, operations: Operations, workers: int):
    """events, operations: the schedule. ValueError as of `check_schedule`."""
    check_schedule(algorithm, events, operations, workers)
    self.algorithm, self.model, self.events, self.operations, self.count = algorithm, model, events, operations, workers
    self.blocks = int(operations.block.max(initial=0)) + 1
    self._lock_free = bool((operations.kind == LOOK).any())
    self._step, self._collect, self._add = map(
      jax.jit, (make_local_step(model, algorithm.local), collect, self._add_of)
    )
    self._serve, self._merge, self._request = map(jax.jit, (algorithm.serve, algorithm.merge, algorithm.request))
    self._read = jax.jit(algorithm.read) if algorithm.read else None
    self._reply = jax.jit(algorithm.lock_free.reply) if algorithm.lock_free else None

  def start(self, params: Tree, extra: Tree) -> None:
    """Initialize all workers and the server with a model."""
    state, self.server, reply = self.algorithm.init(params)
    self.params, self.extra = [params] * self.count, [extra] * self.count
    self.state, self.reply = [state] * self.count, [reply] * self.count
    self.message: list[Tree] = [None] * self.count
    self.seen: list[Any] = [to_blocks(params, self.blocks)] * self.count
    self.total: SentMessage | None = None
    self.fresh, self.begun = {}, set[int]()  # models of restarted workers; events whose worker rounds are complete
    self.round_extra = extra  # the mean over the workers that the last round served

  def run(self, first: int, last: int, take: Take) -> None:
    """Run the operations first..last-1. Raises OptionError if there are fewer."""
    if last > len(self.operations.kind):
      raise OptionError("the schedule", f"of at least {last} operations", len(self.operations.kind))
    order = self.operations
    for i in range(first, last):
      kind, w, event, block = (int(column[i]) for column in (order.kind, order.worker, order.event, order.block))
      if kind not in (READ, RESTART) and event not in self.begun:
        self.begun.add(event)
        self._worker_round(w, event, take)
      step = visit_step(self.algorithm.delay, self.events.round[event], self.events.period[event])
      visit = Visit(jnp.int32(w), jnp.int32(self.events.peer[event]), jnp.int32(step))
      if kind == SERVE:
        self.server, self.reply[w] = self._serve(self.server, self.message[w], visit)
      elif kind == COLLECT:
        sent = SentMessage(self.message[w], self.extra[w])
        self.total = self._collect(self.total or nothing(sent), sent, float(order.weight[i]))
      elif kind == APPLY:
        assert self.total
        self.server, self.reply[w] = self._serve(self.server, self.total.message, visit)
        self.total, self.round_extra = None, self.total.extra
      elif kind == DROP:
        self.extra[w] = self.round_extra
      elif kind == LOOK:
        self.seen[w] = self.seen[w].at[block].set(to_blocks(self.server, self.blocks)[block])
      elif kind == ADD:
        self.server = self._add(self.server, self.message[w], self.seen[w], block)
      else:
        if kind == RESTART:
          self.fresh[w] = self.algorithm.evaluate(self.server)
          self.seen[w] = to_blocks(self.fresh[w], self.blocks)
        if self._read:
          self.server, self.reply[w] = self._read(self.server, self.reply[w], visit)
        if kind == READ and self._lock_free:
          self.seen[w] = to_blocks(self.server, self.blocks)

  def _worker_round(self, w: int, event: int, take: Take) -> None:
    round_, delay, period = int(self.events.round[event]), self.algorithm.delay, int(self.events.period[event])
    restarted = bool(self.events.restarted[event])
    if self.events.dropped[event]:
      self.params[w], self.state[w] = self._merge(self.reply[w], self.state[w], self.params[w])
      self.state[w] = at_step(self.state[w], (round_ + 1) * period)
      return
    if restarted:
      self.params[w] = self.fresh[w]
      state, _, first_reply = self.algorithm.init(self.fresh[w])
      self.state[w] = at_step(state, round_ * period)
      self.reply[w] = self.reply[w] if self._read else first_reply
    elif self._reply and self._lock_free and self.message[w] is not None:
      self.reply[w] = self._reply(self.message[w], from_blocks(self.seen[w], self.params[w]))
    if not delay or (round_ and not restarted):
      first = first_step(delay, round_, period)
      self._some_steps(w, first, delay, take)
      self.params[w], self.state[w] = self._merge(self.reply[w], self.state[w], self.params[w])
      self._some_steps(w, first + delay, period - delay, take)
    self.message[w] = self._request(self.state[w], self.params[w])

  def _some_steps(self, w: int, first: int, count: int, take: Take) -> None:
    for step in range(first, first + count):
      batch, key = take(w, step)
      done, _ = self._step((self.params[w], self.state[w], self.extra[w]), (batch, key))
      self.params[w], self.state[w], self.extra[w] = done

  def _add_of(self, server: Tree, message: Tree, seen: jax.Array, block: int) -> Tree:
    center, sent = to_blocks(server, self.blocks), to_blocks(message, self.blocks)
    assert self.algorithm.lock_free
    return from_blocks(center.at[block].add(self.algorithm.lock_free.increment(sent[block], seen[block])), server)
