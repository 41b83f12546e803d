"""One run from its first step to its last, whatever makes the steps: metrics, checkpoints, stopping and resuming."""

import signal
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax

from ddl.engine.consensus import Consensus, NotFinite
from ddl.run import checkpoints
from ddl.run.build import Components
from ddl.run.exit_codes import Stopped
from ddl.run.folder import RunFolder
from ddl.run.hooks import Hooks
from ddl.run.metrics import Evaluator, Metrics
from ddl.run.processes import say
from ddl.run.progress import Progress
from ddl.run.runner import Report, Runner, StopRequest


class Diverged(ValueError):
  """The loss is no longer finite."""


class Part(NamedTuple):
  """One of the runs that are made together."""

  components: Components
  folder: RunFolder
  virtual_seconds: Callable[[int], float] | None = None  # of a step
  resume: bool = False  # its folder holds it already
  hooks: Hooks | None = None


class Options(NamedTuple):
  """Evaluation and label."""

  batch_stats: str = "mean"  # of the consensus model, or "reestimate"
  label: str = ""  # of the progress
  keep_model: bool = False  # write the tested model beside each checkpoint, and at the end


def run(part: Part, runner: Runner, evaluator: Evaluator, options: Options, about: dict[str, Any]) -> dict[str, Any]:
  """Train, and leave the run in its folder; return the last line of metrics.

  Raises:
    Diverged: if the loss is not finite; the last good checkpoint stays.
    Stopped: after SIGTERM or Ctrl-C; the run is saved if its runner saves runs.
    ValueError: if the folder does not fit (see `RunFolder`), or the runner cannot start.
  """
  found = run_together([part], runner, evaluator, options, about)[0]
  if isinstance(found, Diverged):
    raise found
  return found


def run_together(
  parts: Sequence[Part], runner: Runner, evaluator: Evaluator, options: Options, about: dict[str, Any]
) -> list[dict[str, Any] | Diverged]:
  """Train several runs in step that differ in their seeds; return the last line of each, or why it diverged.

  Raises:
    Stopped, ValueError: as `run`.
  """
  steps, reestimate = parts[0].components.experiment.steps, options.batch_stats == "reestimate"
  metrics = [
    Metrics(each.components, each.folder, evaluator, reestimate, each.virtual_seconds, lambda: runner.presence)
    for each in parts
  ]
  diverged: dict[int, Diverged] = {}

  def diverge(run: int, error: NotFinite) -> None:
    experiment = parts[run].components.experiment
    diverged[run] = Diverged(
      f"{experiment.label} diverged: {error}; a config.optimizer.learning_rate below "
      f"{experiment.optimizer.learning_rate} may help; {runner.kept()}"
    )
    diverged[run].__cause__ = error

  def for_all(do: Callable[[int, int], None]) -> None:
    """Of the runs that go on. Raises NotFinite once there are none."""
    for run, lane in enumerate(runner.lanes):
      try:
        if run not in diverged:
          do(run, lane)
      except NotFinite as error:
        diverge(run, error)
        if len(diverged) == len(parts):
          raise

  def call_hooks(run: int, model: Consensus) -> None:
    if hooks := parts[run].hooks:
      last = metrics[run].last
      hooks.evaluated(int(last["step"]), last, model.params, model.extra, getattr(runner, "trainer", None))

  with StopRequest() as asked:  # before the first file, so that a stop always saves
    try:
      _open(parts, runner, metrics, about)
      if any(each.resume for each in parts):
        say(f"{options.label}: resuming from step {metrics[0].figures['step']} of {steps}")
      asked.listen()  # Ray has handlers of its own
      with Progress(options.label, steps, metrics[0].figures["step"]) as progress:

        def report(each: Report) -> list[bool]:
          models = each.models() if each.models else ()
          for_all(lambda run, lane: metrics[run].add(each, lane, models[lane] if models else None))
          if each.line:
            to_test = [*models]
            for run, lane in enumerate(runner.lanes):
              to_test[lane] = metrics[run].to_test(each, models[lane])
            tested = evaluator(to_test)
            for_all(lambda run, lane: metrics[run].write(each, models[lane], tested[lane]))
            for_all(lambda run, lane: call_hooks(run, models[lane]))
          if models and options.keep_model and (each.save or each.step == steps):
            for_all(lambda run, lane: checkpoints.save(parts[run].folder.path, each.step, models[lane]))
          going = [run not in diverged for run in range(len(parts))]
          progress.show(each.step, metrics[going.index(True)].last if each.line else {})
          return going

        stopped = runner.run([each.figures for each in metrics], report, asked)
    except NotFinite as error:
      stopped = None
      for run in range(len(parts)):
        if run not in diverged:
          diverge(run, error)
    finally:
      # After an error of one of several processes the others wait for it, and what is being saved for them.
      if jax.process_count() == 1 or not isinstance(sys.exception(), Exception):
        runner.close()
    if stopped is not None and stopped < steps:
      raise Stopped(stopped, asked.number or signal.SIGTERM)
    for run, each in enumerate(parts):
      if run not in diverged:
        each.folder.finish(metrics[run].last)
        if each.hooks:
          each.hooks.finished()
    if len(diverged) < len(parts) and (stopped is not None or (asked.number is not None and jax.process_count() == 1)):
      raise Stopped(steps, asked.number or signal.SIGTERM)  # what would come after this run must not begin
    return [diverged.get(run) or each.last for run, each in enumerate(metrics)]


def _open(parts: Sequence[Part], runner: Runner, metrics: Sequence[Metrics], about: dict[str, Any]) -> None:
  """New folders, or the old ones with the lines of metrics that their checkpoints know."""
  for each in parts:
    if each.resume:
      each.folder.reopen(each.components.experiment)
  found = runner.open([each.folder for each in parts], any(each.resume for each in parts))
  for run, each in enumerate(parts):
    if found:
      metrics[run].figures = found[run]
    if each.resume:
      each.folder.truncate(metrics[run].figures["lines"])
      each.folder.resumed(metrics[run].figures["step"])
    else:
      each.folder.create(each.components.experiment, about | {"layout": runner.layout | {"together": len(parts)}})
