"""Checkpoints of a run, with orbax: the carry and a few figures as JSON."""

from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp

KEPT = 2  # the newest ones; the last but one survives a crash while the last is written


class Checkpoints:
  """The checkpoints of one run folder. Orbax writes them atomically."""

  def __init__(self, folder: Path):
    """Create the folder if it is missing."""
    options = ocp.CheckpointManagerOptions(max_to_keep=KEPT, create=True, enable_async_checkpointing=True)
    self._manager = ocp.CheckpointManager(folder.absolute(), options=options)

  def latest(self) -> int | None:
    """Return the step of the newest checkpoint."""
    return self._manager.latest_step()

  def save(self, step: int, carry: Any, figures: dict[str, Any], wait: bool = False) -> None:
    """Save in the background; the carry may be donated right after the call."""
    if self._manager.latest_step() == step:
      return
    items = ocp.args.Composite(carry=ocp.args.StandardSave(_plain(carry)), figures=ocp.args.JsonSave(figures))
    self._manager.save(step, args=items)
    if wait:
      self._manager.wait_until_finished()

  def figures(self, step: int) -> dict[str, Any]:
    """Return the figures of `step`."""
    return self._restore(step, figures=ocp.args.JsonRestore())["figures"]

  def carry(self, step: int, like: Any) -> Any:
    """Return the carry of `step`; `like`: shapes, types and shardings (`jax.ShapeDtypeStruct`), or arrays."""
    leaves = self._restore(step, carry=ocp.args.StandardRestore(_plain(like)))["carry"]
    return jax.tree.unflatten(jax.tree.structure(like), [leaves[name] for name in _names(like)])

  def _restore(self, step: int, **items: Any) -> Any:
    try:
      return self._manager.restore(step, args=ocp.args.Composite(**items))
    except Exception as error:  # orbax, tensorstore and json each raise their own
      where = self._manager.directory / str(step)
      reason = f"{type(error).__name__}: {error}".split("\n")[0][:200]
      raise ValueError(
        f"{where} cannot be read ({reason}); without that folder the run resumes from before it"
      ) from error

  def close(self) -> None:
    """Wait for the writes."""
    self._manager.wait_until_finished()
    self._manager.close()


def _names(tree: Any) -> list[str]:
  return [f"{i:04d}" for i in range(len(jax.tree.leaves(tree)))]


def _plain(tree: Any) -> dict[str, Any]:
  """Return the leaves in order, so that a checkpoint does not depend on the names of optax's states."""
  return dict(zip(_names(tree), jax.tree.leaves(tree), strict=True))
