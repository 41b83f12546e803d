"""The data of a grid's figures: a quantity against a key, a line per algorithm; speed-ups, and slopes in log axes."""

from collections.abc import Mapping, Sequence, Set
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from ddl.names import text, words
from ddl.report import formats
from ddl.report.reader import SCORES, Comparison
from ddl.report.statistics import Span, log_summary, summary
from ddl.report.table import EARLY, Estimate, LabelRow, spent


def speedups(table: Sequence[LabelRow], name: str, least: int) -> tuple[dict[str, Estimate], set[str]]:
  """By label, where every seed has both costs; and the labels with a cost from before a first evaluation in theirs."""
  base = {_without_workers(row): row for row in table if row.place.point.get("workers") == least and row.of_all(name)}
  ratios, early = {}, set()
  for row in table:
    one, found = base.get(_without_workers(row)), row.of_all(name)
    if one and found:
      first = one.estimates[name].seeds
      seeds = {seed: first[seed] / cost for seed, cost in found.seeds.items() if cost > 0 and first[seed] > 0}
      if len(seeds) == row.seeds:  # none has met the target before the first step
        ratios[row.label] = Estimate(*log_summary(list(seeds.values())), seeds)
        early |= {row.label} if one.early or row.early else set()
  return ratios, early


def _without_workers(row: LabelRow) -> tuple[str, str]:
  return row.place.group, repr({key: value for key, value in row.place.point.items() if key != "workers"})


SPEEDUP = "speedup"  # over the smallest number of workers; of the steps, or of the seconds, to the target
DECADE, HALF = 10, 5  # from such a span on the axis of the key, or that of the quantity, is logarithmic


class Line(NamedTuple):
  """One algorithm in one panel; lists are [points]."""

  group: str
  number: int  # its place in the comparison, which fixes colour and marker
  x: list[float]  # values of the key, or their numbers where they are not numbers
  estimates: list[Estimate]
  partial: list[bool]  # whether only some seeds have the figure
  level: bool  # the algorithm does not read the key: one figure stands for all values
  early: list[bool]  # whether it is a cost, or a ratio of costs, from before a first evaluation


class Panel(NamedTuple):
  title: str  # the values of the other keys
  lines: list[Line]


class Chart(NamedTuple):
  key: str
  quantity: str  # a metrics column, of the end or to the target; or SPEEDUP
  title: str
  x_label: str
  y_label: str
  ticks: dict[float, str]  # by place on the axis
  numbers: bool  # whether the places are the key's values, which then are numbers
  log_x: bool
  log_y: bool
  ideal: float | None  # of a speed-up: the number of workers that it is over
  panels: list[Panel]
  columns: int  # that the panels fill row by row; 0: any
  notes: list[str]


def axes(comparison: Comparison) -> dict[str, list[Any]]:
  """The keys of the grid with several values among the labels, and these values: numbers in their order."""
  points = [result.info["point"] for result in comparison.results]
  found = {}
  for key, values in comparison.info["grid"].items():
    there = [value for value in values if any(key in point and point[key] == value for point in points)]
    if len(there) > 1:
      found[key] = sorted(there) if numeric(there) else there
  return found


def numeric(values: Sequence[Any]) -> bool:
  """Whether all of them are numbers."""
  return all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)


def charts(comparison: Comparison, table: Sequence[LabelRow], key: str) -> list[Chart]:
  """The final metric, speed-ups where the key is `workers`, and the costs of the target, all against the key."""
  costs = [name for name in spent(comparison) if name != "step" or _steps_differ(comparison)]
  found = [_chart(comparison, table, key, comparison.metric, _estimates(table, comparison.metric))]
  if key == "workers":
    clocks = ["step"] + [comparison.seconds] * _is_a_workers_time(comparison)
    found += [_speedup(comparison, table, name) for name in clocks]
  found += [_chart(comparison, table, key, name, _estimates(table, name)) for name in costs]
  return [chart for chart in found if chart is not None]


def _estimates(table: Sequence[LabelRow], name: str) -> dict[str, Estimate]:
  """By label, without zeros: to send nothing is no cost, and stands in the notes."""
  found = {row.label: row.estimates[name] for row in table if name in row.estimates}
  return {label: each for label, each in found.items() if name in SCORES or each.mean > 0}


