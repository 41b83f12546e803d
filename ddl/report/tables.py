"""Tables of a comparison: results, algorithms and pairs for the page, and results for a terminal."""

import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ddl.names import text as value_text
from ddl.names import words
from ddl.report import formats, frames, sentences
from ddl.report.frames import Frames, Quantity
from ddl.report.reader import ComparisonRecord
from ddl.report.settings import of_labels
from ddl.report.statistics import LEVEL, MOST

WIDTH = 100  # maximum characters per line in a terminal
LABEL = 16  # minimum characters of a label in a wide table
SHOWN = 50  # maximum pairs of a quantity on the page; pairs.csv has all
MINUS, DIVIDED = "\N{MINUS SIGN}", "\N{DIVISION SIGN}"
SHORT = {
  "test_perplexity": "perplexity",
  "bytes_sent": "bytes sent",
  "seconds": "seconds",
  "virtual_seconds": "virtual s",
}
SIGNS = {"best": "*", "tied": "~"}  # by a cell's kind
MARKS = {
  "best": "*: best mean",
  "tied": "~: not significantly worse",
  "partial": "in brackets: the mean over only the seeds that have a value",
}


class Cell(NamedTuple):
  """A cell of a table."""

  text: str
  kind: str = ""  # "best", "tied", "partial" (only some seeds), or ""
  details: tuple[str, ...] = ()  # lines in small print


def column(tables: Frames, quantity: Quantity, intervals: bool = True) -> list[Cell]:
  """Return a quantity's column in the table of results. intervals: whether to add 95 % intervals."""
  name, kind = quantity.name, quantity.metric
  signs = {} if quantity.is_score else sentences.signs(tables)
  cells = []
  for line in tables.table.to_dict("records"):
    mean, low, high = line[name], line[f"{name}_low"], line[f"{name}_high"]
    if math.isnan(mean):
      ran = not quantity.is_score and (line["finished"] or line["reached"])
      cells.append(Cell("never" if ran else "no result", "partial"))
      continue
    span = (low, high) if intervals and not math.isnan(low) else None
    details = (formats.interval(kind, mean, span),) if span and not quantity.is_score else ()
    mark = line[f"{name}_mark"]
    if mark == "partial":
      count = "finished" if quantity.is_score else "reached"
      details += (f"{line[count]}/{line['seeds']} {count}",)
    figure = formats.with_interval(kind, mean, span if quantity.is_score else None)
    cells.append(Cell(figure + signs.get(line["label"], ""), mark if isinstance(mark, str) else "", details))
  return cells


def varying(comparison: ComparisonRecord) -> dict[str, list[Cell]]:
  """Return the columns "workers", "batch" and "seeds run", except keys of the grid and columns of equal values."""
  keys = [key for key in ("workers", "batch") if key not in comparison.info["grid"]]
  columns = _differing({key: list(map(str, of_labels(comparison.info, key))) for key in keys})
  if requested := comparison.different_seeds:
    columns["seeds run"] = [Cell(str(len(seeds))) for seeds in requested.values()]
  return columns


def results(tables: Frames) -> dict[str, list[Cell]]:
  """Return the columns of the table of results, except those of clusters."""
  columns = varying(tables.comparison)
  for quantity in _quantities(tables):
    columns[title_of(tables, quantity)] = column(tables, quantity)
  return columns


def title_of(tables: Frames, quantity: Quantity) -> str:
  """Return a quantity's title in tables."""
  return f"final {quantity.title}" if quantity.is_score else f"{quantity.title} to {tables.comparison.goal}"


def of_texts(columns: Mapping[str, Sequence[str]]) -> dict[str, list[Cell]]:
  """Convert columns of strings to columns of cells."""
  return {head: list(map(Cell, texts)) for head, texts in columns.items()}


def _differing(columns: Mapping[str, Sequence[str]]) -> dict[str, list[Cell]]:
  """Return the columns whose texts differ between the algorithms."""
  return of_texts({head: texts for head, texts in columns.items() if len(set(texts)) > 1})


def taxonomy(entries: Sequence[Mapping[str, Any]]) -> dict[str, list[Cell]]:
  """Return the columns of the table of algorithms: taxonomy, and what a worker sends."""
  columns = {axis: [entry["taxonomy"][axis] for entry in entries] for axis in entries[0]["taxonomy"]}
  columns["a worker sends"] = [entry["sends"] for entry in entries]
  return {"algorithm": [Cell(entry["title"], "", (entry["citation"],)) for entry in entries]} | of_texts(columns)


def pair_tables(tables: Frames) -> list[dict[str, Any]]:
  """Return the template's variables for one table of pairs per quantity, sorted by p-value; [] without tests."""
  if tables.single or len(tables.table) < 2:
    return []
  return [_pair_table(tables, quantity) for quantity in frames.quantities(tables.comparison)]


