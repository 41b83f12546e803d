"""Config sections for in-memory objects: arrays, data sets and optax optimizers.

The section's name is an import path, such as `ddl.config.in_memory:arrays_1f2e3d4c`, that ends in a hash of the object.
So a run can be resumed only by passing an equal object.
"""

import hashlib
import os
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from ddl.api import Data, Source
from ddl.data import arrays, checks, hugging_face

PARAMS = {"kernel": (2, 3), "bias": (3,)}  # shapes for tracing an optimizer


def section(kind: str, value: Any) -> dict[str, Any] | None:
  """Return the config section of an in-memory object; None for another value.

  Args:
    kind: the section's kind, such as "data".
    value: for "data", the arguments of `ddl.from_arrays` as a tuple, a `datasets.Dataset` or `DatasetDict` of Hugging
      Face, or a `ddl.Data`; for "optimizer", an `optax.GradientTransformation`.
  """
  if kind == "optimizer" and isinstance(value, optax.GradientTransformation):
    return {"name": _register("optimizer", _traced(value), lambda: value)}
  if kind != "data":
    return None
  word = "data"
  if isinstance(value, tuple | list) and not isinstance(value, Data):
    word, value = "arrays", arrays.from_arrays(*arrays.flat(value))
  elif hugging_face.is_dataset(value):
    word, value = "hugging_face", hugging_face.from_hugging_face(value)
  return {"name": _register(word, _content(value), lambda: value)} if isinstance(value, Data) else None


def _register(word: str, content: bytes, factory: Callable[..., Any]) -> str:
  name = f"{word}_{hashlib.sha256(content).hexdigest()[:8]}"
  globals()[name] = factory
  return f"{__name__}:{name}"


def _traced(optimizer: optax.GradientTransformation) -> bytes:
  """Return bytes that identify an optimizer: its traced functions with their constants.

  An optimizer whose masks or labels do not fit PARAMS cannot be traced; the result is then random.
  """
  params = {name: jnp.zeros(shape) for name, shape in PARAMS.items()}

  def step(params: Any) -> Any:
    return optimizer.update(params, optimizer.init(params), params)

  try:
    with jax.numpy_dtype_promotion("standard"):  # optax's Adam needs it
      closed = jax.make_jaxpr(step)(params)
  except Exception:  # the user's optimizer may raise anything
    return os.urandom(16)
  return str(closed.jaxpr).encode() + b"".join(np.asarray(constant).tobytes() for constant in closed.consts)


def _content(data: Data) -> bytes:
  """Return a hash of a data set: of its meta, and of the size and a sample of each part.

  `ddl.run.inputs` compares more examples when a run is resumed.
  """
  parts = {"train": data.train, "test": data.test, "validation": data.validation, **data.tests}
  sha = hashlib.sha256(repr(data.meta).encode())
  for name, part in parts.items():
    if isinstance(part, Source):  # other types are reported when the run starts
      sha.update(f"{name} {part.size}".encode())
      with checks.readable(f"the {name} set"):
        batch = part.take(checks.spread(part))
      for key, values in sorted(batch.items()):
        x = np.ascontiguousarray(values)
        sha.update(f"{key} {x.dtype} {x.shape}".encode() + x.tobytes())
  return sha.digest()
