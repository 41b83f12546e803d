"""Checkpoints of runs, each with the layout that a bit-exact resume depends on, and the final model in one file."""

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
from ddl.run.batch import NEW_RUN, Batch, LoopHook, LoopStep
from ddl.run.folder import RunFolder
from ddl.run.processes import say


class DamagedMetrics(Damaged):
  """A checkpoint that can be read, but whose lines of metrics are missing or were changed."""


class Restored(NamedTuple):
  """The state of a batch from which it continues."""

  carry: Any  # of all lanes
  figures: list[dict[str, Any]]  # of each run
  first: int = 0  # the step from which calls are planned, which decides which programs are equal
  streams: Sequence[tuple[int, dict[str, Any]]] = ()  # see `Batch.feed`
  joined: bool = False  # whether some workers start here


class Store(LoopHook, Protocol):
  """A hook that restores the state of a batch and saves it where it is due, or before a stop."""

  def restore(self, batch: Batch, resume: bool) -> Restored | None:
    """Return the state from which the runs continue; None: they start at step 0."""
    ...

  def close(self) -> None:
    """Wait for what is being saved."""


def checkpoint_note(unit: str, newest: int | None) -> str:
  """Return which checkpoint a diverged run leaves: that of a step or a visit."""
  return "there was no checkpoint yet" if newest is None else f"the last good checkpoint, of {unit} {newest}, is kept"


