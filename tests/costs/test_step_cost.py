"""XLA's analysis of compiled steps against the arithmetic of layer tables, and models as sequences of arrays."""

import jax
import numpy as np
import pytest

from ddl.api import Data, Source
from ddl.config import default_experiment
from ddl.costs.step_cost import batch_shapes, compiled_step, leaves, step_memory, step_program
from ddl.models import MODELS
from ddl.perf.layers import params_bytes, train_flop
from ddl.perf.neural_networks import sequence
from ddl.run.build import build

BATCH = 32


def images(size):
  """Labelled images [size, size, 1] with nothing on them."""

  def take(index):
    return {"x": np.zeros((len(index), size, size, 1), np.float32), "y": np.zeros(len(index), np.int32)}

  source = Source(1000, take, np.zeros(1000, np.int32))
  return Data(source, source, {"task": "classification", "shape": (size, size, 1), "num_outputs": 10})


def experiment(model, algorithm="sync_sgd", size=28, **settings):
  options = default_experiment(model={"name": model, **settings}, algorithm={"name": algorithm}, workers=4)
  return build(options, images(size))


LINEAR = tuple(sequence(1, 784, ["a 10 dense"])[0])
MLP = tuple(sequence(1, 784, ["a 512 dense", "b 512 dense", "c 10 dense"])[0])
LENET = tuple(sequence(28, 1, ["a 16 5", "pool 2/2", "b 32 5", "pool 2/2", "c 128 dense", "d 10 dense"])[0])


@pytest.mark.parametrize(("model", "table", "settings"), [("linear", LINEAR, {}), ("mlp", MLP, {"hidden": (512, 512)})])
def test_flop_of_dense_networks(model, table, settings):
  """6 per multiply-accumulate but 4 in the first layer, whose inputs need no gradient.

  The rest, below 2 %: biases, relu, the loss, and 2 per parameter in the update.
  """
  result = compiled_step(experiment(model, **settings), BATCH)
  exact = BATCH * (train_flop(table) - table[0].forward_flop)
  assert exact < result.flop < 1.03 * exact
  assert result.flop < 0.85 * BATCH * train_flop(table)  # a first layer of this share can't be left as it is


def test_flop_of_lenet():
  """XLA leaves out the taps of a convolution that lie on its padding, and `ddl.models.cpu` takes 1.6
  times the multiply-accumulates for a forward convolution of one channel.
  """
  result = compiled_step(experiment("lenet"), BATCH)
  first, _, *rest = LENET
  touched = {28: (28 * 5 - 6) ** 2, 14: (14 * 5 - 6) ** 2}  # pairs of a pixel and a tap: 3 of 5 at the first pixel
  exact = 2 * 1.6 * first.macs + 2 * 16 * touched[28] + 6 * 16 * 32 * touched[14] + sum(x.train_flop for x in rest)
  assert BATCH * exact < result.flop < 1.03 * BATCH * exact
  assert result.flop == pytest.approx(BATCH * (train_flop(LENET) - first.forward_flop), rel=0.12)
  # Of the table's taps, 9 % of the first layer's lie on padding and 16 % of the second's.
  assert touched[14] / (25 * 14 * 14) == pytest.approx(0.836, abs=1e-3)


def test_memory():
  """Arguments are the model and the batch (without dropout no key is read); the model is updated in place."""
  one = experiment("mlp", hidden=(512, 512))
  small, large = (compiled_step(one, n) for n in (512, 1024))
  assert small.arguments == params_bytes(MLP) + 512 * (784 * 4 + 4)
  assert small.aliased == params_bytes(MLP)
  # An example adds itself, its label, both hidden layers before and after the relu, the logits and their sum. XLA's
  # buffers on this machine are similar.
  memory, xla = step_memory(one, small, 512), step_program(one, 512).memory_analysis()
  assert memory.per_example == 784 * 4 + 4 + 4 * (4 * 512 + 10 + 1)
  peak = small.arguments + small.outputs - small.aliased + xla.temp_size_in_bytes
  assert memory.total(512) == pytest.approx(peak, rel=0.3)
  assert large.nbytes > small.nbytes > 3 * params_bytes(MLP)


@pytest.mark.parametrize(("algorithm", "models"), [("local_sgd", 1), ("dasgd", 1), ("easgd", 2), ("async_easgd", 2)])
def test_arguments_contain_the_models_of_a_worker(algorithm, models):
  """A model, the center of EASGD, and the last reply of a server."""
  one = experiment("linear", algorithm)
  result = compiled_step(one, 8)
  rest = result.arguments - models * params_bytes(LINEAR)
  assert 8 * 784 * 4 <= rest < 8 * 784 * 4 + 200
  replies = algorithm == "async_easgd"
  assert result.aliased >= (models - replies) * params_bytes(LINEAR)  # all but the reply are updated in place
  exact = 8 * 4 * LINEAR[0].macs
  assert exact < result.flop < exact + 16 * params_bytes(LINEAR) / 4 + 8 * 10 * 100


def test_shares_of_lenets_arrays():
  """The shares of the arrays are those of the layers' multiply-accumulates."""
  one = experiment("lenet")
  result = leaves(one.model, batch_shapes(one, 3))
  modules = ("Conv_0", "Conv_1", "Dense_0", "Dense_1")
  assert [leaf.name for leaf in result] == [f"{m}/{kind}" for m in modules for kind in ("kernel", "bias")]
  macs = sum(layer.macs for layer in LENET)
  assert [leaf.share for leaf in result[::2]] == pytest.approx([layer.macs / macs for layer in LENET])
  assert all(leaf.share == 0 for leaf in result[1::2])
  assert [leaf.nbytes for leaf in result[::2]] == [4 * layer.weights for layer in LENET]
  assert sum(leaf.nbytes for leaf in result) == params_bytes(LENET)


def test_leaves_follow_the_forward_pass():
  """The order is not that of the names; a transformer starts with its embedding."""
  one = experiment("resnet20", size=8, width=4, blocks=1)
  names = [leaf.name for leaf in leaves(one.model, batch_shapes(one, 2))]
  expected = [f"{n}/{w}" for i in range(7) for n, w in
              ((f"Conv_{i}", "kernel"), (f"BatchNorm_{i}", "scale"), (f"BatchNorm_{i}", "bias"))]  # fmt: skip
  assert sorted(names[:21]) == sorted(expected) and names[21:] == ["Dense_0/kernel", "Dense_0/bias"]
  assert [n for n in names if "Conv" in n] == [n for n in expected if "Conv" in n]
  assert names.index("BatchNorm_0/scale") < names.index("Conv_1/kernel") < names.index("BatchNorm_1/scale")
  text = {"task": "language", "shape": (12,), "num_outputs": 20}
  model = MODELS["transformer"](text, layers=1, width=16, heads=2)
  tokens = jax.ShapeDtypeStruct((2, 12), np.int32)
  result = leaves(model, {"x": tokens, "y": tokens})
  assert result[0].name.startswith("Embed") and result[0].share == 0  # a look-up is no product
  assert sum(leaf.share for leaf in result) == pytest.approx(1)
  kernels = [leaf for leaf in result if leaf.name.endswith("kernel")]
  sizes = np.array([leaf.nbytes for leaf in kernels])
  assert [leaf.share for leaf in kernels] == pytest.approx(sizes / sizes.sum())


def test_the_step_of_one_worker_is_that_of_the_algorithm_for_all_workers():
  """The FLOP include the mean over groups of two workers."""
  grouped, single = (compiled_step(experiment("linear", name), 8) for name in ("hierarchical_sgd", "independent"))
  assert 0 < grouped.flop - single.flop < single.flop
