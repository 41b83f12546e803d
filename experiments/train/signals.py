"""SIGTERM and Ctrl-C as a wish that a run looks at between its calls, so that it can save itself."""

import signal
from collections.abc import Callable
from typing import Any

from ddl.runtime.hosts import leave


class StopRequest:
  """Notes SIGTERM and Ctrl-C instead of dying; the second Ctrl-C dies."""

  def __init__(self, then: Callable[[], object] = lambda: None):
    """then: called in the signal's handler."""
    self.then = then

  def __enter__(self) -> "StopRequest":
    self.number: int | None = None
    self._before = self.listen()
    return self

  def listen(self) -> dict[int, Any]:
    """Takes the signals over, again where a library has set handlers of its own; returns those there were."""
    return {number: signal.signal(number, self._note) for number in (signal.SIGTERM, signal.SIGINT)}

  def _note(self, number: int, _frame: Any) -> None:
    if self.number is not None and number == signal.SIGINT:
      leave(128 + number)  # a process of a group, whose clean-up could wait for the others
      raise KeyboardInterrupt
    self.number = number
    self.then()

  def __exit__(self, *_: Any) -> None:
    for number, handler in self._before.items():
      signal.signal(number, handler)
