"""The report's section on a grid: findings along each key, figures, slopes, and what was run and tested."""

import math
from collections.abc import Iterable, Sequence
from itertools import combinations
from typing import Any, NamedTuple

from ddl.names import text, words
from ddl.perf.units import counted
from ddl.report import formats, grid_data, undetected
from ddl.report import seeds as seed_sets
from ddl.report.cells import Cell
from ddl.report.figures.picture import Picture
from ddl.report.findings import SPENT, UNRANKED, Cost, Sentence, costs, early_clause, winners
from ddl.report.paired_test import Pair
from ddl.report.reader import SCORES, Comparison
from ddl.report.settings import BUDGET
from ddl.report.table import EARLY, LabelRow, pairs
from ddl.report.wording import BEFORE, early


def finding(comparison: Comparison, table: Sequence[LabelRow]) -> list[Sentence]:
  """What the grid shows in plain words; means are called so, differences only where they are significant."""
  grid = grid_data.axes(comparison)
  groups = list(dict.fromkeys(row.place.group for row in table))
  sentences: list[Sentence] = [("", headline(table, comparison))]
  if told := seed_sets.apart(comparison):
    sentences.append((seed_sets.APART, told))
  if all(row.seeds == 1 for row in table):
    sentences.append(("One seed only", "no interval and no test of significance; another seed may give another order."))
  if told := early(comparison, table):
    sentences.append((f"{BEFORE} ({EARLY})", told))
  alike = []
  for one, other in combinations(groups, 2):
    if told := _between(comparison, table, one, other):
      sentences.append((f"{one} and {other} at the same point", f"{told}."))
    elif any(row.seeds > 1 for row in table):
      alike.append(f"{one} and {other}")
  if alike:
    sentences.append(("No significant difference at any point", f"between {'; '.join(alike)}."))
  sentences += [told] if (told := undetected.sentence(comparison, table)) else []
  for key in grid:
    charts = grid_data.charts(comparison, table, key)
    for group in groups:
      rows = [row for row in table if row.place.group == group and key in row.place.point]
      along = [_along(comparison, table, rows, key), *_speedups(charts, group), *_slopes(charts, group)]
      if told := "; ".join(filter(None, along)):
        sentences.append((f"{group}, {words(key, list(grid))}", f"{told}."))
  return sentences


def _quantities(comparison: Comparison) -> dict[str, str]:
  """The metric and the costs that are told of: in words."""
  costs = {name: SPENT[name] for name in ("examples", "bytes_sent", comparison.seconds)}
  return {comparison.metric: formats.NAMES[comparison.metric]} | costs


def headline(table: Sequence[LabelRow], comparison: Comparison) -> str:
  """How many points reached the target, and which of them was the cheapest, if any was by the rule of `winners`."""
  goal = f"{comparison.goal} {formats.NAMES[comparison.metric]}"
  complete, every = [row for row in table if row.reached == row.seeds], f"{len(table)} points of the grid"
  seeds = "every seed" if any(row.seeds > 1 for row in table) else "the one seed"
  if not all(row.paired for row in table):
    return UNRANKED
  if not complete:
    return f"None of the {every} reached {goal} with {seeds}."
  count = f"All {every}" if len(complete) == len(table) else f"{len(complete)} of {every}"
  found = costs(table, comparison)
  if not found:
    text = f"{count} reached {goal} with {seeds}: {formats.listed([row.label for row in complete])}"
    return ". ".join([text, *early_clause(complete, len(table))]) + "."
  won, level = winners(table, found)
  best = [f"{formats.listed(labels)} in {formats.listed(list(map(_won, each)))}" for labels, each in won]
  told = [f"Cheapest: {'; '.join(best)}"] if best else []
  told += [f"No point is clearly the cheapest in {formats.listed(level).replace(' and ', ' or ')}"] if level else []
  told += early_clause([row for cost in found for row in cost.best], len(table))
  return f"{count} reached {goal} with {seeds}. {'. '.join(told)}."


def _won(cost: Cost) -> str:
  """A cost in words, and how far the claim of a cheapest point goes."""
  count = len(cost.unjudged)
  among = " of those that send any" * (not cost.all_send)
  return SPENT[cost.name] + among + f" (no test with {counted(count, 'other')})" * (count > 0)


