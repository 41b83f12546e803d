"""The figures of a comparison, one row per algorithm, and which of them are best beyond the noise."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from experiments import report_format
from experiments.report_data import Comparison, Result, Run
from experiments.statistics import first_reaching, summary


def spent(comparison: Comparison) -> tuple[str, ...]:
  """The columns in which reaching the target is counted; the last one is time."""
  return "step", "examples", "bytes_sent", comparison.seconds


class Estimate(NamedTuple):
  """A mean over seeds, the half-width of its 95 % interval (None for one seed), and the range it stands for."""

  mean: float
  half: float | None
  low: float
  high: float


class Row(NamedTuple):
  label: str
  seeds: int  # runs that there should be
  finished: int  # runs that used the whole budget and ended finite
  reached: int  # runs that met the target
  final: Estimate | None  # the metric at the end, over the finished runs
  costs: dict[str, Estimate]  # what the target cost, over the runs that met it; {} where none did
  sends_nothing: bool
  notes: list[str]


def rows(comparison: Comparison) -> list[Row]:
  """One row per algorithm, in the order of the comparison."""
  ends = [run.columns["examples"][-1] for result in comparison.results for run in result.runs]
  gaps = [np.diff(run.columns["examples"]).max(initial=0) for result in comparison.results for run in result.runs]
  # Evaluations fall on round boundaries, so that complete runs end up to one evaluation apart.
  enough = max(ends, default=0) - max(gaps, default=0)
  return [_row(comparison, result, enough) for result in comparison.results]


def _row(comparison: Comparison, result: Result, enough: float) -> Row:
  info, runs = result.info, result.runs
  longest = max((run.columns["examples"][-1] for run in runs), default=0)
  notes = [info["failed"]] if info["failed"] else []
  notes += [f"{name}: no metrics" for name in result.missing]
  names, finals, costs = spent(comparison), [], []
  for run in runs:
    values, last = run.columns[comparison.metric], run.columns["examples"][-1]
    problem = _problem(run, comparison.metric, last < longest or last <= enough)
    if problem:
      notes.append(f"{run.name} {problem}")
    else:
      finals.append(values[-1])
    index = first_reaching(values, comparison.target, comparison.higher_is_better)
    if index is not None:
      costs.append([(run.columns[name][max(index - 1, 0)], run.columns[name][index]) for name in names])
  seeds = max(len(comparison.info["seeds"]), len(info["runs"]))
  sends_nothing = bool(runs) and all(run.columns["bytes_sent"][-1] == 0 for run in runs)
  return Row(
    info["label"], seeds, len(finals), len(costs), _estimate(finals, finals) if finals else None,
    {name: _estimate(*zip(*pairs, strict=True)) for name, pairs in zip(names, zip(*costs, strict=True), strict=False)},
    sends_nothing, notes,
  )  # fmt: skip


def _problem(run: Run, metric: str, short: bool) -> str | None:
  if np.isnan(run.columns[metric]).all():
    return f"has no {report_format.NAMES[metric]}"
  steps = run.columns["step"]
  # The first line stands before training and has no training loss.
  bad = ~np.isfinite(run.columns[metric]) | (~np.isfinite(run.columns["train_loss"]) & (steps > 0))
  if bad.any():
    return f"diverged at step {steps[np.argmax(bad)]:,.0f}"
  return f"stopped at step {steps[-1]:,.0f}" if short else None


def _estimate(lows: Sequence[float], values: Sequence[float]) -> Estimate:
  """The target was met after the evaluation before (`lows`) and by this one (`values`); the seeds add their spread."""
  mean, half = summary(values)
  return Estimate(mean, half, float(np.mean(lows)) - (half or 0), mean + (half or 0))


def final(row: Row) -> Estimate | None:
  """The final metric where every seed has one, else None: a mean without the diverged seeds flatters."""
  return row.final if row.finished == row.seeds else None


def cost(name: str) -> Callable[[Row], Estimate | None]:
  """The cost of the target where every seed met it, else None, as a function of the row."""
  return lambda row: row.costs[name] if row.reached == row.seeds and row.costs else None


def ranking(
  table: Sequence[Row], estimate: Callable[[Row], Estimate | None], higher: bool = False
) -> tuple[list[Row], list[Row]]:
  """Those with an estimate, best mean first, and those of them whose range overlaps the best one's, or equals it."""
  sign = -1 if higher else 1
  known = [(found, row) for row in table if (found := estimate(row))]
  known.sort(key=lambda pair: sign * pair[0].mean)
  ranked = [row for _, row in known]
  return ranked, [row for found, row in known[1:] if _overlap(known[0][0], found)]


def _overlap(first: Estimate, second: Estimate) -> bool:
  apart = first.high <= second.low or second.high <= first.low
  return first.mean == second.mean or not apart
