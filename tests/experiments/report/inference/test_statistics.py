"""Intervals, bands and the crossing of a target."""

import math

import numpy as np
import pytest
from scipy import stats

from ddl.report.statistics import band, crossing, finite_prefix, interval_ends, log_summary, summary, unseen


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


STEPS = np.array([0.0, 10.0, 30.0, 40.0, 50.0])
NAN, INF = math.nan, math.inf


@pytest.mark.parametrize(
  ("values", "target", "step"),
  [
    ([0.1, 0.5, 0.9, 0.95, 0.99], 0.8, 25.0),  # 10 + 20 (0.8 - 0.5) / (0.9 - 0.5)
    ([0.1, 0.5, 0.9, 0.95, 0.99], 0.9, 30.0),  # at an evaluation
    ([0.8, 0.5, 0.9, 0.95, 0.99], 0.8, 0.0),  # before training
    ([0.1, 0.5, 0.9, 0.2, 0.99], 0.7, 20.0),  # falls below again
    ([0.1, 0.5, 0.4, 0.3, 0.45], 0.6, None),
    ([0.1, 0.5, NAN, 0.8, 0.9], 0.6, 20.0),  # between 10 and 40: 10 + 30 (0.6 - 0.5) / (0.8 - 0.5)
    ([NAN, NAN, 0.9, 0.95, 0.99], 0.8, 30.0),  # nothing is known of before
    ([0.1, 0.5, INF, 0.6, 0.7], 0.65, 45.0),
    ([NAN] * 5, 0.8, None),
  ],
)
def test_the_crossing_is_interpolated_between_the_evaluations_around_it(values, target, step):
  wanted = None if step is None else pytest.approx(step, rel=1e-12)
  assert crossing(STEPS, np.array(values), target, higher_is_better=True) == wanted
  assert crossing(STEPS, 1 - np.array(values), 1 - target, higher_is_better=False) == wanted


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


def test_an_interval_is_cut_where_the_quantity_cannot_be_and_nowhere_else():
  assert interval_ends("test_accuracy", 0.99, 0.02) == pytest.approx((0.97, 1.0))
  assert interval_ends("test_accuracy", 0.01, 0.02) == pytest.approx((0.0, 0.03))
  assert interval_ends("test_accuracy", 0.5, 0.02) == pytest.approx((0.48, 0.52))
  assert interval_ends("distance", 0.1, 0.3) == pytest.approx((0.0, 0.4))
  assert interval_ends("test_loss", 0.1, 0.3) == pytest.approx((-0.2, 0.4))
  low, high = interval_ends("test_accuracy", np.array([0.5, 0.99]), np.array([0.6, 0.02]))
  np.testing.assert_allclose((low, high), ([0.0, 0.97], [1.0, 1.0]))


@pytest.mark.parametrize(
  "steps, values, expected",
  [
    ([0, 10, 20], [0.1, 0.96, 0.97], True),
    ([0, 10, 20], [0.1, 0.95, 0.97], False),  # exactly there: nothing is interpolated
    ([0, 10, 20], [0.1, 0.94, 0.97], False),
    ([0, 10, 20], [0.96, 0.97, 0.97], False),  # the start meets it, at no cost
    ([10, 20], [0.96, 0.97], True),  # no start is known
    ([0, 10, 20], [0.1, math.nan, 0.97], True),
    ([0, 10], [0.1, 0.2], False),
  ],
)
def test_a_target_that_is_passed_at_the_first_evaluation_was_met_unseen(steps, values, expected):
  assert unseen(np.array(steps), np.array(values), 0.95, True) is expected
  assert unseen(np.array(steps), 1 - np.array(values), 1 - 0.95, False) is expected
