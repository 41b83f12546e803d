"""The figures of a comparison, one row per algorithm, and which algorithms are significantly better."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import combinations
from typing import NamedTuple

import numpy as np

from ddl.names import Place, comparable
from ddl.report.paired_test import Pair, paired_tests, share_resolution
from ddl.report.reader import SCORES, Comparison, Result
from ddl.report.run_outcome import fingerprint, problem, shares
from ddl.report.statistics import Span, crossing, falls_back, interval_ends, log_summary, mean_curve, summary, unseen


def scores(comparison: Comparison) -> tuple[str, ...]:
  """The columns of the end of training: the metric, and the perplexity where there is one."""
  runs = [run for result in comparison.results for run in result.runs]
  also = any(np.isfinite(run.columns[PERPLEXITY]).any() for run in runs)
  return (comparison.metric, PERPLEXITY) if also and comparison.metric != PERPLEXITY else (comparison.metric,)


def spent(comparison: Comparison) -> tuple[str, ...]:
  """The columns in which reaching the target is counted; the last one is time."""
  return "step", "examples", "bytes_sent", comparison.seconds


PERPLEXITY = "test_perplexity"
EARLY = "\N{DAGGER}"  # behind costs of the target that were spent before the first evaluation
FELL = "\N{DOUBLE DAGGER}"  # behind costs of a target that is met, and missed again later


class Estimate(NamedTuple):
  """A mean over seeds, its 95 % interval (None for one seed), and the figures it is of."""

  mean: float  # of costs the geometric one
  interval: Span | None
  seeds: Mapping[str, float]  # by run ("seed 0")


class LabelRow(NamedTuple):
  label: str
  seeds: int  # runs that there should be
  finished: int  # runs that used the whole budget and ended finite
  reached: int  # runs that met the target
  estimates: dict[str, Estimate]  # the scores over the finished runs, the costs of the target over those that met it
  sends_nothing: bool
  notes: list[str]
  place: Place  # in the grid
  early: int = 0  # runs that met the target at their first evaluation, so that its cost is interpolated from the start
  first: float = 0.0  # examples at that evaluation, the most of these runs
  fell_back: int = 0  # runs that met the target, and at a later evaluation did not
  mean_fell_back: bool = False  # whether the mean over the runs that met it did, or each of them
  paired: bool = True  # whether some seed is common to all labels, so that they can be ranked
  same: str = ""  # the first label with the same runs

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
    return self.paired and self.of_all(name) is not None and not (name == "bytes_sent" and self.sends_nothing)

  def tested_with(self, other: "LabelRow", name: str) -> bool:
    """Whether the two have a test: figures `name` of every seed, and not those of one and the same run."""
    one, two = self.of_all(name), other.of_all(name)
    if one is None or two is None:
      return False
    return not (self.same_run(other) and one.seeds == two.seeds)

  def same_run(self, other: "LabelRow") -> bool:
    """Whether the two labels are one and the same run."""
    return bool(self.same) and self.same == other.same


def rows(comparison: Comparison) -> list[LabelRow]:
  """One row per algorithm, in the order of the comparison."""
  parts = [shares(result, run) for result in comparison.results for run in result.runs]
  # Evaluations fall on round boundaries, so that complete runs end up to one evaluation apart.
  gap = max((np.diff(each).max(initial=0) for each in parts), default=0)
  enough = max((each[-1] for each in parts), default=0) - gap
  found, first = [_row(comparison, result, enough) for result in comparison.results], {}
  return [
    row._replace(same=first.setdefault(runs, row.label)) if (runs := fingerprint(result)) else row
    for row, result in zip(found, comparison.results, strict=True)
  ]


def _row(comparison: Comparison, result: Result, enough: float) -> LabelRow:
  info, runs = result.info, result.runs
  longest = max((shares(result, run)[-1] for run in runs), default=0)
  notes = [info["failed"]] if info["failed"] else []
  notes += [f"{name}: no metrics" for name in result.missing]
  found: dict[str, dict[str, float]] = {name: {} for name in (*scores(comparison), *spent(comparison))}
  early: list[float] = []
  again: list[bool] = []  # of each run that met the target, whether it missed it later
  curves = []
  for run in runs:
    values, last = run.columns[comparison.metric], shares(result, run)[-1]
    wrong = problem(run, comparison.metric, last < longest or last <= enough)
    if wrong:
      notes.append(f"{run.name} {wrong}")
    else:
      for name in scores(comparison):
        if np.isfinite(run.columns[name][-1]):
          found[name][run.name] = float(run.columns[name][-1])
    steps = run.columns["step"]
    curve = steps, values, comparison.target, comparison.higher_is_better
    met = crossing(*curve)
    if met is not None:
      again.append(falls_back(*curve))
      curves.append((steps, values))
      if unseen(*curve):
        early.append(float(run.columns["examples"][steps >= met][0]))
      costs = {name: float(np.interp(met, steps, run.columns[name])) for name in spent(comparison)}
      for name, cost in costs.items():
        if np.isfinite(cost):
          found[name][run.name] = cost
  mean = mean_curve(curves)  # of the seeds that the costs are of
  return LabelRow(
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
    fell_back=sum(again),
    mean_fell_back=bool(mean)
    and any(again)
    and (all(again) or falls_back(*mean, comparison.target, comparison.higher_is_better)),
    paired=not comparison.disjoint,
  )


def estimate(name: str, seeds: Mapping[str, float]) -> Estimate:
  """Of scores the mean and Student's interval; of costs, which are above 0, those of the logarithm."""
  values = list(seeds.values())
  if name not in SCORES:
    return Estimate(*log_summary(values), seeds)
  mean, half = summary(values)
  return Estimate(mean, None if half is None else interval_ends(name, mean, half), seeds)


