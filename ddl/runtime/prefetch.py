"""Prepares the input of the next calls while one runs."""

import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

Item = TypeVar("Item")
Made = TypeVar("Made")


def prefetch(items: Iterable[Item], make: Callable[[Item], Made], depth: int = 2) -> Iterator[tuple[Item, Made]]:
  """Yields (item, make(item)) in order; a thread is at most `depth` items ahead.

  An error in the thread is raised here, at its item. Leaving the iterator early ends the thread.
  """
  ready: queue.Queue[tuple[Item | None, Made | None, BaseException | None]] = queue.Queue(depth)
  leaving = threading.Event()

  def put(entry: tuple[Item | None, Made | None, BaseException | None]) -> None:
    while not leaving.is_set():
      try:
        ready.put(entry, timeout=0.1)
        return
      except queue.Full:
        continue

  def work() -> None:
    try:
      for item in items:
        if leaving.is_set():
          return
        put((item, make(item), None))
      put((None, None, None))
    except BaseException as error:  # whatever it is, the consumer must hear of it
      put((None, None, error))

  thread = threading.Thread(target=work, name="prefetch", daemon=True)
  thread.start()
  try:
    while True:
      item, made, error = ready.get()
      if error is not None:
        raise error
      if item is None:
        return
      yield item, made  # type: ignore[misc]
  finally:
    leaving.set()
    thread.join()
