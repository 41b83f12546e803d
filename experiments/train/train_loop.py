"""One run from its first step to its last: metrics, checkpoints, stopping and resuming. There is no other loop."""

import collections
import math
import signal
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from tqdm import tqdm

from ddl.runtime.checkpoint import Checkpoints
from ddl.runtime.consensus import Consensus
from ddl.runtime.hosts import Vote, is_main
from experiments.config.experiment import Experiment, initial_key, training_key
from experiments.train.build import Components
from experiments.train.evaluate import REESTIMATED, Evaluator
from experiments.train.exit_codes import Stopped
from experiments.train.run_dir import RunFolder
from experiments.train.runner import Clock, Runner
from experiments.train.signals import Asked


class Diverged(ValueError):
  """The loss is no longer finite."""


def diverged(experiment: Experiment, what: str, kept: str) -> Diverged:
  """One line for the user. kept: what there is of checkpoints."""
  rate = experiment.optimizer.learning_rate
  return Diverged(
    f"{experiment.algorithm.name} diverged: {what}; a config.optimizer.learning_rate below {rate} may help; {kept}"
  )


class Options(NamedTuple):
  """What a run does beside training."""

  resume: bool = False
  checkpoint_every: int = 0  # steps; 0: only where the run stops or ends
  keep_final: bool = True  # save the last step too
  batch_stats: str = "mean"  # of the consensus model, or "reestimate"
  label: str = ""  # on the progress bar
  clock: Callable[[int], float] | None = None  # step -> virtual seconds


def run(
  components: Components,
  trainer: Runner,
  folder: RunFolder,
  evaluator: Evaluator,
  options: Options,
  about: dict[str, Any],
) -> dict[str, Any]:
  """Trains, and leaves the run in its folder. Returns the last line of metrics.

  Raises:
    Diverged: if the loss is not finite; the last good checkpoint stays.
    Stopped: after SIGTERM or Ctrl-C; the run is saved.
    ValueError: if the folder does not fit (see `RunFolder`).
  """
  return _Run(components, trainer, folder, evaluator, options, about).go()


