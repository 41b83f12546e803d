"""Local SGD with a schedule of periods: its rounds, and what it equals in float64 at rtol 1e-12."""

import jax.numpy as jnp
import pytest
from helpers.twins import INNER, build, close, drive
from hypothesis import given
from hypothesis import strategies as st
from reference import collective as reference

from ddl.schedule import Schedule

PAIRS = st.lists(st.tuples(st.integers(1, 9), st.integers(1, 6)), max_size=4)


def made(*periods):
  return build("adaptive_local_sgd", INNER["adam"][0], periods=periods)


def run(algorithm, steps=12):
  x0, grad = reference.problem(8, steps)
  return drive(algorithm, x0, grad, workers=8, steps=steps)


def same(one, other):
  for ours, expected in zip(one[:2], other[:2], strict=True):
    close(ours, expected)


@pytest.mark.parametrize("periods", [((0, 4),), ((0, 4), (5, 4), (9, 4))])
def test_a_constant_schedule_is_local_sgd(x64, periods):
  same(run(made(*periods)), run(build("local_sgd", INNER["adam"][0], period=4)))


@pytest.mark.parametrize("start", [0, 3, 100])
def test_two_phases_are_post_local_sgd(x64, start):
  periods = ((0, 1), (start, 4)) if start else ((0, 4),)
  same(run(made(*periods)), run(build("post_local_sgd", INNER["adam"][0], period=4, start=start)))


def averages(algorithm, steps):
  schedule = Schedule(algorithm.exchanges)
  return [t + 1 for t in range(steps) if schedule.due(t)]


def test_rounds_by_hand():
  assert averages(made((0, 3), (4, 2), (9, 5)), 30) == [3, 6, 8, 10, 15, 20, 25, 30]
  assert averages(made((0, 1), (3, 2), (7, 4)), 20) == [1, 2, 3, 5, 7, 11, 15, 19]
  assert averages(made((0, 10), (3, 2), (7, 4)), 20) == [10, 14, 18]  # no round begins at steps 3 to 6


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
  algorithm = made(*periods)
  assert averages(algorithm, 60) == [t for t in expected if t <= 60]
  (exchange,) = algorithm.exchanges
  assert [int(exchange.period(jnp.int32(k))) for k in range(5)] == [exchange.period(k) for k in range(5)]


@pytest.mark.parametrize(
  "periods", [(), ((1, 4),), ((0, 4), (0, 2)), ((0, 4), (5, 2), (3, 1)), ((0, 0), (5, 1)), ((0,), (4,))]
)
def test_what_are_no_periods_is_refused(periods):
  with pytest.raises(ValueError, match=r"^adaptive_local_sgd: periods is .*; invalid: must be pairs") as refused:
    made(*periods)
  assert "\n" not in str(refused.value)
