"""Fits of efficiency curves to step times, and the roofline model."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddl.perf import fit, neural_networks
from ddl.perf.device import Device, Efficiency, step_seconds
from ddl.perf.layers import parts, train_flop

DEVICE = Device(peak=1e12, memory_bandwidth=1e10, memory=1e9)
bests, halves = st.floats(0.01, 1.0), st.floats(0.0, 100.0)


def times(flop, sizes, efficiency):
  return [step_seconds(flop, b, DEVICE, efficiency) for b in sizes]


@settings(max_examples=50)
@given(bests, halves, st.lists(st.integers(1, 512), min_size=2, max_size=6, unique=True))
def test_fit_recovers_an_exact_curve(best, half, sizes):
  measured = times(2e9, sizes, Efficiency(best, half))
  result, errors = fit.fit_efficiency(2e9, DEVICE.peak, sizes, measured)
  assert result.best == pytest.approx(best, rel=1e-6) and result.half == pytest.approx(half, rel=1e-6, abs=1e-5)
  assert np.abs(errors).max() < 1e-7 and len(errors) == len(sizes)


@settings(max_examples=50)
@given(bests, halves, st.integers(0, 1000))
def test_fit_is_the_least_squares_solution(best, half, seed):
  """No nearby curve has smaller squared relative errors, and 0 < best <= 1, half >= 0."""
  rng, sizes = np.random.default_rng(seed), [1, 4, 16, 64]
  floor = [2e9 * b / DEVICE.peak for b in sizes]
  measured = np.maximum(times(2e9, sizes, Efficiency(best, half)) * np.exp(0.3 * rng.normal(size=4)), floor)
  result, errors = fit.fit_efficiency(2e9, DEVICE.peak, sizes, measured)
  assert 0 < result.best <= 1 and result.half >= 0
  for scale in (0.999, 1.001):
    for other in (Efficiency(min(result.best * scale, 1), result.half), Efficiency(result.best, result.half * scale)):
      near = np.array(times(2e9, sizes, other)) / measured - 1
      assert np.square(near).sum() >= np.square(errors).sum() * (1 - 1e-9)


def test_fit_on_the_bound_half_0():
  """Steps that grow faster than the batch have half = 0; `best` is then the optimum of one parameter."""
  sizes, measured = np.array([1.0, 10.0]), np.array([0.01, 0.2])
  result, errors = fit.fit_efficiency(2e9, DEVICE.peak, sizes, measured)
  slope = 2e9 / DEVICE.peak * sizes / measured
  assert result.half == pytest.approx(0, abs=1e-6)
  assert 1 / result.best == pytest.approx(slope.sum() / (slope**2).sum(), rel=1e-6)
  assert errors[0] > 0 > errors[1]


@settings(max_examples=50)
@given(st.sampled_from(["lenet", "vgg_a", "nin", "resnet50"]), st.floats(1, 300), bests, halves, st.floats(1.0, 100.0))
def test_roofline_bounds(name, examples, best, half, faster):
  table, efficiency = neural_networks.table(name), Efficiency(best, half)
  step = step_seconds(parts(table), examples, DEVICE, efficiency)
  compute = step_seconds(train_flop(table), examples, DEVICE, efficiency)
  memory = sum(4 * (x.moved * examples + x.held) for x in table) / DEVICE.memory_bandwidth
  assert max(compute, memory) <= step * (1 + 1e-9) and step <= (compute + memory) * (1 + 1e-9)
  endless = DEVICE._replace(memory_bandwidth=1e30)
  assert step_seconds(parts(table), examples, endless, efficiency) == pytest.approx(compute)
  quick = DEVICE._replace(memory_bandwidth=DEVICE.memory_bandwidth * faster)
  assert step_seconds(parts(table), examples, quick, efficiency) <= step * (1 + 1e-9)
  # Half the bytes per value equal twice the memory bandwidth; the start is added.
  narrow = step_seconds(parts(table), examples, DEVICE._replace(width=2, start=0.5), efficiency)
  twice = DEVICE._replace(memory_bandwidth=2 * DEVICE.memory_bandwidth)
  assert narrow == pytest.approx(0.5 + step_seconds(parts(table), examples, twice, efficiency))


def test_a_layer_is_bound_by_memory_or_by_computation():
  """VGG-A's first dense layer is bound by memory on few examples, its second convolution by computation."""
  table = {layer.name: layer for layer in neural_networks.table("vgg_a")}
  full = Efficiency(1.0)
  moved = 4 * (table["fc6"].moved + table["fc6"].held)
  assert step_seconds(parts((table["fc6"],)), 1, DEVICE, full) == pytest.approx(moved / 1e10)
  assert step_seconds(parts((table["conv2_1"],)), 1, DEVICE, full) == table["conv2_1"].train_flop / 1e12
