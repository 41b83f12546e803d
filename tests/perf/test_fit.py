"""Fits recover the parameters of simulated measurements, also with noise and outliers."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddl.perf import fit
from ddl.perf.cluster import LinkModel, NetworkModel
from ddl.perf.collectives import all_reduce

SIZES = [2**k for k in range(10, 25)]
LATENCIES, BANDWIDTHS = st.floats(1e-6, 1e-3), st.floats(1e7, 1e11)


def one_message(nbytes, link):
  return link.seconds(nbytes)


def disturbed(exact, seed, noise=0.02, outliers=2, factor=5.0):
  """Add relative noise, and multiply some times by `factor`."""
  rng = np.random.default_rng(seed)
  times = np.asarray(exact) * np.exp(rng.normal(0, noise, len(exact)))
  times[rng.choice(len(exact), outliers, replace=False)] *= factor
  return times


@settings(max_examples=12)
@given(LATENCIES, BANDWIDTHS)
def test_fit_recovers_an_exact_link(latency, bandwidth):
  link = LinkModel(latency, bandwidth)
  sizes = [latency * bandwidth * share for share in (0.01, 0.1, 1, 10, 100)]
  result, errors = fit.fit_link(sizes, [link.seconds(n) for n in sizes], one_message)
  np.testing.assert_allclose(result[:2], link[:2], rtol=1e-4)
  np.testing.assert_allclose(errors, 0, atol=1e-4)


@settings(max_examples=12)
@given(st.floats(1e-5, 1e-3), st.floats(1e8, 1e10), st.integers(2, 9), st.integers(0, 1000))
def test_fit_of_a_link_is_robust_to_noise_and_outliers(latency, bandwidth, workers, seed):
  link = LinkModel(latency, bandwidth)
  cost = lambda n, link: all_reduce(n, workers, NetworkModel(link), "ring")  # noqa: E731
  sizes = np.geomspace(0.01, 100, 15) * latency * bandwidth * workers
  exact = np.array([cost(n, link) for n in sizes])
  times = disturbed(exact, seed)
  result, errors = fit.fit_link(sizes, times, cost)
  np.testing.assert_allclose([cost(n, result) for n in sizes], exact, rtol=0.1)
  np.testing.assert_allclose(errors, [cost(n, result) / t - 1 for n, t in zip(sizes, times, strict=True)], atol=1e-12)
  assert np.sum(errors < -0.6) == 2  # the outliers


@settings(max_examples=12)
@given(st.floats(1e-5, 1e-3), st.floats(1e9, 1e11), st.floats(1e9, 1e11), st.integers(0, 1000))
def test_fitted_rates_predict_held_out_steps(fixed, flop_rate, memory_rate, seed):
  rates = fit.Rates(fixed, flop_rate, memory_rate)
  rng = np.random.default_rng(seed)
  flop, nbytes = 10 ** rng.uniform(5, 10, (2, 40))
  flop[:6], nbytes[:6] = 1e4, 1e4  # small steps determine the fixed seconds
  times = disturbed([rates.seconds(*x) for x in zip(flop, nbytes, strict=True)], seed)
  result, _ = fit.fit_rates([""] * 30, flop[:30], nbytes[:30], times[:30])
  held_out = [result[""].seconds(*x) / rates.seconds(*x) for x in zip(flop[30:], nbytes[30:], strict=True)]
  np.testing.assert_allclose(held_out, 1, atol=0.1)


def test_undetermined_parameters_cost_almost_nothing():
  """Messages without latency, and steps with a constant number of bytes."""
  result, _ = fit.fit_link(SIZES, [n / 1e9 for n in SIZES], one_message)
  assert result.latency < 1e-9 and result.bandwidth == pytest.approx(1e9, rel=1e-3)
  flop = np.geomspace(1e6, 1e9, 9)
  result, _ = fit.fit_rates(["dense"] * 9, flop, np.full(9, 1e6), 1e-4 + flop / 1e10)
  rates = result["dense"]
  assert rates.flop == pytest.approx(1e10, rel=1e-3)
  assert rates.seconds(0, 1e6) == pytest.approx(1e-4, rel=1e-3)


def test_kinds_of_steps_share_all_rates_except_flop():
  flop, nbytes = np.geomspace(1e6, 1e9, 12), np.tile([1e6, 3e7, 4e5], 4)
  kinds = ["dense", "convolution"] * 6
  rate = np.where([kind == "dense" for kind in kinds], 5e10, 1e10)
  result, errors = fit.fit_rates(kinds, flop, nbytes, 1e-4 + flop / rate + nbytes / 8e9)
  np.testing.assert_allclose(errors, 0, atol=1e-4)
  assert result["dense"][::2] == result["convolution"][::2] == pytest.approx((1e-4, 8e9), rel=1e-2)
  assert (result["dense"].flop, result["convolution"].flop) == pytest.approx((5e10, 1e10), rel=1e-2)
  fed = np.tile([1e3, 1e6, 1e4, 3e5], 3)
  seconds = 1e-4 + flop / rate + nbytes / 8e9 + fed / 5e8
  result, _ = fit.fit_rates(kinds, flop, nbytes, seconds, fed)
  assert result["dense"].feed == pytest.approx(5e8, rel=1e-2)
  assert result["dense"].seconds(flop[0], nbytes[0], fed[0]) == pytest.approx(seconds[0], rel=1e-3)
