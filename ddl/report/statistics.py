"""Statistics of curves and seeds: Student's t intervals, target crossings, and paired tests with Holm's correction.

For algorithms a and b, the t-test is on d_s = x_as - x_bs over their common seeds s. For costs, which scale with the
difficulty of a seed, it is on d_s = log x_as - log x_bs. All algorithms share a seed's initial parameters, order of
examples and step times, which correlates their results and reduces the variance of the differences.

Holm (1979), "A simple sequentially rejective multiple test procedure", Scandinavian Journal of Statistics 6, 65-70.
"""

import math
from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import scipy  # imports its submodules at first use

from ddl.report.formats import is_share

RANGE = {  # metric other than an accuracy -> bounds of its true mean
  "test_perplexity": (1.0, math.inf),
  "distance": (0.0, math.inf),
}
LEVEL = 0.05  # significance level of a family of tests
POWER = 0.8
MOST = 1000  # largest number of additional seeds that `more_seeds` tries
COUNTED = 50_000  # test examples; with more, the resolution is negligible compared to the spread over seeds
ROUNDING = 1e-12  # relative differences up to this are treated as 0


def half_width(values: np.ndarray) -> np.ndarray:
  """Return the half-width of Student's 95 % confidence interval of the mean over the first axis.

  For n values with standard deviation s, it is t(0.975, n - 1) s / sqrt(n).
  """
  return scipy.stats.t.ppf(0.975, len(values) - 1) * scipy.stats.sem(values)


def summary(values: Sequence[float] | np.ndarray) -> tuple[float, float]:
  """Return the mean and the half-width of its 95 % interval (NaN for fewer than two values)."""
  values = np.asarray(values, np.float64)
  if values.size < 2:
    return (float(values[0]) if values.size else math.nan), math.nan
  return float(values.mean()), float(half_width(values))


def interval_ends(metric: str, mean: Any, half: Any) -> tuple[Any, Any]:
  """Return mean - half and mean + half, clipped to the metric's RANGE.

  Clipping does not change the coverage, because RANGE contains the true mean.
  """
  least, most = (0.0, 1.0) if is_share(metric) else RANGE.get(metric, (-math.inf, math.inf))
  return np.clip(mean - half, least, most), np.clip(mean + half, least, most)


def log_summary(values: Sequence[float] | np.ndarray) -> tuple[float, float, float]:
  """Return the geometric mean of values v and the ends of its 95 % interval, exp(mean(log v) -+ t s(log v) / sqrt(n)).

  The ends are NaN for fewer than two values. If any value is not positive, return the arithmetic mean and NaN ends.
  """
  values = np.sort(np.asarray(values, np.float64))  # makes rounding independent of the order of seeds
  if not (values > 0).all():
    return float(values.mean()), math.nan, math.nan
  mean, half = summary(np.log(values))
  return float(np.exp(mean)), float(np.exp(mean - half)), float(np.exp(mean + half))


class Crossing(NamedTuple):
  """The point at which a curve first meets the target."""

  step: float  # interpolated linearly between the evaluations before and after
  unseen: bool  # whether this is before the first evaluation after the start; `step` is then mostly interpolated
  missed_again: bool  # whether a later evaluation misses the target


def crossing(steps: np.ndarray, values: np.ndarray, target: float, higher_is_better: bool) -> Crossing | None:
  """Return where a curve first meets the target (>=, or <= if lower is better); None if it never does.

  steps, values: [evaluations], steps increasing; values that are not finite are ignored.
  """
  finite = np.isfinite(values)
  steps, values = steps[finite], values[finite]
  met = values >= target if higher_is_better else values <= target
  if not met.any():
    return None
  after = int(np.argmax(met))
  again = not met[after:].all()
  if after == 0 or values[after] == target:
    return Crossing(float(steps[after]), bool(after == 0 and steps[0] > 0 and values[after] != target), again)
  share = (target - values[after - 1]) / (values[after] - values[after - 1])
  step = float(steps[after - 1] + share * (steps[after] - steps[after - 1]))
  return Crossing(step, after == 1 and steps[0] == 0, again)


def finite_rows(values: np.ndarray) -> np.ndarray:
  """Return the indices of the first block of consecutive finite values."""
  rows = np.flatnonzero(np.isfinite(values))
  return rows[: np.argmax(np.append(np.diff(rows), 2) > 1) + 1]


