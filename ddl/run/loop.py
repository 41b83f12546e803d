"""The training loop: it calls a compiled program for several steps at a time, and calls hooks in between."""

import collections
import contextlib
import signal
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from ddl.engine.consensus import NotFinite
from ddl.engine.trainer import Trainer
from ddl.hosts import Vote, exit_process, is_main
from ddl.run.batch import Batch, Diverged, LoopHook, LoopStep
from ddl.run.checkpoints import Restored, Store
from ddl.run.exit_codes import Stopped
from ddl.run.processes import say
from ddl.run.progress import ProgressBar, bar


def loop(batch: Batch, state: Restored, hooks: Sequence[LoopHook], stop: "StopRequest") -> tuple[int, bool]:
  """Train a batch of runs to the end or a requested stop; return (last finished step, whether a stop was requested).

  While the losses of one call are read, the next call already runs on the devices. If a hook is due, the loop waits for
  the devices before it calls the hooks. All processes stop after the same call.

  state: the initial or restored state; stop: the handler of the signals that request a stop.
  """
  trainer, steps, done = batch.trainer, batch.experiment.steps, batch.figures[0]
  calls = [call for call in trainer.plan(state.first, steps, batch.experiment.eval_every) if call.first >= done["step"]]
  feed, key, step = batch.feed(state.streams, state.joined), batch.key(), done["step"]
  clock, vote = Stopwatch(trainer, sum(figures["seconds"] for figures in batch.figures)), Vote()
  if not done["lines"]:
    _call(hooks, LoopStep(batch, 0, 0, np.zeros((batch.width, 0)), 0.0, 0.0, state.carry))
  pending = collections.deque[tuple[Any, Any, object]]()
  nbytes, stopping = done["nbytes"], False
  clock.start()
  with contextlib.closing(trainer.run(state.carry, calls, feed, key)) as running:  # pyright: ignore[reportArgumentType]
    del state
    for call, carry, losses in running:
      pending.append((call, losses, vote.cast(stop.number is not None, losses)))
      due = any(hook.due(call.first, call.end) for hook in hooks)
      while len(pending) > (0 if due or stopping else 1):
        call, losses, ballot = pending.popleft()
        values = np.atleast_2d(trainer.losses(call, losses))
        nbytes += trainer.nbytes(call)
        stopping |= vote.count(ballot)
        pause = not pending and (due or stopping)
        if pause:
          clock.stop()
        measured = trainer.seconds(carry)
        seconds = clock.seconds / len(batch.runs) if measured is None else measured
        _call(hooks, LoopStep(batch, call.first, call.end, values, nbytes, seconds, carry if pause else None, stopping))
        for run in sorted(batch.ending):
          _finish(batch, hooks, run)
        if pause:
          clock.start()
      step = call.end
      if stopping or not batch.active:
        break
  return step, stopping


def _call(hooks: Sequence[LoopHook], state: LoopStep) -> None:
  for hook in hooks:
    hook(state)


def _finish(batch: Batch, hooks: Sequence[LoopHook], run: int) -> None:
  """Mark the folder of a run as complete and end the run."""
  batch.runs[run].folder.finish(batch.figures[run]["last"])
  for hook in hooks:
    hook.finished(run)
  batch.ending.discard(run)
  batch.ended.add(run)


def run(
  batch: Batch, store: Store, hooks: Sequence[LoopHook], label: str, about: dict[str, Any]
) -> list[dict[str, Any] | Diverged]:
  """Train the runs of a batch in their folders; return the last line of metrics of each run, or its `Diverged` error.

  label: name shown with the progress; about: command and versions to record in the folders.

  Raises:
    Stopped: after SIGTERM or Ctrl-C; the runs have been saved if the store supports it.
    ValueError: if a folder contains another run (see `RunFolder`), or the trainer cannot start.
  """
  steps, stopped_at = batch.experiment.steps, None
  with StopRequest(batch.trainer.stop) as stop:  # before creating files, so that a stop always saves
    try:
      states = [_open(batch, store, about)]
      if any(run.resume for run in batch.runs):
        say(f"{label}: resuming from step {batch.figures[0]['step']} of {steps}")
      stop.listen()  # again, because Ray replaces the handlers when it starts
      with ProgressBar(label, steps, batch.figures[0]["step"]) as progress:
        step, stopping = loop(batch, states.pop(), [*hooks, progress, store], stop)
        stopped_at = step if batch.active and (stopping or step < steps) else None
    except NotFinite as error:
      for run in batch.active:
        batch.diverge(run, error)
    finally:
      with contextlib.ExitStack() as closing:  # hooks last, because user-defined ones may take long or fail
        for hook in hooks:
          closing.callback(hook.close)
        # With several processes, do not close after an error: closing would wait for the other processes.
        if jax.process_count() == 1 or not isinstance(sys.exception(), Exception):
          batch.close()
          store.close()
    if stopped_at is not None and stopped_at < steps:
      raise Stopped(stopped_at, stop.number or signal.SIGTERM)
    trained = batch.active
    for run in trained:
      _finish(batch, hooks, run)
    if (trained or batch.ended) and (stopped_at is not None or (stop.number is not None and jax.process_count() == 1)):
      raise Stopped(steps, stop.number or signal.SIGTERM)  # do not start the next batch
    return [batch.diverged.get(run) or figures["last"] for run, figures in enumerate(batch.figures)]


