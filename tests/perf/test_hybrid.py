"""Data, model and hybrid parallelism: published numbers, the exhaustive optimum, and the volumes of collectives."""

import math

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar

from ddl.group_recorder import Sent
from ddl.perf import neural_networks
from ddl.perf.hybrid import best, possible_groups, volume
from ddl.perf.layers import Layer, parts
from experiments.papers.das import group_work

FC6 = next(layer for layer in neural_networks.table("vgg_a") if layer.name == "fc6")  # 25088 to 4096


@st.composite
def layers(draw):
  if draw(st.booleans()):
    return Layer("dense", draw(st.integers(1, 9000)), draw(st.integers(1, 9000)))
  k, size = draw(st.sampled_from([1, 3, 5])), draw(st.integers(1, 60))
  return Layer("conv", draw(st.integers(1, 600)), draw(st.integers(1, 600)), (k, k), (size, size), (size, size))


def flop_per_byte(layer, examples):
  """Return the FLOP per byte of data parallelism: 6 macs MBn / (4 weights (2 - ov)), at ov = 1 1.5 ow oh MBn."""
  return layer.train_flop * examples / (4 * layer.weights)


def ideal_groups(layer, batch, workers, duplex=1.0):
  """Return G* = sqrt(2 N mb iw ih / ((2 - ov) ofm kw kh)), the zero of the volume's derivative."""
  return math.sqrt(2 * workers * batch * layer.input_values / ((2 - duplex) * layer.weights))


workers = st.sampled_from([1, 2, 3, 12, 16, 30, 64, 97, 128])
batches, duplexes = st.integers(1, 4096), st.floats(0, 1)


def test_volumes_of_the_papers_example():
  """Mini-batch 256 on 64 nodes, 4096 outputs: G* = 2.83 with full duplex and 2 with half."""
  assert ideal_groups(FC6, 256, 64, 1.0) == pytest.approx(2.83, abs=2e-3)
  assert ideal_groups(FC6, 256, 64, 0.0) == pytest.approx(2.0)

  def megabytes(duplex):
    return [volume(FC6, 256, 64, g, duplex).total / 1e6 for g in (1, 2, 64)]

  assert megabytes(0.0) == pytest.approx([51.4, 51.4, 822.1], abs=0.05)
  assert megabytes(1.0) == pytest.approx([51.4, 38.5, 411.0], abs=0.05)
  assert volume(FC6, 256, 64, 1, 0.0).total == volume(FC6, 256, 64, 2, 0.0).total
  assert volume(FC6, 256, 64, 4, 1.0).total == volume(FC6, 256, 64, 2, 1.0).total  # 2 and 4 enclose 2.83


def test_vgg_a_uses_hybrid_parallelism_only_in_dense_layers():
  groups = {layer.name: best(layer, 256, 64)[0] for layer in neural_networks.table("vgg_a")}
  assert all(groups[name] == 64 for name in groups if name.startswith("conv"))
  assert [groups[name] for name in ("fc6", "fc7", "fc8")] == [4, 4, 8]
  assert best(Layer("tiny batch", 4096, 4096), 1, 8)[0] == 1
  assert best(FC6, 256, 1) == (1, (0.0, 0.0))


def test_fewest_examples_that_hide_the_exchange():
  """At 336 FLOP per byte, a dense layer needs 224 examples per node, VGG-A's last convolutions 336 / 294."""
  result = [336.0 / flop_per_byte(layer, 1.0) for layer in neural_networks.table("vgg_a")]
  assert result[0] == pytest.approx(336 / 75264) and result[7] == pytest.approx(336 / 294) and result[8] == 224


