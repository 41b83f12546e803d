"""Checks of paths given by a user."""

import re
from pathlib import Path


def local(path: str | Path) -> Path:
  """Return the path with ~ expanded.

  Raises:
    ValueError: one line, for a URL, ~ without a home folder, or characters that no file system accepts.
  """
  if re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", str(path)):
    raise ValueError(f"{path}; invalid: must be a path on this machine, not a URL; mount or copy it first")
  if "\0" in str(path) or any("\ud800" <= c <= "\udfff" for c in str(path)):
    raise ValueError(f"{str(path)!a}; invalid: must be text without NUL or undecodable bytes")
  try:
    return Path(path).expanduser()
  except RuntimeError as error:
    raise ValueError(f"{path}: unknown home folder; invalid: must be a path without ~") from error


def regular(path: str | Path) -> Path:
  """Return the path of a regular file. ValueError for a folder, pipe or device; FileNotFoundError if missing."""
  found = local(path)
  if not found.exists():
    raise FileNotFoundError(f"{path}: no such file")
  if not found.is_file():
    what = "a folder" if found.is_dir() else "a pipe or a device"
    raise ValueError(f"{path} is {what}; invalid: must be a regular file")
  return found
