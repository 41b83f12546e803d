"""Checkpoints of runs, each with the layout that a bit-exact resume depends on, and the final model in one file."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import serialization

from ddl import files
from ddl.api import Model, Tree
from ddl.engine.checkpoint import SECONDS, Checkpoints, Damaged
from ddl.engine.consensus import Consensus
from ddl.engine.placement import gather
from ddl.hosts import exchange, is_main
from ddl.perf.units import counted
from ddl.run.folder import RunFolder
from ddl.run.metrics import FIGURES
from ddl.run.processes import say


class DamagedMetrics(Damaged):
  """A checkpoint that can be read, of more lines of metrics than are as they were written."""


class Found(NamedTuple):
  """The newest checkpoints that can be read."""

  step: int
  figures: list[dict[str, Any]]  # of each run
  carries: list[Any]  # of each run, as they were saved
  relaid: bool  # whether they are of another layout


class RunCheckpoints:
  """The checkpoints in the folders of runs that are made in step."""

  def __init__(self, folders: Sequence[RunFolder], layout: dict[str, Any], relay: bool):
    """layout: of the run now; relay: whether it may go on from one of another layout, up to rounding."""
    self._folders, self._layout, self._relay = folders, layout, relay
    self._each: list[Checkpoints] = []

  def open(self) -> None:
    """Make the folders of the checkpoints, unless that was done."""
    self._each = self._each or [Checkpoints(folder.checkpoints) for folder in self._folders]

  def steps(self) -> list[int]:
    """Return the steps that have a checkpoint, the newest first."""
    return self._each[0].steps() if self._each else []

  def save(self, run: int, carry: Any, figures: dict[str, Any], wait: bool) -> None:
    """Save a run's carry and figures, as `Checkpoints.save` does."""
    self._each[run].save(figures["step"], carry, figures | {"layout": self._layout}, wait=wait)

  def newest(self, shapes: Callable[[int], Any]) -> Found | None:
    """Return the newest that can be read and whose metrics are intact, and remove those after it, which is said.

    shapes: of a carry as it was saved after so many steps.

    Returns:
      None where the metrics are damaged before the first checkpoint, so that the run starts over.

    Raises:
      ValueError: if none can be read, or the layout is another one.
    """
    damaged: list[int] = []
    whys: list[Damaged] = []
    for step in self.steps():
      try:
        figures = [self._figures(run, step) for run in range(len(self._folders))]
        carries = [each.carry(step, shapes(step)) for each in self._each]
      except Damaged as error:
        whys.append(error)
        damaged.append(step)
        continue
      self._go_back(whys, damaged, step)
      layouts = [each.pop("layout") for each in figures]
      return Found(step, figures, carries, self._told(step, layouts[0]))
    if not any(isinstance(why, DamagedMetrics) for why in whys):
      raise ValueError(f"{whys[0]}, and no other checkpoint either; train again in another workdir")
    self._go_back(whys, damaged, 0)
    return None

  def _go_back(self, whys: Sequence[Damaged], damaged: Sequence[int], step: int) -> None:
    """Say and do what it takes to resume from a step before damaged checkpoints."""
    if whys:
      say(f"{whys[0]}: going on from step {step}")
    for each in self._each:
      for later in damaged:
        each.delete(later)

  def close(self) -> None:
    """Wait for what is being saved."""
    for each in self._each:
      each.close()

  def _figures(self, run: int, step: int) -> dict[str, Any]:
    folder = self._folders[run]
    figures = self._each[run].figures(step)
    if not isinstance(figures, dict) or {*FIGURES, "layout"} - {*figures, "crc"}:
      raise Damaged(f"{folder.checkpoints / str(step)} cannot be read (it lacks figures)")
    figures.setdefault("crc", None)  # of an older one, whose metrics are not checked bit for bit
    if wrong := next(filter(None, exchange(folder.damage(figures["lines"], figures["crc"]), SECONDS)), ""):
      raise DamagedMetrics(wrong)
    layout = figures["layout"]
    elsewhere = any(layout.get(key) != self._layout.get(key) for key in ("devices", "members", "sharding", "processes"))
    if layout != self._layout and not (self._relay and elsewhere):
      raise ValueError(
        f"{folder.path} was run as {_words(layout)}, now it is {_words(self._layout)}; a run resumes bit for bit only "
        "as it was: pass its devices, members, virtual_grad, step_loop, steps_per_call, overlap and "
        "processes, or other devices to go on up to rounding"
      )
    return figures

  def _told(self, step: int, layout: dict[str, Any]) -> bool:
    """Say and note that a run goes on with another layout, if so."""
    if layout == self._layout:
      return False
    say(f"this run was {_words(layout)}, and goes on as {_words(self._layout)}: not bit for bit, up to rounding")
    for each in self._folders:
      each.relaid(step, layout, self._layout | {"together": len(self._folders)})
    return True


