"""Checkpoints of the master's shards: one npz file per shard and number of visits, never seen half-written."""

import re
from pathlib import Path
from typing import Any

import jax
import numpy as np

from ddl.api import Tree
from ddl.events import arrays
from ddl.events.record import TYPES, Events


def labels(folder: Path, shard: int) -> list[int]:
  """The numbers of visits of this shard's whole checkpoints, in order."""
  found = (re.fullmatch(rf"shard{shard}-(\d+)\.npz", path.name) for path in folder.glob(f"shard{shard}-*.npz"))
  return sorted(int(match[1]) for match in found if match)


def newest(folder: Path, shards: int) -> int | None:
  """The newest that all shards have, None if there is none."""
  common = set.intersection(*(set(labels(folder, k)) for k in range(shards)))
  return max(common, default=None)


def save(folder: Path, shard: int, label: int, tree: Tree, events: Events, *, keep: int) -> None:
  """Writes the leaves and the record, then forgets what is older than `keep` visits."""
  folder.mkdir(parents=True, exist_ok=True)
  path = _path(folder, shard, label)
  leaves = {f"leaf{i:04d}": np.asarray(x) for i, x in enumerate(jax.tree.leaves(tree))}
  arrays.save(path, leaves | events._asdict())
  for old in labels(folder, shard):
    if old < keep:
      _path(folder, shard, old).unlink()


def load(folder: Path, shard: int, label: int, like: Tree) -> tuple[Tree, Events]:
  """What `save` wrote, as `like`. ValueError, one line, if it is another model's, algorithm's or number of shards'."""
  path = _path(folder, shard, label)
  with np.load(path, allow_pickle=False) as saved:
    wanted = jax.tree.leaves(like)
    leaves: list[Any] = [saved[name] for name in sorted(saved.files) if name.startswith("leaf")]
    if [x.shape for x in leaves] != [np.shape(x) for x in wanted]:
      raise ValueError(f"{path} was written by another model, algorithm, number of workers or number of shards")
    leaves = [x.view(y.dtype) if x.dtype.kind == "V" else x for x, y in zip(leaves, wanted, strict=True)]  # bfloat16
    return jax.tree.unflatten(jax.tree.structure(like), leaves), Events(**{name: saved[name] for name in TYPES})


def _path(folder: Path, shard: int, label: int) -> Path:
  return folder / f"shard{shard}-{label:09d}.npz"