@settings(deadline=None)
@given(layers(), batches, workers, duplexes)
def test_best_equals_an_exhaustive_search(layer, batch, count, duplex):
  assume(count <= layer.outputs)

  def bytes_of(groups):  # the paper's equations in terms of the shapes
    maps = layer.inputs * layer.size_in[0] * layer.size_in[1]
    kernels = layer.inputs * layer.outputs * layer.kernel[0] * layer.kernel[1]
    model = 2 * 4 * maps * batch / groups if groups < count else 0
    return model + (4 * kernels * (2 - duplex) * groups / count if groups > 1 else 0)

  every = [g for g in range(1, count + 1) if count % g == 0 and g <= batch]
  groups, least = best(layer, batch, count, duplex)
  assert least.total == pytest.approx(min(map(bytes_of, every)))
  assert least.total == pytest.approx(bytes_of(groups)) and groups in every


def neighbors(groups, ideal):
  """Return the nearest possible group counts on both sides of an ideal one."""
  return {*[g for g in groups if g <= ideal][-1:], *[g for g in groups if g >= ideal][:1]}


@settings(deadline=None)
@given(layers(), batches, workers, duplexes)
def test_the_optimum_is_a_neighbor_of_the_ideal_or_an_end(layer, batch, count, duplex):
  """The volume is convex in G except at both ends, where one of its terms is 0."""
  assume(count <= layer.outputs)
  groups = possible_groups(layer, batch, count)
  near = neighbors(groups, ideal_groups(layer, batch, count, duplex)) | {groups[0], groups[-1]}
  least = min(volume(layer, batch, count, g, duplex).total for g in near)
  assert least == pytest.approx(best(layer, batch, count, duplex)[1].total)


@settings(deadline=None)
@given(layers(), st.integers(64, 4096), st.sampled_from([64, 128]), duplexes)
def test_ideal_groups_minimize_the_volume(layer, batch, count, duplex):
  model, data = volume(layer, batch, 2 * count, 2, duplex)  # with G = 2 both terms are above 0
  ideal = ideal_groups(layer, batch, 2 * count, duplex)
  result = minimize_scalar(
    lambda log: math.log(2 * model * math.exp(-log) + data * math.exp(log) / 2),
    bracket=(-3, 3),
    options={"xtol": 1e-10},
  )
  assert math.exp(result.x) == pytest.approx(ideal, rel=1e-5)


@settings(deadline=None)
@given(layers(), batches, workers)
def test_collectives_send_the_paper_volume_except_the_nodes_own_strip(layer, batch, count):
  """A node does not send its own of n strips, so collectives send (n - 1) / n of the paper's bytes at ov = 0."""
  assume(batch >= count)
  for groups in (g for g in range(1, count + 1) if count % g == 0):
    size = count // groups
    activations = 4 * layer.inputs * layer.size_in[0] * layer.size_in[1] * batch / groups
    gather, scatter = (Sent(kind, activations, 1).per_worker(size) for kind in ("all_gather", "reduce_scatter"))
    reduced = Sent("all_reduce", 4 * layer.weights / size, 1).per_worker(groups)
    paper = volume(layer, batch, count, groups, duplex=0.0)
    assert paper.model * (size - 1) / size == pytest.approx(gather + scatter)
    assert paper.data * (groups - 1) / groups == pytest.approx(reduced)


def test_too_many_workers_for_a_layer_are_rejected():
  with pytest.raises(ValueError, match=r"dense: workers must be .*at most 2 groups .* at most 10 nodes .*, got 64"):
    best(Layer("dense", 10, 10), 2, 64)


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_memory_traffic_of_a_node_in_a_group(groups):
  """Each of 8 nodes with 32 examples moves strips of weights and outputs, and all inputs of its group."""
  for layer in neural_networks.table("vgg_a"):
    data = group_work(layer, 8, 8)
    assert (data,) == parts((layer,))
    size, result = 8 // groups, group_work(layer, 8, groups)
    assert result.flop == data.flop and size * result.held == pytest.approx(data.held), layer.name
    examples = 32 / groups  # of a group
    values = 3 * examples * (layer.input_values + layer.activations / size)
    assert 32 / 8 * result.moved == pytest.approx(values), layer.name
