"""Which algorithm gets which colour, dashes and marker, and which stand out where there are many."""

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any, NamedTuple

from experiments.report.figures.style import COLOURS, DASHES, MARKERS, SEQUENCE
from experiments.report.grid.grid_data import axes
from experiments.report.reader import Comparison
from experiments.report.table_rows import ranking, rows, spent

MANY = 12  # lines that one pair of axes shows with all of them told apart


class LineStyle(NamedTuple):
  colour: str  # that of its group, or of its value of a grid's first key
  dashes: tuple[float, ...]  # on and off in line widths, () for a solid line
  marker: str
  front: bool  # stands out; with many lines only the best few do
  grouped: bool  # shares its colour with others of its group


def line_styles(comparison: Comparison) -> list[LineStyle]:
  """A style per algorithm, in the order of the comparison, the same in all its pictures.

  Colours are those of groups, dashes those of the members of a group; where there are more groups than colours the
  dashes tell these apart too. Those in front get their colours first, so that no two of them look alike. In a grid of
  one group the colours are those of its first key's values in their order, dashes and markers those of the other keys'.
  """
  groups = [result.info["group"] for result in comparison.results]
  front = _front(comparison, groups)
  if len(set(groups)) == 1 and (grid := axes(comparison)):
    return [_at(result.info["point"], grid, number in front) for number, result in enumerate(comparison.results)]
  best = {groups[number] for number in front}
  order = sorted(dict.fromkeys(groups), key=lambda group: group not in best)
  found = []
  for number, group in enumerate(groups):
    members = sorted((n for n, each in enumerate(groups) if each == group), key=lambda n: n not in front)
    place, member = order.index(group), members.index(number)
    found.append(
      LineStyle(
        COLOURS[place % len(COLOURS)],
        DASHES[(place // len(COLOURS) + member) % len(DASHES)],
        MARKERS[number % len(MARKERS)],
        number in front,
        groups.count(group) > 1,
      )
    )
  return found


def _at(point: Mapping[str, Any], grid: Mapping[str, Sequence[Any]], front: bool) -> LineStyle:
  """Of a point of a grid: the colour by its first key, dashes and marker by the others."""
  first, *others = (values.index(point[key]) for key, values in grid.items())
  sizes = [len(values) for values in grid.values()]
  place = 0
  for index, size in zip(others, sizes[1:], strict=True):
    place = place * size + index
  shade = round(first * (len(SEQUENCE) - 1) / (sizes[0] - 1))
  return LineStyle(SEQUENCE[shade], DASHES[place % len(DASHES)], MARKERS[place % len(MARKERS)], front, True)


def _front(comparison: Comparison, groups: Sequence[str]) -> set[int]:
  """All numbers of few lines; of many the best in each cost and in the metric by turns, one of a group at most.

  In a grid of one group any of its points.
  """
  table = rows(comparison)
  if len(table) <= MANY:
    return set(range(len(table)))
  numbers = {row.label: number for number, row in enumerate(table)}
  ranked = [
    [numbers[row.label] for row in ranking(table, name)[0]] for name in (*spent(comparison)[1:], comparison.metric)
  ]
  alone = len(set(groups)) == 1
  found: dict[str, int] = {}  # by group
  for turn in zip_longest(*ranked):
    for number in turn:
      if number is not None and len(found) < len(COLOURS):
        found.setdefault(table[number].label if alone else groups[number], number)
  return set(found.values())