def _steps_differ(comparison: Comparison) -> bool:
  """From the number of examples, by a factor that is not the same for all."""
  return (
    len({result.info["settings"]["workers"] * result.info["settings"]["batch"] for result in comparison.results}) > 1
  )


def _is_a_workers_time(comparison: Comparison) -> bool:
  """Virtual seconds, and those that were measured with a device for each worker."""
  layouts = [each for result in comparison.results for each in result.layouts]
  return comparison.virtual or (bool(layouts) and all(each.devices == each.workers for each in layouts))


def _chart(
  comparison: Comparison, table: Sequence[LabelRow], key: str, name: str, estimates: Mapping[str, Estimate],
  early: Set[str] | None = None,
) -> Chart | None:  # fmt: skip
  """A quantity against the key; None where no point has it. early: labels; None: those whose costs are."""
  if early is None:
    early = {row.label for row in table if row.early and name not in SCORES}
  grid = axes(comparison)
  values, others = grid[key], [other for other in grid if other != key]
  order = list(dict.fromkeys(row.place.group for row in table))
  places = values if numeric(values) else range(len(values))
  ticks = {float(at): text(value) for at, value in zip(places, values, strict=True)}
  panels = []
  for fixed in product(*(grid[other] for other in others)):
    at = dict(zip(others, fixed, strict=True))
    rows = [row for row in table if all(row.place.point.get(other, value) == value for other, value in at.items())]
    lines = [_line(group, order.index(group), key, values, list(ticks), rows, estimates, early) for group in order]
    title = ", ".join(f"{words(other, list(grid))} {text(value)}" for other, value in at.items())
    panels.append(Panel(title, [line for line in lines if line.x]))
  panels = [panel for panel in panels if panel.lines]
  shown = [line for panel in panels for line in panel.lines]
  if not shown:
    return None
  means = np.array([each.mean for line in shown for each in line.estimates])
  word, quantity = words(key, list(grid)), formats.NAMES.get(name, name)
  title = f"{'Final ' if name in SCORES else ''}{quantity}{'' if name in SCORES else f' to {comparison.goal}'}"
  notes = _notes(shown, word, name, comparison)
  if name == "bytes_sent" and (silent := [row.label for row in table if row.sends_nothing]):
    notes.append(f"Send nothing, so not on these axes: {formats.listed(silent, 6)}.")
  if labels := [row.label for row in table if row.label in early & estimates.keys()]:
    notes.append(
      f"{EARLY} Reached before the first evaluation, so that the cost is mostly invented: {formats.listed(labels, 6)}."
    )
  log_y = name != "test_accuracy" and _spans(means, HALF)
  return Chart(
    key, name, f"{title[0].upper()}{title[1:]} against {word}", word, quantity, ticks, numeric(values),
    numeric(values) and _geometric(np.array(values, np.float64)), log_y, None, panels,
    len(grid[others[-1]]) if len(others) == 2 and len(panels) == len(grid[others[0]]) * len(grid[others[1]]) else 0,
    notes,
  )  # fmt: skip


def _line(
  group: str, number: int, key: str, values: Sequence[Any], places: Sequence[float], rows: Sequence[LabelRow],
  estimates: Mapping[str, Estimate], early: Set[str],
) -> Line:  # fmt: skip
  own = [row for row in rows if row.place.group == group and row.label in estimates]
  if level := bool(own) and all(key not in row.place.point for row in own):
    found = [(place, own[0]) for place in (places[0], places[-1])]
  else:
    found = [
      (at, row) for at, value in zip(places, values, strict=True) for row in own if row.place.point[key] == value
    ]
  shown = [estimates[row.label] for _, row in found]
  partial = [len(each.seeds) < row.seeds for each, (_, row) in zip(shown, found, strict=True)]
  return Line(group, number, [at for at, _ in found], shown, partial, level, [row.label in early for _, row in found])


def _notes(lines: Sequence[Line], word: str, name: str, comparison: Comparison) -> list[str]:
  notes = []
  if level := list(dict.fromkeys(line.group for line in lines if line.level)):
    notes.append(f"Dashed: no {word} is read by {formats.listed(level)}.")
  if any(each for line in lines for each in line.partial):
    met = "finished" if name in SCORES else f"met {comparison.goal}"
    notes.append(f"Open markers: only some seeds {met}, and the mean is of those.")
  return notes