def _along(comparison: Comparison, table: Sequence[LabelRow], rows: Sequence[LabelRow], key: str) -> str:
  """Where the quantities are best along a key, and which of them differ significantly along it."""
  found, alike, missed = [], [], {}
  for name, words_of in _quantities(comparison).items():
    sending, words_of = _sending(rows, name, words_of)
    tested = _tested(table, name, ((a, b) for a, b in combinations(sending, 2) if _differ(a, b, key)))
    best = _best(comparison, [row for row in sending if row.of_all(name)], name, key)
    if not best or not tested:
      continue
    missed[name] = tested
    different, count = sum(pair.sign != 0 for pair in tested.values()), len(tested)
    word = ("highest" if comparison.higher_is_better else "lowest") if name == comparison.metric else "lowest"
    if all(row.seeds == 1 for row in rows):
      found.append(f"{word} {words_of} at {best}")
    elif different:
      found.append(f"{word} mean {words_of} at {best}, {different} of {count} pairs significantly different")
    else:
      alike.append(words_of)
  if alike and not found:
    return f"no two values differ significantly in metric or costs{undetected.nearest(missed)}"
  return "; ".join(found + ([f"no significant difference in {_listed(alike)}"] if alike else []))


def _listed(names: Sequence[str]) -> str:
  return formats.listed(names).replace(" and ", " or ") if names else ""


def _differ(one: LabelRow, other: LabelRow, key: str) -> bool:
  return one.place.point[key] != other.place.point[key]


def _tested(
  table: Sequence[LabelRow], name: str, wanted: Iterable[tuple[LabelRow, LabelRow]]
) -> dict[tuple[str, str], Pair]:
  """The pairs that are tested; of one seed alone, which is no test, those of the family."""
  family, single = pairs(table, name), all(row.seeds == 1 for row in table)
  found = {(one.label, other.label): family.get((one.label, other.label)) for one, other in wanted}
  return {labels: pair for labels, pair in found.items() if pair and (single or pair.p is not None)}


def _sending(rows: Sequence[LabelRow], name: str, words_of: str) -> tuple[Sequence[LabelRow], str]:
  """The rows with a place in this quantity, and its name: to send nothing, as one worker does, is no achievement."""
  if name != "bytes_sent" or not any(row.sends_nothing for row in rows):
    return rows, words_of
  return [row for row in rows if not row.sends_nothing], f"{words_of} of those that send any"


def _best(comparison: Comparison, rows: Sequence[LabelRow], name: str, key: str) -> str:
  """The value of the key with the best mean; several where it is another at other values of the other keys."""
  sign = -1 if name == comparison.metric and comparison.higher_is_better else 1
  panels: dict[str, list[LabelRow]] = {}
  for row in rows:
    panels.setdefault(repr({k: v for k, v in row.place.point.items() if k != key}), []).append(row)
  best = [min(each, key=lambda row: sign * row.estimates[name].mean).place.point[key] for each in panels.values()]
  values = [value for value in grid_data.axes(comparison)[key] if value in best]
  return _listed(list(map(text, values))) + (" (by the other keys)" if len(values) > 1 else "")


def _speedups(charts: Sequence[grid_data.Chart], group: str) -> Iterable[str]:
  for chart in charts:
    lines = [line for panel in chart.panels for line in panel.lines if line.group == group]
    if chart.quantity != grid_data.SPEEDUP or not lines:
      continue
    most = max(at for line in lines for at in line.x)
    reached = [line.estimates[line.x.index(most)].mean for line in lines if most in line.x]
    low, high = f"{min(reached):.2g}", f"{max(reached):.2g}"
    unit, over = chart.title.partition(" to ")[0].lower(), chart.y_label.partition(" over ")[2]
    sign = EARLY * any(line.early[line.x.index(most)] for line in lines if most in line.x)
    yield f"{unit} {low if low == high else f'{low} to {high}'}{sign} with {most:g} over {over}"


def _slopes(charts: Sequence[grid_data.Chart], group: str) -> Iterable[str]:
  """Of the metric, and where the key is `workers` of the steps; of one panel, as the page has a table of all."""
  for chart in charts:
    if len(chart.panels) > 1 or chart.quantity not in ("test_loss", "step"):
      continue
    for line in chart.panels[0].lines:
      if line.group == group and (found := grid_data.slope(chart, line)):
        yield f"slope of {chart.y_label} in logarithmic axes {found}"
      elif line.group == group and grid_data.left_out(chart, line):
        yield f"no slope of {chart.y_label}{grid_data.WHY}"


def _between(comparison: Comparison, table: Sequence[LabelRow], one: str, other: str) -> str:
  """At how many points which of two algorithms is significantly lower; "" where neither is in anything."""
  found = []
  rows = [[row for row in table if row.place.group == group] for group in (one, other)]
  for name, words_of in _quantities(comparison).items():
    first, second = (_sending(each, name, words_of)[0] for each in rows)
    tested = _tested(table, name, ((a, b) for a in first for b in second))
    signs = [pair.sign for pair in tested.values() if pair.p is not None]
    if any(signs):
      parts = [f"{group} lower at {signs.count(sign)}" for group, sign in ((one, -1), (other, 1)) if sign in signs]
      found.append(f"{words_of}: {' and '.join(parts)} of {len(tested)} tested points")
  return "; ".join(found)


