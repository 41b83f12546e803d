"""The table of a comparison as text, and the sentences that explain it on the page as well."""

import textwrap
from collections.abc import Sequence

from experiments.report import formats
from experiments.report.reader import Comparison
from experiments.report.settings_table import varying
from experiments.report.table_rows import FINAL, Row, marks, spent

WIDTH = 100
TIED = "no algorithm is significantly better."


def legend(comparison: Comparison) -> list[str]:
  """Sentences on what the figures are and are not."""
  goal = formats.target(comparison.metric, comparison.target)
  seeds = len(comparison.info["seeds"])
  if seeds == 1:
    sentences = ["One seed: no interval and no spread, so that any difference may be due to chance."]
  else:
    sentences = [
      f"Mean and 95 % confidence interval over {seeds} seeds (Student's t).",
      "Two algorithms are significantly different where the 95 % interval of their differences paired by seed (of "
      "costs: their ratios), widened by the spacing of evaluations, excludes equality; there is no correction for "
      "the number of pairs.",
    ]
  if seeds == 2:
    sentences.append("An interval over two seeds has little meaning: Student's t has one degree of freedom there.")
  sentences.append(f"Steps, examples, bytes and seconds are those spent by the first evaluation that met {goal}.")
  sentences.append("Examples count all workers together, bytes are those sent per worker.")
  if not comparison.virtual:
    return sentences + clock(comparison)
  return [*sentences, f"Seconds are virtual, not measured: {_virtual(comparison)}."]


def _virtual(comparison: Comparison) -> str:
  """What virtual time is made of, for each group of algorithms with the same."""
  groups: dict[str, list[str]] = {}
  for result in comparison.results:
    groups.setdefault(result.info["virtual"].rstrip("."), []).append(result.info["label"])
  if len(groups) == 1:
    return next(iter(groups))
  return "; ".join(f"{text} ({formats.listed(labels, 12)})" for text, labels in groups.items())


def clock(comparison: Comparison) -> list[str]:
  """Sentences on what measured seconds are: those of the hardware that ran all workers, and not a cluster's."""
  where = layout(comparison)
  if where:
    paces = sorted({spread.workers // spread.devices for result in comparison.results for spread in result.spreads})
    where = f": {where}" + f", {' or '.join(map(str, paces))} workers per device" * (paces != [1])
    local = all(spread.processes == 1 for result in comparison.results for spread in result.spreads)
    where += ", and no message crossed a network" * local
  others = "the section on other clusters has" if comparison.info.get("clusters") else "compare --cluster=... adds"
  return [
    f"Seconds were measured on the hardware that ran this, without compilation and evaluation{where}.",
    f"They rank the algorithms there, not on a cluster; {others} predictions for clusters.",
  ]


def layout(comparison: Comparison) -> str:
  """How many devices the workers shared, "" where it is not known."""
  spreads = [spread for result in comparison.results for spread in result.spreads]
  if not spreads:
    return ""
  devices = sorted({spread.devices for spread in spreads})
  workers = formats.between(spread.workers for spread in spreads)
  return f"{workers} workers on {' or '.join(map(str, devices))} device{'s' * (devices != [1])}"


def text_table(comparison: Comparison, table: Sequence[Row]) -> str:
  """The table for a terminal, at most 100 columns; * has the best mean of its column, ~ may be as good."""
  metric, names = comparison.metric, (FINAL, *spent(comparison))
  higher = {FINAL: comparison.higher_is_better}
  marked = {name: marks(table, name, higher.get(name, False)) for name in names}
  own = varying(comparison.info)
  goal = formats.target(metric, comparison.target)
  time = "virtual s" if comparison.virtual else "seconds"
  head = ["algorithm", *own, formats.NAMES[metric], "steps", "examples", "bytes sent", time, f"to {goal}"]
  lines = [head]
  for place, row in enumerate(table):
    line = [row.label, *(values[place] for values in own.values())]
    for name in names:
      found = row.estimates.get(name)
      half = found.half if found and name == FINAL else None
      text = formats.figure(metric if name == FINAL else name, found.mean, half) if found else "-"
      text = f"({text})" if found and not row.of_all(name) else text
      line.append(text + {"best": "*", "tied": "~", "": " "}[marked[name].get(row.label, "")])
    lines.append([*line, f"{row.reached}/{row.seeds} reached" if row.finished or row.reached else "no result"])
  widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
  widths[0] = min(widths[0], WIDTH - sum(widths[1:]) - 2 * len(widths[1:]))
  told = []
  for label, *rest in lines:
    label = label if len(label) <= widths[0] else label[: widths[0] - 2] + ".."
    cells = [cell.rjust(width) for cell, width in zip(rest, widths[1:], strict=True)]
    told.append("  ".join([label.ljust(widths[0]), *cells]))
  rule = "-" * len(told[0])
  key = "In brackets: the mean of the seeds that met the target alone, unranked. *: the best mean of its column. ~: "
  paragraphs = [" ".join([*legend(comparison), key + TIED])]
  paragraphs += [f"{row.label}: {note}." for row in table for note in row.notes]
  return "\n".join([told[0], rule, *told[1:], rule, *(textwrap.fill(each, WIDTH) for each in paragraphs)])