def pairs(table: Sequence[LabelRow], name: str) -> Mapping[tuple[str, str], Pair]:
  """Test the comparable pairs of labels, both ways round: scores by their difference, costs by their ratio.

  Without a grid these are all pairs. Those without a figure of every seed are described and not tested, as are those of
  one and the same run.
  """
  figures = tuple(
    (row.label, tuple(row.estimates[name].seeds.items()) if name in row.estimates else ()) for row in table
  )
  family = [(a, b) for a, b in combinations(table, 2) if comparable(a.place, b.place)]
  described = frozenset((a.label, b.label) for a, b in family if not a.tested_with(b, name))
  return _pairs(figures, tuple((a.label, b.label) for a, b in family), described, name)


@lru_cache(maxsize=32)  # a page asks for the same family in every mark and sentence
def _pairs(
  figures: tuple[tuple[str, tuple[tuple[str, float], ...]], ...], family: tuple[tuple[str, str], ...],
  described: frozenset[tuple[str, str]], name: str,
) -> dict[tuple[str, str], Pair]:  # fmt: skip
  found = {label: dict(seeds) for label, seeds in figures}
  if name not in SCORES:
    return paired_tests(found, ratio=True, family=family, described=described)
  values = [value for seeds in found.values() for value in seeds.values()]
  resolution = share_resolution(values) if name == "test_accuracy" else 0.0
  return paired_tests(found, ratio=False, resolution=resolution, family=family, described=described)


class Ranking(NamedTuple):
  """Rows with a figure of every seed by their mean, and what the tests say of them."""

  ranked: list[LabelRow]  # the best first
  rivals: list[LabelRow]  # of the first one: as good, or tested against the best, and none is significantly better
  unjudged: list[LabelRow]  # of which no test says whether they are worse: those of a grid that is not each with each


def ranking(table: Sequence[LabelRow], name: str, among: Sequence[LabelRow] | None = None) -> Ranking:
  """Rank the rows where every seed has an estimate by their mean, the best first; in bytes only those that send any.

  No two of the first and its rivals that are tested are significantly different.

  Args:
    table: all rows, whose pairs are tested together; of a grid not each with each.
    among: the rows to rank, by default all.
  """
  sign, found = -1 if name == "test_accuracy" else 1, pairs(table, name)
  counted = [row for row in (table if among is None else among) if row.ranked_by(name)]
  ranked = sorted(counted, key=lambda row: sign * row.estimates[name].mean)
  best = [row for row in ranked if row.estimates[name].mean == ranked[0].estimates[name].mean]

  def against(row: LabelRow, others: Sequence[LabelRow]) -> list[Pair]:
    """The tests of a row, and of those that are one and the same run, against others."""
    twins = [each for each in ranked if each is row or (each.same_run(row) and not each.tested_with(row, name))]
    return [pair for each in twins for other in others if (pair := found.get((other.label, each.label)))]

  def beaten(row: LabelRow) -> bool:
    return any(pair.sign == -sign for pair in against(row, ranked))

  def judged(row: LabelRow) -> bool:
    return row in best or any(pair.p is not None or row.seeds == 1 for pair in against(row, best))

  level = [row for row in ranked[1:] if not beaten(row)]
  rivals = [row for row in level if judged(row)]
  return Ranking(ranked, rivals, [row for row in level if row not in rivals])


def marks(table: Sequence[LabelRow], name: str) -> dict[str, str]:
  """By label: "best" has the best mean of several, no algorithm is significantly better than "tied"."""
  ranked, rivals, _ = ranking(table, name)
  if len(ranked) < 2:
    return {}
  best = [row.label for row in ranked if row.estimates[name].mean == ranked[0].estimates[name].mean]
  return {row.label: "tied" for row in rivals} | dict.fromkeys(best, "best")
