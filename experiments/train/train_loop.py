"""One run from its first step to its last, whatever makes the steps: metrics, checkpoints, stopping and resuming."""

import signal
from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from ddl.runtime.consensus import NotFinite
from ddl.runtime.hosts import is_main
from experiments.train import saved_model
from experiments.train.build import Components
from experiments.train.evaluate import Evaluator
from experiments.train.exit_codes import Stopped
from experiments.train.metrics import Metrics
from experiments.train.processes import say
from experiments.train.progress import Progress
from experiments.train.run_dir import RunFolder
from experiments.train.runners.runner import Report, Runner, StopRequest


class Diverged(ValueError):
  """The loss is no longer finite."""


class Options(NamedTuple):
  """Resuming, evaluation and labels of a run."""

  resume: bool = False
  batch_stats: str = "mean"  # of the consensus model, or "reestimate"
  label: str = ""  # of the progress
  virtual_seconds: Callable[[int], float] | None = None  # of a step
  keep_model: bool = False  # write the tested model beside each checkpoint, and at the end


def run(
  components: Components,
  runner: Runner,
  folder: RunFolder,
  evaluator: Evaluator,
  options: Options,
  about: dict[str, Any],
) -> dict[str, Any]:
  """Train, and leave the run in its folder; return the last line of metrics.

  Raises:
    Diverged: if the loss is not finite; the last good checkpoint stays.
    Stopped: after SIGTERM or Ctrl-C; the run is saved if its runner saves runs.
    ValueError: if the folder does not fit (see `RunFolder`), or the runner cannot start.
  """
  experiment = components.experiment
  metrics = Metrics(components, folder, evaluator, options.batch_stats == "reestimate", options.virtual_seconds)
  with StopRequest() as asked:  # before the first file, so that a stop always saves
    try:
      _open(folder, runner, metrics, experiment, options.resume, about)
      if options.resume:
        say(f"{options.label}: resuming from step {metrics.figures['step']} of {experiment.steps}")
      asked.listen()  # Ray has handlers of its own
      with Progress(options.label, experiment.steps, metrics.figures["step"]) as progress:

        def report(each: Report) -> None:
          consensus = metrics.add(each)
          if consensus and options.keep_model and (each.save or each.step == experiment.steps) and is_main():
            saved_model.save(folder.path, each.step, consensus)
          progress.show(each.step, metrics.last if each.line else {})

        stopped = runner.run(metrics.figures, report, asked)
    except NotFinite as error:
      rate = experiment.optimizer.learning_rate
      raise Diverged(
        f"{experiment.label} diverged: {error}; a config.optimizer.learning_rate below {rate} may help; {runner.kept()}"
      ) from error
    finally:
      runner.close()
      folder.close()
    if stopped is not None and stopped < experiment.steps:
      raise Stopped(stopped, asked.number or signal.SIGTERM)
    folder.finish(metrics.last)
    if stopped is not None or (asked.number is not None and jax.process_count() == 1):
      raise Stopped(experiment.steps, asked.number or signal.SIGTERM)  # what would come after this run must not begin
    return metrics.last


def _open(
  folder: RunFolder, runner: Runner, metrics: Metrics, experiment: Any, resume: bool, about: dict[str, Any]
) -> None:
  """A new folder, or the old one with the lines of metrics that its checkpoint knows."""
  if resume:
    folder.reopen(experiment)
  found = runner.open(folder, resume)
  if found:
    metrics.figures = found
  if resume:
    folder.truncate(metrics.figures["lines"])
  else:
    folder.create(experiment, about | {"layout": runner.layout})
