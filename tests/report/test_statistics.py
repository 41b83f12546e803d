"""Intervals, the crossing of a target, paired tests with Holm's correction, and power."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from ddl.report import statistics
from ddl.report.statistics import MOST, more_seeds, paired_tests, power, summary

NAN, INF = math.nan, math.inf
STEPS = np.array([0.0, 10.0, 30.0, 40.0, 50.0])


def seeds(values):
  return {f"seed {number}": float(value) for number, value in enumerate(values)}


def all_pairs(figures, ratio=False, **how):
  return paired_tests(figures, ratio, list(itertools.combinations(figures, 2)), **how)


def pair(first, second, ratio=False):
  """Test one pair, which needs no correction."""
  return all_pairs({"a": seeds(first), "b": seeds(second)}, ratio)["a", "b"]


@pytest.mark.parametrize("size", [2, 3, 5, 20])
def test_paired_test_against_scipy(size):
  rng = np.random.default_rng(size)
  first, second = rng.normal(3.0, 2.0, size), rng.normal(2.0, 1.0, size)
  result, wanted = pair(first, second), stats.ttest_rel(first, second)
  np.testing.assert_allclose((result.low, result.high), wanted.confidence_interval(0.95), rtol=1e-10)
  np.testing.assert_allclose(result.estimate, np.mean(first - second))
  np.testing.assert_allclose((result.p, result.p_holm), wanted.pvalue)
  assert result.seeds == size
  ratio = pair(np.exp(first), np.exp(second), ratio=True)
  np.testing.assert_allclose(np.log(ratio[1:2] + ratio[3:5]), result[1:2] + result[3:5], rtol=1e-10)
  assert ratio.scale == "ratio" and ratio.p == pytest.approx(result.p)
  shuffled = dict(reversed(seeds(second).items())) | {"seed 99": 1e9}
  again = all_pairs({"a": seeds(first), "b": shuffled})["a", "b"]
  assert again == result  # pairs common seeds by their names


def by_hand(values):
  """Return Holm's adjusted p-values as in the paper: the smallest times m, the next times m - 1, never decreasing."""
  adjusted, least = dict.fromkeys(range(len(values)), 0.0), 0.0
  for rank, (value, place) in enumerate(sorted(zip(values, itertools.count(), strict=False))):
    least = max(least, (len(values) - rank) * value)
    adjusted[place] = min(1.0, least)
  return list(adjusted.values())