class _Run:
  def __init__(
    self,
    components: Components,
    trainer: Runner,
    folder: RunFolder,
    evaluator: Evaluator,
    options: Options,
    about: Any,
  ):
    self.components, self.trainer, self.folder = components, trainer, folder
    self.evaluator, self.options, self.experiment = evaluator, options, components.experiment
    self.layout = {
      "devices": trainer.workers.devices,
      "execution": list(trainer.execution),
      "processes": jax.process_count(),
    }
    self.about = about | {"layout": self.layout}
    self.calls = trainer.plan(0, self.experiment.steps, self.experiment.eval_every)
    self.figures = {"step": 0, "lines": 0, "nbytes": 0.0, "seconds": 0.0, "loss_sum": 0.0, "loss_count": 0, "last": {}}

  def go(self) -> dict[str, Any]:
    with Asked() as asked:  # from the first file on, so that a stop always saves
      return self._go(asked)

  def _go(self, asked: Asked) -> dict[str, Any]:
    carry = self._open()
    done, pending = self.figures["step"], collections.deque()
    clock, vote, total = Clock(self.trainer, self.figures["seconds"]), Vote(), self.experiment.steps
    stop = False
    feed = self.components.training_feed(self.trainer.workers.local)
    calls = [call for call in self.calls if call.first >= done]
    key = training_key(self.experiment.seed)
    label, hidden = self.options.label, None if is_main() else True
    bar = tqdm(total=total, initial=done, disable=hidden, desc=f"{label}: compiling", leave=False)
    try:
      with bar:
        if self.figures["lines"] == 0:
          self._line(carry, 0)
        clock.go()
        for call, carry, losses in self.trainer.run(carry, calls, feed, key):  # noqa: B020
          bar.set_description(label, refresh=False)  # the first call is compiled
          pending.append((call, losses, vote.cast(asked.number is not None)))
          pause = call.end == total or call.end % self.experiment.eval_every == 0
          save = self._checkpoint_due(call)
          stop = False
          while len(pending) > (0 if pause or save else 1):  # one call stays in flight while its forerunner is read
            stop |= self._account(pending.popleft(), vote)
          if pause or save or stop:
            while pending:
              stop |= self._account(pending.popleft(), vote)
            clock.stop()
            self.figures["seconds"] = clock.seconds
            if pause:
              self._line(carry, call.end)
              shown = ("train_loss", "test_accuracy")
              bar.set_postfix({k: f"{v:.4g}" for k, v in self.figures["last"].items() if k in shown})
            elif save or stop:
              self._sound(self.trainer.consensus(carry), call.end)
            if save or stop:
              self._save(carry, wait=stop)
            if stop and call.end < total:
              raise Stopped(call.end, asked.number or signal.SIGTERM)
            clock.go()
          bar.update(call.steps)
    finally:
      if self.checkpoints:
        self.checkpoints.close()
      self.folder.close()
    self.folder.finish(self.figures["last"])
    if stop or (asked.number is not None and jax.process_count() == 1):
      raise Stopped(total, asked.number or signal.SIGTERM)  # what would come after this run must not begin
    return self.figures["last"]

  def _open(self) -> Any:
    """A fresh or a restored carry, and `figures` to match."""
    options = self.options
    carry = self.trainer.start(initial_key(self.experiment.seed))
    saves = options.keep_final or options.checkpoint_every
    if not options.resume:
      self.folder.create(self.experiment, self.about)
      self.checkpoints = Checkpoints(self.folder.checkpoints) if saves else None
      return carry
    self.folder.reopen(self.experiment)
    self.checkpoints = Checkpoints(self.folder.checkpoints)
    step = self.checkpoints.latest()
    if step is None:  # stopped before its first checkpoint: from the start again
      self.folder.truncate(0)
      return carry
    found = self.checkpoints.figures(step)
    if not isinstance(found, dict) or {*self.figures, "layout"} - {*found}:
      where = self.folder.checkpoints / str(step)
      raise ValueError(f"{where} is damaged; without that folder the run resumes from before it")
    self.figures = found
    if self.figures.pop("layout") != self.layout:
      raise ValueError(
        f"{self.folder.path} was run as {_words(self.checkpoints.figures(step)['layout'])}, now it is "
        f"{_words(self.layout)}; a run resumes bit for bit only as it was: pass its --devices, --virtual_grad, "
        "--step_loop, --steps_per_call, --overlap and --processes"
      )
    self.folder.truncate(self.figures["lines"])
    like = self.trainer.shapes(carry)
    return self.checkpoints.carry(step, like)

  def _account(self, entry: tuple[Any, jax.Array, Any], vote: Vote) -> bool:
    """Reads the losses of a call that is done; returns whether any process was asked to stop by then."""
    call, losses, ballot = entry
    values = self.trainer.losses(call, losses).astype(np.float64)
    bad = np.flatnonzero(~np.isfinite(values))
    if bad.size:
      # A simulator's losses are those of single workers, whose own steps run apart from the average that is counted.
      exact = values.size == call.steps
      where = f"at step {call.first + bad[0] + 1}" if exact else f"between step {call.first + 1} and step {call.end}"
      raise self._diverged(f"its loss is {values[bad[0]]} {where}")
    self.figures["step"] = call.end
    self.figures["nbytes"] += self.trainer.nbytes(call)
    self.figures["loss_sum"] += math.fsum(values)
    self.figures["loss_count"] += values.size
    return vote.count(ballot)

  def _diverged(self, what: str) -> Diverged:
    kept = self.checkpoints.latest() if self.checkpoints else None
    good = f"the last good checkpoint, of step {kept}, is kept" if kept is not None else "there was no checkpoint yet"
    return diverged(self.experiment, what, good)

  def _sound(self, consensus: Consensus, step: int) -> float:
    """The workers' distance, which is finite if all parameters are: a finite loss may leave others behind."""
    distance = float(np.asarray(consensus.distance.addressable_data(0)))
    if not math.isfinite(distance):
      raise self._diverged(f"its parameters are not finite after step {step}")
    return distance

  def _line(self, carry: Any, step: int) -> None:
    """Tests the consensus model and writes a line."""
    consensus = self.trainer.consensus(carry)
    distance = self._sound(consensus, step)
    tested = self.evaluator(consensus, self._refresh(step) if self.options.batch_stats == "reestimate" else None)
    examples = step * self.experiment.workers * self.experiment.batch
    line = {"step": step, "examples": examples, "epoch": examples / self.components.data.train.size}
    if self.figures["loss_count"]:
      line["train_loss"] = self.figures["loss_sum"] / self.figures["loss_count"]
    line |= {f"test_{name}": value for name, value in tested.items()}
    line["distance"] = distance
    line["bytes_sent"] = self.figures["nbytes"]
    line["seconds"] = round(self.figures["seconds"], 6)
    if self.options.clock:
      line["virtual_seconds"] = self.options.clock(step)
    bad = [name for name, value in line.items() if not math.isfinite(value)]
    if bad:
      raise self._diverged(f"its {bad[0]} is {line[bad[0]]} after step {step}")
    self.figures |= {"loss_sum": 0.0, "loss_count": 0, "lines": self.figures["lines"] + 1, "last": line}
    self.folder.line(line)

  def _refresh(self, step: int) -> list[dict[str, np.ndarray]]:
    """Training batches of worker 0, for the statistics of the consensus model."""
    batches = self.components.feed([0])(step, REESTIMATED)
    return [{name: x[0, i] for name, x in batches.items()} for i in range(REESTIMATED)]

  def _checkpoint_due(self, call: Any) -> bool:
    every, total = self.options.checkpoint_every, self.experiment.steps
    at_end = self.options.keep_final and call.end == total
    return at_end or bool(every and call.end // every > call.first // every)

  def _save(self, carry: Any, wait: bool) -> None:
    self.checkpoints = self.checkpoints or Checkpoints(self.folder.checkpoints)
    self.checkpoints.save(self.figures["step"], carry, self.figures | {"layout": self.layout}, wait)


def _words(layout: dict[str, Any]) -> str:
  return f"{layout['processes']} process(es), {layout['devices']} device(s), {tuple(layout['execution'])}"
