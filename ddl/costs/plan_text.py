"""Words of `plan`: the recommendation first, then the tables, then the formulas and the limits."""

import textwrap
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from ddl.perf.hardware import Cluster
from ddl.perf.planning import planner, recommendation
from ddl.perf.planning.batch import Job
from ddl.perf.planning.batch_table import Cell, Line
from ddl.perf.units import percent, rate_text, seconds_text

WIDTH = 118
CELLS = {  # of a line: what a column is called, with what is in brackets in it
  "synchronous": "sync_sgd",
  "in bfloat16": "bfloat16",
  "dasgd": "dasgd, delay",
  "local_sgd": "local_sgd, period",
  "hierarchical": "hierarchical, period",
  "streaming_diloco": "streaming, delay",
}
LEFT_OUT = "The progress per example is in no number here: python run.py compare --config=FILE --cluster="


def text(
  job: Job, name: str, cluster: Cluster, found: planner.Plan, sends: str = "",
  ends: Mapping[str, planner.Plan] = MappingProxyType({}),
) -> str:  # fmt: skip
  """Return the plan.

  Args:
    name: of the cluster.
    sends: what the config's own algorithm does.
    ends: by the device's efficiency in words, the same settings at each end of a range of it.
  """
  lines = [f"{job.title} on {cluster.title}", *textwrap.wrap(f"source: {cluster.source}", WIDTH), *_warning(found), ""]
  for each in (
    *found.advice.lines,
    *map(_end, ends, ends.values()),
    sends,
    f"{LEFT_OUT}{name} sets accuracy against seconds.",
  ):
    lines += textwrap.wrap(each, WIDTH, subsequent_indent="  ")
  lines += ["", *_sizes(found), "", *_speeds(found), "", "why, and what limits it"]
  for row in found.rows:
    lines.append(f"{row.quantity}: {row.value}")
    for each in (row.why, f"limit: {row.limit}"):
      lines += textwrap.wrap(each, WIDTH, initial_indent="    ", subsequent_indent="    ")
  return "\n".join(lines)


def _end(words: str, found: planner.Plan) -> str:
  s, exact = found.settings, found.speeds[0]
  return (
    f"With {words}: a step on {s.examples} takes {seconds_text(s.step)}; {exact.algorithm} keeps "
    f"{percent(exact.efficiency)}; recommended is {found.advice.speed.algorithm}."
  )


def _sizes(found: planner.Plan) -> list[str]:
  """Examples per worker against the efficiency of each family."""
  names = list(found.lines[0].cells)
  head = ["examples each", "a step", *(CELLS[name] for name in names)]
  relative = found.lines[0].relative is not None
  rows = [head + ["time to a loss"] * relative]
  for line in found.lines:
    shown = [_size(line), seconds_text(line.step), *(_cell(line.cells[name]) for name in names)]
    rows.append([*shown, *([f"{line.relative:.3g}x"] if line.relative is not None else [])])
  return _columns(rows, left=1)


def _size(line: Line) -> str:
  size = line.size
  return f"{size.examples:,}" + (f" ({size.micro} x {size.examples // size.micro})" if size.micro > 1 else "")


def _cell(cell: Cell) -> str:
  return percent(cell.efficiency) + ("" if cell.setting is None else f" ({cell.setting})")


def _speeds(found: planner.Plan) -> list[str]:
  """Predictions of the families."""
  rows = [[f"with {found.settings.examples:,} per worker", "", "a step", "efficiency", "examples/s"]]
  for each in found.speeds:
    figures = seconds_text(each.seconds), percent(each.efficiency), rate_text(each.rate)
    rows.append([each.algorithm, each.setting, *figures])
  return _columns(rows, left=2)


def _columns(rows: Sequence[Sequence[str]], left: int) -> list[str]:
  """Lines of aligned columns, the first ones to the left."""
  widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
  padded = [
    [
      cell.ljust(width) if i < left else cell.rjust(width)
      for i, (cell, width) in enumerate(zip(row, widths, strict=True))
    ]
    for row in rows
  ]
  return ["  ".join(row) for row in padded]


def _warning(found: planner.Plan) -> list[str]:
  """Lines for a step shorter than the start of one on any machine, which the cluster's entry leaves out."""
  if found.settings.step >= recommendation.STARTING:
    return []
  text = (
    f"Warning: a step of {seconds_text(found.settings.step)} is shorter than a machine takes to start one, which is "
    "tens of microseconds and more. This cluster's entry has no such time, so that the efficiencies below are too low, "
    "and the delays and periods too long."
  )
  return ["", *textwrap.wrap(text, WIDTH)]
