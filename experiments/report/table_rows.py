"""The figures of a comparison, one row per algorithm, and which algorithms are significantly better."""

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import combinations
from typing import NamedTuple

import numpy as np

from experiments.grid_point import Place, comparable
from experiments.report import formats
from experiments.report.paired_test import Pair, paired_tests, share_resolution
from experiments.report.reader import SCORES, Comparison, Result, Run
from experiments.report.statistics import (
  Span,
  crossing,
  falls_back,
  interval_ends,
  log_summary,
  mean_curve,
  summary,
  unseen,
)


def spent(comparison: Comparison) -> tuple[str, ...]:
  """The columns in which reaching the target is counted; the last one is time."""
  return "step", "examples", "bytes_sent", comparison.seconds


EARLY = "\N{DAGGER}"  # behind costs of the target that were spent before the first evaluation
FELL = "\N{DOUBLE DAGGER}"  # behind costs of a target that the mean over the seeds meets, and misses again later


class Estimate(NamedTuple):
  """A mean over seeds, its 95 % interval (None for one seed), and the figures it is of."""

  mean: float  # of costs the geometric one
  interval: Span | None
  seeds: Mapping[str, float]  # by run ("seed 0")


class Row(NamedTuple):
  label: str
  seeds: int  # runs that there should be
  finished: int  # runs that used the whole budget and ended finite
  reached: int  # runs that met the target
  estimates: dict[str, Estimate]  # the metric over the finished runs, the costs of the target over those that met it
  sends_nothing: bool
  notes: list[str]
  place: Place  # in the grid
  early: int = 0  # runs that met the target at their first evaluation, so that its cost is interpolated from the start
  first: float = 0.0  # examples at that evaluation, the most of these runs
  fell_back: int = 0  # runs that met the target, and at a later evaluation did not
  mean_fell_back: bool = False  # whether the mean over the runs did

  def of_all(self, name: str) -> Estimate | None:
    """Return the estimate if it covers every seed, else None: a mean without the diverged seeds is biased."""
    found = self.estimates.get(name)
    return found if found and len(found.seeds) == self.seeds else None

  @property
  def signs(self) -> str:
    """Behind its costs of the target."""
    return EARLY * (self.early > 0) + FELL * self.mean_fell_back

  def ranked_by(self, name: str) -> bool:
    """Whether it has a place among the estimates `name`: fewest bytes are no achievement of what sends nothing."""
    return self.of_all(name) is not None and not (name == "bytes_sent" and self.sends_nothing)


def rows(comparison: Comparison) -> list[Row]:
  """One row per algorithm, in the order of the comparison."""
  shares = [_shares(result, run) for result in comparison.results for run in result.runs]
  # Evaluations fall on round boundaries, so that complete runs end up to one evaluation apart.
  gap = max((np.diff(each).max(initial=0) for each in shares), default=0)
  enough = max((each[-1] for each in shares), default=0) - gap
  return [_row(comparison, result, enough) for result in comparison.results]


def _shares(result: Result, run: Run) -> np.ndarray:
  """Examples as shares of the label's budget, which a grid with `steps` may give each another."""
  return run.columns["examples"] / math.prod(result.info["settings"][key] for key in ("workers", "batch", "steps"))


def _row(comparison: Comparison, result: Result, enough: float) -> Row:
  info, runs = result.info, result.runs
  longest = max((_shares(result, run)[-1] for run in runs), default=0)
  notes = [info["failed"]] if info["failed"] else []
  notes += [f"{name}: no metrics" for name in result.missing]
  found: dict[str, dict[str, float]] = {name: {} for name in (comparison.metric, *spent(comparison))}
  early: list[float] = []
  fell_back = 0
  for run in runs:
    values, last = run.columns[comparison.metric], _shares(result, run)[-1]
    problem = _problem(run, comparison.metric, last < longest or last <= enough)
    if problem:
      notes.append(f"{run.name} {problem}")
    else:
      found[comparison.metric][run.name] = float(values[-1])
    steps = run.columns["step"]
    curve = steps, values, comparison.target, comparison.higher_is_better
    met = crossing(*curve)
    if met is not None:
      fell_back += falls_back(*curve)
      if unseen(*curve):
        early.append(float(run.columns["examples"][steps >= met][0]))
      costs = {name: float(np.interp(met, steps, run.columns[name])) for name in spent(comparison)}
      for name, cost in costs.items():
        if np.isfinite(cost):
          found[name][run.name] = cost
  mean = mean_curve([(run.columns["step"], run.columns[comparison.metric]) for run in runs])
  return Row(
    label=info["label"],
    seeds=len(info["runs"]),
    finished=len(found[comparison.metric]),
    reached=len(found["step"]),
    estimates={name: estimate(name, values) for name, values in found.items() if values},
    sends_nothing=bool(runs) and all(run.columns["bytes_sent"][-1] == 0 for run in runs),
    notes=notes,
    place=Place(info["group"], info["point"]),
    early=len(early),
    first=max(early, default=0.0),
    fell_back=fell_back,
    mean_fell_back=bool(mean) and falls_back(*mean, comparison.target, comparison.higher_is_better),
  )


