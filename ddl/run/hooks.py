"""Hooks of the loop, and user-defined hooks such as `ddl.train(..., hooks=[my_hook])`.

A hook of the loop sees every call (`ddl.run.batch.LoopHook`); a user-defined hook is a function of a `StepInfo`, which
it receives after each evaluation and at the end.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ddl.api import Tree
from ddl.config.user_code import function_at
from ddl.run import checkpoints
from ddl.run.batch import Batch, LoopHook, LoopStep

if TYPE_CHECKING:
  from ddl.config.options import RunOptions
  from ddl.run.build import Components


class StepInfo(NamedTuple):
  """The state of a run after an evaluation."""

  step: int  # completed by the workers
  first: bool  # of the calls by this process; a resumed run starts with another step than 0
  last: bool  # the run is complete, and its folder too
  metrics: Mapping[str, float]  # the line of metrics.jsonl
  params: Tree  # of the consensus model
  extra: Tree  # of the consensus model, such as batch statistics
  folder: Path
  components: "Components"  # experiment, data and model
  options: "RunOptions"
  trainer: Any  # see `ddl.engine.trainer.Trainer`


Hook = Callable[[StepInfo], object]


def resolved(hooks: Sequence[Hook | str]) -> list[Hook]:
  """Return the hooks, importing those that are addresses. ValueError, one line, for what is not a function."""
  return [function_at(hook, "hooks") if isinstance(hook, str) else hook for hook in hooks]


class AfterEvaluation(LoopHook):
  """A hook of the loop that acts on each new line of metrics, for whose model `Evaluation` waits."""

  def __call__(self, state: LoopStep) -> None:
    """Act on the runs that have a line of this step."""
    for run in state.batch.active:
      if state.carry is not None and state.batch.figures[run]["last"].get("step") == state.step:
        self.evaluated(state, run)

  def evaluated(self, state: LoopStep, run: int) -> None:
    """Act on the new line of a run."""


class UserHooks(AfterEvaluation):
  """Call user-defined hooks. In a run of several processes each process calls its hooks."""

  def __init__(self, hooks: Sequence[Any], options: "RunOptions"):
    """hooks: functions of a `StepInfo`."""
    self._hooks, self._options = hooks, options
    self._infos: dict[int, StepInfo] = {}  # of the newest evaluation of each run

  def evaluated(self, state: LoopStep, run: int) -> None:
    """Call the hooks, unless this is the last step: then `finished` does."""
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
      self._call(self._infos[run]._replace(last=True))

  def _call(self, info: StepInfo) -> None:
    for hook in self._hooks:
      hook(info)


class TensorBoard(AfterEvaluation):
  """Write each line of metrics as TensorBoard events, at once.

  Without tensorboardX's `SummaryWriter`, whose thread dies on a full disk and then blocks those that wait for it.
  """

  def __init__(self) -> None:
    self._writers: dict[Path, Any] = {}

  def evaluated(self, state: LoopStep, run: int) -> None:
    """Write the line of a run."""
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


class SaveModels(LoopHook):
  """Write the consensus model of each run with each checkpoint and at the end."""

  def __init__(self, batch: Batch, saves: Callable[[int, int], bool]):
    """saves: whether a checkpoint is due after a call of the steps first..step-1."""
    self._steps, self._saves = batch.experiment.steps, saves

  def due(self, first: int, step: int) -> bool:
    """Return whether a checkpoint is due, or the end."""
    return step == self._steps or self._saves(first, step)

  def __call__(self, state: LoopStep) -> None:
    """Write the models where that is due."""
    if state.step and state.carry is not None and (state.stopping or self.due(state.first, state.step)):
      models = state.models
      for run in state.batch.active:
        checkpoints.save(state.batch.runs[run].folder.path, state.step, models[state.batch.lanes[run]])
