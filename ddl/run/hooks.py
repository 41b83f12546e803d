"""Hooks: functions that a run calls after each evaluation and at its end, such as `ddl.train(..., hooks=[my_hook])`."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ddl.api import Tree
from ddl.config.user_code import function_at

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
  trainer: Any  # None on threads and on Ray


Hook = Callable[[StepInfo], object]


class Hooks:
  """The hooks of one run. In a run of several processes each of them calls its hooks."""

  def __init__(self, hooks: Sequence[Any], folder: Path, components: "Components", options: "RunOptions"):
    self._hooks = hooks
    self._run = {"folder": folder, "components": components, "options": options}
    self._info: StepInfo | None = None  # of the newest evaluation, if `last` is still unknown

  def evaluated(self, step: int, metrics: Mapping[str, float], params: Tree, extra: Tree, trainer: Any) -> None:
    """Call the hooks, unless this is the last step: then `finished` does."""
    if not self._hooks:
      return
    first = self._info is None
    self._info = StepInfo(step, first, False, metrics, params, extra, **self._run, trainer=trainer)
    if step < self._run["components"].experiment.steps:
      self._call(self._info)

  def finished(self) -> None:
    """Call the hooks for the last time."""
    if self._info:
      self._call(self._info._replace(last=True))

  def _call(self, info: StepInfo) -> None:
    for hook in self._hooks:
      hook(info)


def resolved(hooks: Sequence[Hook | str]) -> list[Hook]:
  """Return the hooks, of which some are given by their addresses. ValueError, one line, for what is no function."""
  return [function_at(hook, "hooks") if isinstance(hook, str) else hook for hook in hooks]
