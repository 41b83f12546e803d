"""The report of a comparison: `write_report` for the browser, `table` for the terminal."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ddl.report import clusters as cluster_section
from ddl.report import formats, frames, grid_page, interactive_chart, pair_table, settings, templates
from ddl.report.cells import Cell, column
from ddl.report.findings import Sentence, expected, finding
from ddl.report.reader import Comparison, read
from ddl.report.seeds import seed_column, seeds
from ddl.report.table import LabelRow, rows, scores, spent
from ddl.report.wording import BEST, UNTESTED, footnotes, legend, text_table, tied

if TYPE_CHECKING:
  from ddl.report.figures.picture import Picture

TAXONOMY = ("parallelism", "optimization", "scheduling", "pattern", "payload")


class Pictures(NamedTuple):
  """Those of a page, by section."""

  grid: "list[Picture]"
  curves: "list[Picture]"
  clusters: "list[Picture]"
  schedules: "list[Picture]"


def pictures(folder: Path, comparison: Comparison) -> Pictures:
  """Of a comparison's page, not yet drawn. Raises as `write_report` does."""
  return _pictures(folder, comparison, grid_page.section(comparison, rows(comparison)))


def _pictures(folder: Path, comparison: Comparison, grid: dict[str, Any] | None) -> Pictures:
  from ddl.report.figures import curves, schedule

  clusters = cluster_section.pictures(comparison)
  schedules = schedule.pictures(folder, comparison)
  return Pictures(grid_page.pictures(grid), curves.pictures(comparison), clusters, schedules)


def table(folder: Path) -> str:
  """Return the comparison as plain text of at most 100 columns. Raises as `write_report` does."""
  comparison = read(Path(folder))
  return text_table(comparison, rows(comparison))


def write_tables(folder: Path) -> None:
  """Write the figures of a comparison's page as CSV and JSON into its folder. Raises as `write_report` does."""
  comparison = read(Path(folder))
  summary = rows(comparison)
  _write_tables(Path(folder), comparison, summary, grid_page.section(comparison, summary))


def _write_tables(
  folder: Path, comparison: Comparison, summary: list[LabelRow], grid: dict[str, Any] | None
) -> list[Sentence]:
  sentences = (grid_page.finding if grid else finding)(comparison, summary) + expected(comparison, summary)
  frames.write(folder, comparison, summary, sentences)
  return sentences


def write_report(folder: Path) -> Path:
  """Write report.html, its figures as CSV and JSON, and its pictures in figures/ into a comparison's folder.

  Returns:
    the page's path.

  Raises:
    FileNotFoundError: if the folder holds no comparison.json, or a file of events that it names is missing.
    ValueError: if a file in it is malformed.
  """
  from ddl.report.figures.picture import FOLDER, save_all

  folder = Path(folder)
  comparison = read(folder)
  info, summary = comparison.info, rows(comparison)
  grid = grid_page.section(comparison, summary)
  sentences = _write_tables(folder, comparison, summary, grid)  # before pictures, which may fail
  drawn = _pictures(folder, comparison, grid)
  for old in [each for name in ("accuracy_on", "loss_on", "grid") for each in (folder / FOLDER).glob(f"{name}_*")]:
    old.unlink()  # of clusters or keys that the page may no longer have
  save_all(folder, [picture for section in drawn for picture in section])
  entries = info["algorithms"]
  titles = [Cell(entry["title"], details=(entry["citation"],)) for entry in entries]
  text = templates.template("report.html").render(
    title=info["title"],
    info=info,
    labels=[entry["label"] for entry in entries],
    workers=formats.between(settings.of_labels(info, "workers"), "worker"),
    batch=formats.between(settings.of_labels(info, "batch")),
    finding=sentences,
    metric=formats.NAMES[comparison.metric],
    goal=comparison.goal,
    varying=[*settings.varying(info), *seed_column(comparison)],
    costs=[formats.NAMES[name] for name in spent(comparison)],
    results=_results(comparison, summary),
    legend=legend(comparison),
    tied=tied(comparison),
    best=BEST,
    untested=UNTESTED,
    seeds=seeds(comparison),
    notes=footnotes(comparison, summary),
    pairs=pair_table.tables(comparison, summary),
    chart=_chart(comparison),
    pictures=drawn,
    clusters=cluster_section.section(comparison),
    grid=grid,
    taxonomy={"algorithm": titles}
    | {axis: [Cell(entry["taxonomy"][axis]) for entry in entries] for axis in TAXONOMY}
    | (
      {"a worker sends": [Cell(entry["sends"]) for entry in entries]}
      if any(entry["sends"] for entry in entries)
      else {}
    ),
    settings=settings.settings(info),
    config=json.dumps(settings.without_unset(info["config"]), indent=2, ensure_ascii=False),
  )
  path = folder / "report.html"
  path.write_text(text, encoding="utf-8")
  return path


def _chart(comparison: Comparison) -> dict[str, Any] | None:
  """The variables of the interactive chart; None where there is nothing to draw."""
  shown = interactive_chart.content(comparison)
  if shown is None:
    return None
  library = interactive_chart.LIBRARY
  groups: dict[str, list[tuple[int, dict[str, Any]]]] = {}
  for number, line in enumerate(shown["lines"]):
    groups.setdefault(line["group"], []).append((number, line))
  return {
    **shown,
    "groups": groups,
    "data": interactive_chart.embedded(shown),
    "licence": templates.verbatim(library / "LICENSE"),
    "styles": templates.verbatim(library / "uPlot.min.css", interactive_chart.STYLE),
    "scripts": templates.verbatim(library / "uPlot.iife.min.js", interactive_chart.SCRIPT),
  }


def _results(comparison: Comparison, table: list[LabelRow]) -> dict[str, list[Cell]]:
  """The columns of the table of results."""
  columns = settings.varying(comparison.info) | seed_column(comparison)
  columns |= {f"final {formats.NAMES[name]}": column(table, name) for name in scores(comparison)}
  return columns | {f"{formats.NAMES[name]} to {comparison.goal}": column(table, name) for name in spent(comparison)}
