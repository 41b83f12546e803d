"""The server of a run on threads, in host memory: its clock, lock, lock-free center and barrier."""

import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, islice
from typing import Any

import jax
import numpy as np

from ddl.api import ServerAlgorithm, Tree, Visit
from ddl.asynchronous.server_state import from_blocks, to_blocks
from ddl.asynchronous.worker_round import visit_step
from ddl.engine.consensus import Progress
from ddl.events.barriers import Bounded, LiveBarrier
from ddl.events.cluster import draw_peers
from ddl.events.operations import ADD, LOOK, READ, SERVE, Operations
from ddl.events.record import Events, VisitRow, make_events

PIECE = 500  # maximum number of elements for which NumPy holds the GIL while adding


class RealTimeClock:
  """A monotonic clock of training seconds, stopped during evaluation."""

  def __init__(self):
    """Create a clock at 0."""
    self._guard, self._zero, self._stopped = threading.Lock(), time.perf_counter(), None

  def now(self) -> float:
    """Return the seconds since the start."""
    with self._guard:  # otherwise the clock could stop and start between two reads
      return (time.perf_counter() if self._stopped is None else self._stopped) - self._zero

  @contextmanager
  def paused(self) -> Iterator[None]:
    """Stop the clock within the context."""
    with self._guard:
      self._stopped = time.perf_counter()
    yield
    with self._guard:
      self._zero, self._stopped = self._zero + time.perf_counter() - self._stopped, None


class FairLock:
  """A context manager that threads enter one at a time, in the order of their requests (unlike threading.Lock)."""

  def __init__(self, now: Callable[[], float] = time.perf_counter):
    """Create an unlocked lock. now: the clock that times the requests."""
    self._guard, self._queue, self._now = threading.Lock(), deque[threading.Lock](), now

  def __enter__(self) -> float:
    """Wait for the lock; return the time of the request. Threads are served in the order of these times."""
    turn = threading.Lock()
    turn.acquire()
    with self._guard:
      requested = self._now()
      self._queue.append(turn)
      if len(self._queue) == 1:
        turn.release()
    turn.acquire()
    return requested

  def __exit__(self, *_: object) -> None:
    with self._guard:
      self._queue.popleft()
      if self._queue:
        self._queue[0].release()


class SharedCenter:
  """One NumPy buffer [blocks, size] that all threads read and add to in place, block by block, without a lock.

  `np.add(a, u, out=a)` can lose increments of single elements: above 500 elements NumPy releases the GIL, and two
  threads that add to the same element simultaneously can both start from the same value. (With 2 threads on 2 cores and
  5,000 to 1,000,000 elements, 1e-5 to 5e-4 of all increments were lost, and up to 18 % of those of a single element.)
  Therefore an increment is added in pieces of at most 500 elements, in a C loop without Python code between the pieces.
  During this loop CPython with the GIL runs no other thread, so no increment is lost, and `places` numbers the
  operations in the order of their execution. The loop takes 2 ms per million elements. Visits do not wait for each
  other: their operations on different blocks interleave. A free-threaded Python may lose increments of single elements
  and swap the numbers of two adjacent operations, but it does not lose the increments of whole blocks.
  """

  def __init__(self, start: np.ndarray, places: Iterator[int]):
    """Copy the initial blocks [blocks, size]; places: an itertools.count that numbers the operations."""
    self._blocks, self._places = start.copy(), places
    self._pieces = [_pieces(block) for block in self._blocks]

  def add(self, block: int, increment: np.ndarray) -> int:
    """Add an increment [size] to a block; return the operation's index in the order of all operations."""
    center = self._pieces[block]
    place, *_ = chain(islice(self._places, 1), map(np.add, center, _pieces(increment), center))
    return int(place)

  def look(self, block: int, out: np.ndarray) -> int:
    """Copy a block to `out` [size]; return the operation's index in the order of all operations."""
    place, *_ = chain(islice(self._places, 1), map(np.positive, self._pieces[block], _pieces(out)))
    return int(place)

  def copy(self) -> np.ndarray:
    """Return all blocks, read one by one: [blocks, size]."""
    out = np.empty_like(self._blocks)
    for block, row in enumerate(out):
      self.look(block, row)
    return out


