"""Hooks of the loop, and user-defined hooks, which `ddl.train(..., hooks=[my_hook])` takes.

The loop calls a `ddl.run.batch.LoopHook` after every call of the compiled program. A user-defined hook is a `RunHook`
or a function that takes a `StepInfo`; it is called after each evaluation and at the end.
"""

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from ddl.api import Tree
from ddl.config.user_code import function_at, is_address
from ddl.errors import OptionError
from ddl.hosts import exchange
from ddl.run import average, checkpoints
from ddl.run.batch import Batch, LoopHook, LoopStep
from ddl.run.folder import AVERAGE, BEST
from ddl.run.metrics import Evaluation, Evaluator, Losses, Metric

if TYPE_CHECKING:
  from ddl.config.options import RunOptions
  from ddl.run.build import Components


class StepInfo(NamedTuple):
  """The state of a run after an evaluation."""

  step: int  # steps completed by the workers
  first: bool  # whether this is the run's first `StepInfo` in this process; after a resume, step is not 0
  last: bool  # whether this is the last call, when the run and its folder are complete
  metrics: Mapping[str, float]  # the newest line of metrics.jsonl
  params: Tree  # parameters of the consensus model
  extra: Tree  # non-trained state of the consensus model, such as batch statistics
  folder: Path  # the run's folder
  components: "Components"  # experiment, data and model
  options: "RunOptions"
  trainer: Any  # see `ddl.engine.trainer.Trainer`


Hook = Callable[[StepInfo], object]


class RunHook:
  """Base class of user-defined hooks that also handle the start and the end of a run."""

  def check(self) -> None:
    """Raise ValueError if the hook cannot work; called in every process before the folder of a run is created."""

  def __call__(self, info: StepInfo) -> None:
    """Handle the state after an evaluation."""

  def close(self, info: StepInfo, outcome: str) -> None:
    """Handle the end of a run, unless it ended before its first evaluation in this process.

    info: the newest state; outcome: "complete", "diverged", "stopped" (by a signal) or "failed" (with an exception).
    After an exception other processes may be lost, so do not communicate with them.
    """


def resolved(hooks: Sequence[Hook | str]) -> list[Hook]:
  """Return the hooks, importing those given as FILE.py:NAME or MODULE:NAME; raise ValueError if one cannot be used."""
  for hook in hooks:
    if isinstance(hook, str) and not is_address(hook):
      advice = "The hooks for trackers are ddl.trackers:wandb and ddl.trackers:mlflow."
      raise OptionError("hooks", "FILE.py:NAME or MODULE:NAME of a function", hook, advice)
  functions = [function_at(hook, "hooks") if isinstance(hook, str) else hook for hook in hooks]
  for hook in functions:
    if isinstance(hook, RunHook):
      hook.check()
  return functions


class AfterEvaluation(LoopHook):
  """Base class of hooks that handle each new line of metrics."""

  def __call__(self, state: LoopStep) -> None:
    """Call `evaluated` for each run that has a line of metrics for this step."""
    for run in state.batch.active:
      if state.carry is not None and state.batch.figures[run]["last"].get("step") == state.step:
        self.evaluated(state, run)

  def evaluated(self, state: LoopStep, run: int) -> None:
    """Handle the new line of metrics of a run."""


class UserHooks(AfterEvaluation):
  """A hook of the loop that calls user-defined hooks in every process of a run."""

  def __init__(self, batch: Batch, options: "RunOptions"):
    """Create a hook that calls `options.hooks`."""
    self._batch, self._hooks, self._options = batch, cast("Sequence[Hook]", options.hooks), options
    self._outer = sys.exception()  # not None if the caller handles an exception, such as a diverged earlier run
    self._infos: dict[int, StepInfo] = {}  # each run's newest evaluation

  def evaluated(self, state: LoopStep, run: int) -> None:
    """Call the hooks unless this is the last step, for which `finished` calls them once the folder is complete."""
    if not self._hooks:
      return
    (components, folder, *_), model = state.batch.runs[run], state.models[state.batch.lanes[run]]
    info = StepInfo(
      state.step, run not in self._infos, False, state.batch.figures[run]["last"], model.params, model.extra,
      folder.path, components, self._options, state.batch.trainer,
    )  # fmt: skip
    self._infos[run] = info
    if state.step < components.experiment.steps:
      self._call(info)

  def finished(self, run: int) -> None:
    """Call the hooks for the last time."""
    if run in self._infos:
      self._infos[run] = self._infos[run]._replace(last=True)
      self._call(self._infos[run])
      self._close(run, "complete")

  def close(self) -> None:
    """Close the hooks of the runs that are not complete; `finished` closes those of the others."""
    error = sys.exception()
    raised = error is not self._outer
    for run, info in [*self._infos.items()]:
      if run in self._batch.diverged:
        self._close(run, "diverged")
      elif raised or info.step < self._batch.experiment.steps:
        self._close(run, "failed" if raised and isinstance(error, Exception) else "stopped")

  def _call(self, info: StepInfo) -> None:
    for hook in self._hooks:
      hook(info)

  def _close(self, run: int, outcome: str) -> None:
    info = self._infos.pop(run)
    for hook in self._hooks:
      if isinstance(hook, RunHook):
        hook.close(info, outcome)


