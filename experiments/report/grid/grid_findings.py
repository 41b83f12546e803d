"""The findings of a comparison with a grid as sentences: along each key, and between algorithms at the same point."""

from collections.abc import Iterable, Sequence
from itertools import combinations

from ddl.perf.units import counted
from experiments.grid_point import text, words
from experiments.report import formats
from experiments.report.grid import grid_data, grid_slopes
from experiments.report.inference import seed_sets, undetected
from experiments.report.inference.paired_test import Pair
from experiments.report.reader import Comparison
from experiments.report.sentences.findings import Sentence
from experiments.report.sentences.headline import SPENT, UNRANKED, Cost, costs, early_clause, winners
from experiments.report.sentences.wording import BEFORE, early
from experiments.report.table_rows import EARLY, Row, pairs


def finding(comparison: Comparison, table: Sequence[Row]) -> list[Sentence]:
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


def headline(table: Sequence[Row], comparison: Comparison) -> str:
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


def _along(comparison: Comparison, table: Sequence[Row], rows: Sequence[Row], key: str) -> str:
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


def _differ(one: Row, other: Row, key: str) -> bool:
  return one.place.point[key] != other.place.point[key]


def _tested(table: Sequence[Row], name: str, wanted: Iterable[tuple[Row, Row]]) -> dict[tuple[str, str], Pair]:
  """The pairs that are tested; of one seed alone, which is no test, those of the family."""
  family, single = pairs(table, name), all(row.seeds == 1 for row in table)
  found = {(one.label, other.label): family.get((one.label, other.label)) for one, other in wanted}
  return {labels: pair for labels, pair in found.items() if pair and (single or pair.p is not None)}


def _sending(rows: Sequence[Row], name: str, words_of: str) -> tuple[Sequence[Row], str]:
  """The rows with a place in this quantity, and its name: to send nothing, as one worker does, is no achievement."""
  if name != "bytes_sent" or not any(row.sends_nothing for row in rows):
    return rows, words_of
  return [row for row in rows if not row.sends_nothing], f"{words_of} of those that send any"


def _best(comparison: Comparison, rows: Sequence[Row], name: str, key: str) -> str:
  """The value of the key with the best mean; several where it is another at other values of the other keys."""
  sign = -1 if name == comparison.metric and comparison.higher_is_better else 1
  panels: dict[str, list[Row]] = {}
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
      if line.group == group and (found := grid_slopes.slope(chart, line)):
        yield f"slope of {chart.y_label} in logarithmic axes {found}"
      elif line.group == group and grid_slopes.left_out(chart, line):
        yield f"no slope of {chart.y_label}{grid_slopes.WHY}"


def _between(comparison: Comparison, table: Sequence[Row], one: str, other: str) -> str:
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
