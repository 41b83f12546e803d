"""Checkpoints of a run, with orbax: the carry, and a few plain figures beside it."""

from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp

KEPT = 2  # the newest ones; the last but one survives a crash while the last is written


class Checkpoints:
  """The checkpoints of one run folder. A half-written one is never seen: orbax renames it when it is whole."""

  def __init__(self, folder: Path):
    """Creates the folder where it is missing."""
    options = ocp.CheckpointManagerOptions(max_to_keep=KEPT, create=True, enable_async_checkpointing=True)
    self._manager = ocp.CheckpointManager(folder.absolute(), options=options)

  def latest(self) -> int | None:
    """The step of the newest whole checkpoint."""
    return self._manager.latest_step()

  def save(self, step: int, carry: Any, figures: dict[str, Any], wait: bool = False) -> None:
    """Saves in the background; the carry may be donated at once after the call."""
    if self._manager.latest_step() == step:
      return
    items = ocp.args.Composite(carry=ocp.args.StandardSave(_plain(carry)), figures=ocp.args.JsonSave(figures))
    self._manager.save(step, args=items)
    if wait:
      self._manager.wait_until_finished()

  def figures(self, step: int) -> dict[str, Any]:
    """The figures that were saved with `step`."""
    return self._restore(step, figures=ocp.args.JsonRestore())["figures"]

  def carry(self, step: int, like: Any) -> Any:
    """The carry saved at `step`; `like`: shapes, types and shardings (`jax.ShapeDtypeStruct`), or arrays."""
    leaves = self._restore(step, carry=ocp.args.StandardRestore(_plain(like)))["carry"]
    return jax.tree.unflatten(jax.tree.structure(like), [leaves[name] for name in _names(like)])

  def _restore(self, step: int, **items: Any) -> Any:
    try:
      return self._manager.restore(step, args=ocp.args.Composite(**items))
    except Exception as error:  # orbax, tensorstore and json each have their own
      where = self._manager.directory / str(step)
      told = f"{type(error).__name__}: {error}".split("\n")[0][:200]
      raise ValueError(
        f"{where} cannot be read ({told}); without that folder the run resumes from before it"
      ) from error

  def close(self) -> None:
    """Waits for what is being written."""
    self._manager.wait_until_finished()
    self._manager.close()


def _names(tree: Any) -> list[str]:
  return [f"{i:04d}" for i in range(len(jax.tree.leaves(tree)))]


def _plain(tree: Any) -> dict[str, Any]:
  """The leaves in order: what is stored does not depend on how optax spells its states."""
  return dict(zip(_names(tree), jax.tree.leaves(tree), strict=True))
