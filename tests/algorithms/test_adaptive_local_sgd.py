"""Local SGD with a schedule of periods: its rounds, and special cases in float64 at rtol 1e-12."""

import jax.numpy as jnp
import pytest
from helpers.twins import INNER, build, close, drive
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import collective as reference

from ddl import periods_by_loss
from ddl.schedule import Schedule

PAIRS = st.lists(st.tuples(st.integers(1, 9), st.integers(1, 6)), max_size=4)


def with_periods(*periods):
  return build("adaptive_local_sgd", INNER["adam"][0], periods=periods)


def run(algorithm, steps=12):
  x0, grad = reference.problem(8, steps)
  return drive(algorithm, x0, grad, workers=8, steps=steps)


def same(one, other):
  for ours, expected in zip(one[:2], other[:2], strict=True):
    close(ours, expected)


def test_a_constant_schedule_is_local_sgd(x64):
  same(run(with_periods((0, 4), (5, 4), (9, 4))), run(build("local_sgd", INNER["adam"][0], period=4)))


@pytest.mark.parametrize("start", [0, 3])
def test_two_phases_are_post_local_sgd(x64, start):
  periods = ((0, 1), (start, 4)) if start else ((0, 4),)
  same(run(with_periods(*periods)), run(build("post_local_sgd", INNER["adam"][0], period=4, start=start)))


def averages(algorithm, steps):
  schedule = Schedule(algorithm.exchanges)
  return [t + 1 for t in range(steps) if schedule.due(t)]


def test_rounds_by_hand():
  assert averages(with_periods((0, 3), (4, 2), (9, 5)), 30) == [3, 6, 8, 10, 15, 20, 25, 30]
  assert averages(with_periods((0, 1), (3, 2), (7, 4)), 20) == [1, 2, 3, 5, 7, 11, 15, 19]
  assert averages(with_periods((0, 10), (3, 2), (7, 4)), 20) == [10, 14, 18]  # no round begins at steps 3 to 6


@settings(max_examples=30)
@given(st.integers(1, 6), PAIRS)
def test_a_round_has_the_period_of_the_step_where_it_begins(tau, more):
  periods, step = [(0, tau)], 0
  for gap, tau in more:
    step += gap
    periods.append((step, tau))
  expected, t = [], 0
  while t < 60:
    t += [tau for first, tau in periods if first <= t][-1]
    expected.append(t)
  algorithm = with_periods(*periods)
  assert averages(algorithm, 60) == [t for t in expected if t <= 60]
  (exchange,) = algorithm.exchanges
  assert [int(exchange.period(jnp.int32(k))) for k in range(5)] == [exchange.period(k) for k in range(5)]


@pytest.mark.parametrize(
  "periods", [(), ((1, 4),), ((0, 4), (0, 2)), ((0, 4), (5, 2), (3, 1)), ((0, 0), (5, 1)), ((0,), (4,))]
)
def test_invalid_periods_are_refused(periods):
  with pytest.raises(ValueError, match=r"^adaptive_local_sgd.periods must be ") as refused:
    with_periods(*periods)
  assert "\n" not in str(refused.value)


def test_periods_follow_the_loss():
  """The period is ceil(sqrt(F / F_0) 16), or half of the previous one if the loss does not decrease enough."""
  steps, losses = [0, 5, 10, 20, 28, 30, 40, 50, 60], [4.0, 9.0, 1.0, 2.0, 0.5, 0.3, 0.04, 4.0, 4.0]
  result = periods_by_loss(steps, losses, period=16, every=10)
  assert result == ((0, 16), (10, 8), (20, 4), (30, 2), (40, 1), (50, 1), (60, 1))
  result = periods_by_loss(steps[:5], [4.0, 4.0, 3.0, 2.0, 0.7], period=16, every=7)
  assert result == ((0, 16), (7, 8), (14, 4), (21, 2), (28, 1))
  smooth = periods_by_loss(range(0, 101, 10), [1.0 - 0.009 * t for t in range(0, 101, 10)], period=20, every=50)
  assert smooth == ((0, 20), (50, 15), (100, 7))  # sqrt(0.55) 20 = 14.8, sqrt(0.1) 20 = 6.3
  with_periods(*smooth)


@pytest.mark.parametrize("steps, losses", [([0, 1], [1.0, 0.0]), ([0], [float("nan")]), ([5], [1.0]), ([], [])])
def test_invalid_losses_are_refused(steps, losses):
  with pytest.raises(ValueError, match=r"periods_by_loss\.losses must "):
    periods_by_loss(steps, losses, period=4, every=5)
