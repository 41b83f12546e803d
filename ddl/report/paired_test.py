"""The one test of significance of a report: paired t-tests over seeds, corrected for the number of pairs.

For labels a and b the test is of d_s = x_as - x_bs over the seeds s that both have a figure of, or, for costs, which
scale with the difficulty of a seed, of d_s = log x_as - log x_bs. Algorithms share a seed's initial parameters, order
of examples and times of steps, which correlates their figures: Var(a - b) = Var(a) + Var(b) - 2 Cov(a, b), so that the
differences spread less than the figures do. Without a correlation the test is valid, with fewer degrees of freedom
than an unpaired one. It is of all seeds: a mean over those alone in which both labels came to a figure is selected by
the outcome that is compared.

Holm (1979), "A simple sequentially rejective multiple test procedure", Scandinavian Journal of Statistics 6, 65-70.
Hedges (1981), "Distribution theory for Glass's estimator of effect size", doi 10.3102/10769986006002107.
Lakens (2013), "Calculating and reporting effect sizes", doi 10.3389/fpsyg.2013.00863.
"""

import math
from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np
from scipy import special

from ddl.report.statistics import Span

LEVEL = 0.05  # of all the tests of a family together
POWER = 0.8
MOST = 1000  # seeds that `more_seeds` adds at most
COUNTED = 50_000  # examples; a finer resolution is far below the spread over seeds
ROUNDING = 1e-12  # of the larger figure: smaller differences count as 0


class Pair(NamedTuple):
  """Two labels over their common seeds: first minus second, or first over second."""

  mean: float  # of a ratio the geometric one; NaN without a common seed
  interval: Span | None  # Student's, of 95 %, of this pair alone; None for fewer than two seeds and without a test
  ratio: bool
  seeds: int  # that both have a figure of
  p: float | None = None  # of the two-sided test; None where there is none
  p_holm: float | None = None  # adjusted for all the tested pairs of the family
  effect: float | None = None  # `hedges_gz`
  more_seeds: int | None = None  # `more_seeds`
  sign: int = 0  # -1 where the first is significantly smaller, 1 where it is larger, 0 for neither

  def reversed(self) -> "Pair":
    """The second against the first."""
    mean = _turned(self.mean, self.ratio)
    interval = self.interval and (_turned(self.interval[1], self.ratio), _turned(self.interval[0], self.ratio))
    effect = None if self.effect is None else -self.effect
    return self._replace(mean=mean, interval=interval, effect=effect, sign=-self.sign)


def _turned(value: float, ratio: bool) -> float:
  return -value if not ratio else 1 / value if value else math.inf


def paired_tests(
  figures: Mapping[str, Mapping[str, float]],
  ratio: bool,
  resolution: float = 0.0,
  family: Iterable[tuple[str, str]] | None = None,
  described: Collection[tuple[str, str]] = (),
) -> dict[tuple[str, str], Pair]:
  """Test pairs of labels as one family, by (first, second) and by (second, first).

  A pair is significantly different where its p, adjusted by `holm`, is below 5 %: the probability that any pair of
  equals is told apart is at most that. With one seed `sign` is the order in that seed, which is no evidence.

  Args:
    figures: by label and by seed; a pair is tested over the seeds that both have.
    ratio: test the ratio of two labels where all their figures are above 0, else the difference.
    resolution: of figures that are its multiples, such as 1 / 360 for accuracies on 360 examples. Rounding to it alone
      gives a difference the variance 2 resolution^2 / 12, below which a spread over few seeds is not believed.
    family: the pairs, each one way round; None: all. Chosen before the figures are known, as Holm's procedure asks.
    described: those of them that have no test, only a mean over their common seeds.
  """
  found, sizes = {}, {}
  for pair in combinations(figures, 2) if family is None else family:
    found[pair], sizes[pair] = _paired(figures[pair[0]], figures[pair[1]], ratio, resolution)
    if pair in described:
      found[pair] = Pair(found[pair].mean, None, found[pair].ratio, found[pair].seeds)
  tested = [pair for pair in found if found[pair].p is not None]
  adjusted = holm([found[pair].p for pair in tested])
  for pair, p_holm in zip(tested, adjusted, strict=True):
    each, more = found[pair], None
    sign = _sign(each) if p_holm < LEVEL else 0
    if not sign and sizes[pair] > 0:
      more = more_seeds(sizes[pair], each.seeds, LEVEL / len(tested))
    found[pair] = each._replace(p_holm=p_holm, more_seeds=more, sign=sign)
  return found | {pair[::-1]: each.reversed() for pair, each in found.items()}


def _sign(pair: Pair) -> int:
  return int(np.sign(pair.mean - 1 if pair.ratio else pair.mean))


