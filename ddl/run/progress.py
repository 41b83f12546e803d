"""Show the progress of a run: a bar in a terminal or notebook, otherwise occasional lines."""

import importlib
import sys
import time
from functools import lru_cache
from typing import Any

from tqdm import tqdm

from ddl.hosts import is_main
from ddl.run.batch import LoopHook, LoopStep

SHOWN = ("train_loss", "test_loss", "test_perplexity", "test_accuracy", "test_accuracy_top5")
QUIET_SECONDS = 10.0  # minimum time between two lines if there is no bar


def has_bar() -> bool:
  """Return whether to show a progress bar: only in the main process, in a terminal or notebook."""
  return is_main() and (sys.stderr.isatty() or "ipykernel" in sys.modules)


class _Cell:
  """A file-like object that shows one line in a notebook cell.

  tqdm can erase this line at the end; a widget or an output stream would keep its last text.
  """

  def __init__(self, ipython: Any) -> None:
    self._shown: Any = ipython.display.display({"text/plain": ""}, raw=True, display_id=True)

  def write(self, text: str) -> None:
    """Replace the line by `text` without the leading and trailing blanks that tqdm writes."""
    self._shown.update({"text/plain": text.strip()}, raw=True)

  def flush(self) -> None:
    """Do nothing, as `write` does not buffer."""


@lru_cache(maxsize=1)
def _cell(execution: int) -> _Cell:
  """Return the output line that all bars of a notebook cell share. execution: the cell's execution count."""
  del execution
  return _Cell(importlib.import_module("IPython"))


def bar(what: str, total: int, done: int = 0, delay: float = 0.0) -> tqdm:
  """Create a progress bar that is erased when closed; without a terminal or notebook, it shows nothing.

  what: description before the bar; total, done: numbers of steps; delay: seconds before it appears. The remaining time
  is estimated from the mean rate.
  """
  shown: Any = None  # stderr
  if has_bar() and "ipykernel" in sys.modules:
    shown = _cell(getattr(importlib.import_module("IPython").get_ipython(), "execution_count", 0))
  return tqdm(
    total=total, initial=done, disable=not has_bar(), desc=what, leave=False, file=shown, smoothing=0, delay=delay
  )


class ProgressBar(LoopHook):
  """A hook that shows the completed steps as a bar or in lines, in the main process only."""

  def __init__(self, label: str, total: int, done: int):
    """Create the hook. label: name of the run; total, done: its steps, and those completed so far."""
    self._label, self._total = label, total
    self._bar = bar(f"{label}: compiling", total, done)
    self._lines = is_main() and not has_bar()
    self._since = self._last_print = time.monotonic()
    self._first, self._timed = done, 0  # the first step, and the step from which the rate is measured
    self._compiled = 0.0  # seconds of compilation so far, which the rate excludes

  def __enter__(self) -> "ProgressBar":
    return self

  def __exit__(self, *_: Any) -> None:
    self._bar.close()

  def __call__(self, state: LoopStep) -> None:
    """Show the step and the newest metrics of the first active run."""
    if state.batch.active:
      last = state.batch.figures[state.batch.active[0]]["last"]
      self.show(state.step, last if last.get("step") == state.step else {}, state.batch.trainer.compile_seconds)

  def show(self, step: int, line: dict[str, Any], compiled: float = 0.0) -> None:
    """Update the bar, or print a line at most every QUIET_SECONDS.

    line: the metrics of this step, or {} for none; compiled: seconds of compilation so far, excluded from the rate.
    """
    if self._timed:
      self._since += compiled - self._compiled
      self._bar.start_t = min(self._bar.start_t + compiled - self._compiled, time.time())
    self._compiled = compiled
    begins = step > self._first and not self._timed
    if begins:  # exclude compilation from the rate
      self._timed, self._since = step, time.monotonic()
      self._bar.set_description(self._label, refresh=False)
      self._bar.initial, self._bar.start_t = step, time.time()  # restart tqdm's clock
      self._bar.last_print_t = self._bar.start_t  # otherwise tqdm would not erase the bar
    if line:
      self._bar.set_postfix({name: f"{line[name]:.4g}" for name in SHOWN if name in line}, refresh=False)
    self._bar.update(step - self._bar.n)
    if begins:
      self._bar.refresh()
    now = time.monotonic()
    if self._lines and line and now - self._last_print >= QUIET_SECONDS:
      shown = ", ".join(f"{name} {line[name]:.4g}" for name in SHOWN if name in line)
      done = step - (self._timed or step)
      rest = self._total - step
      left = f", about {(now - self._since) / done * rest:.0f} s left" if done and rest else ""
      print(f"{self._label}: step {step} of {self._total}, {shown}{left}", flush=True)
      self._last_print = now
