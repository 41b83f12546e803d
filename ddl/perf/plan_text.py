"""Text of `plan`: the recommendation first, then the tables, then the formulas and the limits."""

import textwrap
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from ddl.perf.batch_size import EfficiencyRow
from ddl.perf.cluster import Cluster
from ddl.perf.placement import Job
from ddl.perf.plan import SHORTEST, TrainingPlan
from ddl.perf.units import columns, percent, rate_text, seconds_text

WIDTH = 118
CELLS = {  # of a row: what a column is called, with what is in brackets in it
  "synchronous": "sync_sgd",
  "in bfloat16": "bfloat16",
  "dasgd": "dasgd, delay",
  "local_sgd": "local_sgd, period",
  "hierarchical": "hierarchical, period",
  "streaming_diloco": "streaming, delay",
}


def text(
  job: Job, name: str, cluster: Cluster, plan: TrainingPlan, sends: str = "",
  ends: Mapping[str, TrainingPlan] = MappingProxyType({}),
) -> str:  # fmt: skip
  """Return the plan.

  sends: what the config's algorithm sends; ends: by the device's efficiency in words, the same settings at each end of
  its range.
  """
  lines = [f"{job.title} on {cluster.title}", *textwrap.wrap(f"source: {cluster.source}", WIDTH)]
  if plan.settings.step < SHORTEST:
    warning = (
      f"Warning: a step of {seconds_text(plan.settings.step)} is shorter than a machine takes to start one, tens of "
      "microseconds and more. This cluster's entry has no such time: the efficiencies below are too low, the delays "
      "and periods too long."
    )
    lines += ["", *textwrap.wrap(warning, WIDTH)]
  lines.append("")
  left_out = f"The progress per example is in no number here: python run.py compare --config=FILE --cluster={name}"
  sentences = [*plan.recommendation.lines, *map(_end, ends, ends.values()), sends, f"{left_out} sets accuracy against "
               "seconds."]  # fmt: skip
  for sentence in sentences:
    lines += textwrap.wrap(sentence, WIDTH, subsequent_indent="  ")
  lines += ["", *_sizes(plan), "", *_speeds(plan), "", "why, and what limits it"]
  for row in plan.rows:
    lines.append(f"{row.quantity}: {row.value}")
    for sentence in (row.why, f"limit: {row.limit}"):
      lines += textwrap.wrap(sentence, WIDTH, initial_indent="    ", subsequent_indent="    ")
  return "\n".join(lines)


def _end(shares: str, plan: TrainingPlan) -> str:
  s, exact = plan.settings, plan.speeds[0]
  return (
    f"With {shares}: a step on {s.examples} takes {seconds_text(s.step)}; {exact.algorithm} keeps "
    f"{percent(exact.efficiency)}; recommended is {plan.recommendation.speed.algorithm}."
  )


def _sizes(plan: TrainingPlan) -> list[str]:
  """Examples per worker against the efficiency of each family."""
  names = list(plan.table[0].cells)
  relative = plan.table[0].relative is not None
  head = ["examples each", "a step", *(CELLS[name] for name in names), *["time to a loss"] * relative]
  return columns([head, *(_row(row, names) for row in plan.table)], left=1)


def _row(row: EfficiencyRow, names: Sequence[str]) -> list[str]:
  examples, micro = row.size
  cells = [f"{examples:,}" + (f" ({micro} x {examples // micro})" if micro > 1 else ""), seconds_text(row.step)]
  for efficiency, setting in (row.cells[name] for name in names):
    cells.append(percent(efficiency) + ("" if setting is None else f" ({setting})"))
  return [*cells, *([f"{row.relative:.3g}x"] if row.relative is not None else [])]


def _speeds(plan: TrainingPlan) -> list[str]:
  """Predictions of the families."""
  head = [f"with {plan.settings.examples:,} per worker", "", "a step", "efficiency", "examples/s"]
  rows = [
    [each.algorithm, each.setting, seconds_text(each.seconds), percent(each.efficiency), rate_text(each.rate)]
    for each in plan.speeds
  ]
  return columns([head, *rows], left=2)
