"""Names of components and grid points, for labels, folders and tables."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

LONGEST = 200  # bytes in a file name; file systems allow 255
KINDS = (
  *("spec", "algorithm", "wrapper", "model", "data", "partition", "optimizer", "schedule", "outer_schedule"),
  *("period_schedule", "times", "barrier"),
)


def short_name(name: str) -> str:
  """Return the short name of a component: its registry name, or the variable that defines it in a user's file.

  mine.py:net -> net, mine.py:FAST_SPEC -> FAST. A variable that is named after a kind of component gives no
  information, so the file's name replaces it: mine.py:SPEC -> mine.
  """
  where, separator, variable = name.rpartition(":")
  word = variable.removesuffix("_SPEC")
  if not separator or word.lower() not in KINDS:
    return word
  file = Path(where if where.endswith(".py") else where.replace(".", "/"))
  return word if file.stem == "__main__" else file.parent.name if file.stem == "__init__" else file.stem


def slug(text: str) -> str:
  """Convert an algorithm label or another user-defined name to a valid file name, deterministically."""
  name = "".join(c if c.isalnum() or c in "-_." else "_" for c in text)
  name = name if name.strip(".") else name.replace(".", "_")  # . and .. are folders
  if len(name.encode()) <= LONGEST:
    return name
  return f"{name.encode()[: LONGEST - 9].decode(errors='ignore')}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


class Place(NamedTuple):
  """The position of a compared algorithm in a grid of settings."""

  group: str  # the algorithm's label without grid keys
  point: Mapping[str, Any]  # grid key -> value


def comparable(one: Place, other: Place) -> bool:
  """Return whether two entries of a comparison differ only in the algorithm or only in one grid key.

  Different algorithms are compared at grid points whose common keys agree.
  """
  shared = one.point.keys() & other.point.keys()
  differing = sum(one.point[key] != other.point[key] for key in shared)
  return differing == (one.group == other.group)


def words(key: str, keys: tuple[str, ...] | list[str]) -> str:
  """Return the words for a config key <section>.<name>: "name", or "section name" if another key has the same name.

  For <section>.name, the word is the section. keys: all keys, including this one.
  """
  section, _, name = key.rpartition(".")
  alike = [other for other in keys if other.rpartition(".")[2] == name]
  word = section if name == "name" else name if len(alike) == 1 else f"{section} {name}"
  return word.replace("_", " ")


def quoted(label: str) -> str:
  """Return an algorithm label, in quotation marks if it contains a comma."""
  return f'"{label}"' if "," in label else label


def text(value: Any) -> str:
  """Format a value of a grid as text."""
  if isinstance(value, float):
    short = f"{value:g}"
    return short if float(short) == value else repr(value)
  return "not set" if value is None else short_name(str(value))


def pluralize(count: int, noun: str) -> str:
  """Format a number with its noun: 1 device, 2 devices, 2 processes."""
  return f"{count:,} {noun if count == 1 else noun + ('es' if noun.endswith('s') else 's')}"
