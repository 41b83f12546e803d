"""The shared objects of a run on threads: a clock, a fair lock, a lock-free center, and the barrier."""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain, islice

import numpy as np

from ddl.events.barriers import Bounded
from ddl.events.membership_barrier import MembershipBarrier

PIECE = 500  # elements up to which NumPy holds the interpreter's lock while it adds


class Clock:
  """Monotonic seconds of training, stopped during evaluation."""

  def __init__(self):
    """Start at 0."""
    self._guard, self._zero, self._stopped = threading.Lock(), time.perf_counter(), None

  def now(self) -> float:
    """Return the seconds so far."""
    with self._guard:  # or the clock could stop, and go again, between two reads
      return (time.perf_counter() if self._stopped is None else self._stopped) - self._zero

  @contextmanager
  def paused(self) -> Iterator[None]:
    """Stop the clock for a while."""
    with self._guard:
      self._stopped = time.perf_counter()
    yield
    with self._guard:
      self._zero, self._stopped = self._zero + time.perf_counter() - self._stopped, None


class FairLock:
  """A lock for `with` that serves threads in the order of their requests, unlike threading.Lock."""

  def __init__(self, now: Callable[[], float] = time.perf_counter):
    """now: the clock of the requests."""
    self._guard, self._line, self._now = threading.Lock(), deque[threading.Lock](), now

  def __enter__(self) -> float:
    """Wait for the lock. Return the time of the request; these times are in the order of service."""
    mine = threading.Lock()
    mine.acquire()
    with self._guard:
      requested = self._now()
      self._line.append(mine)
      if len(self._line) == 1:
        mine.release()
    mine.acquire()
    return requested

  def __exit__(self, *_: object) -> None:
    with self._guard:
      self._line.popleft()
      if self._line:
        self._line[0].release()


class SharedCenter:
  """One NumPy buffer [blocks, size] that all threads read and add to in place, block by block, without a lock.

  `np.add(a, u, out=a)` loses increments of single elements: above 500 elements NumPy releases the interpreter's lock,
  and two threads that add to an element at the same moment can both start from the same value (2 threads on 2 cores,
  5,000 to 1,000,000 elements: 1e-5 to 5e-4 of the increments, and of the worst element 6 to 18 %). So a block is added
  to in pieces of at most 500, whose loop runs in C without a step of Python in between: CPython (with its global lock)
  then runs no other thread, nothing is lost, and `places` numbers the operations as they happened. The price is 2 ms
  per million elements. No visit waits for another, and the blocks of concurrent visits interleave. On a free-threaded
  Python elements can be lost, and neighbours in `places` swapped; whole increments cannot.
  """

  def __init__(self, start: np.ndarray, places: Iterator[int]):
    """start: [blocks, size]; places: an itertools.count, of which each operation takes the next."""
    self._blocks, self._places = start.copy(), places
    self._pieces = [_pieces(block) for block in self._blocks]

  def add(self, block: int, increment: np.ndarray) -> int:
    """center[block] += increment, [size]. Return its place in the order of all operations."""
    center = self._pieces[block]
    place, *_ = chain(islice(self._places, 1), map(np.add, center, _pieces(increment), center))
    return int(place)

  def look(self, block: int, out: np.ndarray) -> int:
    """out <- center[block], [size]. Return its place in the order of all operations."""
    place, *_ = chain(islice(self._places, 1), map(np.positive, self._pieces[block], _pieces(out)))
    return int(place)

  def copy(self) -> np.ndarray:
    """Return all blocks, read one after the other: [blocks, size]."""
    out = np.empty_like(self._blocks)
    for block, row in enumerate(out):
      self.look(block, row)
    return out


class RoundGate:
  """Admits workers to their next round, by the barrier or round robin, until the run is over."""

  def __init__(self, barrier: Bounded, *, workers: int, seed: int, round_robin: bool):
    """All workers may start; in a round robin rank 0."""
    self._members = MembershipBarrier(barrier, workers=workers, seed=seed)
    self.held = self._members.held  # worker -> one that it waits for
    self._go = [threading.Event() for _ in range(workers)]
    self.over = False
    self.admit(list(range(1 if round_robin else workers)))

  def wait(self, worker: int) -> None:
    """Wait until the worker may go on, or the run is over."""
    self._go[worker].wait()

  def finish(self, worker: int) -> list[int]:
    """Count a finished round. Return the workers that may go on, for `admit`. Callers hold a lock."""
    free = self._members.finish(worker)
    if worker not in free:
      self._stop(worker)
    return free

  def admit(self, workers: list[int]) -> None:
    """Let these workers go on."""
    for worker in workers:
      self._go[worker].set()

  def next_rank(self, worker: int) -> None:
    """Let the next worker of the round robin go on."""
    self._stop(worker)
    self._go[(worker + 1) % len(self._go)].set()

  def halt(self) -> None:
    """End the run: no worker waits any more."""
    self.over = True
    self.admit(list(range(len(self._go))))

  def _stop(self, worker: int) -> None:
    self._go[worker].clear()
    if self.over:  # in this order, as `halt` may come in between
      self._go[worker].set()


def _pieces(array: np.ndarray) -> list[np.ndarray]:
  return [array[i : i + PIECE] for i in range(0, len(array), PIECE)]
