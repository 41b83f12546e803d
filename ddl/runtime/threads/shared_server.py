"""The server of a run on threads, in the host's memory; the visiting thread serves its own visit and records it."""

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from ddl.api import ServerAlgorithm, Tree, Visit
from ddl.events.barriers import Bounded
from ddl.events.cluster import draw_peers
from ddl.events.operations import ADD, LOOK, READ, SERVE, Operations
from ddl.events.record import Events, Row, make_events
from ddl.runtime.flat_params import check_lock_free
from ddl.runtime.rounds.consensus import Progress
from ddl.runtime.rounds.worker_round import visit_step
from ddl.runtime.threads.shared_memory import Clock, FairLock, RoundGate, SharedCenter
from ddl.runtime.virtual.server_state import from_blocks, to_blocks


class Rules(NamedTuple):
  """The compiled functions of a visit; the last two are None with a lock."""

  serve: Callable[..., Any]
  read: Callable[..., Any] | None
  increment: Callable[..., Any] | None  # (message, seen [blocks, size]) -> [blocks, size]
  reply: Callable[..., Any] | None  # (message, seen [blocks, size]) -> reply


def make_rules(algorithm: ServerAlgorithm) -> Rules:
  """Compile the functions of a visit, lock-free if the algorithm has a lock-free rule and blocks."""
  blocks = algorithm.arrivals.blocks
  serve, read, rule = jax.jit(algorithm.serve), algorithm.read and jax.jit(algorithm.read), algorithm.lock_free
  if not (rule and blocks):
    return Rules(serve, read, None, None)
  increment = jax.jit(lambda message, seen: rule.increment(to_blocks(message, blocks), seen))
  return Rules(serve, read, increment, jax.jit(lambda message, seen: rule.reply(message, from_blocks(seen, message))))


