"""The 0-1 program against brute force, and the modeled costs of convolutions against counts by hand."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddl.perf import convolution, layers
from ddl.perf.convolution import AlgorithmCosts, choose
from ddl.perf.device import Device, Efficiency, step_seconds
from ddl.perf.layers import Layer, parts

NAMES = ("gemm", "fft", "winograd")
DEVICE, FULL = Device(1e13, 1e12, 16e9), Efficiency(1.0)
SAME = Layer("same", 64, 128, (3, 3), (56, 56), (56, 56))
STRIDED = Layer("strided", 3, 96, (11, 11), (227, 227), (55, 55))
FIVE = Layer("five", 96, 256, (5, 5), (27, 27), (27, 27), groups=2)
DENSE = Layer("dense", 4096, 1000)


def brute_force(seconds, workspace, bound):
  """Return the least seconds of all choices whose largest workspace is within the bound."""
  best = math.inf
  for options in itertools.product(range(seconds.shape[1]), repeat=seconds.shape[0]):
    index = np.arange(len(options)), np.array(options)
    if workspace[index].max() <= bound:
      best = min(seconds[index].sum(), best)
  return best


@st.composite
def tables(draw):
  layers = draw(st.integers(1, 5))
  cells = st.lists(st.integers(0, 50), min_size=3 * layers, max_size=3 * layers)
  seconds = np.array(draw(cells), float).reshape(layers, 3) * draw(st.sampled_from([1e-6, 1e-3, 1.0]))
  workspace = np.array(draw(cells), float).reshape(layers, 3) * draw(st.sampled_from([1, 2**20, 10**9]))
  seconds[:, 1:][
    np.array(draw(st.lists(st.booleans(), min_size=2 * layers, max_size=2 * layers))).reshape(layers, 2)
  ] = np.inf
  workspace[:, 0] = 0.0  # direct convolution
  bound = draw(st.sampled_from([draw(st.floats(0, 1.1)) * workspace.max(), *workspace.ravel()]))  # also met exactly
  return AlgorithmCosts(NAMES, seconds, workspace), bound


@settings(max_examples=80)
@given(tables())
def test_choose_equals_brute_force(table):
  costs, bound = table
  result = choose(costs, bound)
  assert result.seconds == pytest.approx(brute_force(costs.seconds, costs.workspace, bound), rel=1e-9, abs=1e-15)
  options = np.arange(len(costs.seconds)), [NAMES.index(name) for name in result.algorithms]
  assert result.seconds == costs.seconds[options].sum()
  assert result.workspace == costs.workspace[options].max() <= bound


def test_choose_equals_brute_force_on_eight_layers():
  rng = np.random.default_rng(0)
  costs = AlgorithmCosts(NAMES, rng.uniform(1e-3, 1e-2, (8, 3)), rng.uniform(0, 1e9, (8, 3)) * [0, 1, 1])
  for bound in (1e8, 3e8, 6e8, 1e9):
    assert choose(costs, bound).seconds == pytest.approx(brute_force(costs.seconds, costs.workspace, bound))


def test_direct_costs_equal_the_step_of_the_layer():
  flop, workspace = convolution.direct(SAME, 2)
  assert flop == 2 * 2 * 9 * 64 * 128 * 56 * 56
  assert layers.pass_bytes(SAME, 2, 1) == 2 * (64 + 128) * 56 * 56 + 9 * 64 * 128 + 128 and workspace == 0
  for device in (DEVICE, DEVICE._replace(width=2), DEVICE._replace(memory_bandwidth=1e9)):
    costs = convolution.modelled((SAME,), device, Efficiency(0.5, 3.0))(8)
    assert costs.seconds[0, 0] == pytest.approx(step_seconds(parts((SAME,)), 8, device, Efficiency(0.5, 3.0)))


def test_winograd_by_hand():
  flop, workspace = convolution.winograd(SAME, 2)
  tiles = 2 * 28 * 28
  products = 16 * tiles * 64 * 128
  assert 9 * 2 * 56 * 56 * 64 * 128 / products == 2.25
  assert flop == 2 * products + tiles * (32 * 64 + 24 * 128) + 28 * 64 * 128
  assert workspace == 16 * (tiles * (64 + 128) + 64 * 128)
  assert convolution.winograd(FIVE, 2) is None
  assert convolution.winograd(STRIDED, 2) is None


def test_fft_by_hand():
  flop, workspace = convolution.fft(FIVE, 2)
  transforms = 2 * 96 + 2 * 256 + 96 * 256 // 2  # on 32 x 32 points, of which 32 x 17 are stored
  assert workspace == 2 * 32 * 17 * transforms  # values
  assert flop == transforms * 2.5 * 1024 * 10 + 8 * 2 * 96 * 128 * 32 * 17
  assert convolution.fft(STRIDED, 2) is None
  padded = Layer("padded", 2, 3, (5, 5), (30, 30), (30, 30))  # the padded 34 x 34 input needs 64 x 64 points
  assert convolution.fft(padded, 1)[1] == 2 * 64 * 33 * (2 + 3 + 6)


def test_an_fft_of_the_padded_size_computes_the_convolution():
  rng = np.random.default_rng(0)
  image, kernel = rng.normal(size=(12, 12)), rng.normal(size=(5, 5))
  size = 2 ** math.ceil(math.log2(8 + 5 - 1))
  product = np.fft.rfft2(image, (size, size)) * np.conj(np.fft.rfft2(kernel, (size, size)))
  direct = np.lib.stride_tricks.sliding_window_view(image, (5, 5))
  np.testing.assert_allclose(np.fft.irfft2(product)[:8, :8], np.einsum("ijkl,kl", direct, kernel), rtol=1e-9)


def test_modelled_costs_by_hand():
  costs = convolution.modelled((STRIDED, SAME, DENSE), DEVICE, Efficiency(0.5))(32)
  assert costs.seconds.shape == (2, 3)  # without the dense layer
  assert np.isinf(costs.seconds).tolist() == [[False, True, True], [False, False, False]]
  assert costs.seconds[1, 0] == pytest.approx(3 * 2 * SAME.macs * 32 / (0.5 * 1e13))
  scale = Layer("scale", 8, 8, (1, 1), (4, 4), (4, 4), groups=8)
  assert not layers.is_convolution(scale)
  assert len(convolution.modelled((scale, SAME), DEVICE, FULL)(1).seconds) == 1
  dense = convolution.other_seconds((STRIDED, DENSE), DEVICE, FULL)(1)
  assert dense == pytest.approx(3 * 4 * (4096 * 1000 + 1000 + 5096) / 1e12)
  late = DEVICE._replace(start=0.25, width=2)  # the start counts once, with the other layers
  assert convolution.other_seconds((DENSE,), late, FULL)(1) == pytest.approx(0.25 + dense / 2)
  assert convolution.modelled((SAME,), late, FULL)(1).workspace == pytest.approx(
    convolution.modelled((SAME,), DEVICE, FULL)(1).workspace / 2
  )
