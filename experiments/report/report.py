"""The report of a comparison: `write_report` for the browser, `table` for the terminal."""

import json
from functools import partial
from pathlib import Path
from typing import Any

from experiments.report import cluster_section, formats, settings_table, templates
from experiments.report.findings import expected, finding
from experiments.report.reader import Comparison, read
from experiments.report.table_rows import FINAL, Row, by_row, cell, cells, rows, spent
from experiments.report.wording import TIED, legend, text_table

TEMPLATE = Path(__file__).with_name("report.html")
TAXONOMY = ("parallelism", "optimization", "scheduling", "pattern", "payload")


def table(folder: Path) -> str:
  """The comparison as plain text of at most 100 columns. Raises as `write_report` does."""
  comparison = read(Path(folder))
  return text_table(comparison, rows(comparison))


def write_report(folder: Path) -> Path:
  """Writes report.html and the pictures as PNG files into a comparison's folder; returns the page's path.

  Raises:
    FileNotFoundError: if the folder holds no comparison.json, or a file of events that it names is missing.
    ValueError: if a file in it is malformed.
  """
  from experiments.report.figures import curves, schedule_plot

  folder = Path(folder)
  comparison = read(folder)
  info, summary = comparison.info, rows(comparison)
  pictures, schedules = curves.pictures(comparison), schedule_plot.pictures(folder, comparison)
  clusters, on_clusters = cluster_section.section(comparison)
  for old in [*folder.glob("accuracy_on_*.png"), *folder.glob("loss_on_*.png")]:
    old.unlink()  # of clusters that the page may no longer have
  for picture in [*pictures, *on_clusters, *schedules]:
    (folder / f"{picture.name}.png").write_bytes(picture.png)
  text = templates.template(TEMPLATE).render(
    info=info,
    workers=formats.between(settings_table.of_labels(info, "workers")),
    batch=formats.between(settings_table.of_labels(info, "batch")),
    finding=finding(comparison, summary) + expected(comparison, summary),
    metric=formats.NAMES[comparison.metric],
    goal=formats.target(comparison.metric, comparison.target),
    varying=settings_table.varying(info),
    costs=[formats.NAMES[name] for name in spent(comparison)],
    table=_table(comparison, summary),
    legend=legend(comparison),
    tied=TIED,
    notes=[f"{row.label}: {note}." for row in summary for note in row.notes],
    pictures=[picture.embedded() for picture in pictures],
    clusters=clusters,
    schedules=[picture.embedded() for picture in schedules],
    taxonomy=TAXONOMY,
    settings=settings_table.settings(info),
    config=json.dumps(settings_table.without_unset(info["config"]), indent=2, ensure_ascii=False),
  )
  path = folder / "report.html"
  path.write_text(text, encoding="utf-8")
  return path


def _table(comparison: Comparison, table: list[Row]) -> list[dict[str, Any]]:
  goal, metric = formats.target(comparison.metric, comparison.target), comparison.metric
  columns = {name: list(map(cell, values)) for name, values in settings_table.varying(comparison.info).items()}
  for name in (FINAL, *spent(comparison)):
    kind, higher = (metric, comparison.higher_is_better) if name == FINAL else (name, False)
    head = f"final {formats.NAMES[kind]}" if name == FINAL else f"{formats.NAMES[kind]} to {goal}"
    columns[head] = cells(table, name, partial(formats.figure, kind), higher)
  return by_row([row.label for row in table], columns)
