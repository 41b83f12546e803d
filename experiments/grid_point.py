"""Where a label of a comparison stands in its grid, and which labels are compared; without JAX, as reports are."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from experiments.short_name import short_name


class Place(NamedTuple):
  """The label without the grid, and its point: the keys of the grid that its algorithm reads, {} without a grid."""

  group: str
  point: Mapping[str, Any]


def comparable(one: Place, other: Place) -> bool:
  """Whether the difference of two labels answers a question: algorithms at one point, or points that differ in a key.

  Algorithms are at one point where the keys that both have agree.
  """
  shared = one.point.keys() & other.point.keys()
  differing = sum(one.point[key] != other.point[key] for key in shared)
  return differing == (one.group == other.group)


def words(key: str, keys: tuple[str, ...] | list[str]) -> str:
  """A key by its last part, with its section where two of the keys end alike; a name by its section."""
  section, _, name = key.rpartition(".")
  alike = [each for each in keys if each.rpartition(".")[2] == name]
  word = section if name == "name" else name if len(alike) == 1 else f"{section} {name}"
  return word.replace("_", " ")


def quoted(label: str) -> str:
  """A label in a list: in quotation marks where it has a comma of its own, as --only takes it."""
  return f'"{label}"' if "," in label else label


def text(value: Any) -> str:
  """A value of a grid."""
  if isinstance(value, float):
    short = f"{value:g}"
    return short if float(short) == value else repr(value)
  return "not set" if value is None else short_name(str(value))