def _pair_table(tables: Frames, quantity: Quantity) -> dict[str, Any]:
  pairs = frames.of_quantity(tables.pairs, quantity).sort_values(["p_holm", "p"], kind="stable")
  rows = list(pairs.astype(object).where(pairs.notna(), None).head(SHOWN).itertuples())
  signs, tested = {"ratio": DIVIDED, "difference": MINUS}, pairs["p"].notna().sum()
  summary = f"{pairs['significant'].sum()} of {tested} tested pairs significantly different"
  heads = (" or ".join(dict.fromkeys(row.scale for row in rows)) or "ratio", "p after Holm", "seeds", "more seeds")
  cells = [_pair_cells(quantity, row) for row in rows]
  return {
    "title": title_of(tables, quantity),
    "summary": summary if tested else "no test",
    "labels": [f"{row.first} {signs[row.scale]} {row.second}" for row in rows],
    "columns": {head: [row[place] for row in cells] for place, head in enumerate(heads)},
    "left_out": len(pairs) - len(rows),
  }


def _pair_cells(quantity: Quantity, row: Any) -> list[Cell]:
  """Return the cells of a row of the pairs frame: estimate, p, common and missing seeds, more seeds."""
  estimate, p = Cell("none", "partial"), Cell("no test", "partial")
  if row.estimate is not None:
    ends = [formats.estimate(quantity.metric, row.scale, end) for end in (row.low, row.high) if end is not None]
    details = (" to ".join(ends).replace(" points to ", " to "),) if ends else ()
    estimate = Cell(formats.estimate(quantity.metric, row.scale, row.estimate), details=details)
  if row.p is not None:
    texts = ["below 0.0001" if value < 1e-4 else f"{value:.2g}" for value in (row.p_holm, row.p)]
    p = Cell(texts[0], "best" if row.p_holm < LEVEL else "", (f"{texts[1]} uncorrected",))
  missing = {row.first: row.missing_first, row.second: row.missing_second}
  seeds = Cell(str(row.seeds), "", tuple(f"{label} lacks {count}" for label, count in missing.items() if count))
  more = "none needed" if row.significant else ""
  if row.more_seeds is not None:
    more = f"more than {MOST:,}" if row.more_seeds_capped else f"{row.more_seeds:,}"
  return [estimate, p, seeds, Cell(more)]


def text_table(tables: Frames) -> str:
  """Return the table for a terminal, at most WIDTH columns wide, with notes."""
  lines, explained = text_lines(tables), "; ".join(marks(tables))
  paragraphs = [f"{explained[:1].upper()}{explained[1:]}. " * bool(explained) + sentences.method(tables)]
  paragraphs += [*map(": ".join, sentences.caveats(tables)), *sentences.failures(tables), *sentences.notes(tables)]
  return "\n".join([*lines, lines[1], *(textwrap.fill(paragraph, WIDTH) for paragraph in paragraphs)])


def marks(tables: Frames) -> list[str]:
  """Explain the marks that occur in the table of results."""
  kinds = {kind for quantity in _quantities(tables) for kind in tables.table[f"{quantity.name}_mark"]}
  return [text for kind, text in MARKS.items() if kind in kinds]


def _quantities(tables: Frames) -> list[Quantity]:
  return [*frames.scores(tables.comparison), *frames.costs(tables.comparison)]


def text_lines(tables: Frames) -> list[str]:
  """Return the table's header, a rule and a line per algorithm; `marks` explains the marks."""
  comparison = tables.comparison
  points, keys = [info["point"] for info in comparison.infos], list(comparison.info["grid"])
  columns = _differing({words(key, keys): [value_text(point[key]) if key in point else "-" for point in points]
                        for key in keys})  # fmt: skip
  labels = [info["group"] for info in comparison.infos] if columns else tables.labels
  columns |= varying(comparison)
  for quantity in _quantities(tables):
    head = SHORT.get(quantity.metric, quantity.title)
    columns[head] = column(tables, quantity, intervals=quantity.metric == comparison.metric)
  rows = tables.table.itertuples()
  reached = [f"{row.reached}/{row.seeds} reached" if row.finished or row.reached else "no result" for row in rows]
  lines = [["algorithm", *columns, f"to {comparison.goal}"]]
  lines += map(list, zip(labels, *map(_marked, columns.values()), reached, strict=True))
  widths = [max(map(len, cells)) for cells in zip(*lines, strict=True)]
  widths[0] = min(widths[0], max(LABEL, WIDTH - sum(widths[1:]) - 2 * len(widths[1:])))
  texts = []
  for label, *rest in lines:
    label = label if len(label) <= widths[0] else label[: widths[0] - 2] + ".."
    texts.append("  ".join([label.ljust(widths[0]), *map(str.rjust, rest, widths[1:])]))
  return [texts[0], "-" * len(texts[0]), *texts[1:]]


def _marked(cells: Sequence[Cell]) -> list[str]:
  """Format cells as text, with SIGNS, and brackets around means over only some seeds."""
  texts = [f"({cell.text})" if cell.details else "-" if cell.kind == "partial" else cell.text for cell in cells]
  return [text + SIGNS.get(cell.kind, " ") for text, cell in zip(texts, cells, strict=True)]