def _open(batch: Batch, store: Store, about: dict[str, Any]) -> Restored:
  """Create the folders and the initial state; for resumed runs, check the folders and restore the saved state.

  The lines of metrics written after the restored checkpoint are dropped.
  """
  for run in batch.runs:
    if run.resume:
      run.folder.reopen(run.components.experiment)
  state = store.restore(batch, any(run.resume for run in batch.runs)) or Restored(batch.start(), batch.figures)
  batch.figures = state.figures
  layout = batch.trainer.layout | {"together": len(batch.runs)}  # a bit-exact resume depends on these settings
  for run, figures in zip(batch.runs, batch.figures, strict=True):
    if run.resume:
      run.folder.truncate(figures["lines"])
      run.folder.resumed(figures["step"])
    else:
      run.folder.create(run.components.experiment, about | {"layout": layout})
  return state


def warm_up(batch: Batch, label: str) -> None:
  """Run the first calls and discard their results, so that the times of compared runs exclude the slow first calls."""
  trainer, every = batch.trainer, batch.experiment.eval_every
  plan = trainer.plan(0, batch.experiment.steps, every)  # only the whole run's plan gives the run's programs
  calls = [call for call in plan if call.end <= 2 * every]
  with bar(f"{label}: compiling", len(calls)) as shown:
    for _, carry, _ in trainer.run(batch.start(), calls, batch.feed(), batch.key()):
      jax.block_until_ready(carry)
      shown.update()
  batch.close()


class Stopwatch:
  """A stopwatch for the seconds of training, which exclude evaluation, saving and compilation."""

  def __init__(self, trainer: Trainer, seconds: float):
    """Create a stopped stopwatch that shows `seconds`."""
    self._trainer, self.seconds = trainer, seconds

  def start(self) -> None:
    """Start or continue timing."""
    self._since, self._compiled = time.perf_counter(), self._trainer.compile_seconds

  def stop(self) -> None:
    """Pause timing and subtract the seconds of compilation; call it after waiting for the devices."""
    self.seconds += time.perf_counter() - self._since - (self._trainer.compile_seconds - self._compiled)


class StopRequest:
  """A handler of SIGTERM and Ctrl-C that lets the loop save the runs; Ctrl-C after a first signal ends the process."""

  def __init__(self, then: Callable[[], object] = lambda: None):
    """Create the handler. then: a function to call when a signal requests a stop."""
    self._then = then

  def __enter__(self) -> "StopRequest":
    self.number: int | None = None
    self._before = self.listen()
    return self

  def listen(self) -> dict[int, Any]:
    """Install the handlers, also after a library has replaced them; return signal -> previous handler."""
    return {number: signal.signal(number, self._note) for number in (signal.SIGTERM, signal.SIGINT)}

  def _note(self, number: int, _frame: Any) -> None:
    if self.number is not None and number == signal.SIGINT:
      exit_process(128 + number)  # with several processes, exit at once, as a clean-up could wait for the others
      raise KeyboardInterrupt
    if self.number is None and number == signal.SIGINT and is_main():
      print("\nstopping after the current steps or evaluation, and saving; press Ctrl-C again to stop at once",
            file=sys.stderr, flush=True)  # fmt: skip
    self.number = number
    self._then()

  def __exit__(self, *_: Any) -> None:
    for number, handler in self._before.items():
      signal.signal(number, handler)