class Slopes(NamedTuple):
  """A table: d log y / d log key."""

  title: str
  labels: list[str]
  columns: dict[str, list[Cell]]
  left_out: str  # why some are left out, "" where none is


class Key(NamedTuple):
  """The pictures against a key of the grid."""

  title: str
  pictures: list[Picture]  # the metric, and speed-ups
  costs: list[Picture]
  slopes: Slopes | None


def section(comparison: Comparison, table: Sequence[LabelRow]) -> dict[str, Any] | None:
  """The variables of the section's template; None where there is no grid."""
  from ddl.report import grid_plot

  grid = grid_data.axes(comparison)
  keys = []
  for key in grid:
    charts = list(map(grid_data.captioned, grid_data.charts(comparison, table, key)))
    costs = [chart for chart in charts if chart.quantity not in (*SCORES, grid_data.SPEEDUP)]
    first = [chart for chart in charts if chart not in costs]
    drawn = [[grid_plot.picture(chart) for chart in each] for each in (first, costs)]
    keys.append(Key(words(key, list(grid)), drawn[0], drawn[1], slopes(charts)))
  return {"notes": notes(comparison), "against": keys} if keys else None


def pictures(found: dict[str, Any] | None) -> list[Picture]:
  """All that the section shows."""
  return [picture for key in found["against"] for picture in (*key.pictures, *key.costs)] if found else []


def notes(comparison: Comparison) -> list[str]:
  """What was run at which points, with which budget."""
  entries, grid = [result.info for result in comparison.results], grid_data.axes(comparison)
  given = [f"{words(key, list(grid))} {formats.listed(list(map(text, values)))}" for key, values in grid.items()]
  sentences = [f"Run at {' and '.join(given)}{', each with each' * (len(grid) > 1)}."]
  for key in grid:
    reading = {entry["group"] for entry in entries if key in entry["point"]}
    if lacking := list(dict.fromkeys(entry["group"] for entry in entries if entry["group"] not in reading)):
      what = f"{words(key, list(grid))}, so that one run stands for all of its values"
      sentences.append(f"{formats.listed(lacking)} read{'s' * (len(lacking) == 1)} no {what}.")
  budgets = [math.prod(entry["settings"][key] for key in BUDGET) for entry in entries]
  if "steps" in comparison.info["grid"]:
    sentences.append(f"The grid sets the steps, so that points have {formats.between(budgets)} examples.")
  elif {"workers", "batch"} & grid.keys():
    whole = ", as steps are whole" * (len(set(budgets)) > 1)
    sentences.append(
      f"Steps follow so that all points have one budget, {formats.between(budgets)} examples{whole}; evaluations and "
      "the steps of a learning-rate schedule are scaled alike."
    )
  return sentences


def slopes(charts: Sequence[grid_data.Chart]) -> Slopes | None:
  """d log y / d log key of each line; None where the key is no number or no line has all of three points."""
  columns: dict[str, dict[str, Cell]] = {}
  for chart in charts:
    if chart.quantity == grid_data.SPEEDUP:  # the costs' slopes with the other sign
      continue
    for panel in chart.panels:
      for line in panel.lines:
        found, invented = grid_data.slope(chart, line), grid_data.left_out(chart, line)
        if found is not None or invented:
          label = f"{line.group}, {panel.title}" if panel.title else line.group
          cell = _cell(found) if found else Cell(f"none, of points {EARLY}", "partial")
          columns.setdefault(chart.title.partition(" against ")[0].lower(), {})[label] = cell
  if not columns:
    return None
  labels = list(dict.fromkeys(label for cells in columns.values() for label in cells))
  filled = {head: [cells.get(label, Cell("not all points", "partial")) for label in labels]
            for head, cells in columns.items()}  # fmt: skip
  invented = any(EARLY in cell.text for cells in filled.values() for cell in cells)
  told = f"None{grid_data.WHY}; evaluate more often: config.eval_every." if invented else ""
  return Slopes(f"Slopes against {charts[0].x_label}, both axes logarithmic", labels, filled, told)


def _cell(found: grid_data.Slope) -> Cell:
  ends = (" to ".join(map(formats.signed, found.interval)),) if found.interval else ()
  return Cell(formats.signed(found.mean), details=ends)
