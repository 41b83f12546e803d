"""Reported against predicted as Markdown: rows, sections, and the median error of what was not fitted."""

import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

Config = Any  # a ConfigDict, whose keys a type checker does not know


class Prediction(NamedTuple):
  """A number of the model."""

  value: float
  fitted: bool = False  # on this very row, so that its error is no test


class Row(NamedTuple):
  """A reported number, and its predictions by column."""

  what: str
  reported: float
  unit: str  # "x", "%" or "s"
  predicted: dict[str, Prediction]  # by column
  unknown: str = ""  # inputs that the paper does not report
  headline: bool = True  # else between those of the paper's text


class Section(NamedTuple):
  """A table of a paper."""

  title: str
  config: str  # the file with its inputs
  fitted: str  # what, on which point
  rows: Sequence[Row]
  main: str = ""  # the column whose errors the summary counts
  remarks: Sequence[str] = ()  # Markdown after the table
  picture: tuple[str, Callable[[], bytes]] | None = None  # a PNG beside the page: its file's name, how to draw it


def remarks(name: str, **values: Any) -> list[str]:
  """Return the paragraphs of NAME.md beside this file, with these values in its braces."""
  return Path(__file__).with_name(f"{name}.md").read_text(encoding="utf-8").format(**values).strip().split("\n\n")


def error(row: Row, column: str) -> float:
  """Predicted / reported - 1."""
  return row.predicted[column].value / row.reported - 1


def errors(section: Section, column: str, *, headlines: bool = False) -> list[float]:
  """Absolute relative errors of the rows that the column was not fitted on. headlines: of those rows alone."""
  rows = [row for row in section.rows if not row.predicted[column].fitted]
  return [abs(error(row, column)) for row in rows if row.headline or not headlines]


def summary(sections: Sequence[Section]) -> str:
  """The median error of the predictions of all sections' main columns, and of each column by itself."""
  shown = [section for section in sections if section.rows]
  heads = [e for section in shown for e in errors(section, section.main, headlines=True)]
  every = [e for section in shown for e in errors(section, section.main)]
  lines = [
    f"**Median error of the {len(heads)} headline numbers that were predicted, not fitted: {_percent(heads)}**; the "
    f"largest is {100 * max(heads):.0f} %. They are those of the columns in bold, one per table, chosen "
    "by the paper's text where columns differ in mechanism, whatever their errors. With the rows between headlines "
    f"(`*`), efficiencies near 1 that are easy to predict, there are {len(every)}, with a median of {_percent(every)}. "
    "What counts was settled with all columns computed, so every column follows, with its own errors.",
    "",
  ]
  body = []
  for section in shown:
    for column in section.rows[0].predicted:
      found = errors(section, column)
      name = f"**{column}**" if column == section.main else column
      body.append((section.title, name, str(len(found)), _percent(found), f"{100 * max(found):.1f} %"))
  return "\n".join([*lines, table(("table", "column", "predictions", "median error", "largest"), body)])


def markdown(section: Section) -> str:
  """The section, its table first."""
  parts = [f"## {section.title}", f"Inputs and sources: `{section.config}`. Fitted: {section.fitted}"]
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


def _percent(found: Sequence[float]) -> str:
  return f"{100 * statistics.median(found):.1f} %"


def _cells(row: Row, unknown: bool) -> list[str]:
  cells = [row.what if row.headline else f"{row.what} *", number(row.reported, row.unit)]
  for column, prediction in row.predicted.items():
    cells += [number(prediction.value, row.unit)]
    cells += ["fitted" if prediction.fitted else f"{100 * error(row, column):+.1f} %"]
  return [*cells, *([row.unknown or "-"] if unknown else [])]