class TensorBoard(AfterEvaluation):
  """A hook that writes each line of metrics as TensorBoard events, synchronously.

  It does not use tensorboardX's `SummaryWriter`, whose thread dies when the disk is full, so that its callers block
  forever.
  """

  def __init__(self) -> None:
    self._writers: dict[Path, Any] = {}

  def evaluated(self, state: LoopStep, run: int) -> None:
    """Write a run's new line of metrics."""
    folder = state.batch.runs[run].folder
    if not folder.writes:
      return
    try:
      from tensorboardX.event_file_writer import EventsWriter
      from tensorboardX.proto.event_pb2 import Event  # pyright: ignore[reportAttributeAccessIssue]
      from tensorboardX.proto.summary_pb2 import Summary  # pyright: ignore[reportAttributeAccessIssue]
    except ImportError:
      return
    if folder.path not in self._writers:
      (folder.path / "tensorboard").mkdir(exist_ok=True)
      self._writers[folder.path] = EventsWriter(str(folder.path / "tensorboard" / "events"))
    line = state.batch.figures[run]["last"]
    values = [Summary.Value(tag=key, simple_value=value) for key, value in line.items() if key != "step"]
    writer = self._writers[folder.path]
    writer.write_event(Event(wall_time=time.time(), step=state.step, summary=Summary(value=values)))
    writer.flush()

  def close(self) -> None:
    """Close the files."""
    for writer in self._writers.values():
      writer.close()
    self._writers.clear()


class SaveModels(LoopHook):
  """A hook that saves the consensus model of each run with each checkpoint and at the end."""

  def __init__(self, batch: Batch, saves: Callable[[int, int], bool]):
    """Create the hook. saves: a function (first, step) -> whether a checkpoint is due, see `LoopHook.due`."""
    self._steps, self._saves = batch.experiment.steps, saves

  def due(self, first: int, step: int) -> bool:
    """Return whether a checkpoint is due or the run ends."""
    return step == self._steps or self._saves(first, step)

  def __call__(self, state: LoopStep) -> None:
    """Save the models if a checkpoint is due, the run ends or a stop is requested."""
    if not state.step or state.carry is None:
      return
    batch, every = state.batch, state.stopping or self.due(state.first, state.step)
    runs = batch.active if every else sorted(batch.ending)
    averaged = average.consensuses(batch, state.models) if runs and batch.averages else []
    for run in runs:
      path, lane = batch.runs[run].folder.path, batch.lanes[run]
      checkpoints.save(path, state.step, state.models[lane])
      if averaged:
        checkpoints.save(path, state.step, averaged[lane], AVERAGE)


class SaveBest(AfterEvaluation):
  """A hook that saves, in the file BEST, each run's consensus model with the best value of a test metric."""

  def __init__(self, metric: Metric):
    """Create the hook for a metric."""
    self._metric = metric

  def evaluated(self, state: LoopStep, run: int) -> None:
    """Save the model if it is better than all earlier ones."""
    figures = state.batch.figures[run]  # stored in checkpoints
    value = figures["last"][f"test_{self._metric.name}"]
    if state.step and ("best" not in figures or self._metric.better(value, figures["best"])):
      figures["best"] = value
      is_average = self._metric.name.startswith(f"{average.EMA}_")
      models = average.consensuses(state.batch, state.models) if is_average else state.models
      checkpoints.save(state.batch.runs[run].folder.path, state.step, models[state.batch.lanes[run]], BEST)


class StopAtTarget(AfterEvaluation):
  """A hook that ends a run at the first evaluation that meets a target."""

  def __init__(self, metric: Metric, target: float):
    """Create the hook. target: the value of the metric to reach."""
    self._metric, self._target = metric, target

  def evaluated(self, state: LoopStep, run: int) -> None:
    """End the run if it meets the target; the main process decides, as others may round differently."""
    value = state.batch.figures[run]["last"][f"test_{self._metric.name}"]
    met = value == self._target or self._metric.better(value, self._target)
    if exchange(str(int(met)))[0] == "1":
      state.batch.ending.add(run)


def default_hooks(batch: Batch, evaluator: Evaluator, options: "RunOptions") -> list[LoopHook]:
  """Return the hooks of every run: losses, evaluation, TensorBoard and user-defined hooks."""
  evaluation = Evaluation(batch, evaluator, options.batch_stats)
  return [Losses(), evaluation, TensorBoard(), UserHooks(batch, options)]
