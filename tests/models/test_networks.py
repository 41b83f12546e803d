"""Published networks: counts of parameters and multiply-accumulates, also in the layer tables of the cost model."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ddl.costs.step_cost import loss_jaxpr, products
from ddl.engine.local_step import gradient_of
from ddl.models import MODELS
from ddl.perf import neural_networks
from ddl.perf.layers import params

IMAGENET = {side: {"task": "classification", "shape": (side, side, 3), "num_outputs": 1000} for side in (224, 227, 231)}
SPEECH = {"task": "classification", "shape": (429,), "num_outputs": 9304}
GPT2 = {"task": "language", "shape": (1024,), "num_outputs": 50257}
NETWORKS = {  # meta, parameters, multiply-accumulates of the forward pass on one example
  "vgg_a": (IMAGENET[224], 132_863_336, 7_609_090_048),
  "vgg16": (IMAGENET[224], 138_357_544, 15_470_264_320),
  "vgg19": (IMAGENET[224], 143_667_240, 19_632_062_464),
  "alexnet": (IMAGENET[227], 62_378_344, 1_135_256_096),
  "overfeat_fast": (IMAGENET[231], 145_920_872, 2_801_403_904),
  "googlenet": (IMAGENET[224], 6_998_552, 1_582_671_872),
  "resnet18": (IMAGENET[224], 11_689_512, 1_814_073_344),
  "resnet50": (IMAGENET[224], 25_557_032, 4_089_184_256),
  "cd_dnn": (SPEECH, 45_122_648, 45_099_008),
}
CONVOLUTIONS = {"vgg_a": (9_218_000, 7_485_500_000), "overfeat_fast": (15_985_000, 2_671_500_000)}  # weights, macs


def model_of(name):
  return MODELS[name](NETWORKS[name][0] if name in NETWORKS else GPT2)


def shapes(name):
  return jax.eval_shape(model_of(name).init, jax.random.key(0))[0]


def macs(name, kinds=("dot_general", "conv_general_dilated")):
  meta = NETWORKS[name][0]
  batch = {"x": jax.ShapeDtypeStruct((1, *meta["shape"]), jnp.float32), "y": jax.ShapeDtypeStruct((1,), jnp.int32)}
  result = 0
  for eqn, _ in products(loss_jaxpr(model_of(name), batch).eqns):
    if eqn.primitive.name in kinds:
      kernel = eqn.invars[1].aval.shape
      result += int(np.prod(kernel)) * int(np.prod(eqn.outvars[0].aval.shape[:-1]))
  return result


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.sampled(2)
def test_parameters_and_multiply_accumulates(name):
  _, count, expected = NETWORKS[name]
  assert sum(x.size for x in jax.tree.leaves(shapes(name))) == count
  assert macs(name) == expected
  if name in neural_networks.names():
    assert params(neural_networks.table(name)) == count
    products = [layer for layer in neural_networks.table(name) if layer.groups == 1]  # without scales and shifts
    assert sum(layer.macs for layer in products) == expected


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions_of_the_papers(name):
  """Das et al. 2016, arXiv 1602.06709: 9.218M and 15.985M weights, 7485.5M and 2671.5M multiply-accumulates."""
  weights, work = CONVOLUTIONS[name]
  kernels = [x.size for x in jax.tree.leaves(shapes(name)) if len(x.shape) == 4]
  assert sum(kernels) == pytest.approx(weights, abs=1000)
  assert macs(name, ("conv_general_dilated",)) == pytest.approx(work, abs=50_000)


@pytest.mark.parametrize(
  "sizes, count",
  [((12, 768, 12), 124_439_808), ((24, 1024, 16), 354_823_168), ((36, 1280, 20), 774_030_080),
   ((48, 1600, 25), 1_557_611_200)],
)  # fmt: skip
@pytest.mark.sampled(4)
def test_parameters_of_gpt2(sizes, count):
  created = MODELS["gpt2"](GPT2, **dict(zip(("layers", "width", "heads"), sizes, strict=True)))
  assert sum(x.size for x in jax.tree.leaves(jax.eval_shape(created.init, jax.random.key(0))[0])) == count


@pytest.mark.parametrize("name", ["resnet18", "resnet50"])
@pytest.mark.slow
def test_residual_networks_equal_a_forward_pass_by_hand(name):
  """With random parameters and running statistics; with the initial parameters all blocks are the identity."""
  model = MODELS[name]({"task": "classification", "shape": (32, 32, 3), "num_outputs": 10}, width=4)
  initial, statistics = jax.jit(model.init)(jax.random.key(0))
  lasts = [
    block["b_norm" if name == "resnet18" else "c_norm"]["scale"]
    for key, block in initial.items()
    if "_" in key and key != "conv1_norm"
  ]
  assert len(lasts) == {"resnet18": 8, "resnet50": 16}[name] and not np.any(np.concatenate(lasts))
  rng = np.random.default_rng(0)
  params, extra = jax.tree.map(
    lambda x: rng.uniform(0.2, 0.6, x.shape).astype(np.float32) * rng.choice([-1, 1], x.shape), (initial, statistics)
  )
  extra = jax.tree.map(np.abs, extra)
  x = rng.normal(size=(2, 32, 32, 3)).astype(np.float32)

  def conv(x, at, name, size, stride=1):
    weights, norm, stats = at[0][name]["kernel"], at[0][f"{name}_norm"], at[1][f"{name}_norm"]
    assert weights.shape[:2] == (size, size)
    pads = ((size // 2, size // 2),) * 2
    y = jax.lax.conv_general_dilated(x, weights, (stride,) * 2, pads, dimension_numbers=("NHWC", "HWIO", "NHWC"))
    return norm["scale"] * (y - stats["mean"]) / np.sqrt(stats["var"] + 1e-5) + norm["bias"]

  relu, stats = jax.nn.relu, extra["batch_stats"]
  with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
    y = relu(conv(x, (params, stats), "conv1", 7, 2))
    padded = np.pad(y, ((0, 0), (1, 1), (1, 1), (0, 0)), constant_values=-np.inf)
    y = np.max([padded[:, i : i + 15 : 2, j : j + 15 : 2] for i in range(3) for j in range(3)], axis=0)
    for key in sorted(key for key in params if key.startswith("stage")):
      at, stride = (params[key], stats[key]), 2 if key.endswith("_1") and key != "stage1_1" else 1
      if name == "resnet18":
        z = conv(relu(conv(y, at, "a", 3, stride)), at, "b", 3)
      else:
        z = conv(relu(conv(relu(conv(y, at, "a", 1)), at, "b", 3, stride)), at, "c", 1)
      y = relu(z + (conv(y, at, "shortcut", 1, stride) if "shortcut" in at[0] else y))
    scores = y.mean(axis=(1, 2)) @ params["classifier"]["kernel"] + params["classifier"]["bias"]
    expected = jax.nn.logsumexp(scores, axis=1) - scores[:, 3]
  result = model.metrics(params, extra, {"x": x, "y": np.full(2, 3, np.int32)})["loss"]
  np.testing.assert_allclose(result, expected, rtol=1e-3)


BLOCKS = {
  "transformer": ({"task": "language", "shape": (32,), "num_outputs": 16}, {"layers": 1, "width": 32, "dropout": 0.1}),
  "gpt2": ({"task": "language", "shape": (32,), "num_outputs": 16}, {"layers": 2, "width": 32, "heads": 4}),
  "resnet18": ({"task": "classification", "shape": (32, 32, 3), "num_outputs": 10}, {"width": 8}),
}


@pytest.mark.parametrize("name", BLOCKS)
@pytest.mark.slow
def test_rematerialized_blocks_give_the_same_gradients_and_store_less(name):
  meta, settings = BLOCKS[name]
  stored, recomputed = (MODELS[name](meta, **settings, remat=remat) for remat in (False, True))
  key = jax.random.key(0)
  params, extra = jax.jit(stored.init)(key)
  assert jax.tree.structure(params) == jax.tree.structure(jax.eval_shape(recomputed.init, key)[0])
  kind = np.int32 if meta["task"] == "language" else np.float32
  rng = np.random.default_rng(0)
  size = 8 if kind == np.int32 else 32  # enough activations to outweigh the parameters
  x = rng.integers(10, size=(size, *meta["shape"])).astype(kind)
  y = rng.integers(10, size=x.shape if kind == np.int32 else size, dtype=np.int32)
  batch = {"x": x, "y": y}
  results = (jax.jit(gradient_of(model))(params, extra, batch, key) for model in (stored, recomputed))
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), *results)

  def residual_bytes(model):
    """Count what JAX stores for the backward pass; XLA:CPU would merge the repeated computations."""

    def backward(params):
      return jax.vjp(lambda params: model.loss(params, extra, batch, key)[0], params)[1]

    return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(jax.eval_shape(backward, params)))

  assert residual_bytes(recomputed) < 0.6 * residual_bytes(stored)
