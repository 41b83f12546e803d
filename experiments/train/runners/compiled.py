"""A run as compiled calls: of `Trainer` for a collective algorithm, of `Simulator` for a server's in virtual time."""

import collections
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from tqdm.auto import tqdm

from ddl.perf.units import counted
from ddl.runtime.checkpoint import Checkpoints
from ddl.runtime.consensus import Consensus, NotFinite
from ddl.runtime.hosts import Vote
from ddl.runtime.trainer import Trainer
from ddl.runtime.virtual.simulator import Simulator
from experiments.config.experiment import initial_key, training_key
from experiments.train.build import Components
from experiments.train.metrics import FIGURES
from experiments.train.progress import has_bar
from experiments.train.run_dir import RunFolder
from experiments.train.runners.runner import Report, StopRequest

NO_LOSSES = np.zeros(0)


class CompiledRun:
  """One run of a trainer, whose compiled calls serve several runs."""

  def __init__(self, components: Components, trainer: Trainer | Simulator, *, every: int = 0, keep_final: bool = True):
    """every: steps between checkpoints, 0: none on the way; keep_final: save the last step too."""
    self._components, self.trainer, self._every, self._keep_final = components, trainer, every, keep_final
    self._checkpoints: Checkpoints | None = None
    self.layout = {
      "devices": trainer.workers.devices, "execution": list(trainer.execution), "processes": jax.process_count()
    }  # fmt: skip

  def open(self, folder: RunFolder, resume: bool) -> dict[str, Any] | None:
    """See `Runner`. ValueError for a damaged checkpoint or one of another layout, or a model that does not fit."""
    experiment, self._folder = self._components.experiment, folder.checkpoints
    # of the whole run, as that decides which calls are alike
    self._calls: list[Any] = self.trainer.plan(0, experiment.steps, experiment.eval_every)
    self._carry: Any = self.trainer.start(initial_key(experiment.seed))
    if resume or self._every or self._keep_final:
      self._checkpoints = Checkpoints(self._folder)
    step = self._checkpoints.latest() if self._checkpoints and resume else None
    if self._checkpoints is None or step is None:  # new, or stopped before its first checkpoint
      return None
    figures = self._checkpoints.figures(step)
    if not isinstance(figures, dict) or {*FIGURES, "layout"} - {*figures}:
      raise ValueError(f"{self._folder / str(step)} is damaged; without that folder the run resumes from before it")
    layout = figures.pop("layout")
    if layout != self.layout:
      raise ValueError(
        f"{folder.path} was run as {_words(layout)}, now it is {_words(self.layout)}; a run resumes bit for bit only "
        "as it was: pass its --devices, --virtual_grad, --step_loop, --steps_per_call, --overlap and --processes"
      )
    self._carry = self._checkpoints.carry(step, self.trainer.shapes(self._carry))
    return figures

  def run(self, figures: dict[str, Any], report: Callable[[Report], None], asked: StopRequest) -> int | None:
    """See `Runner`. One call stays in flight while the losses of the one before are read."""
    experiment, trainer = self._components.experiment, self.trainer
    if not figures["lines"]:
      report(Report(0, NO_LOSSES, 0.0, 0.0, self._consensus, line=True))
    calls = [call for call in self._calls if call.first >= figures["step"]]
    feed, key = self._components.training_feed(trainer.workers.local), training_key(experiment.seed)
    clock, vote, nbytes, stop = Clock(trainer, figures["seconds"]), Vote(), figures["nbytes"], False
    pending = collections.deque[tuple[Any, jax.Array, Any]]()
    clock.go()
    for call, carry, losses in trainer.run(self._carry, calls, feed, key):
      self._carry = carry
      pending.append((call, losses, vote.cast(asked.number is not None)))
      line, save = call.end == experiment.steps or call.end % experiment.eval_every == 0, self._save_due(call)
      while len(pending) > (0 if line or save or stop else 1):
        done, losses, ballot = pending.popleft()
        values = self._finite(done, losses)
        nbytes += trainer.nbytes(done)
        stop |= vote.count(ballot)
        if pending or not (line or save or stop):
          report(Report(done.end, values, nbytes, clock.seconds))
          continue
        clock.stop()
        report(Report(done.end, values, nbytes, clock.seconds, self._consensus, line, save=save or stop))
        if save or stop:
          self._save(figures)
        clock.go()
      if stop:
        return call.end
    return None

  def kept(self) -> str:
    """See `Runner`."""
    step = self._checkpoints.latest() if self._checkpoints else None
    return "there was no checkpoint yet" if step is None else f"the last good checkpoint, of step {step}, is kept"

  def close(self) -> None:
    """Wait for what is being saved."""
    if self._checkpoints:
      self._checkpoints.close()

  def _save(self, figures: dict[str, Any]) -> None:
    self._checkpoints = self._checkpoints or Checkpoints(self._folder)
    self._checkpoints.save(figures["step"], self._carry, figures | {"layout": self.layout})

  def _consensus(self) -> Consensus:
    return self.trainer.consensus(self._carry)

  def _save_due(self, call: Any) -> bool:
    at_end = self._keep_final and call.end == self._components.experiment.steps
    return at_end or bool(self._every and call.end // self._every > call.first // self._every)

  def _finite(self, call: Any, losses: jax.Array) -> np.ndarray:
    values = self.trainer.losses(call, losses)
    bad = np.flatnonzero(~np.isfinite(values))
    if bad.size:
      # A simulator's losses are those of single workers, whose own steps run apart from the average that is counted.
      exact = values.size == call.steps
      where = f"at step {call.first + bad[0] + 1}" if exact else f"between step {call.first + 1} and step {call.end}"
      raise NotFinite(f"its loss is {values[bad[0]]} {where}")
    return values


class Clock:
  """Seconds of training: evaluation, saving and compilation do not count."""

  def __init__(self, trainer: Trainer | Simulator, seconds: float):
    """Stopped, at `seconds`."""
    self.trainer, self.seconds = trainer, seconds

  def go(self) -> None:
    """Start."""
    self._since, self._compiled = time.perf_counter(), self.trainer.compile_seconds

  def stop(self) -> None:
    """Stop; call it once the devices are done."""
    self.seconds += time.perf_counter() - self._since - (self.trainer.compile_seconds - self._compiled)


def warm_up(components: Components, trainer: Trainer | Simulator, label: str) -> None:
  """Make the first calls of a run and forget them: the first time is slower, and seconds are to be compared."""
  experiment = components.experiment
  calls: Any = trainer.plan(0, experiment.steps, experiment.eval_every)  # of the whole run: see `CompiledRun.open`
  calls = [call for call in calls if call.end <= 2 * experiment.eval_every]
  feed, key = components.training_feed(trainer.workers.local), training_key(experiment.seed)
  with tqdm(total=len(calls), disable=not has_bar(), desc=f"{label}: compiling", leave=False) as bar:
    start: Any = trainer.start(initial_key(experiment.seed))
    for _, carry, _ in trainer.run(start, calls, feed, key):
      jax.block_until_ready(carry)
      bar.update()


def _words(layout: dict[str, Any]) -> str:
  processes = counted(layout["processes"], "process", "processes")
  return f"{processes}, {counted(layout['devices'], 'device')}, {tuple(layout['execution'])}"