def estimate(name: str, seeds: Mapping[str, float]) -> Estimate:
  """Of scores the mean and Student's interval; of costs, which are above 0, those of the logarithm."""
  values = list(seeds.values())
  if name not in SCORES:
    return Estimate(*log_summary(values), seeds)
  mean, half = summary(values)
  return Estimate(mean, None if half is None else interval_ends(name, mean, half), seeds)


def _problem(run: Run, metric: str, short: bool) -> str | None:
  if np.isnan(run.columns[metric]).all():
    return f"has no {formats.NAMES[metric]}"
  steps = run.columns["step"]
  # The first line stands before training and has no training loss.
  bad = ~np.isfinite(run.columns[metric]) | (~np.isfinite(run.columns["train_loss"]) & (steps > 0))
  if bad.any():
    return f"diverged at step {steps[np.argmax(bad)]:,.0f}"
  return f"stopped at step {steps[-1]:,.0f}" if short else None


def pairs(table: Sequence[Row], name: str) -> Mapping[tuple[str, str], Pair]:
  """Test the comparable pairs of labels, both ways round: scores by their difference, costs by their ratio.

  Without a grid these are all pairs.
  """
  figures = tuple(
    (row.label, tuple(row.estimates[name].seeds.items()) if name in row.estimates else ()) for row in table
  )
  family = tuple((a.label, b.label) for a, b in combinations(table, 2) if comparable(a.place, b.place))
  return _pairs(figures, family, name)


@lru_cache(maxsize=32)  # a page asks for the same family in every mark and sentence
def _pairs(
  figures: tuple[tuple[str, tuple[tuple[str, float], ...]], ...], family: tuple[tuple[str, str], ...], name: str
) -> dict[tuple[str, str], Pair]:
  found = {label: dict(seeds) for label, seeds in figures}
  if name not in SCORES:
    return paired_tests(found, ratio=True, family=family)
  values = [value for seeds in found.values() for value in seeds.values()]
  resolution = share_resolution(values) if name == "test_accuracy" else 0.0
  return paired_tests(found, ratio=False, resolution=resolution, family=family)


def ranking(table: Sequence[Row], name: str, among: Sequence[Row] | None = None) -> tuple[list[Row], list[Row]]:
  """Rank the rows where every seed has an estimate by their mean, the best first; in bytes only those that send any.

  Args:
    table: all rows, whose pairs are tested together; of a grid not each with each.
    among: the rows to rank, by default all.

  Returns:
    the ranked rows; and the rivals of the first one, than which no row is significantly better, so that no two of the
    first and its rivals are significantly different. Where a grid has no test of a row against the first one, their
    intervals must overlap.
  """
  sign, found = -1 if name == "test_accuracy" else 1, pairs(table, name)
  counted = [row for row in (table if among is None else among) if row.ranked_by(name)]
  ranked = sorted(counted, key=lambda row: sign * row.estimates[name].mean)

  def beaten(row: Row) -> bool:
    against = [found.get((other.label, row.label)) for other in ranked if other is not row]
    return any(pair.sign == -sign for pair in against if pair)

  def apart(row: Row) -> bool:
    if (ranked[0].label, row.label) in found:
      return False
    best, other = (each.estimates[name].interval for each in (ranked[0], row))
    return best is not None and other is not None and (other[0] > best[1] or other[1] < best[0])

  return ranked, [row for row in ranked[1:] if not beaten(row) and not apart(row)]


def marks(table: Sequence[Row], name: str) -> dict[str, str]:
  """By label: "best" has the best mean, no algorithm is significantly better than "tied"."""
  ranked, rivals = ranking(table, name)
  best = [row.label for row in ranked if row.estimates[name].mean == ranked[0].estimates[name].mean]
  return {row.label: "tied" for row in rivals} | dict.fromkeys(best, "best")