def common_grid(curves: Sequence[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
  """Return all x in the range common to the curves (x, y), and each curve's interpolated y at these x.

  The shapes are [points] and [curves, points].
  """
  grid = np.unique(np.concatenate([x for x, _ in curves]))
  grid = grid[(grid >= max(x[0] for x, _ in curves)) & (grid <= min(x[-1] for x, _ in curves))]
  return grid, np.array([np.interp(grid, x, y) for x, y in curves])


class Pair(NamedTuple):
  """The comparison of two algorithms over their common seeds; all fields but `size` are columns of the pairs frame."""

  scale: str  # "difference", the first minus the second, or "ratio", the first over the second
  estimate: float  # the mean difference or geometric mean ratio; NaN without a common seed
  seeds: int  # number of common seeds
  low: float | None = None  # Student's 95 % interval, without correction for multiple pairs
  high: float | None = None
  p: float | None = None  # p-value of the two-sided test
  p_holm: float | None = None  # p-value adjusted for all tested pairs of the family
  significant: bool | None = None
  more_seeds: int | None = None  # seeds to add for a significant difference, see `more_seeds`
  size: float = 0.0  # |mean| / s of the differences; 0 without a test, or if the mean or s is 0


def paired_tests(
  figures: Mapping[str, Mapping[Any, float]], ratio: bool, family: Iterable[tuple[str, str]], resolution: float = 0.0,
  untested: Collection[tuple[str, str]] = (),
) -> dict[tuple[str, str], Pair]:  # fmt: skip
  """Test pairs of algorithms as one family: the probability of any false positive is at most 5 %.

  Args:
    figures: the values by algorithm label and seed; a pair is tested over the common seeds.
    ratio: whether to test the ratio of two algorithms (if all their values are positive) instead of the difference.
    family: the pairs, chosen before the values are known.
    resolution: the unit of rounded values, such as 1 / 360 for accuracies on 360 examples. Rounding two values adds a
      variance of 2 resolution^2 / 12 to their difference, and the test uses at least this variance.
    untested: pairs of the family that get an estimate but no test.
  """
  pairs = {(a, b): _paired(figures[a], figures[b], ratio, resolution) for a, b in family}
  pairs |= {labels: Pair(*pairs[labels][:3]) for labels in untested}
  tested = [labels for labels, pair in pairs.items() if pair.p is not None]
  for labels, p_holm in zip(tested, holm([pairs[labels].p for labels in tested]), strict=True):
    pair, significant = pairs[labels], p_holm < LEVEL
    differs = significant and pair.estimate != (pair.scale == "ratio")
    count = more_seeds(pair.size, pair.seeds, LEVEL / len(tested)) if pair.size and not differs else None
    pairs[labels] = pair._replace(p_holm=p_holm, significant=significant, more_seeds=count)
  return pairs


def _paired(first: Mapping[Any, float], second: Mapping[Any, float], ratio: bool, resolution: float) -> Pair:
  """Return the comparison before Holm's correction."""
  common = [seed for seed in first if seed in second]
  a, b = (np.array([values[seed] for seed in common], np.float64) for values in (first, second))
  ratio = ratio and bool((a > 0).all() and (b > 0).all())
  name, count = "ratio" if ratio else "difference", len(common)
  if not common:
    return Pair(name, math.nan, 0)
  if ratio:
    a, b = np.log(a), np.log(b)
  differences = a - b
  scale = 1.0 if ratio else np.maximum(np.abs(a), np.abs(b))
  differences[np.abs(differences) <= ROUNDING * scale] = 0.0
  mean = float(differences.mean())
  if count == 1:
    return Pair(name, float(np.exp(mean)) if ratio else mean, 1)
  deviation = max(float(differences.std(ddof=1)), resolution / math.sqrt(6))
  half = float(scipy.special.stdtrit(count - 1, 0.975)) * deviation / math.sqrt(count)
  values = [mean, mean - half, mean + half]
  with np.errstate(over="ignore"):  # the interval of two seeds may reach infinity
    estimate, low, high = np.exp(values).tolist() if ratio else values
  pair = Pair(name, estimate, count, low, high)
  if deviation <= ROUNDING * np.max(scale):  # equal differences for all seeds
    return pair._replace(p=float(mean == 0))
  size = mean / deviation
  p = 2 * float(scipy.special.stdtr(count - 1, -abs(size) * math.sqrt(count)))
  return pair._replace(p=p, size=abs(size))


def share_resolution(values: Sequence[float]) -> float:
  """Return 1 / N for the smallest N such that all values are multiples of 1 / N; 0 if N would exceed COUNTED."""
  counts = np.arange(1, COUNTED + 1)
  for value in values:
    shares = value * counts
    counts = counts[np.abs(shares - np.round(shares)) <= 1e-9 * counts]
  return 1 / float(counts[0]) if len(counts) else 0.0


def holm(values: Sequence[Any]) -> list[float]:
  """Return Holm's adjusted p-values, in the order of `values`.

  For the k-th smallest of m p-values, counted from 0, it is min(1, max over j <= k of (m - j) p_j).
  """
  p = np.asarray(values, np.float64)
  order = np.argsort(p, kind="stable")
  adjusted = np.empty_like(p)
  adjusted[order] = np.minimum(np.maximum.accumulate((len(p) - np.arange(len(p))) * p[order]), 1.0)
  return adjusted.tolist()


def power(size: float, seeds: int, level: float) -> float:
  """Return the power of the paired t-test with n seeds: P(|T| > t(1 - level / 2, n - 1)).

  T has the noncentral t distribution with n - 1 degrees of freedom and noncentrality size sqrt(n), where size is
  mean(d) / s(d).
  """
  df, center = seeds - 1, size * math.sqrt(seeds)
  critical = scipy.special.stdtrit(df, 1 - level / 2)
  below, lower = np.nan_to_num(scipy.special.nctdtr(df, center, [critical, -critical]))  # NaN: underflow
  return float(1 - below + lower)


def more_seeds(size: float, seeds: int, level: float) -> int:
  """Return the smallest number of additional seeds for a power of 0.8; MOST + 1 if it exceeds MOST.

  size: |mean(d)| / s(d) in the current seeds, assumed to stay the same; level: 5 % / m for a family of m pairs, the
  strictest level of Holm's procedure.
  """
  return 1 + bisect_left(range(1, MOST + 1), POWER, key=lambda count: power(size, seeds + count, level))