def _speedup(comparison: Comparison, table: Sequence[LabelRow], name: str) -> Chart | None:
  """The steps or seconds to the target with the fewest workers over those with more, paired by seed."""
  least = min(axes(comparison)["workers"])
  ratios, early = speedups(table, name, least)
  chart = _chart(comparison, table, "workers", name, ratios, early)
  if chart is None:
    return None
  unit, over = formats.NAMES[name], f"{least} worker{'s' * (least > 1)}"
  notes = [f"The time of a step is not in it: {unit} alone are counted."] if name == "step" else []
  if labels := [row.label for row in table if row.label in early]:
    text = "Reached before the first evaluation, here or with the fewest workers, so that it is mostly invented"
    notes.append(f"{EARLY} {text}: {formats.listed(labels, 6)}.")
  if none := [group for group in dict.fromkeys(row.place.group for row in table) if group not in
              {line.group for panel in chart.panels for line in panel.lines}]:  # fmt: skip
    notes.append(f"Not every seed met {comparison.goal} with {over}: {formats.listed(none)}.")
  return chart._replace(
    quantity=SPEEDUP, title=f"Speed-up in {unit} to {comparison.goal} against workers", y_label=f"speed-up over {over}",
    log_x=True, log_y=True, ideal=float(least), notes=notes,
  )  # fmt: skip


def _geometric(values: np.ndarray) -> bool:
  """Whether a logarithmic axis suits rising numbers: they span a decade, or each is at least twice the last."""
  if values.min() <= 0:
    return False
  return _spans(values, DECADE) or (len(values) > 2 and bool((values[1:] >= 2 * values[:-1]).all()))


def _spans(values: np.ndarray, times: float) -> bool:
  return bool(values.min() > 0 and values.max() >= times * values.min())


CAPTION = 8  # slopes that fit into one
WHY = f": points marked {EARLY} are mostly invented, and so would the slope be"


class Slope(NamedTuple):
  """d log y / d log x by least squares, of each seed: the mean, its 95 % interval, and the number of seeds."""

  mean: float
  interval: Span | None
  seeds: int

  def __str__(self) -> str:
    ends = f" ({' to '.join(map(formats.signed, self.interval))})" if self.interval else ""
    return f"{formats.signed(self.mean)}{ends}"


def slope(chart: Chart, line: Line) -> Slope | None:
  """Of a line of three points or more, over the seeds that have all; None for shares and what is not positive.

  None too where a point is a cost from before the first evaluation: the slope of figures that are mostly invented.
  """
  return None if any(line.early) else _fitted(chart, line)


def left_out(chart: Chart, line: Line) -> bool:
  """Whether there is no slope for the sole reason that a point is mostly invented."""
  return any(line.early) and _fitted(chart, line) is not None


def _fitted(chart: Chart, line: Line) -> Slope | None:
  x = np.array(line.x)
  if not chart.numbers or chart.quantity == "test_accuracy" or line.level or len(x) < max(3, len(chart.ticks)):
    return None
  seeds = [seed for seed in line.estimates[0].seeds if all(seed in each.seeds for each in line.estimates)]
  y = np.array([[each.seeds[seed] for each in line.estimates] for seed in seeds])  # [seeds, points]
  if not len(y) or min(x.min(), y.min()) <= 0:
    return None
  across = np.log(x) - np.log(x).mean()
  found = np.log(y) @ across / (across @ across)
  mean, half = summary(found)
  return Slope(mean, None if half is None else (mean - half, mean + half), len(seeds))


def captioned(chart: Chart) -> Chart:
  """The chart with a note of the slopes of all lines, unless they are too many for a caption, and of those left out."""
  found = [[f"{line.group} {each}" for line in panel.lines if (each := slope(chart, line))] for panel in chart.panels]
  notes, number = [], sum(map(len, found))
  if 0 < number <= CAPTION:
    texts = [
      f"{panel.title}: " * bool(panel.title) + ", ".join(each)
      for panel, each in zip(chart.panels, found, strict=True)
      if each
    ]
    notes.append(f"Slopes in logarithmic axes (95 % interval over the seeds): {'; '.join(texts)}.")
  without = [line.group for panel in chart.panels for line in panel.lines if left_out(chart, line)]
  if without and number <= CAPTION:
    notes.append(f"No slope of {formats.listed(list(dict.fromkeys(without)), 6)}{WHY}.")
  return chart._replace(notes=[*chart.notes, *notes])
