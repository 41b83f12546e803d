"""Save and restore the checkpoints of runs, and the files of their consensus models.

A checkpoint records its layout: the devices, members, sharding, processes and execution settings that must be the same
for a bit-exact resume.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from flax import serialization

from ddl import files
from ddl.api import Model, Tree
from ddl.engine.checkpoint import Checkpoints, Damaged
from ddl.engine.consensus import Consensus
from ddl.engine.placement import gather
from ddl.hosts import exchange, is_main
from ddl.names import pluralize
from ddl.run.batch import NEW_RUN, NO_CHECKPOINT, Batch, LoopHook, LoopStep
from ddl.run.build import param_shapes
from ddl.run.folder import AVERAGE, BEST, MODEL, RunFolder
from ddl.run.processes import say


class DamagedMetrics(Damaged):
  """Raised if a checkpoint is intact, but the metrics before it are missing or were changed."""


class Restored(NamedTuple):
  """The state from which a batch continues."""

  carry: Any  # the carry of all lanes
  figures: list[dict[str, Any]]  # the counters of each run
  first: int = 0  # the step at which the plan of calls starts; the same plan gives the same compiled programs
  streams: Sequence[tuple[int, dict[str, Any]]] = ()  # see `Batch.feed`
  joined: bool = False  # whether some workers have just joined


class Store(LoopHook, Protocol):
  """A hook that restores the state of a batch of runs, and saves it at intervals and before a stop."""

  def restore(self, batch: Batch, resume: bool) -> Restored | None:
    """Return the state from which the runs continue, or None to start at step 0."""
    ...

  def close(self) -> None:
    """Wait for pending saves."""


def checkpoint_note(unit: str, newest: int | None) -> str:
  """Describe the newest checkpoint of a diverged run. unit: "step" or "visit"; newest: its number, or None."""
  return NO_CHECKPOINT if newest is None else f"its last checkpoint was saved at {unit} {newest}"


class RunCheckpoints(Store):
  """A store that writes orbax checkpoints into the folders of the runs."""

  def __init__(self, steps: int, every: int = 0, final: bool = True, any_layout: bool = False):
    """Create a store.

    Args:
      steps: the length of the run.
      every: the number of steps between checkpoints; 0: no periodic ones. Before a stop the state is always saved.
      final: whether to save after the last step.
      any_layout: whether to also restore checkpoints written with other devices, members, sharding or processes; the
        run then continues with results that are equal only up to rounding.
    """
    self._steps, self._every, self._final, self._any_layout = steps, every, final, any_layout
    self._folders: list[RunFolder] = []
    self._layout: dict[str, Any] = {}
    self._managers: list[Checkpoints] = []

  def due(self, first: int, step: int) -> bool:
    """Return whether a checkpoint is due after a call of the program that ran the steps first..step-1."""
    return (self._final and step == self._steps) or bool(self._every and step // self._every > first // self._every)

  def __call__(self, state: LoopStep) -> None:
    """Save the active runs if a checkpoint is due or the run stops."""
    if state.carry is None or not state.step or not (state.stopping or self.due(state.first, state.step)):
      return
    batch, _ = state.batch, state.models  # computing the models detects parameters that are not finite
    self._open()
    for run in batch.active:
      figures: dict[str, Any] = batch.saved_figures(run) | {"layout": self._layout}
      carry = batch.trainer.saved(batch.carry_of(state.carry, run))
      carry = (carry, batch.averages[batch.lanes[run]]) if batch.averages else carry
      # Wait for each save: concurrent orbax saves of several processes interfere with each other's files.
      self._managers[run].save(figures["step"], carry, figures, wait=batch.width > 1)

  def restore(self, batch: Batch, resume: bool) -> Restored | None:
    """Return the state in the newest intact checkpoint, or None to start at step 0.

    Raises ValueError if no checkpoint can be read, or if the layout differs in a way that cannot be restored.
    """
    self._folders, self._layout = [run.folder for run in batch.runs], batch.trainer.layout
    self._any_layout = self._any_layout and batch.trainer.portable
    batch.checkpoint_note = lambda: checkpoint_note("step", next(iter(self.steps()), None))
    if resume or self._every or self._final:
      self._open()
    if not resume or not self.steps():  # new, or stopped before the first checkpoint
      return None

    def shapes(step: int) -> Any:
      saved = batch.trainer.saved_shapes(batch.initial_key, step)
      if not batch.experiment.ema:
        return saved
      params = param_shapes(batch.runs[0].components.model)
      return saved, jax.tree.map(lambda x: np.empty(x.shape, x.dtype), params)

    newest = self._newest(shapes)
    if newest is None:
      return None
    step, figures, carries, resharded = newest
    if batch.experiment.ema:
      carries, averages = zip(*carries, strict=True)
      batch.averages = batch.by_lane(averages)
    streams = [(step, of_run.pop("streams", {})) for of_run in figures]
    carry = batch.join([batch.trainer.restored(carry, step) for carry in carries])
    return Restored(carry, figures, step if resharded else 0, streams)

  def steps(self) -> list[int]:
    """Return the steps that have a checkpoint, newest first."""
    return self._managers[0].steps() if self._managers else []

  def close(self) -> None:
    """Wait for pending saves."""
    for manager in self._managers:
      manager.close()

  def _open(self) -> None:
    self._managers = self._managers or [Checkpoints(folder.checkpoints) for folder in self._folders]

  def _newest(self, shapes: Callable[[int], Any]) -> tuple[int, list[dict[str, Any]], list[Any], bool] | None:
    """Return (step, counters, carries, whether the layout differs) of the newest step that is intact in all runs.

    Damaged newer checkpoints are deleted. Return None, to start at step 0, if no checkpoint is usable, but one of them
    is intact and only the metrics before it are damaged. Raises as `restore` does.

    shapes: a function from a step to the shapes of the carry saved at that step.
    """
    damaged: list[int] = []
    errors: list[Damaged] = []
    for step in self.steps():
      try:
        figures = [self._figures(run, step) for run in range(len(self._folders))]
        like = shapes(step)
        carries = [manager.carry(step, like) for manager in self._managers]
      except Damaged as error:
        errors.append(error)
        damaged.append(step)
        continue
      self._go_back(errors, damaged, step)
      layouts = [of_run.pop("layout") for of_run in figures]
      return step, figures, carries, self._resharded(step, layouts[0])
    if not any(isinstance(error, DamagedMetrics) for error in errors):
      raise ValueError(f"{errors[0]}; no other checkpoint is intact; train again in another workdir")
    self._go_back(errors, damaged, 0)
    return None

  def _go_back(self, errors: Sequence[Damaged], damaged: Sequence[int], step: int) -> None:
    """Delete damaged checkpoints and print the step from which the runs resume."""
    if errors:
      say(f"{errors[0]}: falling back to step {step}")
    for manager in self._managers:
      for later in damaged:
        manager.delete(later)

  def _figures(self, run: int, step: int) -> dict[str, Any]:
    folder = self._folders[run]
    figures = self._managers[run].figures(step)
    if not isinstance(figures, dict) or {*NEW_RUN, "layout"} - {*figures, "crc"}:
      raise Damaged(f"{folder.checkpoints / str(step)} cannot be read (its metadata is incomplete)")
    figures.setdefault("crc", None)  # older checkpoints have no checksum of the metrics
    if damage := next(filter(None, exchange(folder.damage(figures["lines"], figures["crc"]))), ""):
      raise DamagedMetrics(damage)
    layout = figures["layout"]
    moved = any(layout.get(key) != self._layout.get(key) for key in ("devices", "members", "sharding", "processes"))
    if layout != self._layout and not (self._any_layout and moved):
      raise ValueError(
        f"{folder.path} was run with {_layout_text(layout)}, and cannot be resumed with {_layout_text(self._layout)}. "
        "For bit-exact results, pass the original devices, members, sharding, virtual_grad, step_loop, steps_per_call, "
        "overlap and processes. To move the run to other devices or processes, pass devices=N explicitly; the results "
        "are then equal only up to rounding."
      )
    return figures

  def _resharded(self, step: int, layout: dict[str, Any]) -> bool:
    """Return whether the current layout differs from the checkpoint's `layout`; if so, print and record both."""
    if layout == self._layout:
      return False
    say(
      f"resuming with {_layout_text(self._layout)} instead of {_layout_text(layout)}: results are equal up to rounding"
    )
    for folder in self._folders:
      folder.resharded(step, layout, self._layout | {"together": len(self._folders)})
    return True


