"""Intervals, the paired test of significance, bands and targets, as properties."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from experiments.report.statistics import band, finite_prefix, first_reaching, log_summary, paired, summary


@pytest.mark.parametrize("size", [2, 3, 5, 20])
def test_summary_is_the_student_interval(size):
  values = np.random.default_rng(size).normal(3.0, 2.0, size)
  mean, half = summary(values)
  low, high = stats.t.interval(0.95, size - 1, loc=values.mean(), scale=stats.sem(values))
  np.testing.assert_allclose([mean - half, mean + half], [low, high], rtol=1e-12)


def test_summary_of_few_and_of_nan():
  assert summary([0.7]) == (0.7, None)
  assert math.isnan(summary([])[0]) and summary([])[1] is None
  assert math.isnan(summary([0.5, math.nan])[0])


@pytest.mark.parametrize("size", [2, 3, 5, 20])
def test_the_interval_of_costs_is_that_of_the_logarithm_and_stays_above_zero(size):
  values = np.exp(np.random.default_rng(size).normal(-3.0, 2.0, size))
  mean, (low, high) = log_summary(values)
  np.testing.assert_allclose(mean, stats.gmean(values), rtol=1e-12)
  logs = np.log(values)
  wanted = stats.t.interval(0.95, size - 1, loc=logs.mean(), scale=stats.sem(logs))
  np.testing.assert_allclose(np.log([low, high]), wanted, rtol=1e-10)
  assert 0 < low < mean < high
  assert log_summary(values[::-1]) == (mean, (low, high))


def test_costs_of_one_seed_and_of_zero():
  assert log_summary([4.0]) == (pytest.approx(4.0), None)
  assert log_summary([0.0, 0.0]) == (0.0, None) and log_summary([0.0, 3.0]) == (1.5, None)


def test_first_reaching_is_the_first_line_that_meets_the_target():
  values = np.array([0.1, math.nan, 0.9, 0.95, 0.8, 0.99])
  assert first_reaching(values, 0.9, higher_is_better=True) == 2
  assert first_reaching(values, 0.96, higher_is_better=True) == 5
  assert first_reaching(values, 1.0, higher_is_better=True) is None
  assert first_reaching(np.array([math.nan, 2.0, 0.5]), 0.5, higher_is_better=False) == 2
  assert first_reaching(np.array([math.nan]), 0.5, higher_is_better=False) is None


def test_band_covers_what_all_seeds_cover():
  long = (np.array([0.0, 10.0, 20.0, 40.0]), np.array([0.0, 1.0, 2.0, 4.0]))
  late = (np.array([5.0, 20.0, 30.0]), np.array([1.0, 2.5, 9.0]))
  x, mean, half = band([long, late])
  np.testing.assert_array_equal(x, [5, 10, 20, 30])  # neither 0 nor 40: one seed alone
  expected = [summary([0.5, 1.0]), summary([1.0, 1.5]), summary([2.0, 2.5]), summary([3.0, 9.0])]
  np.testing.assert_allclose(mean, [m for m, _ in expected], rtol=1e-12)
  np.testing.assert_allclose(half, [h for _, h in expected], rtol=1e-12)
  assert band([long])[2] is None
  assert len(band([long, (np.array([50.0]), np.array([1.0]))])[0]) == 0


def test_finite_prefix_ends_before_the_first_nan():
  x, y = finite_prefix(np.arange(4.0), np.array([1.0, 2.0, math.inf, 3.0]))
  np.testing.assert_array_equal((x, y), ([0, 1], [1, 2]))


def exact(values):
  return {f"seed {number}": (value, value) for number, value in enumerate(values)}


@pytest.mark.parametrize("size", [2, 3, 5, 20])
def test_the_interval_is_that_of_the_paired_t_test(size):
  rng = np.random.default_rng(size)
  first, second = rng.normal(3.0, 2.0, size), rng.normal(2.0, 1.0, size)
  found, wanted = paired(exact(first), exact(second)), stats.ttest_rel(first, second).confidence_interval(0.95)
  np.testing.assert_allclose((found.low, found.high), wanted, rtol=1e-12)
  assert bool(found.sign) == bool(stats.ttest_rel(first, second).pvalue < 0.05)
  ratio = paired(exact(np.exp(first)), exact(np.exp(second)), ratio=True)  # is tested by the logarithms
  np.testing.assert_allclose(np.log(ratio[:3]), found[:3], rtol=1e-10)
  shuffled = dict(reversed(exact(second).items())) | {"seed 99": (1e9, 1e9)}
  assert paired(exact(first), shuffled) == found  # by the seeds' names, of those that both have


FIGURES = st.lists(st.tuples(st.floats(0, 100), st.floats(0, 100), st.floats(0, 5)), min_size=1, max_size=6)


@settings(deadline=None, max_examples=100)
@given(FIGURES)
def test_the_other_way_round_is_the_other_sign_and_brackets_only_widen(figures):
  a = {str(number): (value - gap, value) for number, (value, _, gap) in enumerate(figures)}
  b = {str(number): (value - gap, value) for number, (_, value, gap) in enumerate(figures)}
  found, back = paired(a, b), paired(b, a)
  assert found.sign == -back.sign and found.low <= found.mean <= found.high
  np.testing.assert_allclose((found.mean, found.low, found.high), (-back.mean, -back.high, -back.low), atol=1e-9)
  sharp = paired({n: (high, high) for n, (_, high) in a.items()}, {n: (high, high) for n, (_, high) in b.items()})
  assert found.low <= sharp.low + 1e-9 and sharp.high <= found.high + 1e-9 and found.sign in (0, sharp.sign)


def test_of_one_seed_and_of_none():
  one = paired(exact([2.0]), exact([1.0]))
  assert one == (1.0, 1.0, 1.0, False, 1)  # the order, without an interval
  assert paired(exact([1.0]), {"seed 7": (2.0, 2.0)}).sign == 0
  assert paired(exact([1.0, 2.0]), exact([1.0, 2.0])).sign == 0  # equal


def test_costs_that_scale_with_the_seed_are_compared_by_their_ratio():
  """Each seed takes ten times the bytes with the second; how long a seed takes spreads more than that."""
  first, second = exact([1.0, 9.0, 3.0]), exact([10.0, 80.0, 33.0])
  assert paired(first, second).sign == 0 and paired(first, second, ratio=True).sign == -1
  assert paired(second, first, ratio=True).sign == 1
  assert paired(exact([0.0, 9.0]), exact([10.0, 80.0]), ratio=True) == paired(exact([0.0, 9.0]), exact([10.0, 80.0]))
