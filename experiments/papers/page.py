"""Reported against predicted as Markdown: rows, sections, and the median error of what was not fitted."""

import statistics
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

Config = Any  # a ConfigDict, whose keys a type checker does not know


class Prediction(NamedTuple):
  """A number of the model."""

  value: float
  fitted: bool = False  # on this very row, so that its error is no test


PAPER, SECONDARY, MEMORY = "", "\u2020", "\u2021"  # where a reported number was read: marks behind it
HEADLINE, BETWEEN, PRODUCT = "", " *", " ="  # rows, with their marks


class ReportedRow(NamedTuple):
  """A reported number, and its predictions by column."""

  what: str
  reported: float
  unit: str  # "x", "%" or "s"
  predicted: dict[str, Prediction]  # by column
  unknown: str = ""  # inputs that the paper does not report
  source: str = PAPER  # of the reported number
  kind: str = HEADLINE  # BETWEEN those of the paper's text, or a PRODUCT of other rows


class Section(NamedTuple):
  """A table of a paper."""

  title: str
  config: str  # the file with its inputs
  fitted: str  # what, on which point
  rows: Sequence[ReportedRow]
  main: str = ""  # the column whose errors the summary counts; none: no column is a mechanism that the paper speaks for
  remarks: Sequence[str] = ()  # Markdown after the table
  picture: tuple[str, Callable[[], bytes]] | None = None  # a PNG beside the page: its file's name, how to draw it
  curves: Sequence[str] = ()  # columns that are curves through a reported point, no mechanisms
  uncounted: str = ""  # why the headline leaves the table out


def read(
  name: str, rows: Sequence[ReportedRow] = (), picture: Callable[[], bytes] | None = None, **values: Any
) -> Section:
  """Return the section of NAME.md beside this file: TOML with the fields of `Section`, then Markdown.

  values: of the expressions in braces in both, tables among them.
  """
  _, head, body = Path(__file__).with_name(f"{name}.md").read_text(encoding="utf-8").split("+++\n", 2)
  facts = {key: each.format(**values) if isinstance(each, str) else each for key, each in tomllib.loads(head).items()}
  drawn = (facts.pop("picture"), picture) if picture else None
  return Section(rows=rows, remarks=body.format(**values).strip().split("\n\n"), picture=drawn, **facts)


def error(row: ReportedRow, column: str) -> float:
  """Predicted / reported - 1."""
  return row.predicted[column].value / row.reported - 1


def errors(section: Section, column: str) -> list[float]:
  """Return the absolute relative errors of the rows that the column was not fitted on."""
  return [abs(error(row, column)) for row in section.rows if not row.predicted[column].fitted]


def counted(sections: Sequence[Section]) -> list[tuple[ReportedRow, float]]:
  """Return the rows of the headline median with their errors: in bold columns, neither fitted nor from memory."""
  return [
    (row, abs(error(row, section.main)))
    for section in sections
    if section.rows and section.main and not section.uncounted
    for row in section.rows
    if not row.predicted[section.main].fitted and row.kind == HEADLINE and row.source != MEMORY
  ]


def summary(sections: Sequence[Section]) -> str:
  """The median error of the predictions of all sections' main columns, and of each column by itself."""
  counted_points = counted(sections)
  heads, own = [e for _, e in counted_points], [e for row, e in counted_points if row.source == PAPER]
  lines = [
    f"**Median error of the {len(heads)} headline numbers that were predicted, not fitted: {median_percent(heads)}**; "
    f"the largest is {100 * max(heads):.0f} %. The {len(own)} of them that the papers' own text reports have a median "
    f"of {median_percent(own)}. They are the rows of the columns in bold, at most one per table, chosen for what the "
    "paper's text and reported figures say of the mechanism, whatever the errors. Left out are numbers from memory "
    f"({MEMORY}), rows between headlines (`*`), products of other rows (`=`) and curves through a reported point. What "
    "counts was settled with all columns computed, so every column follows, with its own errors.",
    "",
  ]
  body = []
  for section in sections:
    for column in section.rows[0].predicted if section.rows else ():
      each = errors(section, column)
      name = f"**{column}**" if column == section.main else f"{column} (curve)" if column in section.curves else column
      body.append((section.title, name, str(len(each)), median_percent(each), f"{100 * max(each):.1f} %"))
  return "\n".join([*lines, table(("table", "column", "predictions", "median error", "largest"), body)])


def markdown(section: Section) -> str:
  """The section, its table first."""
  note = f" Not in the headline median: {section.uncounted}" if section.uncounted else ""
  parts = [f"## {section.title}", f"Inputs and sources: `{section.config}`. Fitted: {section.fitted}{note}"]
  if section.rows:
    columns = list(section.rows[0].predicted)
    head = ["", "reported"]
    for column in columns:
      head += [f"**{column}**" if column == section.main else column, "error"]
    unknown = any(row.unknown for row in section.rows)
    parts.append(table([*head, *(["not known"] if unknown else [])], [_cells(row, unknown) for row in section.rows]))
  return "\n\n".join([*parts, *section.remarks])


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
  """A Markdown table."""
  lines = [head, ["---"] * len(head), *rows]
  return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def number(value: float, unit: str) -> str:
  """Three digits (seconds: an integer) and the unit."""
  text = f"{value:.0f}" if unit == "s" or abs(value) >= 99.95 else f"{value:.3g}"
  return f"{text}x" if unit == "x" else f"{text} {unit}"


def summed(errors: Sequence[float]) -> tuple[str, str, str]:
  """Return the number, the median and the largest of errors."""
  return str(len(errors)), median_percent(errors), f"{100 * max(errors):.0f} %"


def median_percent(errors: Sequence[float]) -> str:
  """Return the median of errors in percent."""
  return f"{100 * statistics.median(errors):.1f} %"


def _cells(row: ReportedRow, unknown: bool) -> list[str]:
  cells = [row.what + row.kind, number(row.reported, row.unit) + row.source]
  for column, prediction in row.predicted.items():
    cells += [number(prediction.value, row.unit)]
    cells += ["fitted" if prediction.fitted else f"{100 * error(row, column):+.1f} %"]
  return [*cells, *([row.unknown or "-"] if unknown else [])]
