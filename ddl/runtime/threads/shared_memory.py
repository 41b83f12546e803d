"""What the threads of a run share: a clock, a lock that is given in turn, a center without one, and who may start."""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from itertools import chain, islice

import numpy as np

from ddl.events.barriers import Bounded
from ddl.events.membership_barrier import MembershipBarrier

WHOLE = 500  # elements up to which NumPy keeps the interpreter's lock while it adds


class Clock:
  """Seconds of training, which never go back: a clock that stands while a model is tested."""

  def __init__(self):
    """Goes from 0."""
    self._guard, self._zero, self._stands = threading.Lock(), time.perf_counter(), None

  def now(self) -> float:
    """Seconds."""
    with self._guard:  # or the clock could stand, and go again, between two reads
      return (time.perf_counter() if self._stands is None else self._stands) - self._zero

  def stop(self) -> None:
    """It stands."""
    with self._guard:
      self._stands = time.perf_counter()

  def go(self) -> None:
    """It goes on."""
    with self._guard:
      assert self._stands is not None
      self._zero, self._stands = self._zero + time.perf_counter() - self._stands, None


class FirstCome:
  """A lock for `with`, given in the order in which it was asked for, as threading.Lock isn't."""

  def __init__(self, now: Callable[[], float] = time.perf_counter):
    """Free. now: the clock of those who ask."""
    self._guard, self._line, self._now = threading.Lock(), deque[threading.Lock](), now

  def __enter__(self) -> float:
    """Waits. Returns when it was asked for: these moments are in the order of being served."""
    mine = threading.Lock()
    mine.acquire()
    with self._guard:
      asked = self._now()
      self._line.append(mine)
      if len(self._line) == 1:
        mine.release()
    mine.acquire()
    return asked

  def __exit__(self, *_: object) -> None:
    with self._guard:
      self._line.popleft()
      if self._line:
        self._line[0].release()


class SharedCenter:
  """One NumPy buffer [blocks, size] that all threads read and add to in place, block by block, without a lock.

  `np.add(a, u, out=a)` loses increments of single elements: above 500 elements NumPy lets go of the interpreter's
  lock, and two threads that add to an element at the same moment can both start from the same value (2 threads on 2
  cores, 5,000 to 1,000,000 elements: 1e-5 to 5e-4 of the increments, and of the worst element 6 to 18 %). So a block
  is added to in pieces of at most 500, whose loop runs in C without a step of Python's own in between: CPython (with
  its global lock) then lets no other thread in, nothing is lost, and `places` numbers the operations as they happened.
  The price is 2 ms per million elements. Nobody waits for another's visit, and a visit's blocks mix with those of
  others. On a free-threaded Python elements can be lost, and neighbours in `places` swapped; whole increments cannot.
  """

  def __init__(self, start: np.ndarray, places: Iterator[int]):
    """start: [blocks, size]; places: an itertools.count, each operation takes the next one."""
    self._blocks, self._places = start.copy(), places
    self._pieces = [_pieces(block) for block in self._blocks]

  def add(self, block: int, increment: np.ndarray) -> int:
    """center[block] += increment, [size]. Returns its place in the order of all operations."""
    center = self._pieces[block]
    place, *_ = chain(islice(self._places, 1), map(np.add, center, _pieces(increment), center))
    return int(place)

  def look(self, block: int, out: np.ndarray) -> int:
    """out <- center[block], [size]. Returns its place in the order of all operations."""
    place, *_ = chain(islice(self._places, 1), map(np.positive, self._pieces[block], _pieces(out)))
    return int(place)

  def copy(self) -> np.ndarray:
    """All blocks, one after the other: [blocks, size]."""
    out = np.empty_like(self._blocks)
    for block, row in enumerate(out):
      self.look(block, row)
    return out


class Pace:
  """Who may start a worker round: the barrier, or the round robin, and the end of all."""

  def __init__(self, barrier: Bounded, *, workers: int, seed: int, round_robin: bool):
    """All may start; in a round robin rank 0."""
    self._members = MembershipBarrier(barrier, workers=workers, seed=seed)
    self.held = self._members.held  # worker -> one that it waits for
    self._go = [threading.Event() for _ in range(workers)]
    self.over = False
    for event in self._go[: 1 if round_robin else workers]:
      event.set()

  def wait(self, worker: int) -> None:
    """Returns when the worker may go on, or all is over."""
    self._go[worker].wait()

  def finish(self, worker: int) -> list[int]:
    """The worker is done with a worker round: returns those who may go on now, who have to be told so. Under a lock."""
    free = self._members.finish(worker)
    if worker not in free:
      self._stop(worker)
    return free

  def let(self, workers: list[int]) -> None:
    """These may go on."""
    for worker in workers:
      self._go[worker].set()

  def next_rank(self, worker: int) -> None:
    """The round robin moves on."""
    self._stop(worker)
    self._go[(worker + 1) % len(self._go)].set()

  def halt(self) -> None:
    """All is over: nobody waits any more."""
    self.over = True
    self.let(list(range(len(self._go))))

  def _stop(self, worker: int) -> None:
    self._go[worker].clear()
    if self.over:  # in this order, as `halt` may come in between
      self._go[worker].set()


def _pieces(array: np.ndarray) -> list[np.ndarray]:
  return [array[i : i + WHOLE] for i in range(0, len(array), WHOLE)]
