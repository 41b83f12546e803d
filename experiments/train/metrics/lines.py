"""The metrics of a run: losses and figures that add up between two lines, and the lines themselves."""

import math
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np

from ddl.events.presence import Presence
from ddl.runtime.rounds.consensus import Consensus, NotFinite
from experiments.train.build import Components
from experiments.train.folder.run_dir import RunFolder, text_of
from experiments.train.metrics import noise_scale
from experiments.train.metrics.evaluate import REESTIMATED, Evaluator
from experiments.train.runners.runner import Report

MOST_LOSS = 700.0  # beyond which its exponential is no float
FIGURES: dict[str, Any] = {
  "step": 0, "lines": 0, "crc": 0, "nbytes": 0.0, "seconds": 0.0, "loss_sum": 0.0, "loss_count": 0, "noise": [],
  "last": {},
}  # fmt: skip


def with_perplexity(tested: dict[str, float], task: str) -> dict[str, float]:
  """The figures of a test; of language with "perplexity" = exp(mean loss per token), where that is a number."""
  if task != "language" or not tested["loss"] < MOST_LOSS:
    return tested
  return {"loss": tested["loss"], "perplexity": math.exp(tested["loss"])} | tested


class Metrics:
  """Account the reports of a run, and write a line to its folder for each that has one due."""

  def __init__(
    self,
    components: Components,
    folder: RunFolder,
    evaluator: Evaluator,
    reestimate: bool,
    virtual_seconds: Callable[[int], float] | None,
    presence: Callable[[], Presence | None],
  ):
    """reestimate: batch statistics from training batches instead of the workers' mean; virtual_seconds: of a step.

    presence: of workers that come and go, as it is known now.

    ValueError for these of a stream, whose batches are for training alone.
    """
    if reestimate and components.data.train.stream:
      raise ValueError("--batch_stats=reestimate takes training batches anew; of a stream it must be mean")
    self._components, self._folder, self._evaluator = components, folder, evaluator
    self._reestimate, self._virtual_seconds, self._presence = reestimate, virtual_seconds, presence
    self.figures: dict[str, Any] = dict(FIGURES)  # saved with a checkpoint

  @property
  def last(self) -> dict[str, Any]:
    """The last line."""
    return self.figures["last"]

  def add(self, report: Report, lane: int, model: Consensus | None) -> None:
    """Account a report. model: to test or save. Raises NotFinite if a loss, or the model, is not."""
    losses = report.losses[lane].astype(np.float64)
    bad = np.flatnonzero(~np.isfinite(losses))
    if bad.size:
      # Losses of single workers have steps of their own, apart from the average that is counted.
      before = self.figures["step"]
      exact = losses.size == report.step - before
      where = f"at step {before + bad[0] + 1}" if exact else f"between step {before + 1} and step {report.step}"
      raise NotFinite(f"its loss is {losses[bad[0]]} {where}")
    self.figures |= {"step": report.step, "nbytes": report.nbytes, "seconds": report.seconds}
    self.figures["loss_sum"] += math.fsum(losses)
    self.figures["loss_count"] += losses.size
    # The distance is finite only if all parameters are: a finite loss may leave others behind.
    if model and (distance := _distance(model)) is not None and not math.isfinite(distance):
      raise NotFinite(f"its parameters are not finite after step {report.step}")

  def to_test(self, report: Report, model: Consensus) -> Consensus:
    """Return the model with the batch statistics that it is tested with."""
    return self._evaluator.reestimated(model, self._training_batches(report.step)) if self._reestimate else model

  def write(self, report: Report, model: Consensus, tested: dict[str, float]) -> None:
    """Write the line of a report that has been added. tested: figures of the model. Raises NotFinite if one is not."""
    experiment, step, distance = self._components.experiment, report.step, _distance(model)
    tested = with_perplexity(tested, self._components.data.meta.get("task", ""))
    there = self._presence()
    made = there.made(step) if there else step * experiment.workers
    examples = made * experiment.batch
    line = {"step": step, "examples": examples, "epoch": examples / self._components.data.train.size}
    if self.figures["loss_count"]:
      line["train_loss"] = self.figures["loss_sum"] / self.figures["loss_count"]
    line |= {f"test_{name}": value for name, value in tested.items()}
    if distance is not None:
      line["distance"] = distance
    if experiment.noise_batches:
      line |= self._noise(model, step)
    line |= {"bytes_sent": report.nbytes, "seconds": round(report.seconds, 6)}
    if there:
      line["present"] = len(there.at(max(step - 1, 0)))
    if report.visits is not None:
      line["visits"] = report.visits
    if self._virtual_seconds:
      line["virtual_seconds"] = self._virtual_seconds(step)
    bad = [name for name, value in line.items() if not math.isfinite(value)]
    if bad:
      raise NotFinite(f"its {bad[0]} is {line[bad[0]]} after step {line['step']}")
    self.figures |= {"loss_sum": 0.0, "loss_count": 0, "lines": self.figures["lines"] + 1, "last": line}
    if self.figures["crc"] is not None:
      self.figures["crc"] = zlib.crc32(text_of(line).encode(), self.figures["crc"])
    self._folder.line(line)

  def _noise(self, model: Consensus, step: int) -> dict[str, float]:
    """Of fresh batches of the training set, the same whenever this step is evaluated."""
    experiment, source = self._components.experiment, self._components.data.train
    chosen = noise_scale.draw(
      source.size, batches=experiment.noise_batches, batch=experiment.batch, seed=experiment.seed, step=step
    )
    key = noise_scale.key_of(experiment.seed, step)
    found = self._evaluator.noise(model, map(source.take, chosen), key)
    self.figures["noise"] = noise_scale.recent(self.figures["noise"], found)
    return found | noise_scale.ratio(self.figures["noise"])

  def _training_batches(self, step: int) -> list[dict[str, np.ndarray]]:
    """Batches of worker 0, for the statistics of the consensus model."""
    batches = self._components.feed([0])(step, REESTIMATED)
    return [{name: x[0, i] for name, x in batches.items()} for i in range(REESTIMATED)]


def _distance(model: Consensus) -> float | None:
  return None if model.distance is None else float(np.asarray(model.distance.addressable_data(0)))
