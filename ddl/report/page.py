"""Generate the report of a comparison: `write_report` for the browser, `table` for the terminal."""

import json
import re
from pathlib import Path
from typing import Any

import jinja2
import markupsafe

from ddl.report import clusters, curves, figure, formats, frames, grid, reader, schedule, sentences, settings, tables
from ddl.report.figure import Figure
from ddl.report.frames import Frames

TEMPLATES = Path(__file__).with_name("templates")
MODULES = clusters, formats, frames, grid, sentences, settings, tables  # templates call their functions
UNITS = r"%|(?:[nµm]?s|[kMGTP]?B(?:/s)?|M)\b"
OLD = ("accuracy_on_*", "loss_on_*", "grid_*")  # old figures to delete: clusters or grid keys may have changed


def table(folder: Path) -> str:
  """Return a comparison's results as text: the table, notes and a sentence per cluster.

  Raises the errors of `reader.read`.
  """
  results = frames.build(reader.read(Path(folder)))
  return "\n\n".join([tables.text_table(results), *clusters.sentences_of(results)])


def sections(folder: Path, results: Frames) -> tuple[dict[str, Any], dict[str, list[Figure]]]:
  """Return the template's variables for each key of the grid, and the figures of each section of the page.

  A figure is drawn only when it is needed. Raises the errors of `write_report`.
  """
  grids = {key: grid.section(results, key) for key in figure.axes(results.comparison)}
  return grids, {
    "grid": [picture for section in grids.values() for picture in section["shown"] + section["costs"]],
    "curves": curves.pictures(results),
    "clusters": curves.on_clusters(results),
    "schedules": schedule.pictures(folder, results.comparison),
  }


def pictures(folder: Path, results: Frames) -> list[Figure]:
  """Return the figures of a comparison's page. Raises the errors of `write_report`."""
  return [picture for figures in sections(folder, results)[1].values() for picture in figures]


def write_tables(folder: Path) -> Frames:
  """Write a comparison's data frames (CSV) and findings (JSON) to its folder; return the frames.

  Raises the errors of `reader.read`.
  """
  results = frames.build(reader.read(folder))
  findings = [*sentences.findings(results), *sentences.caveats(results)]
  marks = [(f"{meaning} ({sign})", text) for sign, meaning, text in sentences.marked_labels(results)]
  frames.write(folder, results, findings + marks)
  return results


def write_report(folder: Path) -> Path:
  """Write report.html, data frames (CSV and JSON) and figures/ to a comparison's folder; return the path of the page.

  Raises FileNotFoundError if comparison.json or an event record is missing, and ValueError for a malformed file.
  """
  folder = Path(folder)
  results = write_tables(folder)  # written first, because drawing a figure may fail
  info, chart = results.comparison.info, curves.interactive(results)
  grids, figures = sections(folder, results)
  for old in [path for pattern in OLD for path in (folder / figure.FOLDER).glob(pattern)]:
    old.unlink()
  figure.save_all(folder, [picture for drawn in figures.values() for picture in drawn])
  text = template("report.html").render(
    title=info["title"],
    info=info,
    results=results,
    figures=figures,
    grid_sections=grids,
    config=json.dumps(settings.without_unset(info["config"]), indent=2, ensure_ascii=False),
    chart=chart,
    bundle=chart and figure.bundle(),
  )
  path = folder / "report.html"
  path.write_text(text, encoding="utf-8")
  return path


def template(name: str) -> jinja2.Template:
  """Load a Jinja template; undefined variables are errors.

  The filter `unbroken` prevents line breaks between a number and its unit, as in 97.2 ± 1.2 %.
  """
  environment = jinja2.Environment(
    autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True,
    loader=jinja2.FileSystemLoader(TEMPLATES),
  )  # fmt: skip
  breaks = re.compile(rf"(?<=[\d)]) (?=±|{UNITS})|(?<=±) ")
  environment.filters["unbroken"] = lambda text: breaks.sub("\N{NO-BREAK SPACE}", text)
  environment.policies["json.dumps_kwargs"] = {"ensure_ascii": False, "allow_nan": False, "separators": (",", ":")}
  environment.globals["css"] = markupsafe.Markup((TEMPLATES / "page.css").read_text(encoding="utf-8"))
  environment.globals |= {module.__name__.rpartition(".")[2]: module for module in MODULES}
  return environment.get_template(name)