class RoundGate:
  """A gate that admits workers to their next round, as the barrier or round robin allows, until the run ends."""

  def __init__(self, barrier: Bounded, *, workers: int, seed: int, round_robin: bool):
    """Admit all workers to their first round; in a round robin only rank 0."""
    self._members = LiveBarrier(barrier, workers=workers, seed=seed)
    self.waiting_for = self._members.waiting_for  # waiting worker -> a worker that it waits for
    self._go = [threading.Event() for _ in range(workers)]
    self.over = False
    self.admit(range(1 if round_robin else workers))

  def wait(self, worker: int) -> None:
    """Wait until the worker may start a round, or the run ends."""
    self._go[worker].wait()

  def finish(self, worker: int) -> list[int]:
    """Record a finished round; return the workers to `admit` now. The caller must hold a lock."""
    free = self._members.finish(worker)
    if worker not in free:
      self._stop(worker)
    return free

  def admit(self, workers: Iterable[int]) -> None:
    """Allow these workers to start a round."""
    for worker in workers:
      self._go[worker].set()

  def next_rank(self, worker: int) -> None:
    """Allow the next worker of the round robin to start."""
    self._stop(worker)
    self.admit([(worker + 1) % len(self._go)])

  def halt(self) -> None:
    """End the run and release all workers."""
    self.over = True
    self.admit(range(len(self._go)))

  def _stop(self, worker: int) -> None:
    self._go[worker].clear()
    if self.over:  # checked last, as `halt` may be called concurrently
      self._go[worker].set()


def _pieces(array: np.ndarray) -> list[np.ndarray]:
  return [array[i : i + PIECE] for i in range(0, len(array), PIECE)]


def compiled(algorithm: ServerAlgorithm) -> ServerAlgorithm:
  """Return the algorithm with the functions of a visit compiled.

  The compiled lock-free rule takes the center as an array [blocks, size]. If `arrivals.blocks` is 0, the rule is
  removed, and visits use a lock.
  """
  blocks, rule, lock_free = algorithm.arrivals.blocks, algorithm.lock_free, None
  if rule and blocks:
    increment = jax.jit(lambda message, seen: rule.increment(to_blocks(message, blocks), seen))
    reply = jax.jit(lambda message, seen: rule.reply(message, from_blocks(seen, message)))
    lock_free = rule._replace(increment=increment, reply=reply)
  serve, merge, request = map(jax.jit, (algorithm.serve, algorithm.merge, algorithm.request))
  read = algorithm.read and jax.jit(algorithm.read)
  return algorithm._replace(serve=serve, read=read, merge=merge, request=request, lock_free=lock_free)


