"""Checks of paths given by a user, JSON files, and the user's cache folder."""

import json
import os
import re
import zipfile
from collections.abc import Collection
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np


class Declared(NamedTuple):
  """An array by its header."""

  shape: tuple[int, ...]
  dtype: np.dtype
  nbytes: int


def local(path: str | Path) -> Path:
  """Return the path with ~ expanded.

  Raises:
    ValueError: one line, for a URL, ~ without a home folder, or characters that no file system accepts.
  """
  if re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", str(path)):
    raise ValueError(f"{path} must be a path on this machine, not a URL. Mount or copy it first.")
  if "\0" in str(path) or any("\ud800" <= c <= "\udfff" for c in str(path)):
    raise ValueError(f"{str(path)!a} must be text without NUL or undecodable bytes.")
  try:
    return Path(path).expanduser()
  except RuntimeError as error:
    raise ValueError(f"{path} must be a path without the ~ of an unknown home folder.") from error


def cache_folder() -> Path:
  """Return ~/.cache/ddl, or the folder in XDG_CACHE_HOME. ValueError without a home folder."""
  return local(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "ddl"


def regular(path: str | Path) -> Path:
  """Return the path of a regular file. ValueError for a folder, pipe or device; FileNotFoundError if missing."""
  file = local(path)
  if not file.exists():
    raise FileNotFoundError(f"{path}: no such file")
  if not file.is_file():
    what = "a folder" if file.is_dir() else "a pipe or a device"
    raise ValueError(f"{path} must be a regular file, got {what}.")
  return file


def npz_arrays(path: str | Path, names: Collection[str]) -> dict[str, Declared]:
  """Return those of the named arrays that a .npz file has, by their headers, without unpacking them.

  Raises:
    ValueError: one line, for a member that is no array, or whose size is not that of its header.
    Exception: of a damaged archive, what zipfile and zlib raise.
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
          raise ValueError(f"{name} is not an array") from error
        if version != (1, 0):
          raise ValueError(f"{name} is not a plain array")
        shape, _, dtype = np.lib.format.read_array_header_1_0(member)
        header = member.tell()
      nbytes = int(np.prod(shape, dtype=object)) * dtype.itemsize
      if info.file_size != header + nbytes and not dtype.hasobject:
        raise ValueError(f"{name} unpacks to {info.file_size:,} bytes, where its header says {header + nbytes:,}")
      arrays[name] = Declared(shape, dtype, nbytes)
  return arrays


def read_json(path: Path, advice: str = "; train again in another workdir") -> dict[str, Any]:
  """The object that a JSON file holds.

  Raises:
    ValueError: one line that names the file and ends with the advice, if it is damaged or no regular file.
    FileNotFoundError: if there is none.
  """
  regular(path)
  try:
    content = json.loads(path.read_text(encoding="utf-8"))
  except (ValueError, RecursionError) as error:
    raise ValueError(f"{path} is damaged ({error}){advice}") from error
  if not isinstance(content, dict):
    raise ValueError(f"{path} is damaged (it holds no object){advice}")
  return content