def _paired(
  first: Mapping[str, float], second: Mapping[str, float], ratio: bool, resolution: float
) -> tuple[Pair, float]:
  """The pair by itself, and |mean| / s of its differences: 0 where the mean is 0 or nothing spreads."""
  common = [seed for seed in first if seed in second]
  if not common:
    return Pair(math.nan, None, ratio, 0), 0.0
  a, b = (np.array([values[seed] for seed in common], np.float64) for values in (first, second))
  ratio = ratio and min(a.min(), b.min()) > 0
  if ratio:
    a, b = np.log(a), np.log(b)
  differences = a - b
  scale = 1.0 if ratio else np.maximum(np.abs(a), np.abs(b))
  differences[np.abs(differences) <= ROUNDING * scale] = 0.0
  count, mean = len(common), float(differences.mean())
  deviation = max(float(differences.std(ddof=1)), resolution / math.sqrt(6)) if count > 1 else math.nan
  half = float(special.stdtrit(count - 1, 0.975)) * deviation / math.sqrt(count) if count > 1 else math.nan
  with np.errstate(over="ignore"):  # two seeds may have an interval from 0 to infinity
    shown, low, high = np.exp([mean, mean - half, mean + half]).tolist() if ratio else (mean, mean - half, mean + half)
  pair = Pair(shown, (low, high) if count > 1 else None, ratio, count)
  if count == 1:
    return pair._replace(sign=_sign(pair)), 0.0
  if deviation <= ROUNDING * np.max(scale):  # the same difference with every seed
    return pair._replace(p=float(mean == 0)), 0.0
  size = mean / deviation
  p = 2 * float(special.stdtr(count - 1, -abs(size) * math.sqrt(count)))
  return pair._replace(p=p, effect=hedges_gz(size, count)), abs(size)


def share_resolution(values: Sequence[float]) -> float:
  """1 / N for the smallest N of which all shares are multiples, so that N examples have been counted; 0 for none."""
  counts = np.arange(1, COUNTED + 1)
  for value in values:
    shares = value * counts
    counts = counts[np.abs(shares - np.round(shares)) <= 1e-9 * counts]
  return 1 / float(counts[0]) if len(counts) else 0.0


def holm(values: Sequence[float]) -> list[float]:
  """Adjusted p: of the k-th smallest of m, counted from 0, the largest (m - j) p_j of all j <= k, at most 1."""
  p = np.asarray(values, np.float64)
  order = np.argsort(p, kind="stable")
  adjusted = np.empty_like(p)
  adjusted[order] = np.minimum(np.maximum.accumulate((len(p) - np.arange(len(p))) * p[order]), 1.0)
  return adjusted.tolist()


def hedges_gz(size: float, seeds: int) -> float | None:
  """Hedges' g_z = J d_z of paired samples: d_z = mean(d) / s(d), J = G(m/2) / (sqrt(m/2) G((m-1)/2)), m = n - 1.

  It is in units of the spread of the paired differences, as test and power are. J removes the bias of few seeds; for
  two there is no unbiased estimate, and the result is None.
  """
  m = seeds - 1
  if m < 2:
    return None
  return float(size * math.exp(special.gammaln(m / 2) - special.gammaln((m - 1) / 2)) / math.sqrt(m / 2))


def power(size: float, seeds: int, level: float) -> float:
  """P(|T| > t(1 - level / 2, n - 1)), T noncentral t with n - 1 degrees of freedom around d_z sqrt(n)."""
  df, center = seeds - 1, size * math.sqrt(seeds)
  critical = special.stdtrit(df, 1 - level / 2)
  below, lower = np.nan_to_num(special.nctdtr(df, center, [critical, -critical]))  # NaN where too small for a float
  return float(1 - below + lower)


def detectable(seeds: int, level: float) -> float:
  """The smallest |mean(d)| / s(d), of all seeds there could be, that a test of this level finds with a power of 0.8."""
  low, high = 0.0, 1.0
  while power(high, seeds, level) < POWER:
    low, high = high, 2 * high
  while high - low > 1e-3 * high:
    middle = (low + high) / 2
    low, high = (middle, high) if power(middle, seeds, level) < POWER else (low, middle)
  return high


def more_seeds(size: float, seeds: int, level: float) -> int:
  """The fewest additional seeds that give a paired t-test of this level a power of 0.8; MOST + 1 for more than MOST.

  Of a family of m pairs the level is 5 % / m, the first that Holm's procedure asks for, so that they are enough
  whatever the other pairs turn out to be.

  Args:
    size: |mean(d)| / s(d) as observed, above 0; that mean and spread stay as they are is the assumption.
    seeds: of the observation.
  """
  return 1 + bisect_left(range(1, MOST + 1), POWER, key=lambda count: power(size, seeds + count, level))
