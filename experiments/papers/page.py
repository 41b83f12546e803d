"""Reported against predicted numbers of papers, and the Markdown templates (Jinja) beside this file that show them."""

import statistics
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jinja2

from ddl.perf import units

FOLDER = Path(__file__).parent
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
  """A paper's table with what the page says of it."""

  title: str
  config: str  # the file with its inputs
  fitted: str  # what, on which point
  rows: Sequence[ReportedRow]
  main: str = ""  # the column whose errors the summary counts; none: no column is a mechanism that the paper speaks for
  remarks: Sequence[str] = ()  # Markdown after the table
  picture: tuple[str, Callable[[], bytes]] | None = None  # a PNG beside the page: its file's name, how to draw it
  curves: Sequence[str] = ()  # columns that are curves through a reported point, no mechanisms
  uncounted: str = ""  # why the headline leaves the table out

  @property
  def columns(self) -> list[str]:
    """Names of the predicted columns."""
    return list(self.rows[0].predicted) if self.rows else []


def read(
  name: str, rows: Sequence[ReportedRow] = (), picture: Callable[[], bytes] | None = None, **values: Any
) -> Section:
  """Return the section of the template NAME.md: TOML with the fields of `Section`, then Markdown."""
  _, head, body = render(FOLDER / f"{name}.md", **values).split("+++\n", 2)
  fields = tomllib.loads(head)
  drawn = (fields.pop("picture"), picture) if picture else None
  return Section(rows=rows, remarks=body.strip().split("\n\n"), picture=drawn, **fields)


def render(template: Path, **values: Any) -> str:
  """Return the text that a template makes of the values; an undefined variable is an error."""
  environment = jinja2.Environment(
    loader=jinja2.FileSystemLoader(template.parent), undefined=jinja2.StrictUndefined, trim_blocks=True,
    lstrip_blocks=True, keep_trailing_newline=True,
  )  # fmt: skip
  environment.filters |= {
    "percent": percent, "error": error_text, "median": median_percent, "summed": summed, "number": number,
    "seconds": units.seconds_text, "share": units.percent, "abs": abs, "repr": repr,
    "cell": lambda text: text.replace("|", "\\|"),
  }  # fmt: skip
  return environment.get_template(template.name).render(**values)


def markdown(sections: Sequence[Section]) -> str:
  """Return the page: the summary of all sections, then each with its table."""
  counted_points = counted(sections)
  headlines = [error for _, error in counted_points]
  from_text = [error for row, error in counted_points if row.source == PAPER]
  return render(
    FOLDER / "reproduction.md", sections=sections, headlines=headlines, from_text=from_text, errors=errors, error=error
  )


def error(row: ReportedRow, column: str) -> float:
  """Return predicted / reported - 1."""
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


def number(value: float, unit: str) -> str:
  """Return three digits (seconds: an integer) and the unit."""
  text = f"{value:.0f}" if unit == "s" or abs(value) >= 99.95 else f"{value:.3g}"
  return f"{text}x" if unit == "x" else f"{text} {unit}"


def percent(share: float, digits: int = 0) -> str:
  """0.1234 -> 12 %."""
  return f"{100 * share:.{digits}f} %"


def error_text(error: float, digits: int = 1) -> str:
  """0.1234 -> +12.3 %."""
  return f"{100 * error:+.{digits}f} %"


def median_percent(errors: Sequence[float], digits: int = 1) -> str:
  """Return the median of errors in percent."""
  return percent(statistics.median(errors), digits)


def summed(errors: Sequence[float]) -> str:
  """Return the cells of a table with the number, the median and the largest of errors."""
  return f"{len(errors)} | {median_percent(errors)} | {percent(max(errors))}"
