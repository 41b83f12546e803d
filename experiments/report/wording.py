"""The table of a comparison as text, and the sentences that explain it on the page as well."""

import textwrap
from collections.abc import Sequence

from experiments.report import formats
from experiments.report.comparison import Comparison
from experiments.report.settings_table import own_clock
from experiments.report.table_rows import Row, cost, final, ranking, spent

WIDTH = 100
TIED = "no algorithm is told apart from it as better."


def marks(table: Sequence[Row], comparison: Comparison) -> dict[str, dict[str, str]]:
  """For "final" and each cost, by label: "best" has the best mean, to "tied" none is told apart as better."""
  estimates = {"final": (final, comparison.higher_is_better)} | {
    name: (cost(name), False) for name in spent(comparison)
  }
  found: dict[str, dict[str, str]] = {}
  for name, (estimate, higher) in estimates.items():
    ranked, rivals = ranking(table, estimate, higher)
    means = {row.label: e.mean for row in ranked if (e := estimate(row))}
    best = means[ranked[0].label] if ranked else None
    found[name] = {row.label: "tied" for row in rivals}
    found[name] |= {row.label: "best" for row in ranked if means[row.label] == best}
  return found


def legend(comparison: Comparison) -> list[str]:
  """Sentences on what the figures are and are not."""
  goal = formats.target(comparison.metric, comparison.target)
  seeds = len(comparison.info["seeds"])
  sentences = []
  if seeds > 1:
    sentences.append(f"Mean and 95 % confidence interval over {seeds} seeds (Student's t).")
    sentences.append(
      "Two algorithms are told apart where the 95 % interval of their differences (of costs: log ratios) seed by seed, "
      "with the spacing of evaluations added, leaves out zero; each pair is judged by itself."
    )
    if seeds == 2:
      sentences.append(
        "An interval over two seeds is next to meaningless: Student's t has one degree of freedom there."
      )
  else:
    sentences.append("One seed: no interval and no spread, so that no difference here can be told from luck.")
  sentences.append(f"Steps, examples, bytes and seconds are those spent by the first evaluation that met {goal}.")
  sentences.append("Examples count all workers together, bytes what each worker sent.")
  if comparison.info["virtual"]:
    own = " (the common setting; some algorithms have their own, see Settings)" * own_clock(comparison.info)
    return [*sentences, f"Seconds are virtual, not measured: {comparison.info['virtual'].rstrip('.')}{own}."]
  return sentences + clock(comparison)


def clock(comparison: Comparison) -> list[str]:
  """Sentences on what measured seconds are: those of the hardware that ran all workers, and not a cluster's."""
  where = layout(comparison)
  if where:
    paces = sorted({comparison.info["workers"] // devices for devices, _ in comparison.layouts})
    where = f": {where}" + f", each device doing the work of {' or '.join(map(str, paces))}" * (paces != [1])
    where += ", and no message crossed a network" * all(processes == 1 for _, processes in comparison.layouts)
  others = "the section on other clusters has" if comparison.info.get("clusters") else "compare --cluster=... adds"
  return [
    f"Seconds were measured on the hardware that ran this, without compilation and evaluation{where}.",
    f"They rank the algorithms there, not on a cluster; {others} predictions for clusters.",
  ]


def layout(comparison: Comparison) -> str:
  """How many devices the workers shared, "" where it is not known."""
  devices = sorted({devices for devices, _ in comparison.layouts})
  if not devices:
    return ""
  return f"{comparison.info['workers']} workers on {' or '.join(map(str, devices))} device{'s' * (devices != [1])}"


def text_table(comparison: Comparison, table: Sequence[Row]) -> str:
  """The table for a terminal, at most 100 columns; * has the best mean of its column, ~ may be as good."""
  metric, marked = comparison.metric, marks(table, comparison)
  goal = formats.target(metric, comparison.target)
  time = "virtual s" if comparison.info["virtual"] else "seconds"
  lines = [["algorithm", formats.NAMES[metric], "steps", "examples", "bytes sent", time, f"to {goal}"]]
  for row in table:
    cells = [row.label]
    estimates = [("final", metric, row.final, final(row))]
    estimates += [(name, name, row.costs.get(name), cost(name)(row)) for name in spent(comparison)]
    for name, kind, estimate, ranked in estimates:
      half = estimate.half if estimate and name == "final" else None
      text = formats.figure(kind, estimate.mean, half) if estimate else "-"
      text = f"({text})" if estimate and not ranked else text
      cells.append(text + {"best": "*", "tied": "~", "": " "}[marked[name].get(row.label, "")])
    lines.append([*cells, f"{row.reached}/{row.seeds} reached" if row.finished or row.reached else "no result"])
  widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
  widths[0] = min(widths[0], WIDTH - sum(widths[1:]) - 2 * len(widths[1:]))
  told = []
  for line in lines:
    label = line[0] if len(line[0]) <= widths[0] else line[0][: widths[0] - 2] + ".."
    rest = [cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True)]
    told.append("  ".join([label.ljust(widths[0]), *rest]))
  rule = "-" * len(told[0])
  key = [
    "In brackets: the mean of the seeds that got there alone, unranked. *: the best mean of its column. ~:",
    TIED,
  ]
  paragraphs = [" ".join(legend(comparison) + key)]
  paragraphs += [f"{row.label}: {note}." for row in table for note in row.notes]
  explained = [textwrap.fill(paragraph, WIDTH) for paragraph in paragraphs]
  return "\n".join([told[0], rule, *told[1:], rule, *explained])
