"""The interface between the training loop and what makes the steps (compiled calls, threads or Ray), and its stop."""

import signal
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from ddl.engine.consensus import Consensus
from ddl.events.presence import Presence
from ddl.hosts import leave
from ddl.run.folder import RunFolder


class Report(NamedTuple):
  """The progress of runs that are made together, from time to time. Cumulative, but for the losses."""

  step: int  # that the workers have made, on average
  losses: np.ndarray  # [lanes, steps since the last report]
  nbytes: float  # sent and received by a worker, on average
  seconds: float  # of training, for each run: without compilation, evaluation and saving
  models: Callable[[], Sequence[Consensus]] | None = None  # of this step, by lane; None: the next steps have begun
  line: bool = False  # metrics are due
  save: bool = False  # a checkpoint is due
  visits: int | None = None  # to the server, in real time


class StopRequest:
  """SIGTERM and Ctrl-C as a wish that a run looks at between its calls, to save itself; the second Ctrl-C dies."""

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


class Runner(Protocol):
  """Makes the steps of a run, or of several together, from the first or from a checkpoint."""

  layout: dict[str, Any]  # what a bit-exact resume depends on
  lanes: Sequence[int]  # of each run in its reports

  @property
  def presence(self) -> Presence | None:
    """Who is there when, of workers that come and go, in a run that is made alone."""
    ...

  def open(self, folders: Sequence[RunFolder], resume: bool) -> Sequence[dict[str, Any]] | None:
    """Load or initialise the models; return each run's figures of its checkpoint, None at step 0."""
    ...

  def run(
    self, figures: Sequence[dict[str, Any]], report: Callable[[Report], Sequence[bool]], asked: StopRequest
  ) -> int | None:
    """Make the remaining steps, and save them where that is due; return the step of an early stop.

    figures: of each run, kept up to date by `report`, to be saved with a checkpoint. report: says of each run whether
    it goes on; False once it has diverged, beside others that do.

    Raises:
      NotFinite: for a loss or message that is not finite.
    """
    ...

  def kept(self) -> str:
    """Describe the newest checkpoint, for an error message."""
    ...

  def close(self) -> None:
    """End what was started, and wait for what is being saved."""
    ...
