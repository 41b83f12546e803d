"""A record of equally long arrays as one npz file."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ddl import files, memory


def save(path: str | Path, arrays: Mapping[str, Any]) -> None:
  """Write the arrays to exactly this path, atomically."""
  half = Path(f"{path}.half")
  with open(half, "wb") as file:
    np.savez(file, **dict(arrays))
    file.flush()
    os.fsync(file.fileno())
  half.replace(path)


def load(path: str | Path, types: Mapping[str, Any], what: str) -> dict[str, np.ndarray]:
  """Read what `save` wrote. ValueError, one line, for another kind of file; FileNotFoundError for a missing one.

  Args:
    path: of the file.
    types: the names of the arrays, and the type that each is safely cast to.
    what: name of the rows, for the error.
  """
  file = files.regular(path)
  try:
    size = sum(array.nbytes for array in files.npz_arrays(file, types).values())
  except Exception as error:  # of damaged files zipfile and zlib raise their own
    raise _not_a_record(path, what, error) from error
  memory.require(size, str(path))
  try:
    with np.load(path, allow_pickle=False) as arrays:
      return {name: arrays[name].astype(kind, casting="safe") for name, kind in types.items()}
  except Exception as error:
    raise _not_a_record(path, what, error) from error


def _not_a_record(path: str | Path, what: str, error: Exception) -> ValueError:
  first = next(iter(str(error).splitlines()), type(error).__name__)
  reason = "no .npz file" if "pickle" in first else first  # NumPy would advise to allow pickles
  return ValueError(f"{path}: not a record of {what}: {reason}")
