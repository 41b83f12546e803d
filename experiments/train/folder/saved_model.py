"""The tested model of a run in one file, the same on any number of devices, for `ddl.load` and `--init_from`."""

from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import serialization

from ddl import files
from ddl.api import Model, Tree
from ddl.runtime.hosts import is_main
from ddl.runtime.layout.placement import gather
from ddl.runtime.rounds.consensus import Consensus

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
      f"{where} holds no {MODEL}: train writes it at its end and with each checkpoint, compare with --keep_models"
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
