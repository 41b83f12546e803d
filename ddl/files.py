"""Check user-given paths, read JSON files and .npz headers, and locate the user's cache folder."""

import json
import os
import re
import zipfile
from collections.abc import Collection
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np


class Declared(NamedTuple):
  """Shape, type and size of an array in a .npz file, read from the array's header."""

  shape: tuple[int, ...]
  dtype: np.dtype
  nbytes: int


def local(path: str | Path) -> Path:
  """Expand ~ in a path.

  Raises:
    ValueError: for a URL, for ~ if the home folder is unknown, and for NUL or undecodable bytes.
  """
  if re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", str(path)):
    raise ValueError(f"{path} must be a path on this machine, not a URL. Mount or download it first.")
  if "\0" in str(path) or any("\ud800" <= c <= "\udfff" for c in str(path)):
    raise ValueError(f"{str(path)!a} must be a path without NUL or undecodable bytes.")
  try:
    return Path(path).expanduser()
  except RuntimeError as error:
    raise ValueError(f"{path} must be a path without ~, because the home folder is unknown.") from error


def cache_folder() -> Path:
  """Return ~/.cache/ddl, or its equivalent under XDG_CACHE_HOME. Raises ValueError if the home folder is unknown."""
  return local(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "ddl"


def regular(path: str | Path) -> Path:
  """Check that a path is a regular file and return it. Raises ValueError or FileNotFoundError otherwise."""
  file = local(path)
  if not file.exists():
    raise FileNotFoundError(f"{path}: no such file")
  if not file.is_file():
    what = "a folder" if file.is_dir() else "a pipe or a device"
    raise ValueError(f"{path} must be a regular file, got {what}.")
  return file


def npz_arrays(path: str | Path, names: Collection[str]) -> dict[str, Declared]:
  """Read the headers of those arrays of a .npz file whose names are in `names`, without unpacking the arrays.

  Returns:
    name -> header, for each of these arrays.

  Raises:
    ValueError: if one of these entries is not an array in .npy format 1.0, or its size does not match its header.
    Exception: any error of zipfile or zlib for a damaged archive.
  """
  arrays = {}
  with zipfile.ZipFile(path) as archive:
    for info in archive.infolist():
      name = info.filename.removesuffix(".npy")
      if name not in names:
        continue
      with archive.open(info) as member:
        try:
          version = np.lib.format.read_magic(member)
        except ValueError as error:
          raise ValueError(f"{name} must be an array in .npy format.") from error
        if version != (1, 0):
          raise ValueError(f"{name} must be an array in .npy format 1.0, got format {version[0]}.{version[1]}.")
        shape, _, dtype = np.lib.format.read_array_header_1_0(member)
        header = member.tell()
      nbytes = int(np.prod(shape, dtype=object)) * dtype.itemsize
      if info.file_size != header + nbytes and not dtype.hasobject:
        raise ValueError(f"{name} unpacks to {info.file_size:,} bytes, but its header declares {header + nbytes:,}.")
      arrays[name] = Declared(shape, dtype, nbytes)
  return arrays


def read_json(path: Path, advice: str = "; train again in another workdir") -> dict[str, Any]:
  """Read a JSON file that contains an object.

  Raises:
    ValueError: if the file is damaged (the message then ends with `advice`) or not a regular file.
    FileNotFoundError: if the file does not exist.
  """
  regular(path)
  try:
    content = json.loads(path.read_text(encoding="utf-8"))
  except (ValueError, RecursionError) as error:
    raise ValueError(f"{path} is damaged ({error}){advice}") from error
  if not isinstance(content, dict):
    raise ValueError(f"{path} is damaged (its content is not a JSON object){advice}")
  return content
