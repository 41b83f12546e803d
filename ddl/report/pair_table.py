"""All pairs of a comparison's algorithms, quantity by quantity, and their tables for the page."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from ddl.report import clusters, formats
from ddl.report.cells import Cell
from ddl.report.paired_test import LEVEL, MOST, Pair
from ddl.report.reader import SCORES, Comparison
from ddl.report.table import LabelRow, pairs, scores, spent

MINUS, DIVIDED = "\N{MINUS SIGN}", "\N{DIVISION SIGN}"
SHOWN = 100  # pairs of a quantity on the page; pairs.csv has all


class Quantity(NamedTuple):
  """A family of tests: a score at the end, or a cost of the target."""

  name: str  # a metrics column, or "predicted_seconds"
  cluster: str  # of predicted seconds, else ""
  column: str  # of the rows' estimates
  rows: Sequence[LabelRow]

  @property
  def title(self) -> str:
    """In words."""
    return f"predicted seconds on {self.cluster}" if self.cluster else formats.NAMES[self.column]

  def pairs(self) -> Mapping[tuple[str, str], Pair]:
    """All pairs, both ways round."""
    return pairs(self.rows, self.column)


def quantities(comparison: Comparison, table: Sequence[LabelRow]) -> Iterator[Quantity]:
  """The scores, the costs of the target, and the seconds predicted for each cluster."""
  for name in (*scores(comparison), *spent(comparison)):
    yield Quantity(name, "", name, table)
  for each in clusters.on_clusters(comparison):
    yield Quantity(clusters.PREDICTED, each.entry["name"], clusters.TIME, each.table)


class Table(NamedTuple):
  """The pairs of a quantity."""

  title: str
  summary: str
  labels: list[str]
  columns: dict[str, list[Cell]]
  left_out: int  # pairs that only pairs.csv has


def tables(comparison: Comparison, table: Sequence[LabelRow]) -> list[Table]:
  """A table per quantity, the smallest p first; [] where one seed or one algorithm leaves nothing to test."""
  if len(comparison.info["seeds"]) < 2 or len(table) < 2:
    return []
  return [_table(comparison, quantity) for quantity in quantities(comparison, table)]


def _table(comparison: Comparison, quantity: Quantity) -> Table:
  rows = {row.label: row for row in quantity.rows}
  upward = [(each, pair) for each, pair in quantity.pairs().items() if _upward(each, pair, list(rows))]
  upward.sort(key=lambda found: (found[1].p is None, found[1].p_holm or 0.0, found[1].p or 0.0))
  tested = [pair for _, pair in upward if pair.p is not None]
  different = sum(pair.sign != 0 for pair in tested)
  found, score = upward[:SHOWN], quantity.column in SCORES
  columns = {
    "difference" if score else "ratio": [_estimate(quantity.column, pair) for _, pair in found],
    "p after Holm": [_p(pair) for _, pair in found],
    "effect size": [Cell("" if pair.effect is None else f"{pair.effect:.2f}") for _, pair in found],
    "seeds": [_seeds(each, pair, rows, quantity.column) for each, pair in found],
    "more seeds": [Cell(_more(pair)) for _, pair in found],
  }
  final = "final " if score else ""
  goal = "" if score else f" to {comparison.goal}"
  return Table(
    title=f"{final}{quantity.title}{goal}",
    summary=f"{different} of {len(tested)} tested pairs significantly different",
    labels=[f"{first} {DIVIDED if pair.ratio else MINUS} {second}" for (first, second), pair in found],
    columns=columns,
    left_out=len(upward) - len(found),
  )


def _upward(labels: tuple[str, str], pair: Pair, order: Sequence[str]) -> bool:
  """Of the two ways round the one with the larger label first; of equals the one in the order of the labels."""
  equal = 1.0 if pair.ratio else 0.0
  ordered = order.index(labels[0]) < order.index(labels[1])
  return pair.mean > equal or (not pair.mean < equal and ordered)


def _estimate(name: str, pair: Pair) -> Cell:
  if not pair.seeds:
    return Cell("none", "partial")

  def text(*values: float) -> str:
    if pair.ratio:
      return " to ".join(f"{value:,.{formats.decimals(pair.mean, 3)}f}" for value in values)
    shown = (
      formats.interval(name, pair.mean, (values[0], values[1])) if len(values) > 1 else formats.figure(name, *values)
    )
    return shown.replace(" %", " points")

  return Cell(text(pair.mean), details=(text(*pair.interval),) if pair.interval else ())


def _p(pair: Pair) -> Cell:
  if pair.p is None or pair.p_holm is None:
    return Cell("no test", "partial")
  return Cell(_probability(pair.p_holm), "best" if pair.p_holm < LEVEL else "", (f"{_probability(pair.p)} by itself",))


def _probability(p: float) -> str:
  return "below 0.0001" if p < 1e-4 else f"{p:.2g}" if p < 0.095 else f"{p:.2f}"


def missing(row: LabelRow, column: str) -> int:
  """The seeds of which a row has no figure: they never met the target, or did not finish."""
  found = row.estimates.get(column)
  return row.seeds - (len(found.seeds) if found else 0)


def _seeds(labels: tuple[str, str], pair: Pair, rows: dict[str, LabelRow], column: str) -> Cell:
  """The seeds that both have, and which of the two lacks how many."""
  what = "did not finish" if column in SCORES else "never met the target"
  lacking = [(label, missing(rows[label], column)) for label in labels]
  details = tuple(f"{label}: {count} {what}" for label, count in lacking if count)
  return Cell(f"{pair.seeds}/{rows[labels[0]].seeds}" if details else str(pair.seeds), details=details)


def _more(pair: Pair) -> str:
  if pair.more_seeds is None:
    return "separate" if pair.sign and pair.p is not None else ""
  return f"more than {MOST:,}" if pair.more_seeds > MOST else f"{pair.more_seeds:,}"
