"""Use Jinja templates to render sections that compare reported with predicted numbers."""

import statistics
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jinja2

from ddl.perf import units

TEMPLATES = Path(__file__).parent / "templates"
Config = Any  # a ConfigDict, which a type checker cannot check


class Prediction(NamedTuple):
  """A predicted number."""

  value: float
  fitted: bool = False  # whether the model was fitted to this row, so that its error tests nothing


PAPER, SECONDARY, MEMORY = "", "\u2020", "\u2021"  # source of a reported number: the abstract, another text, memory
HEADLINE, BETWEEN, PRODUCT = "", " *", " ="  # marks for the kind of a row, see `ReportedRow.kind`


class ReportedRow(NamedTuple):
  """A reported number with its predictions."""

  what: str  # description of the number
  reported: float
  unit: str  # "x", "%" or "s"
  predicted: dict[str, Prediction]  # by column
  unknown: str = ""  # inputs that the paper does not report
  source: str = PAPER  # PAPER, SECONDARY or MEMORY
  kind: str = HEADLINE  # or BETWEEN (an intermediate point), or PRODUCT (of other rows)


class Section(NamedTuple):
  """A section of reproduction.md: a table of reported and predicted numbers, and remarks."""

  title: str
  config: str  # file with the inputs
  fitted: str  # which parameters are fitted to which point
  rows: Sequence[ReportedRow]
  main: str = ""  # column whose errors count in the summary's median; "": none, because the paper supports none
  remarks: Sequence[str] = ()  # Markdown after the table
  picture: tuple[str, Callable[[], bytes]] | None = None  # PNG file name, and the function that draws it
  curves: Sequence[str] = ()  # columns that only fit a curve to a reported point, without a mechanism
  uncounted: str = ""  # reason why the median error of the summary omits the table; "": the table counts

  @property
  def columns(self) -> list[str]:
    """Names of the columns with predictions."""
    return list(self.rows[0].predicted) if self.rows else []


def read(
  name: str, rows: Sequence[ReportedRow] = (), picture: Callable[[], bytes] | None = None, **values: Any
) -> Section:
  """Build a section from templates/NAME.md: fields of `Section` in TOML, then Markdown.

  values: variables of the template.
  """
  _, head, body = render(TEMPLATES / f"{name}.md", **values).split("+++\n", 2)
  fields = tomllib.loads(head)
  named_picture = (fields.pop("picture"), picture) if picture else None
  return Section(rows=rows, remarks=body.strip().split("\n\n"), picture=named_picture, **fields)


def render(template: Path, **values: Any) -> str:
  """Render a Jinja template; raise an error if it uses an undefined variable."""
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
  """Render reproduction.md: a summary, then each section with its table."""
  counted_points = counted(sections)
  headlines = [error for _, error in counted_points]
  from_text = [error for row, error in counted_points if row.source == PAPER]
  return render(
    TEMPLATES / "reproduction.md",
    sections=sections,
    headlines=headlines,
    from_text=from_text,
    errors=errors,
    error=error,
  )


def error(row: ReportedRow, column: str) -> float:
  """Return the relative error: predicted / reported - 1."""
  return row.predicted[column].value / row.reported - 1


def errors(section: Section, column: str) -> list[float]:
  """Return the absolute relative errors of a column, except in fitted rows."""
  return [abs(error(row, column)) for row in section.rows if not row.predicted[column].fitted]


def counted(sections: Sequence[Section]) -> list[tuple[ReportedRow, float]]:
  """Return (row, absolute relative error) of all rows that count toward the summary's median error.

  These are the headline rows, with the errors of their section's main column. Fitted rows, numbers quoted from memory
  and uncounted sections are omitted.
  """
  return [
    (row, abs(error(row, section.main)))
    for section in sections
    if section.rows and section.main and not section.uncounted
    for row in section.rows
    if not row.predicted[section.main].fitted and row.kind == HEADLINE and row.source != MEMORY
  ]


def number(value: float, unit: str) -> str:
  """Format a value with its unit: an integer for seconds and values of 100 or more, else three significant digits."""
  text = f"{value:.0f}" if unit == "s" or abs(value) >= 99.95 else f"{value:.3g}"
  return f"{text}x" if unit == "x" else f"{text} {unit}"


def percent(share: float, digits: int = 0) -> str:
  """Format a share in percent: 0.1234 -> 12 %."""
  return f"{100 * share:.{digits}f} %"


def error_text(error: float, digits: int = 1) -> str:
  """Format a relative error with its sign: 0.1234 -> +12.3 %."""
  return f"{100 * error:+.{digits}f} %"


def median_percent(errors: Sequence[float], digits: int = 1) -> str:
  """Format the median of the errors as a percentage."""
  return percent(statistics.median(errors), digits)


def summed(errors: Sequence[float]) -> str:
  """Format table cells: the number of errors, their median and their maximum."""
  return f"{len(errors)} | {median_percent(errors)} | {percent(max(errors))}"
