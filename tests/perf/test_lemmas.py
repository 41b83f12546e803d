"""The lemmas on workers and servers, the hiding condition and PALEO's model against published values and searches."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddl.perf import bounds, neural_networks
from ddl.perf.layers import Layer, params_bytes
from experiments.papers import dasgd

OVERHEADS = st.floats(1e-4, 10)
TIMES = st.floats(1e-4, 10)


def test_efficiencies_are_the_published_ones():
  for overhead, efficiencies, most in (
    (0.05, (0.955, 0.875, 0.750, 0.583), 6.25),
    (0.10, (0.917, 0.786, 0.611, 0.423), 3.75),
    (0.20, (0.857, 0.667, 0.462, 0.286), 2.5),
  ):
    assert [bounds.efficiency(g, overhead) for g in (2, 4, 8, 16)] == pytest.approx(efficiencies, abs=5e-4)
    assert bounds.workers_for(0.8, overhead) == pytest.approx(most)
  result = [bounds.overhead_for(0.8, g) for g in (2, 4, 8, 16)]
  assert result == pytest.approx([0.333, 0.091, 0.037, 0.017], abs=5e-4)


@given(st.floats(1, 1e4), OVERHEADS)
def test_efficiency_workers_and_overhead_are_inverses(workers, overhead):
  # The definition with T_C = 1, T_O = R_O.
  assert workers * bounds.efficiency(workers, overhead) == pytest.approx((1 + overhead) / (1 / workers + overhead))
  share = bounds.efficiency(workers, overhead)
  assert bounds.workers_for(share, overhead) == pytest.approx(workers, rel=1e-6)
  if share * workers > 1 + 1e-4:  # otherwise the quotient cancels
    assert bounds.overhead_for(share, workers) == pytest.approx(overhead, rel=1e-6)
  assert workers * bounds.efficiency(workers, overhead) <= bounds.speedup_limit(overhead) * (1 + 1e-12)


def test_without_overhead():
  assert bounds.efficiency(64, 0) == 1
  assert bounds.workers_for(0.8, 0) == bounds.speedup_limit(0) == math.inf
  assert bounds.overhead_for(1, 4) == 0


def test_servers_of_alexnet():
  assert bounds.servers_for(244e6, 4, 10e9 / 8, 1.0) == 2  # 1.56
  assert bounds.servers_for(244e6, 4, 1e9 / 8, 1.0) == 16  # 15.6
  assert bounds.servers_for(244e6, 4, 1e9 / 8, 1.0, duplex=1) == 8
  assert bounds.servers_for(1e9, 3, 1e9, 1.0) == 6  # an exact quotient is not rounded up
  assert bounds.servers_for(1.0, 1, 1e9, 1.0) == 1


@given(st.floats(1e3, 1e10), st.integers(1, 512), st.floats(1e6, 1e11), TIMES, st.sampled_from([0.0, 0.5, 1.0]))
def test_servers_are_the_fewest_that_hide_the_exchange(nbytes, workers, bandwidth, seconds, duplex):
  servers = bounds.servers_for(nbytes, workers, bandwidth, seconds, duplex)

  def busy(n):
    return (2 - duplex) * nbytes / n * workers / bandwidth

  assert busy(servers) <= seconds * (1 + 1e-9)
  assert servers == 1 or busy(servers - 1) > seconds


@given(st.one_of(st.just(0.0), TIMES), TIMES)
def test_smallest_delay_hides_the_exchange(message, step):
  delay = bounds.smallest_delay(message, step)
  assert delay * step >= message * (1 - 1e-9)
  assert delay == 0 or (delay - 1) * step < message
  assert bounds.exposed_share(message, step, period=max(1, delay), delay=delay) <= 1e-9


@given(TIMES, TIMES, st.floats(0.01, 0.9), st.integers(0, 5))
def test_smallest_period_equals_that_of_a_search(message, step, share, delay):
  period = bounds.smallest_period(message, step, share=share, delay=delay)
  assert period >= max(1, delay)
  assert bounds.exposed_share(message, step, period=period, delay=delay) <= share * (1 + 1e-9)
  if period > max(1, delay):
    assert bounds.exposed_share(message, step, period=period - 1, delay=delay) > share * (1 - 1e-9)


def test_smallest_period_with_a_delay_that_hides_everything():
  assert bounds.smallest_period(2.0, 1.0, share=0.0, delay=2) == 2
  assert bounds.smallest_period(2.0, 1.0, share=0.0, delay=5) == 5


@pytest.mark.parametrize(  # from a port of the authors' model: 256 workers, 70 Gb/s, GEMM, weak scaling
  ("network", "flattened", "steps", "message", "least", "sync", "local", "delayed"),
  [
    ("nin", 1, (0.0929, 0.0233), 0.0349, (1, 2), (73, 40), (91, 73), (100, 89)),
    ("alexnet_v2", 25, (0.0920, 0.0235), 0.2313, (3, 10), (28, 9), (61, 29), (73, 31)),
    ("overfeat", 36, (0.3936, 0.0998), 0.6699, (2, 7), (37, 13), (70, 37), (85, 41)),
    ("inception_v3", 1, (0.6033, 0.1510), 0.1091, (1, 1), (85, 58), (96, 85), (100, 100)),
    ("vgg16", 49, (1.692, 0.4243), 0.6362, (1, 2), (73, 40), (91, 73), (100, 89)),
  ],
)
def test_hiding_condition(network, flattened, steps, message, least, sync, local, delayed):
  table = neural_networks.table(network)
  result = dasgd.tree_seconds(params_bytes(table), 256, dasgd.BANDWIDTHS["infiniband"])
  assert result == pytest.approx(message, rel=0.005)
  for i, examples in enumerate((128, 32)):
    step = dasgd.step_seconds(table, examples, flattened=flattened)
    assert step == pytest.approx(steps[i], rel=0.07)  # pooling, concatenation and dropout are omitted
    assert bounds.smallest_delay(result, step) == bounds.smallest_delay(message, steps[i]) == least[i]
    for reported, period, delay in ((sync, 1, 0), (local, 4, 0), (delayed, 4, 1)):
      share = 1 - bounds.exposed_share(message, steps[i], period=period, delay=delay)
      assert round(100 * share) == pytest.approx(reported[i], abs=1)  # computed from rounded times


def test_paleo_exchange_by_hand():
  hop = 1e9 / 8.75e9
  assert dasgd.tree_seconds(1e9, 256, dasgd.BANDWIDTHS["infiniband"]) == pytest.approx(10.058 * hop)
  assert dasgd.tree_seconds(1e9, 8, dasgd.BANDWIDTHS["infiniband"]) == pytest.approx(0.174 * hop)
  assert dasgd.tree_seconds(1e9, 1, dasgd.BANDWIDTHS["infiniband"]) == 0


def test_paleo_step_by_hand():
  """One layer is bound by compute, one by memory."""
  convolution = Layer("conv", 64, 64, (3, 3), (56, 56), (56, 56), bias=False)
  dense = Layer("dense", 1000, 1000, bias=False)
  update = 12 / dasgd.V100.memory_bandwidth
  compute = 3 * 2 * 9 * 64 * 64 * 56 * 56 * 32 / 7.8e12
  assert dasgd.step_seconds((convolution,), 32) == pytest.approx(compute + 36864 * update)
  memory = 3 * 4 * (1_000_000 + 4 * 2000) / (900.1 * 2**30)
  assert dasgd.step_seconds((dense,), 4) == pytest.approx(memory + 1e6 * update)