def test_all_pairs_are_one_family():
  """a and b differ significantly only without the correction for all pairs."""
  assert by_hand([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
  noise = np.random.default_rng(2).normal(size=(4, 5)) + np.array([[0.0], [2.2], [1.1], [60.0]])
  figures = dict(zip("abcd", map(seeds, noise), strict=True))
  result = all_pairs(figures)
  names = list(itertools.combinations("abcd", 2))
  plain = [stats.ttest_rel(*(list(figures[label].values()) for label in labels)).pvalue for labels in names]
  np.testing.assert_allclose([result[labels].p for labels in names], plain, rtol=1e-9)
  np.testing.assert_allclose([result[labels].p_holm for labels in names], by_hand(plain), rtol=1e-9)
  single = all_pairs({label: figures[label] for label in "ab"})["a", "b"]
  assert single.p == result["a", "b"].p < 0.05 < result["a", "b"].p_holm
  assert single.more_seeds is None and result["a", "b"].more_seeds >= 1


def test_family_wise_error_rate_is_at_most_five_percent():
  rng, wrong = np.random.default_rng(5), 0
  for _ in range(400):
    figures = dict(zip("abcde", map(seeds, rng.normal(size=(5, 4))), strict=True))
    pairs = all_pairs(figures).values()
    np.testing.assert_allclose([pair.p_holm for pair in pairs], by_hand([pair.p for pair in pairs]), rtol=1e-12)
    assert all(pair.significant == (pair.p_holm < 0.05) for pair in pairs)
    wrong += any(pair.significant for pair in pairs)
  assert wrong / 400 < 0.05 + 3 * math.sqrt(0.05 * 0.95 / 400)  # without the correction it is about 0.25


@pytest.mark.parametrize(("size", "level"), [(1.2, 0.05), (0.5, 0.05), (1.0, 0.05 / 28)])
def test_more_seeds_reach_the_power_in_a_simulation(size, level):
  count, rng = 3 + more_seeds(size, 3, level), np.random.default_rng(7)

  def simulated(seeds, trials=20_000):
    samples = rng.normal(size, 1.0, (trials, seeds))
    return float(np.mean(stats.ttest_1samp(samples, 0.0, axis=1).pvalue < level))

  assert simulated(count) == pytest.approx(power(size, count, level), abs=4 * math.sqrt(0.8 * 0.2 / 20_000))
  assert power(size, count, level) >= 0.8 > power(size, count - 1, level)


def test_more_seeds_for_tabulated_and_zero_effects():
  assert 2 + more_seeds(0.5, 2, 0.05) == 34 and 2 + more_seeds(0.8, 2, 0.05) == 15  # G*Power, two-sided paired t-test
  assert more_seeds(1e-6, 3, 0.05) == MOST + 1
  assert pair([1.0, 2.0, 3.0], [1.0, 2.0, 3.0]).more_seeds is None  # equal
  assert pair([1.0, 2.0, 3.0], [2.0, 1.0, 3.0]).more_seeds is None  # no difference on average
  assert pair([9.0, 9.1, 9.2], [1.0, 1.2, 1.1]).more_seeds is None  # already significant
  assert pair([2.0, 1.0, 3.0], [1.0, 2.0, 1.0]).more_seeds == more_seeds(2 / 3 / math.sqrt(7 / 3), 3, 0.05)


@pytest.mark.parametrize("level", [0.05, 0.05 / 780])
def test_power_increases_and_the_search_finds_the_smallest_count(level):
  for size in (0.1, 0.4, 1.0, 3.0, 6.35, 50.0):  # SciPy has NaN for the tails of some of these
    powers = np.array([power(size, 3 + more, level) for more in range(1, MOST + 1)])
    assert np.all(np.diff(powers) > -1e-9) and np.all((powers >= 0) & (powers <= 1 + 1e-9))
    enough = np.flatnonzero(powers >= 0.8)
    assert more_seeds(size, 3, level) == (enough[0] + 1 if len(enough) else MOST + 1)


def test_spread_of_accuracies_is_at_least_their_rounding():
  """Each of three seeds has one more correct example: a t-test without rounding would have p = 0."""
  first, second = ({f"seed {n}": (count + more) / 360 for n, count in enumerate((340, 345, 349))} for more in (1, 0))
  values = [*first.values(), *second.values()]
  assert statistics.share_resolution(values) == 1 / 360
  result = all_pairs({"a": first, "b": second}, resolution=1 / 360)["a", "b"]
  assert result.p == pytest.approx(2 * stats.t.sf(math.sqrt(6) * math.sqrt(3), 2)) and not result.significant
  assert all_pairs({"a": first, "b": second})["a", "b"].p < 1e-6
  assert statistics.share_resolution([*values, 0.123456789]) == 0.0 and statistics.share_resolution([1.0, 0.0]) == 1.0
  assert statistics.share_resolution([]) == 1.0


@settings(deadline=None, max_examples=100)
@given(st.lists(st.tuples(st.floats(0, 100), st.floats(0, 100)), min_size=1, max_size=6), st.booleans())
def test_swapping_a_pair_inverts_the_estimate(figures, ratio):
  first, second = zip(*figures, strict=True)
  result, swapped = pair(first, second, ratio), pair(second, first, ratio)
  assert (result.p, result.more_seeds, result.scale) == (swapped.p, swapped.more_seeds, swapped.scale)
  mean = result.estimate
  inverse = (1 / mean if mean else math.inf) if result.scale == "ratio" else -mean
  assert inverse == pytest.approx(swapped.estimate, rel=1e-9, abs=1e-12)
  if result.low is not None:
    slack = 1e-9 * (1 + abs(mean))
    assert result.low <= mean + slack and mean <= result.high + slack


def test_pairs_with_one_common_seed_or_none():
  one = pair([2.0], [1.0])
  assert (one.estimate, one.seeds) == (1.0, 1)
  assert one[3:] == (*[None] * 6, 0.0)
  none = all_pairs({"a": seeds([1.0]), "b": {"seed 7": 2.0}, "c": {}}, ratio=True)
  assert {(item.seeds, item.p) for item in none.values()} == {(0, None)}


def test_equal_differences_are_significant_unless_due_to_rounding():
  result = pair([1.0, 2.0, 3.0], [2.0, 3.0, 4.0])
  assert (result.estimate, result.p, result.more_seeds) == (-1.0, 0.0, None)
  for ratio in (False, True):
    equal = pair([0.3, 0.6, 0.9], [0.1 * 3, 0.2 * 3, 0.3 * 3], ratio)
    assert (equal.p, equal.more_seeds) == (1.0, None)


def test_costs_are_compared_by_their_ratio():
  """The second label takes ten times as many bytes in each seed, but costs differ more between seeds."""
  first, second = [1.0, 9.0, 3.0], [10.0, 80.0, 33.0]
  assert not pair(first, second).significant and pair(first, second, ratio=True).significant
  zero = pair([0.0, 9.0, 3.0], second, ratio=True)
  assert zero == pair([0.0, 9.0, 3.0], second) and zero.scale == "difference"


@pytest.mark.parametrize("size", [2, 3, 5, 20])
def test_interval_of_costs_is_of_logarithms_and_positive(size):
  values = np.exp(np.random.default_rng(size).normal(-3.0, 2.0, size))
  mean, low, high = statistics.log_summary(values)
  np.testing.assert_allclose(mean, stats.gmean(values), rtol=1e-12)
  logs = np.log(values)
  wanted = stats.t.interval(0.95, size - 1, loc=logs.mean(), scale=stats.sem(logs))
  np.testing.assert_allclose(np.log([low, high]), wanted, rtol=1e-10)
  assert 0 < low < mean < high
  assert statistics.log_summary(values[::-1]) == (mean, low, high)


def test_one_seed_has_no_interval_nor_have_costs_of_zero():
  assert summary([0.7]) == pytest.approx((0.7, NAN), nan_ok=True)
  assert np.isnan([*summary([]), *summary([0.5, NAN])]).all()
  for values, mean in (([4.0], 4.0), ([0.0, 0.0], 0.0), ([0.0, 3.0], 1.5)):
    assert statistics.log_summary(values) == pytest.approx((mean, NAN, NAN), nan_ok=True)


@pytest.mark.parametrize(
  ("values", "target", "wanted"),  # the step, whether it was unseen, and whether the target is missed again
  [
    ([0.1, 0.5, 0.9, 0.95, 0.99], 0.8, (25.0, False, False)),  # 10 + 20 (0.8 - 0.5) / (0.9 - 0.5)
    ([0.1, 0.5, 0.9, 0.95, 0.99], 0.9, (30.0, False, False)),  # at an evaluation
    ([0.8, 0.9, 0.9, 0.95, 0.99], 0.8, (0.0, False, False)),  # before training, at no cost
    ([0.1, 0.5, 0.9, 0.2, 0.99], 0.7, (20.0, False, True)),
    ([0.1, 0.5, 0.4, 0.3, 0.45], 0.6, None),
    ([0.1, 0.5, NAN, 0.8, 0.9], 0.6, (20.0, False, False)),  # between 10 and 40: 10 + 30 (0.6 - 0.5) / (0.8 - 0.5)
    ([NAN, NAN, 0.9, 0.95, 0.99], 0.8, (30.0, True, False)),  # unknown before
    ([0.1, 0.5, INF, 0.6, 0.7], 0.65, (45.0, False, False)),
    ([NAN] * 5, 0.8, None),
    ([0.1, 0.9, 0.7, 0.9, 0.9], 0.8, (8.75, True, True)),  # exceeded at the first evaluation after the start
    ([0.1, 0.8, 0.9, 0.9, 0.9], 0.8, (10.0, False, False)),  # exactly at the target: not interpolated
    ([0.1, NAN, 0.9, 0.9, 0.9], 0.8, (26.25, True, False)),
  ],
)
def test_crossing_is_interpolated_between_evaluations(values, target, wanted):
  for curve in ((np.array(values), target, True), (1 - np.array(values), 1 - target, False)):
    met = statistics.crossing(STEPS, *curve)
    assert met == (wanted and (pytest.approx(wanted[0], rel=1e-12), *wanted[1:]))


def test_curves_are_interpolated_over_their_common_range():
  one, other = ([0.0, 10.0, 20.0, 40.0], [0.0, 1.0, 2.0, 4.0]), ([5.0, 20.0, 30.0], [1.0, 2.5, 9.0])
  x, values = statistics.common_grid([tuple(map(np.array, curve)) for curve in (one, other)])
  np.testing.assert_array_equal(x, [5, 10, 20, 30])
  np.testing.assert_allclose(values, [[0.5, 1.0, 2.0, 3.0], [1.0, 1.5, 2.5, 9.0]], rtol=1e-12)


def test_finite_rows_end_at_the_divergence():
  rows = {(1, 2, NAN, 4): [0, 1], (NAN, 2, 3, INF): [1, 2], (NAN, INF): [], (1, 2): [0, 1], (): []}
  for values, wanted in rows.items():
    assert statistics.finite_rows(np.array(values, float)).tolist() == wanted


def test_intervals_are_clipped_to_the_range_of_the_metric():
  mean, half = np.array([0.99, 0.01, 0.5, 0.5]), np.array([0.02, 0.02, 0.02, 0.6])
  low, high = statistics.interval_ends("test_accuracy", mean, half)
  np.testing.assert_allclose((low, high), ([0.97, 0.0, 0.48, 0.0], [1.0, 0.03, 0.52, 1.0]))
  assert statistics.interval_ends("distance", 0.1, 0.3) == pytest.approx((0.0, 0.4))
  assert statistics.interval_ends("test_loss", 0.1, 0.3) == pytest.approx((-0.2, 0.4))