class SharedServer:
  """The server of one run. With delay 0 the barrier holds back the reply, as in a simulated schedule."""

  def __init__(
    self, algorithm: ServerAlgorithm, params: Tree, *, workers: int, seed: int, barrier: Bounded, visits: int,
    periods: Sequence[int],
  ):  # fmt: skip
    """Initialize the server.

    algorithm: result of `compiled`; params: initial parameters; visits: length of the run, as a number of rounds of
    `algorithm.period` steps; periods: the number of steps in the rounds of each worker.
    """
    self._algorithm, self._rule, self._params, self._periods = algorithm, algorithm.lock_free, params, periods
    self._steps = visits * algorithm.period  # in all rounds of the run
    # Total steps of the rounds whose visits have begun (_admitted) and of those whose visits have ended (_served).
    self._admitted = self._served = 0
    self.host, arrivals = jax.local_devices(backend="cpu")[0], algorithm.arrivals
    _, server, reply = jax.device_put(algorithm.init(params), self.host)
    self._server, self._replies = server, [reply] * workers
    self.gate = RoundGate(barrier, workers=workers, seed=seed, round_robin=arrivals.round_robin)
    self._bounded = barrier.bound != np.inf
    self._peers = [
      draw_peers(np.full(count, worker), np.arange(count), workers=workers, arrivals=arrivals, seed=seed)
      for worker, count in enumerate(self._steps // period for period in periods)
    ]
    self.open()
    self._lock, self._places, self._admission = FairLock(self.now), itertools.count(), threading.Lock()
    self._rows, self._latest = list[VisitRow](), [-1] * workers  # index of each worker's last row
    self._exchanges = 0
    self._operations: list[tuple[int, int, int, int, int]] = []  # place, kind, worker, event, block
    if self._rule:
      self._center = SharedCenter(np.asarray(to_blocks(params, arrivals.blocks)), self._places)
      self._seen = [self._center.copy() for _ in range(workers)]

  def open(self) -> None:
    """Start the clock."""
    self._clock = RealTimeClock()

  def now(self) -> float:
    """Return the seconds since the clock started, excluding the time in callbacks."""
    return self._clock.now()

  def progress(self) -> Progress:
    """Return the progress. The caller must hold the lock, unless all threads have ended."""
    return Progress(-(-self._served // self._algorithm.period), self._exchanges, self.now())

  def warm_up(self, worker: int, message: Tree, device: Any) -> Tree:
    """Compile the functions of a visit without changing the server; return an example of a reply."""
    if self._rule:
      seen = self._seen[worker]
      jax.block_until_ready(self._rule.increment(message, seen))
      return self._rule.reply(message, seen)
    visit = Visit(np.int32(worker), np.int32(-1), np.int32(0))
    server, reply = self._algorithm.serve(self._server, jax.device_put(message, self.host), visit)
    if self._algorithm.read:
      _, reply = self._algorithm.read(server, reply, visit)
    return jax.device_put(reply, device)

  def visit(self, row: VisitRow, message: Tree, on_served: Callable[[int], None]) -> bool:
    """Serve a worker's message, under the lock unless the center is lock-free; then call `on_served` under the lock.

    Return False, without serving, if the run has ended or has too few steps left. row: the record of the visit, to be
    completed; on_served: receives the number of visits done.
    """
    worker = row.worker
    if self._rule:
      jax.block_until_ready(message)
      if not self._admit(worker):
        return False
      row.arrival = self.now()
      operations = self._use_center(worker, message)
      with self._lock:
        self._log(operations, worker, len(self._rows))
        self._record_visit(row, on_served)
      return True
    message = jax.block_until_ready(jax.device_put(message, self.host))
    with self._lock as requested:
      if not self._admit(worker):
        return False
      row.arrival = requested
      served = jax.block_until_ready(self._algorithm.serve(self._server, message, self._visit_of(row)))
      self._server, self._replies[worker] = served
      self._log([(next(self._places), SERVE, 0)], worker, len(self._rows))
      self._record_visit(row, on_served)
      return True

  def reply(self, row: VisitRow, message: Tree, device: Any) -> Tree:
    """Wait for the barrier; return the reply on the worker's device. message: the one passed to `visit`."""
    worker, event = row.worker, self._latest[row.worker]
    self.gate.wait(worker)
    if not self._rule:
      return jax.device_put(self._replies[worker], device)
    if self._algorithm.read and row.answered > event + 1:
      self._log(self._look(worker), worker, event)
    return self._rule.reply(message, self._seen[worker])

  def leave(self, worker: int) -> None:
    """Record that the worker has finished its round, including the steps after the reply."""
    if self._algorithm.arrivals.round_robin:
      self.gate.next_rank(worker)
    elif self._algorithm.delay and self._bounded:
      with self._lock:
        self.gate.admit(self.gate.finish(worker))

  def state(self) -> Tree:
    """Return the algorithm's server state."""
    return from_blocks(jax.device_put(self._center.copy(), self.host), self._params) if self._rule else self._server

  def record(self) -> tuple[Events, Operations]:
    """Release workers that wait at the barrier, and return the record of the run. All threads must have ended."""
    self._answer(list(self.gate.waiting_for) if not self._algorithm.delay else [])
    rows, order = self._rows, sorted(self._operations)
    if not self._rule:  # sort the READs after the last SERVE by event: those of the last visit and of `_answer` above
      served = len(order) - next((k for k, done in enumerate(reversed(order)) if done[1] == SERVE), len(order))
      order[served:] = sorted(order[served:], key=lambda done: done[3])
    peer = np.array([self._visit_of(row).peer for row in rows], np.int32)
    _, kind, worker, event, block = np.array(order, np.int32).reshape(-1, 5).T
    operations = Operations(kind.astype(np.int8), worker, event, block, np.ones(len(order)), len(self._latest))
    return make_events(rows)._replace(peer=peer), operations

  def _visit_of(self, row: VisitRow) -> Visit:
    step = visit_step(self._algorithm.delay, row.round, row.period)
    return Visit(np.int32(row.worker), self._peers[row.worker][row.round], np.int32(step))

  def _admit(self, worker: int) -> bool:
    """Reserve the steps of this worker's visit; return False if the run has ended or has too few steps left."""
    with self._admission:
      if self.gate.over or self._steps - self._admitted < self._periods[worker]:
        return False
      self._admitted += self._periods[worker]
      return True

  def _use_center(self, worker: int, message: Tree) -> list[tuple[int, int, int]]:
    """Add the message's increments to all blocks; read the blocks before that if `reads_first` is set, else afterwards.

    Return the operations as [(index in the order of all operations, kind, block)].
    """
    assert self._rule
    before = self._look(worker) if self._rule.reads_first else []
    increments = np.asarray(self._rule.increment(message, self._seen[worker]))
    added = [(self._center.add(block, increment), ADD, block) for block, increment in enumerate(increments)]
    return before + added + ([] if self._rule.reads_first else self._look(worker))

  def _look(self, worker: int) -> list[tuple[int, int, int]]:
    seen = self._seen[worker] = np.empty_like(self._seen[worker])  # as JAX may still use the old buffer
    return [(self._center.look(block, row), LOOK, block) for block, row in enumerate(seen)]

  def _log(self, operations: list[tuple[int, int, int]], worker: int, event: int) -> None:
    """Record the operations of a worker's visit, [(index in the order, kind, block)]. event: index of the visit."""
    self._operations += [(place, kind, worker, event, block) for place, kind, block in operations]

  def _record_visit(self, row: VisitRow, on_served: Callable[[int], None]) -> None:
    """Record a served visit, reply to the workers that may continue, and call `on_served` while the clock is stopped.

    The caller must hold the lock.
    """
    row.served = self.now()
    self._rows.append(row)
    self._served += row.period
    self._exchanges += self._algorithm.arrivals.peers == "none" or int(self._visit_of(row).peer) >= 0
    self._latest[row.worker] = len(self._rows) - 1
    if self._algorithm.delay:
      row.answered = len(self._rows)
    else:
      free = self.gate.finish(row.worker)
      self._answer(free)
      self.gate.admit(free)
    with self._clock.paused():
      on_served(len(self._rows))
    if self._steps - self._served < self._algorithm.period:
      self.gate.halt()

  def _answer(self, workers: list[int]) -> None:
    """Reply to workers; update replies that later visits made outdated. The caller must hold the lock."""
    for event, worker in sorted((self._latest[worker], worker) for worker in workers):
      row = self._rows[event]
      row.answered = len(self._rows)
      if self._algorithm.read and not self._rule and row.answered > event + 1:
        answer = self._algorithm.read(self._server, self._replies[worker], self._visit_of(row))
        self._server, self._replies[worker] = jax.block_until_ready(answer)
        self._log([(next(self._places), READ, 0)], worker, event)
