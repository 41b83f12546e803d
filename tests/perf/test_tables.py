"""Layer tables: published numbers of parameters and multiply-accumulates, and consistency of each table."""

from itertools import groupby, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddl.perf import neural_networks
from ddl.perf.layers import FusedAttention, Layer, Pointwise, params, params_bytes, train_flop
from ddl.perf.neural_networks import convolution, sequence, table


def forward_flop(table):
  return sum(layer.forward_flop for layer in table)


def test_numbers_of_parameters_are_the_published_ones():
  expected = {
    "lenet": 431_080,  # Caffe
    "alexnet": 62_378_344,  # ungrouped
    "alexnet_v2": 3_205_824 + 256 * 25 * 4096 + 4096 * 4096 + 4096 * 1000 + 1280 + 8192 + 1000,
    "overfeat_fast": 15_984_672 + 129_925_120 + 96 + 256 + 512 + 1024 + 1024 + 3072 + 4096 + 1000,
    "overfeat": 145_920_872 - 32 * (363 + 6400 + 1),  # 64 maps instead of 96
    "nin": 7_595_176,
    "vgg_a": 132_863_336,  # torchvision's vgg11
    "vgg16": 138_357_544,
    "vgg19": 143_667_240,
    "googlenet": 6_998_552,
    "googlenet_aux": 13_378_280,
    "inception_v3": 23_817_352,  # Keras: trainable
    "resnet18": 11_689_512,  # torchvision, as the next four
    "resnet34": 21_797_672,
    "resnet50": 25_557_032,
    "resnet101": 44_549_160,
    "resnet152": 60_192_808,
    "cd_dnn": 45_099_008 + 7 * 2048 + 9304,
  }
  assert {name: params(neural_networks.table(name)) for name in expected} == expected


def test_multiply_accumulates_are_the_published_ones():
  millions = {
    "vgg_a": 7609.1,
    "vgg16": 15470.3,
    "vgg19": 19632.1,
    "googlenet": 1582.7,
    "nin": 969.5,
    "inception_v3": 5713.2,
  }
  macs = {name: forward_flop(neural_networks.table(name)) / 2e6 for name in millions}
  assert macs == pytest.approx(millions, abs=0.06)


def test_multiply_accumulates_of_resnet50():
  """4.09 billion without its normalizations, which add 0.3 %."""
  table = neural_networks.table("resnet50")
  plain = [layer for layer in table if layer.groups == 1]
  assert forward_flop(plain) / 2 == pytest.approx(4.0892e9, rel=1e-4)
  assert 1.002 < forward_flop(table) / forward_flop(plain) < 1.004
  assert len(plain) == 54 and len(table) == 107


@pytest.mark.parametrize(
  ("name", "convolutions", "macs", "dense", "gflop"),
  [
    ("vgg_a", 9.218, 7485.5, 123.634, 45.65),
    ("overfeat_fast", 15.985, 2671.5, 129.925, 16.81),
    ("cd_dnn", 0, 0, 45.10, 0.2706),
  ],
)
def test_networks_of_das(name, convolutions, macs, dense, gflop):
  """Weights and multiply-accumulates in millions, and GFLOP of training per example, equal the printed digits."""
  table = neural_networks.table(name)
  convolutional = [layer for layer in table if not layer.dense]
  assert sum(layer.weights for layer in convolutional) / 1e6 == pytest.approx(convolutions, abs=5e-4)
  assert sum(layer.macs for layer in convolutional) / 1e6 == pytest.approx(macs, abs=0.05)
  assert sum(layer.weights for layer in table if layer.dense) / 1e6 == pytest.approx(dense, abs=2e-3)
  assert train_flop(table) / 1e9 == pytest.approx(gflop, rel=3e-4)


def test_flop_per_byte_of_convolutions():
  """1.5 ow oh, as published in arXiv 1602.06709."""

  def ratios(name):
    return [1.5 * layer.size_out[0] * layer.size_out[1] for layer in neural_networks.table(name) if not layer.dense]

  assert ratios("vgg_a") == [75264, 18816, 4704, 4704, 1176, 1176, 294, 294]
  assert ratios("overfeat_fast") == [4704, 864, 216, 216, 216]


def test_model_sizes_of_sc17():
  assert params_bytes(neural_networks.table("alexnet")) / 1e6 == pytest.approx(249, abs=0.6)
  assert params_bytes(neural_networks.table("vgg19")) / 1e6 == pytest.approx(575, abs=0.5)


def test_every_table_is_consistent():
  for name in neural_networks.names():
    table = neural_networks.table(name)
    names = [layer.name for layer in table]
    assert len(set(names)) == len(names), name
    assert all(min(*layer.size_in, *layer.size_out) >= 1 for layer in table), name
    assert all((layer.weights > 0) != isinstance(layer, Pointwise) for layer in table), name
    assert params_bytes(table) == 4 * params(table), name
    recomputed = sum(layer.forward_flop / 2 for layer in table if isinstance(layer, FusedAttention))  # its scores
    assert train_flop(table) == 3 * forward_flop(table) + recomputed, name


def test_outputs_of_parallel_branches_are_concatenated():
  """In GoogLeNet a module has as many inputs as the four branches before it have outputs; pooling halves the size."""
  by_module = groupby(neural_networks.table("googlenet"), key=lambda layer: layer.name.partition("/")[0])
  modules = [(name, list(layers)) for name, layers in by_module if name[0] in "345"]
  assert [name for name, _ in modules] == ["3a", "3b", "4a", "4b", "4c", "4d", "4e", "5a", "5b"]
  for (_, one), (_, after) in pairwise(modules):
    outputs = sum(one[i].outputs for i in (0, 2, 4, 5))
    assert {after[i].inputs for i in (0, 1, 3, 5)} == {outputs}
    assert after[0].size_in[0] in (one[0].size_in[0], one[0].size_in[0] // 2)


def test_values_moved_by_hand():
  layer = Layer("conv", 3, 8, (3, 3), (6, 5), (6, 5))
  assert (layer.moved, layer.held) == (3 * (3 * 30 + 8 * 30), 3 * (3 * 8 * 9 + 8))


@given(st.integers(3, 40), st.integers(1, 4), st.integers(1, 8), st.integers(1, 3), st.integers(1, 4))
def test_output_sizes_equal_the_counted_kernel_positions(size, channels, outputs, stride, odd):
  kernel = min(2 * odd - 1, size)
  conv, last = sequence(size, channels, [f"a {outputs} {kernel}/{stride} valid", "pool 1/1", "b 3 dense"])[0]
  places = len(range(0, size - kernel + 1, stride))
  assert conv.size_out == (places, places) and last.inputs == outputs * places**2 and last.dense
  assert conv.params == outputs * (channels * kernel**2 + 1)
  same = convolution("a", channels, outputs, size, (2 * odd - 1,), stride)
  assert same.size_out == (-(-size // stride),) * 2


def test_unknown_networks_and_too_large_kernels_are_rejected():
  with pytest.raises(ValueError, match=r"model must be one of lenet, .*vgg_a.*, got 'vgg'"):
    table("vgg")
  assert table("vgg_a") is neural_networks.table("vgg_a")
  with pytest.raises(ValueError, match=r"conv: a 5x5 kernel does not fit into a map of 4x4"):
    convolution("conv", 1, 1, 4, (5,), same=False)