class SharedServer:
  """The server of one run. As in a schedule, with delay 0 the barrier holds back the reply."""

  def __init__(
    self,
    algorithm: ServerAlgorithm,
    rules: Rules,
    params: Tree,
    *,
    workers: int,
    seed: int,
    barrier: Bounded,
    visits: int,
  ):
    """params: the initial model; visits: the number after which the run is over."""
    self._algorithm, self._rules, self._visits, self._params = algorithm, rules, visits, params
    self.host = jax.local_devices(backend="cpu")[0]
    _, server, reply = jax.device_put(algorithm.init(params), self.host)
    self._server, self._replies = server, [reply] * workers
    self.gate = RoundGate(barrier, workers=workers, seed=seed, round_robin=algorithm.arrivals.round_robin)
    self._bounded = barrier.bound != np.inf
    self._peers = [
      draw_peers(np.full(visits, worker), np.arange(visits), workers=workers, arrivals=algorithm.arrivals, seed=seed)
      for worker in range(workers)
    ]
    self.open()
    self._line, self._places, self._tickets = FairLock(self.now), itertools.count(), itertools.count()
    self._rows, self._latest = list[Row](), [-1] * workers  # the index of each worker's last row
    self._exchanges = 0
    self._operations: list[tuple[int, int, int, int, int]] = []  # place, kind, worker, event, block
    if rules.increment:
      check_lock_free(algorithm, params)
      blocks = algorithm.arrivals.blocks
      self._center = SharedCenter(np.asarray(to_blocks(params, blocks)), self._places)
      self._seen, self._blocks = [self._center.copy() for _ in range(workers)], range(blocks)

  def open(self) -> None:
    """Start the clock."""
    self._clock = Clock()

  def now(self) -> float:
    """Return the seconds since the clock started, without those of `then`."""
    return self._clock.now()

  def progress(self) -> Progress:
    """Return the progress. Callers hold the lock, or all threads have ended."""
    return Progress(len(self._rows), self._exchanges, self.now())

  def warm_up(self, worker: int, message: Tree, device: Any) -> Tree:
    """Compile the functions of a visit without a change of the server. Return an example of a reply."""
    if self._rules.increment and self._rules.reply:
      seen = self._seen[worker]
      jax.block_until_ready(self._rules.increment(message, seen))
      return self._rules.reply(message, seen)
    visit = Visit(np.int32(worker), np.int32(-1), np.int32(0))
    done = self._rules.serve(self._server, jax.device_put(message, self.host), visit)
    if self._rules.read:
      done = self._rules.read(*done, visit)
    return jax.device_put(done[1], device)

  def visit(self, row: Row, message: Tree, then: Callable[[int], None]) -> bool:
    """Serve the worker's message and call then(visits done), one visit at a time. Return False once the run is over."""
    worker = row.worker
    if self._rules.increment:
      jax.block_until_ready(message)
      if self.gate.over or next(self._tickets) >= self._visits:
        return False
      row.arrival = self.now()
      mine = self._use_center(worker, message)
      with self._line:
        event = len(self._rows)
        self._operations += [(place, kind, worker, event, block) for place, kind, block in mine]
        self._book(row, then)
      return True
    message = jax.block_until_ready(jax.device_put(message, self.host))
    with self._line as requested:
      if self.gate.over or next(self._tickets) >= self._visits:
        return False
      row.arrival = requested
      visit = self._visit_of(row)
      done = jax.block_until_ready(self._rules.serve(self._server, message, visit))
      self._server, self._replies[worker] = done
      self._operations.append((next(self._places), SERVE, worker, len(self._rows), 0))
      self._book(row, then)
      return True

  def reply(self, row: Row, message: Tree, device: Any) -> Tree:
    """Wait for the barrier and return the reply on the worker's device. message: of this visit."""
    worker, event = row.worker, self._latest[row.worker]
    self.gate.wait(worker)
    if not self._rules.reply:
      return jax.device_put(self._replies[worker], device)
    if self._rules.read and row.answered > event + 1:
      looks = self._look(worker)
      self._operations += [(place, LOOK, worker, event, block) for place, _, block in looks]
    return self._rules.reply(message, self._seen[worker])

  def leave(self, worker: int) -> None:
    """Finish the worker's round, the steps after the reply included."""
    if self._algorithm.arrivals.round_robin:
      self.gate.next_rank(worker)
    elif self._algorithm.delay and self._bounded:
      with self._line:
        self.gate.admit(self.gate.finish(worker))

  def state(self) -> Tree:
    """Return the algorithm's server."""
    if not self._rules.reply:
      return self._server
    return from_blocks(jax.device_put(self._center.copy(), self.host), self._params)

  def record(self) -> tuple[Events, Operations]:
    """Return the record of the run, once all threads have ended. Workers that the barrier still holds are released."""
    self._answer(list(self.gate.held) if not self._algorithm.delay else [])
    rows, order = self._rows, sorted(self._operations)
    if not self._rules.reply:  # the last visit released some, the end the others: merged by their events
      served = len(order) - next((k for k, done in enumerate(reversed(order)) if done[1] == SERVE), len(order))
      order[served:] = sorted(order[served:], key=lambda done: done[3])
    peer = np.array([self._visit_of(row).peer for row in rows], np.int32)
    _, kind, worker, event, block = np.array(order, np.int64).reshape(-1, 5).T
    operations = Operations(
      kind.astype(np.int8),
      worker.astype(np.int32),
      event.astype(np.int32),
      block.astype(np.int32),
      np.ones(len(order)),
      len(self._latest),
    )
    return make_events(rows)._replace(peer=peer), operations

  def _visit_of(self, row: Row) -> Visit:
    step = visit_step(self._algorithm.delay, row.round, self._algorithm.period)
    return Visit(np.int32(row.worker), self._peers[row.worker][row.round], np.int32(step))

  def _use_center(self, worker: int, message: Tree) -> list[tuple[int, int, int]]:
    """Read and add to all blocks. Return (place, kind, block) of each operation."""
    assert self._rules.increment and self._algorithm.lock_free
    first = self._algorithm.lock_free.reads_first
    done = self._look(worker) if first else []
    increments = np.asarray(self._rules.increment(message, self._seen[worker]))
    done += [(self._center.add(block, increments[block]), ADD, block) for block in self._blocks]
    return done if first else done + self._look(worker)

  def _look(self, worker: int) -> list[tuple[int, int, int]]:
    seen = self._seen[worker] = np.empty_like(self._seen[worker])  # as JAX may still use the old one's memory
    return [(self._center.look(block, seen[block]), LOOK, block) for block in self._blocks]

  def _book(self, row: Row, then: Callable[[int], None]) -> None:
    """Record a finished visit. Callers hold the lock."""
    row.served = self.now()
    self._rows.append(row)
    self._exchanges += self._algorithm.arrivals.peers == "none" or int(self._visit_of(row).peer) >= 0
    self._latest[row.worker] = len(self._rows) - 1
    if self._algorithm.delay:
      row.answered = len(self._rows)
    else:
      free = self.gate.finish(row.worker)
      self._answer(free)
      self.gate.admit(free)
    with self._clock.paused():
      then(len(self._rows))
    if len(self._rows) == self._visits:
      self.gate.halt()

  def _answer(self, workers: list[int]) -> None:
    """Answer workers, with a new reply to those that the barrier held back. Callers hold the lock."""
    for event, worker in sorted((self._latest[worker], worker) for worker in workers):
      row = self._rows[event]
      row.answered = len(self._rows)
      if self._rules.read and not self._rules.reply and row.answered > event + 1:
        done = self._rules.read(self._server, self._replies[worker], self._visit_of(row))
        self._server, self._replies[worker] = jax.block_until_ready(done)
        self._operations.append((next(self._places), READ, worker, event, 0))
