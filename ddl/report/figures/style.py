"""Style of all figures: colours for light and dark pages, markers, dashes, fonts, and which algorithm gets which."""

from collections.abc import Mapping, Sequence
from functools import cache
from itertools import zip_longest
from typing import Any, NamedTuple

from ddl.report.grid_data import axes
from ddl.report.reader import Comparison
from ddl.report.table import ranking, rows, spent

INK, MUTED, GRID, IDLE, PAPER = "#1b2129", "#5a6571", "#dfe3e8", "#b9c2cb", "#fffffe"
# Okabe and Ito's colours without yellow. There are more markers than colours, so that pairs of both rarely repeat.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", INK, "#8c6d31")
MARKERS = "os^DvP<X>ph*"
DASHES = (  # on and off, in line widths
  (), (5.0, 2.0), (1.2, 1.6), (6.0, 1.8, 1.2, 1.8), (10.0, 2.5), (2.8, 1.4), (5.0, 1.5, 1.2, 1.5, 1.2, 1.5),
  (9.0, 1.6, 3.0, 1.6),
)  # fmt: skip
# matplotlib's plasma for values in their order: its part that is dark enough on white, and the one for dark pages.
SEQUENCE = (
  "#0d0887", "#260591", "#3a049a", "#4c02a1", "#5e01a6", "#6e00a8", "#7e03a8", "#8e0ca4", "#9d189d", "#aa2395",
  "#b6308b", "#c23c81", "#cc4977", "#d5546e", "#de6164", "#e76e5b",
)  # fmt: skip
DARK_SEQUENCE = (
  "#b6308c", "#c13b82", "#ca457a", "#d35171", "#da5b69", "#e26660", "#e97158", "#ef7e50", "#f48948", "#f9973f",
  "#fca537", "#fdb22f", "#fdc229", "#fcd025", "#f8e125", "#f3f027",
)  # fmt: skip
DARK = {  # the colours of a dark page; those that are missing are the same on both
  INK: "#e6eaef", MUTED: "#a3adb8", GRID: "#333c46", IDLE: "#59646f", PAPER: "#161b21",
  "#0072b2": "#4586f5", "#d55e00": "#f27b42", "#009e73": "#2fbd93", "#56b4e9": "#9adcff",
  **dict(zip(SEQUENCE, DARK_SEQUENCE, strict=True)),
}  # fmt: skip
SLIDE, PHONE = (9.6, 5.4), (4.3, 5.9)  # inches


@cache
def _family() -> list[str]:
  """The fonts that are present."""
  from matplotlib import font_manager

  present = set(font_manager.get_font_names())
  return [name for name in ("Helvetica Neue", "Arial", "Liberation Sans", "DejaVu Sans") if name in present]


def settings(wide: bool) -> Any:
  """matplotlib's settings of every figure."""
  return {
    "font.family": _family(), "font.size": 11 if wide else 10, "text.color": INK, "axes.labelcolor": INK,
    "axes.edgecolor": MUTED, "xtick.color": MUTED, "ytick.color": MUTED, "xtick.labelcolor": INK,
    "ytick.labelcolor": INK, "axes.spines.top": False, "axes.spines.right": False, "axes.facecolor": PAPER,
    "figure.facecolor": PAPER, "grid.color": GRID, "grid.linewidth": 0.8, "axes.axisbelow": True,
    "svg.fonttype": "path", "svg.hashsalt": "ddl", "axes.titlesize": 14 if wide else 12,
    "axes.titleweight": "bold", "text.parse_math": False, "xtick.minor.size": 2.5, "ytick.minor.size": 2.5,
    "pdf.fonttype": 42,  # embedded TrueType, which journals ask for
  }  # fmt: skip


def blank(size: tuple[float, float]) -> Any:
  """An empty figure, inches."""
  from matplotlib.figure import Figure
  from matplotlib.layout_engine import ConstrainedLayoutEngine

  return Figure(figsize=size, layout=ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.1))


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
