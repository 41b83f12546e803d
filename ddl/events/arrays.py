"""A record of equally long arrays as one npz file."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ddl import files, memory


def save(path: str | Path, arrays: Mapping[str, Any]) -> None:
  """Writes the arrays at exactly this path, which never holds half of them."""
  half = Path(f"{path}.half")
  with open(half, "wb") as file:
    np.savez(file, **dict(arrays))
    file.flush()
    os.fsync(file.fileno())
  half.replace(path)


def load(path: str | Path, types: Mapping[str, Any], what: str) -> dict[str, np.ndarray]:
  """Reads what `save` wrote. ValueError, one line, for another kind of file; FileNotFoundError where there is none.

  Args:
    path: of the file.
    types: the names of the arrays, and what each is cast to if nothing is lost.
    what: they are, for the error.
  """
  memory.require(files.regular(path).stat().st_size, str(path))
  try:
    with np.load(path, allow_pickle=False) as arrays:
      return {name: arrays[name].astype(kind, casting="safe") for name, kind in types.items()}
  except Exception as error:  # damaged: NumPy, zipfile and zlib have their own
    first = next(iter(str(error).splitlines()), type(error).__name__)
    told = "no .npz file" if "pickle" in first else first  # NumPy's advice is of no use here
    raise ValueError(f"{path}: not a record of {what}: {told}") from error
