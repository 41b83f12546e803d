"""Workspaces of convolution algorithms by hand, and the 0-1 program against brute force."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddl.perf.device import Device
from ddl.perf.device_step import Shares, cost, device_step, fastest, flop, workspace
from ddl.perf.layers import Layer, is_convolution

DEVICE = Device(1e13, 1e30, 16e9)  # steps are bound by computation
SAME = Layer("same", 64, 128, (3, 3), (56, 56), (56, 56))
STRIDED = Layer("strided", 3, 96, (11, 11), (227, 227), (55, 55))
FIVE = Layer("five", 96, 256, (5, 5), (27, 27), (27, 27), groups=2)
DENSE = Layer("dense", 4096, 1000)
TABLE = (STRIDED, SAME, FIVE, SAME._replace(outputs=64), DENSE)


@settings(max_examples=50)
@given(st.integers(1, 64), st.floats(0, 1), st.floats(0.1, 0.9), st.floats(0.0, 0.9))
def test_the_program_equals_brute_force(examples, share, product, winograd):
  """Minimize the FLOP over all choices of algorithms whose largest workspace fits."""
  shares = Shares(product, winograd=winograd)
  room = share * max(workspace("fft", FIVE, examples), workspace("winograd", SAME, examples))
  options = [
    [(name, workspace(name, layer, examples)) for name in ("direct", *applicable)]
    for layer, applicable in zip(TABLE, ((), ("winograd",), ("fft",), ("winograd",), ()), strict=True)
  ]
  best = min(
    sum(flop(x, x is STRIDED) * cost(name, shares) for x, (name, _) in zip(TABLE, choice, strict=True))
    for choice in itertools.product(*options)
    if max(size for _, size in choice) <= room
  )
  step = device_step(TABLE, DEVICE, shares, examples=examples, room=room * DEVICE.width)
  assert sum(part.flop for part in step.parts) == pytest.approx(best, rel=1e-9)


@pytest.mark.parametrize(("layer", "name"), [(SAME, "winograd"), (FIVE, "fft")])
def test_a_workspace_of_exactly_the_room_fits(layer, name):
  shares, needed = Shares(0.5, winograd=0.5), workspace(name, layer, 8)
  assert fastest(layer, shares, 8, needed) == name
  assert fastest(layer, shares, 8, needed - 1) == "direct"


def test_workspaces_by_hand():
  tiles = 2 * 28 * 28
  assert workspace("winograd", SAME, 2) == 16 * (tiles * (64 + 128) + 64 * 128)
  transforms = 2 * 96 + 2 * 256 + 96 * 256 // 2  # on 32 x 32 points, of which 32 x 17 are stored
  assert workspace("fft", FIVE, 2) == 2 * 32 * 17 * transforms
  padded = Layer("padded", 2, 3, (5, 5), (30, 30), (30, 30))  # the padded 34 x 34 input needs 64 x 64 points
  assert workspace("fft", padded, 1) == 2 * 64 * 33 * (2 + 3 + 6)
  assert workspace("direct", SAME, 2) == 0


def test_an_fft_of_the_padded_size_computes_the_convolution():
  rng = np.random.default_rng(0)
  image, kernel = rng.normal(size=(12, 12)), rng.normal(size=(5, 5))
  size = 2 ** math.ceil(math.log2(8 + 5 - 1))
  product = np.fft.rfft2(image, (size, size)) * np.conj(np.fft.rfft2(kernel, (size, size)))
  direct = np.lib.stride_tricks.sliding_window_view(image, (5, 5))
  np.testing.assert_allclose(np.fft.irfft2(product)[:8, :8], np.einsum("ijkl,kl", direct, kernel), rtol=1e-9)


def test_a_scale_of_each_map_is_not_a_convolution():
  assert not is_convolution(Layer("scale", 8, 8, (1, 1), (4, 4), (4, 4), groups=8))
  assert is_convolution(SAME) and not is_convolution(DENSE)
