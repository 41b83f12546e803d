"""The figures of a comparison, one row per algorithm, and which of them are best beyond the noise."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from experiments.report import formats
from experiments.report.comparison import Comparison, Result, Run
from experiments.report.statistics import Span, first_reaching, paired, summary


def spent(comparison: Comparison) -> tuple[str, ...]:
  """The columns in which reaching the target is counted; the last one is time."""
  return "step", "examples", "bytes_sent", comparison.seconds


class Estimate(NamedTuple):
  """A mean over seeds, the half-width of its 95 % interval (None for one seed), and the figures it is of."""

  mean: float
  half: float | None
  seeds: Mapping[str, Span]  # by run ("seed 0"); a target was met after the evaluation before and by this one


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
  names, finals = spent(comparison), {}
  costs: dict[str, dict[str, Span]] = {name: {} for name in names}
  for run in runs:
    values, last = run.columns[comparison.metric], run.columns["examples"][-1]
    problem = _problem(run, comparison.metric, last < longest or last <= enough)
    if problem:
      notes.append(f"{run.name} {problem}")
    else:
      finals[run.name] = (float(values[-1]), float(values[-1]))
    index = first_reaching(values, comparison.target, comparison.higher_is_better)
    if index is not None:
      for name in names:
        costs[name][run.name] = (float(run.columns[name][max(index - 1, 0)]), float(run.columns[name][index]))
  seeds = max(len(comparison.info["seeds"]), len(info["runs"]))
  sends_nothing = bool(runs) and all(run.columns["bytes_sent"][-1] == 0 for run in runs)
  reached = len(costs[names[0]])
  met = {name: _estimate(spans) for name, spans in costs.items()} if reached else {}
  return Row(
    info["label"], seeds, len(finals), reached, _estimate(finals) if finals else None, met, sends_nothing, notes
  )


def _problem(run: Run, metric: str, short: bool) -> str | None:
  if np.isnan(run.columns[metric]).all():
    return f"has no {formats.NAMES[metric]}"
  steps = run.columns["step"]
  # The first line stands before training and has no training loss.
  bad = ~np.isfinite(run.columns[metric]) | (~np.isfinite(run.columns["train_loss"]) & (steps > 0))
  if bad.any():
    return f"diverged at step {steps[np.argmax(bad)]:,.0f}"
  return f"stopped at step {steps[-1]:,.0f}" if short else None


def _estimate(spans: Mapping[str, Span]) -> Estimate:
  return Estimate(*summary([value for _, value in spans.values()]), spans)


def final(row: Row) -> Estimate | None:
  """The final metric where every seed has one, else None: a mean without the diverged seeds flatters."""
  return row.final if row.finished == row.seeds else None


def cost(name: str) -> Callable[[Row], Estimate | None]:
  """The cost of the target where every seed met it, else None, as a function of the row."""
  return lambda row: row.costs[name] if row.reached == row.seeds and row.costs else None


def ranking(
  table: Sequence[Row], estimate: Callable[[Row], Estimate | None], higher: bool = False
) -> tuple[list[Row], list[Row]]:
  """Those with an estimate, best mean first; and beside the first the others that none is told apart from as better.

  No two of the first one and those others are told apart.
  """
  sign = -1 if higher else 1
  known = [(found, row) for row in table if (found := estimate(row))]
  known.sort(key=lambda pair: sign * pair[0].mean)
  ranked = [row for _, row in known]
  ratio = estimate is not final  # of costs
  beaten = [any(paired(other.seeds, found.seeds, ratio).sign == -sign for other, _ in known) for found, _ in known]
  return ranked, [row for row, lost in zip(ranked[1:], beaten[1:], strict=True) if not lost]
