"""The report of a comparison: `write_report` for the browser, `table` for the terminal."""

import json
from collections.abc import Mapping
from pathlib import Path

from experiments.report import cluster_section, formats, settings_table, templates
from experiments.report.comparison import Comparison, read
from experiments.report.expected import expected
from experiments.report.findings import finding
from experiments.report.table_rows import Row, cost, final, rows, spent
from experiments.report.wording import TIED, legend, marks, text_table

TEMPLATE = Path(__file__).with_name("report.html")
TAXONOMY = ("parallelism", "optimization", "scheduling", "pattern", "payload")


def table(folder: Path) -> str:
  """The comparison as plain text of at most 100 columns. Raises as `write_report` does."""
  comparison = read(Path(folder))
  return text_table(comparison, rows(comparison))


def write_report(folder: Path) -> Path:
  """Writes report.html and the pictures as PNG files into a comparison's folder; returns the page's path.

  Raises:
    FileNotFoundError: if the folder holds no comparison.json, or not the events that it names.
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
  marked = marks(summary, comparison)
  text = templates.template(TEMPLATE, unbroken=_unbroken).render(
    info=info,
    finding=finding(comparison, summary) + expected(comparison, summary),
    metric=formats.NAMES[comparison.metric],
    goal=formats.target(comparison.metric, comparison.target),
    costs=[formats.NAMES[name] for name in spent(comparison)],
    table=[{"label": row.label, "cells": _cells(row, comparison, marked)} for row in summary],
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


def _cells(row: Row, comparison: Comparison, marked: Mapping[str, Mapping[str, str]]) -> list[dict[str, str]]:
  """A cell's figure, what it is of, its kind ("best", "tied", "partial", ""), and on how few seeds it rests."""
  estimates = [("final", comparison.metric, row.final, final(row), row.finished)]
  estimates += [(name, name, row.costs.get(name), cost(name)(row), row.reached) for name in spent(comparison)]
  goal = formats.target(comparison.metric, comparison.target)
  cells = []
  for name, kind, estimate, ranked, seeds in estimates:
    quantity = formats.NAMES[kind]
    cell = {"label": f"final {quantity}" if name == "final" else f"{quantity} to {goal}"}
    if estimate is None:
      ran = row.finished or row.reached
      cell |= {"text": "never" if ran and name != "final" else "no result", "kind": "partial", "of": ""}
    else:
      of = "" if ranked else f"{seeds}/{row.seeds} {'finished' if name == 'final' else 'reached'}"
      mark = marked[name].get(row.label, "") if ranked else "partial"
      cell |= {"text": formats.figure(kind, estimate.mean, estimate.half), "kind": mark, "of": of}
    cells.append(cell)
  return cells


def _unbroken(text: str) -> str:
  """No line ends within 97.2 ± 1.2 %."""
  return text.replace(" ± ", "\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}").replace(" %", "\N{NO-BREAK SPACE}%")
