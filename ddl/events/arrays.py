"""Save and load named arrays as one .npz file."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ddl import files, memory


def save(path: str | Path, arrays: Mapping[str, Any]) -> None:
  """Atomically write the arrays to this path, without adding a suffix."""
  half = Path(f"{path}.half")
  with open(half, "wb") as file:
    np.savez(file, **dict(arrays))
    file.flush()
    os.fsync(file.fileno())
  half.replace(path)


def load(path: str | Path, types: Mapping[str, Any], what: str) -> dict[str, np.ndarray]:
  """Load arrays written by `save`.

  Args:
    path: the .npz file.
    types: array name -> dtype; arrays are cast with casting="safe".
    what: what the arrays record, for error messages, such as "events".

  Raises:
    FileNotFoundError: if the file does not exist.
    ValueError: with a one-line message, if the file is not an .npz file with these arrays, or they do not fit into
      memory.
  """
  file = files.regular(path)
  try:
    size = sum(array.nbytes for array in files.npz_arrays(file, types).values())
  except Exception as error:  # for damaged files, zipfile and zlib raise their own types of exceptions
    raise _not_a_record(path, what, error) from error
  memory.require(size, str(path))
  try:
    with np.load(path, allow_pickle=False) as arrays:
      return {name: arrays[name].astype(kind, casting="safe") for name, kind in types.items()}
  except Exception as error:
    raise _not_a_record(path, what, error) from error


def _not_a_record(path: str | Path, what: str, error: Exception) -> ValueError:
  first = next(iter(str(error).splitlines()), type(error).__name__)
  reason = "not an .npz file" if "pickle" in first else first  # NumPy's text advises allowing pickles
  return ValueError(f"{path} is not a record of {what}: {reason}")