class RunCheckpoints(Store):
  """A store of checkpoints in the folders of the runs, by orbax."""

  def __init__(self, steps: int, every: int = 0, final: bool = True, any_layout: bool = False):
    """Save every so many steps (0: never) and before a stop; final: after the last of `steps` steps too.

    any_layout: whether a checkpoint of another layout is restored too, up to rounding.
    """
    self._steps, self._every, self._final, self._any_layout = steps, every, final, any_layout
    self._folders: list[RunFolder] = []
    self._layout: dict[str, Any] = {}
    self._managers: list[Checkpoints] = []

  def due(self, first: int, step: int) -> bool:
    """Return whether a checkpoint is due after a call of the steps first..step-1."""
    return (self._final and step == self._steps) or bool(self._every and step // self._every > first // self._every)

  def __call__(self, state: LoopStep) -> None:
    """Save the active runs where that is due, or before a stop."""
    if state.carry is None or not state.step or not (state.stopping or self.due(state.first, state.step)):
      return
    batch, _ = state.batch, state.models  # which finds parameters that are not finite
    self._open()
    for run in batch.active:
      figures: dict[str, Any] = batch.saved_figures(run) | {"layout": self._layout}
      carry = batch.trainer.saved(batch.carry_of(state.carry, run))
      # One after another: over several processes, those that orbax writes at the same time take each other's files.
      self._managers[run].save(figures["step"], carry, figures, wait=batch.width > 1)

  def restore(self, batch: Batch, resume: bool) -> Restored | None:
    """Return the newest intact state; None: the runs start at step 0.

    Raises ValueError if no checkpoint can be read, or they are of another layout.
    """
    self._folders, self._layout = [run.folder for run in batch.runs], batch.trainer.layout
    self._any_layout = self._any_layout and batch.trainer.portable
    batch.checkpoint_note = lambda: checkpoint_note("step", next(iter(self.steps()), None))
    if resume or self._every or self._final:
      self._open()
    if not resume or not self.steps():  # a new run, or one that was stopped before its first checkpoint
      return None
    newest = self._newest(lambda step: batch.trainer.saved_shapes(batch.initial_key, step))
    if newest is None:
      return None
    step, figures, carries, resharded = newest
    streams = [(step, of_run.pop("streams", {})) for of_run in figures]
    carry = batch.join([batch.trainer.restored(carry, step) for carry in carries])
    return Restored(carry, figures, step if resharded else 0, streams)

  def steps(self) -> list[int]:
    """Return the steps that have a checkpoint, the newest first."""
    return self._managers[0].steps() if self._managers else []

  def close(self) -> None:
    """Wait for what is being saved."""
    for manager in self._managers:
      manager.close()

  def _open(self) -> None:
    self._managers = self._managers or [Checkpoints(folder.checkpoints) for folder in self._folders]

  def _newest(self, shapes: Callable[[int], Any]) -> tuple[int, list[dict[str, Any]], list[Any], bool] | None:
    """Return step, figures and carries of the newest intact checkpoints, and whether the layout differs.

    Later ones are removed, which is printed. None if the metrics are damaged before the first checkpoint, so that the
    runs start over. Raises as `restore`. shapes: of a carry as it was saved after a step.
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
      raise ValueError(f"{errors[0]}, and no other checkpoint either; train again in another workdir")
    self._go_back(errors, damaged, 0)
    return None

  def _go_back(self, errors: Sequence[Damaged], damaged: Sequence[int], step: int) -> None:
    """Remove damaged checkpoints, and print the step from which the runs resume instead."""
    if errors:
      say(f"{errors[0]}: going on from step {step}")
    for manager in self._managers:
      for later in damaged:
        manager.delete(later)

  def _figures(self, run: int, step: int) -> dict[str, Any]:
    folder = self._folders[run]
    figures = self._managers[run].figures(step)
    if not isinstance(figures, dict) or {*NEW_RUN, "layout"} - {*figures, "crc"}:
      raise Damaged(f"{folder.checkpoints / str(step)} cannot be read (it lacks figures)")
    figures.setdefault("crc", None)  # of an older one, whose metrics are not checked bit for bit
    if wrong := next(filter(None, exchange(folder.damage(figures["lines"], figures["crc"]))), ""):
      raise DamagedMetrics(wrong)
    layout = figures["layout"]
    elsewhere = any(layout.get(key) != self._layout.get(key) for key in ("devices", "members", "sharding", "processes"))
    if layout != self._layout and not (self._any_layout and elsewhere):
      raise ValueError(
        f"{folder.path} was run as {_words(layout)}, now it is {_words(self._layout)}; a run resumes bit for bit only "
        "as it was: pass its devices, members, virtual_grad, step_loop, steps_per_call, overlap and "
        "processes, or other devices to go on up to rounding"
      )
    return figures

  def _resharded(self, step: int, layout: dict[str, Any]) -> bool:
    """Return whether the runs resume with another layout, which is printed and recorded."""
    if layout == self._layout:
      return False
    say(f"this run was {_words(layout)}, and goes on as {_words(self._layout)}: not bit for bit, up to rounding")
    for folder in self._folders:
      folder.relaid(step, layout, self._layout | {"together": len(self._folders)})
    return True


def _words(layout: dict[str, Any]) -> str:
  devices = f"{pluralize(layout['processes'], 'process')}, {pluralize(layout['devices'], 'device')}"
  devices += f" of which {layout['members']} are a worker's" if "members" in layout else ""
  gradients, steps, longest, overlap = layout["execution"]
  overlap = f"overlap {'on' if overlap else 'off'}"
  return f"{devices}, gradients {gradients}, steps {steps}, up to {longest} steps a call, {overlap}"


MODEL = "model.msgpack"


class SavedModel(NamedTuple):
  """The consensus of the workers after a step."""

  step: int
  params: Tree
  extra: Tree


def save(folder: Path, step: int, consensus: Consensus) -> None:
  """Write the model, in the main process; a crash leaves the old one or the new one."""
  params, extra = gather(consensus[:2])
  if not is_main():
    return
  saved = SavedModel(step, serialization.to_state_dict(params), serialization.to_state_dict(extra))
  temporary = folder / f"{MODEL}.tmp"
  temporary.write_bytes(serialization.msgpack_serialize(saved._asdict()))
  temporary.replace(folder / MODEL)


def load(where: Path, model: Model) -> SavedModel:
  """Read a run's model, from its folder or the file itself, as parameters of `model`.

  Raises ValueError for a folder without one, a damaged file, or parameters of another model.
  """
  file = where / MODEL if where.is_dir() else where
  if not file.exists():
    writers = "train writes it at its end and with each checkpoint, compare with keep_models"
    raise ValueError(f"{where} holds no {MODEL}: {writers}")
  files.regular(file)
  try:
    content: Any = serialization.msgpack_restore(file.read_bytes())
    saved = SavedModel(content["step"], content["params"], content["extra"])
  except Exception as error:  # whatever the bytes of another file make of it
    raise ValueError(f"{file} is damaged, or no {MODEL} ({type(error).__name__})") from error
  shapes = dict(zip(("params", "extra"), jax.eval_shape(model.init, jax.random.key(0)), strict=True))
  return SavedModel(saved.step, **{key: _as(tree, getattr(saved, key), file) for key, tree in shapes.items()})


def started_from(where: str, model: Model) -> Model:
  """Return the model with the initial parameters of a saved one, whatever the key; "": its own. Raises as `load`."""
  if not where:
    return model
  saved = load(files.local(where), model)

  def init(key: Any) -> tuple[Tree, Tree]:
    del key
    return jax.tree.map(jnp.asarray, (saved.params, saved.extra))

  return model._replace(init=init)


def _as(shapes: Tree, state: Any, file: Path) -> Tree:
  """Return the arrays of a state dict as a tree of these shapes. ValueError for arrays of other names or shapes."""
  expected, saved = ({jax.tree_util.keystr(k): x.shape for k, x in jax.tree_util.tree_leaves_with_path(tree)}
                     for tree in (serialization.to_state_dict(shapes), state))  # fmt: skip
  for name in [*expected, *saved]:
    if expected.get(name) != saved.get(name):
      has, wants = (f"{name} of shape {list(x[name])}" if name in x else f"no {name}" for x in (saved, expected))
      raise ValueError(f"{file} is of another model: it has {has}, this one has {wants}")
  out = serialization.from_state_dict(shapes, state)
  return jax.tree.map(lambda shape, x: np.asarray(x, shape.dtype), shapes, out)
