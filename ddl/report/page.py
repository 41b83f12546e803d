"""The report of a comparison: `write_report` for the browser, `table` for the terminal."""

import json
import re
from pathlib import Path
from typing import Any

from ddl.report import clusters, curves, figure, formats, frames, grid, reader, schedule, sentences, settings, tables
from ddl.report.figure import Figure
from ddl.report.frames import Frames

TAXONOMY = ("parallelism", "optimization", "scheduling", "pattern", "payload")
TEMPLATES = Path(__file__).with_name("templates")
UNITS = r"%|(?:[nµm]?s|[kMGTP]?B(?:/s)?|M)\b"
OLD = ("accuracy_on_*", "loss_on_*", "grid_*")  # figures of clusters or keys that the page may no longer have


def table(folder: Path) -> str:
  """Return the comparison as plain text of at most 100 columns. Raises as `write_report` does."""
  return tables.text_table(frames.build(reader.read(Path(folder))))


def pictures(folder: Path, comparison: reader.ComparisonRecord) -> list[Figure]:
  """Return the figures of a comparison's page, not yet drawn. Raises as `write_report` does."""
  results = frames.build(comparison)
  section = grid.section(results)
  drawn = [*(section.pictures if section else []), *curves.pictures(results), *curves.on_clusters(results)]
  return drawn + schedule.pictures(folder, comparison)


def write_tables(folder: Path) -> None:
  """Write a comparison's frames and findings as CSV and JSON into its folder. Raises as `write_report` does."""
  _write_tables(Path(folder), frames.build(reader.read(Path(folder))))


def _write_tables(folder: Path, results: Frames) -> None:
  findings = [*sentences.findings(results), *sentences.caveats(results)]
  marks = [(f"{meaning} ({sign})", text) for sign, meaning, text in sentences.marked_labels(results)]
  frames.write(folder, results, findings + marks)


def write_report(folder: Path) -> Path:
  """Write report.html, its frames as CSV and JSON, and its figures in figures/ into a comparison's folder.

  Returns:
    the page's path.

  Raises:
    FileNotFoundError: if the folder holds no comparison.json, or a file of events that it names is missing.
    ValueError: if a file in it is malformed.
  """
  folder = Path(folder)
  comparison = reader.read(folder)
  info, results = comparison.info, frames.build(comparison)
  _write_tables(folder, results)  # before figures, which may fail
  grid_section = grid.section(results)
  cluster_section, curve_figures = clusters.section(results), curves.pictures(results)
  schedules = schedule.pictures(folder, comparison)
  for old in [path for pattern in OLD for path in (folder / figure.FOLDER).glob(pattern)]:
    old.unlink()
  drawn = [*(grid_section.pictures if grid_section else []), *curve_figures]
  figure.save_all(folder, [*drawn, *(cluster_section.pictures if cluster_section else []), *schedules])
  entries, chart = info["algorithms"], curves.interactive(results)
  taxonomy = {"algorithm": [tables.Cell(entry["title"], details=(entry["citation"],)) for entry in entries]}
  taxonomy |= {axis: [tables.Cell(entry["taxonomy"][axis]) for entry in entries] for axis in TAXONOMY}
  if any(entry["sends"] for entry in entries):
    taxonomy["a worker sends"] = [tables.Cell(entry["sends"]) for entry in entries]
  shown = settings.settings(info)
  text = template("report.html").render(
    title=info["title"],
    info=info,
    labels=results.labels,
    workers=formats.between(settings.of_labels(info, "workers"), "worker"),
    batch=formats.between(settings.of_labels(info, "batch")),
    seeds=sentences.seeds_text(comparison),
    findings=sentences.findings(results),
    caveats=sentences.caveats(results),
    goal=comparison.goal,
    results=tables.results(results),
    method=sentences.method(results),
    notes=sentences.notes(results),
    how_to_read=sentences.how_to_read(results),
    pairs=tables.pair_tables(results),
    chart=chart,
    chart_data=chart and curves.embedded(chart),
    bundle=chart and figure.bundle(),
    curves=curve_figures,
    clusters=cluster_section,
    grid=grid_section,
    schedules=schedules,
    taxonomy=taxonomy,
    settings=shown,
    setting_columns={head: list(map(tables.Cell, texts)) for head, texts in shown.columns.items()},
    config=json.dumps(settings.without_unset(info["config"]), indent=2, ensure_ascii=False),
  )
  path = folder / "report.html"
  path.write_text(text, encoding="utf-8")
  return path


def template(name: str) -> Any:
  """Return the Jinja template of this name, which may include the others; an undefined variable is an error.

  Its variable `css` is the shared style; the filter `unbroken` keeps 97.2 ± 1.2 % on one line, a number with its unit.
  """
  import jinja2  # here: most commands write no page
  import markupsafe

  loader = jinja2.FileSystemLoader(TEMPLATES)
  environment = jinja2.Environment(
    autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True, loader=loader
  )
  environment.filters["unbroken"] = _unbroken
  environment.globals["css"] = markupsafe.Markup((TEMPLATES / "page.css").read_text(encoding="utf-8"))
  return environment.get_template(name)


def _unbroken(text: str) -> str:
  return re.sub(rf"(?<=[\d)]) (?=±|{UNITS})|(?<=±) ", "\N{NO-BREAK SPACE}", text)