def _words(layout: dict[str, Any]) -> str:
  processes = counted(layout["processes"], "process", "processes")
  members = f" of which {layout['members']} are a worker's" if "members" in layout else ""
  gradients, steps, longest, overlap = layout["execution"]
  execution = (
    f"gradients {gradients}, steps {steps}, up to {longest} steps a call, overlap {'on' if overlap else 'off'}"
  )
  return f"{processes}, {counted(layout['devices'], 'device')}{members}, {execution}"


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
  found = SavedModel(step, serialization.to_state_dict(params), serialization.to_state_dict(extra))
  temporary = folder / f"{MODEL}.tmp"
  temporary.write_bytes(serialization.msgpack_serialize(found._asdict()))
  temporary.replace(folder / MODEL)


def load(where: Path, model: Model) -> SavedModel:
  """Read a run's model, from its folder or the file itself, as parameters of `model`.

  Raises:
    ValueError: for a folder without one, a damaged file, or parameters of another model.
  """
  file = where / MODEL if where.is_dir() else where
  if not file.exists():
    raise ValueError(
      f"{where} holds no {MODEL}: train writes it at its end and with each checkpoint, compare with keep_models"
    )
  files.regular(file)
  try:
    there: Any = serialization.msgpack_restore(file.read_bytes())
    found = SavedModel(there["step"], there["params"], there["extra"])
  except Exception as error:  # whatever the bytes of another file make of it
    raise ValueError(f"{file} is damaged, or no {MODEL} ({type(error).__name__})") from error
  shapes = dict(zip(("params", "extra"), jax.eval_shape(model.init, jax.random.key(0)), strict=True))
  return SavedModel(found.step, **{key: _as(tree, getattr(found, key), file) for key, tree in shapes.items()})


def started_from(where: str, model: Model) -> Model:
  """The model whose initial parameters are those of a saved one, whatever the key; "": its own. Raises as `load`."""
  if not where:
    return model
  found = load(files.local(where), model)

  def init(key: Any) -> tuple[Tree, Tree]:
    del key
    return jax.tree.map(jnp.asarray, (found.params, found.extra))

  return model._replace(init=init)


def _as(shapes: Tree, found: Any, file: Path) -> Tree:
  wanted, there = ({jax.tree_util.keystr(k): x for k, x in jax.tree_util.tree_leaves_with_path(tree)}
                   for tree in (serialization.to_state_dict(shapes), found))  # fmt: skip
  for name in [*wanted, *there]:
    here, other = (tree[name].shape if name in tree else None for tree in (wanted, there))
    if here != other:
      words = [f"has no {name}" if shape is None else f"has {name} of shape {list(shape)}" for shape in (other, here)]
      raise ValueError(f"{file} is of another model: it {words[0]}, this one {words[1]}")
  out = serialization.from_state_dict(shapes, found)
  return jax.tree.map(lambda shape, x: np.asarray(x, shape.dtype), shapes, out)
