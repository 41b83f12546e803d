"""Cells of a page's tables, and the columns of the table of results."""

from collections.abc import Sequence
from typing import NamedTuple

from ddl.report import formats
from ddl.report.reader import SCORES
from ddl.report.table import LabelRow, marks


class Cell(NamedTuple):
  """A cell of a table."""

  text: str
  kind: str = ""  # "best", "tied", "partial" (not over all seeds), or ""
  details: tuple[str, ...] = ()  # lines in small print


def column(table: Sequence[LabelRow], name: str, intervals: bool = True) -> list[Cell]:
  """A column of the table: the estimates `name`, with their intervals (of costs in small print) or without."""
  marked = marks(table, name)
  cells = []
  for row in table:
    found = row.estimates.get(name)
    if found is None:
      cells.append(Cell("never" if name not in SCORES and (row.finished or row.reached) else "no result", "partial"))
      continue
    span, details = found.interval if intervals else None, ()
    if span and name not in SCORES:
      details = (formats.interval(name, found.mean, span),)
    kind = marked.get(row.label, "")
    if not row.of_all(name):
      kind = "partial"
      details += (f"{len(found.seeds)}/{row.seeds} {'finished' if name in SCORES else 'reached'}",)
    text = formats.with_interval(name, found.mean, span if name in SCORES else None)
    cells.append(Cell(text + row.signs * (name not in SCORES), kind, details))
  return cells