def _layout_text(layout: dict[str, Any]) -> str:
  devices = f"{pluralize(layout['processes'], 'process')}, {pluralize(layout['devices'], 'device')}"
  devices += f" ({layout['members']} per worker)" if "members" in layout else ""
  gradients, steps, longest, overlap = layout["execution"]
  overlap = f"overlap {'on' if overlap else 'off'}"
  text = f"{devices}, gradients {gradients}, steps {steps}, up to {longest} steps per call, {overlap}"
  return f"{text}, sharding {layout['sharding']}" if "sharding" in layout else text


class SavedModel(NamedTuple):
  """The consensus model of the workers after a step."""

  step: int
  params: Tree
  extra: Tree


def save(folder: Path, step: int, consensus: Consensus, name: str = MODEL) -> None:
  """Write the consensus model to a file atomically, in the main process. Collective: all processes must call it."""
  params, extra = gather(consensus[:2])
  if not is_main():
    return
  saved = SavedModel(step, serialization.to_state_dict(params), serialization.to_state_dict(extra))
  temporary = folder / f"{name}.tmp"
  temporary.write_bytes(serialization.msgpack_serialize(saved._asdict()))
  temporary.replace(folder / name)


def load(path: Path, model: Model) -> SavedModel:
  """Read saved parameters of `model` from a run's folder or a model file.

  Raises ValueError if the file is missing or damaged, or its parameters do not fit the model.
  """
  file = path / MODEL if path.is_dir() else path
  if not file.exists():
    if option := {BEST: "keep_best", AVERAGE: "config.ema"}.get(file.name):
      raise ValueError(f"{file} does not exist; it is written only if {option} is set")
    writers = "train writes it with each checkpoint and at the end; compare writes it only if keep_models is set"
    raise ValueError(f"{file} does not exist; {writers}")
  files.regular(file)
  try:
    content: Any = serialization.msgpack_restore(file.read_bytes())
    saved = SavedModel(content["step"], content["params"], content["extra"])
  except Exception as error:  # msgpack raises many types for bytes of another format
    raise ValueError(f"{file} is damaged or not a {MODEL} ({type(error).__name__})") from error
  shapes = dict(zip(("params", "extra"), jax.eval_shape(model.init, jax.random.key(0)), strict=True))
  return SavedModel(saved.step, **{key: _as(tree, getattr(saved, key), file) for key, tree in shapes.items()})


def started_from(path: str, model: Model) -> Model:
  """Return the model with an `init` that returns the values saved in `path`; return it unchanged if `path` is "".

  Raises as `load` does.
  """
  if not path:
    return model
  saved = load(files.local(path), model)

  def init(key: Any) -> tuple[Tree, Tree]:
    del key
    return jax.tree.map(jnp.asarray, (saved.params, saved.extra))

  return model._replace(init=init)


def _as(shapes: Tree, state: Any, file: Path) -> Tree:
  """Convert a flax state dict to a pytree like `shapes`. Raises ValueError if names or shapes differ."""
  expected, saved = ({jax.tree_util.keystr(k): x.shape for k, x in jax.tree_util.tree_leaves_with_path(tree)}
                     for tree in (serialization.to_state_dict(shapes), state))  # fmt: skip
  for name in [*expected, *saved]:
    if expected.get(name) != saved.get(name):
      has, needs = (f"{name} of shape {list(x[name])}" if name in x else f"no {name}" for x in (saved, expected))
      raise ValueError(f"{file} does not match the model: the file has {has}, but the model has {needs}")
  out = serialization.from_state_dict(shapes, state)
  return jax.tree.map(lambda shape, x: np.asarray(x, shape.dtype), shapes, out)
