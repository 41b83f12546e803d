"""Models: parameter counts, objectives, training, causality, batch statistics, fast CPU operations, errors."""

import functools
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn
from numpy.testing import assert_allclose, assert_array_equal

from ddl.models import MODELS, supervised
from ddl.models.cpu import convolve, dot_general
from ddl.models.sequential import pool
from ddl.models.transformer import Transformer, attend
from ddl.ranges import plain

IMAGES = {"task": "classification", "shape": (28, 28, 1), "num_outputs": 10}
COLOUR = {"task": "classification", "shape": (32, 32, 3), "num_outputs": 10}
VECTOR = {"task": "classification", "shape": (784,), "num_outputs": 10}
NUMBERS = {"task": "regression", "shape": (5,), "num_outputs": 2}
TEXT = {"task": "language", "shape": (12,), "num_outputs": 20}

# Compilation takes most of the time of these tests.
quick_jit = functools.partial(
  jax.jit, compiler_options={"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
)

CASES = {
  "linear": (VECTOR, {}),
  "linear regression": (NUMBERS, {}),
  "mlp": (IMAGES, {"hidden": (16, 16), "dropout": 0.1}),
  "mlp regression": (NUMBERS, {}),
  "lenet": ({**IMAGES, "shape": (9, 8, 1)}, {"hidden": 16}),
  "resnet20": ({**COLOUR, "shape": (8, 8, 3)}, {"width": 4, "blocks": 1}),
  "transformer": (TEXT, {"layers": 1, "width": 16, "heads": 2, "dropout": 0.1}),
  "gpt2": (TEXT, {"layers": 1, "width": 16, "heads": 2, "dropout": 0.1}),
  "cd_dnn": (VECTOR, {"width": 32, "layers": 1}),
  "vgg_a": (COLOUR, {"width": 0.1, "hidden": 16, "dropout": 0.0}),
}
LARGE = {
  "resnet18": (COLOUR, {"width": 4}),
  "vgg16": (COLOUR, {"width": 0.1, "hidden": 16, "dropout": 0.0}),
  "alexnet": ({**COLOUR, "shape": (67, 67, 3)}, {"hidden": 64, "dropout": 0.0}),
  "googlenet": (COLOUR, {}),
  "resnet50": (COLOUR, {"width": 4}),
}


def count(params):
  return sum(leaf.size for leaf in jax.tree.leaves(params))


@functools.cache
def build(case):
  """Return the model with compiled functions, and its meta."""
  meta, sizes = (CASES | LARGE)[case]
  model = MODELS[case.split()[0]](meta, **sizes)
  return model._replace(init=quick_jit(model.init), metrics=quick_jit(model.metrics)), meta


def make_batch(meta, size=8, dtype=np.float32):
  rng = np.random.default_rng(0)
  if meta["task"] == "language":
    tokens = rng.integers(0, meta["num_outputs"], (size, meta["shape"][0] + 1)).astype(np.int32)
    return {"x": tokens[:, :-1], "y": tokens[:, 1:]}
  x = rng.normal(size=(size, *meta["shape"])).astype(dtype)
  if meta["task"] == "regression":
    return {"x": x, "y": rng.normal(size=(size, meta["num_outputs"])).astype(dtype)}
  return {"x": x, "y": rng.integers(0, meta["num_outputs"], size).astype(np.int32)}


def assert_same_form(before, after):
  assert jax.tree.structure(before) == jax.tree.structure(after)
  assert jax.tree.map(lambda a: (a.shape, a.dtype), before) == jax.tree.map(lambda a: (a.shape, a.dtype), after)


@pytest.mark.parametrize(
  ("name", "meta", "sizes", "expected"),
  [
    ("linear", VECTOR, {}, 784 * 10 + 10),
    ("linear", NUMBERS, {}, 5 * 2),
    ("mlp", VECTOR, {"hidden": (512, 512)}, 669_706),  # 784 * 512 + 512 + 512 * 512 + 512 + 512 * 10 + 10
    # 25 * 16 + 16, 25 * 16 * 32 + 32, 7 * 7 * 32 * 128 + 128, 128 * 10 + 10
    ("lenet", IMAGES, {}, 416 + 12_832 + 200_832 + 1_290),
    # Stem 432; stages 6 * 2304, 4608 + 5 * 9216, 18432 + 5 * 36864; scale and shift of 688 channels; 64 * 10 + 10
    ("resnet20", COLOUR, {}, 432 + 13_824 + 50_688 + 202_752 + 2 * 688 + 650),
    # Tokens, positions; per layer qkv, attended, up, down, 2 norms; last norm, output
    (
      "transformer",
      {**TEXT, "shape": (64,), "num_outputs": 64},
      {},
      2 * 64 * 128 + 2 * (128 * 384 + 384 + 128 * 128 + 128 + 2 * 128 * 512 + 512 + 128 + 4 * 128) + 256 + 8_256,
    ),
  ],
)
def test_parameter_count(name, meta, sizes, expected):
  params, _ = jax.eval_shape(MODELS[name](meta, **sizes).init, jax.random.key(0))
  assert count(params) == expected


LONG = ("linear", "lenet", "cd_dnn", "transformer", "resnet20", "vgg_a", "gpt2", *LARGE)


@pytest.mark.parametrize("case", [pytest.param(c, marks=[pytest.mark.slow] * (c in LONG)) for c in CASES | LARGE])
def test_training_reduces_the_loss(case):
  model, meta = build(case)
  rate = {"vgg_a": 0.01, "vgg16": 0.01, "alexnet": 0.003}.get(case, 0.05)  # without normalization relus die early
  batch, optimizer = make_batch(meta), optax.sgd(rate, momentum=0.9)
  params, extra = model.init(jax.random.key(0))

  @quick_jit
  def step(params, extra, state, key):
    (loss, extra), grads = jax.value_and_grad(model.loss, has_aux=True)(params, extra, batch, key)
    updates, state = optimizer.update(grads, state, params)
    leaves = jax.tree.leaves(grads)
    finite, alive = (jnp.stack([test(g) for g in leaves]) for test in (lambda g: jnp.isfinite(g).all(), jnp.any))
    return optax.apply_updates(params, updates), extra, state, loss, finite, alive

  state, first, losses = quick_jit(optimizer.init)(params), extra, []
  before = np.mean(model.metrics(params, extra, batch)["loss"])
  for key in jax.random.split(jax.random.key(1), 30):
    params, extra, state, loss, finite, alive = step(params, extra, state, key)
    losses.append(loss)
    assert np.all(finite)
  assert np.all(alive)
  assert losses[-1] < 0.9 * losses[0]
  assert_same_form(first, extra)
  figures = model.metrics(params, extra, batch)
  assert np.mean(figures["loss"]) < 0.9 * before
  assert set(figures) == ({"loss"} if meta["task"] == "regression" else {"loss", "accuracy"})
  assert {value.shape for value in figures.values()} == {(8,)}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.sampled(2)
def test_types_follow_the_parameters(case, dtype, x64):
  model, meta = build(case)
  params, extra = jax.tree.map(
    lambda a: jax.ShapeDtypeStruct(a.shape, dtype), jax.eval_shape(model.init, jax.random.key(0))
  )
  batch = make_batch(meta, dtype=dtype)
  slopes = jax.value_and_grad(model.loss, has_aux=True)
  (loss, after), grads = jax.eval_shape(slopes, params, extra, batch, jax.random.key(1))
  figures = jax.eval_shape(model.metrics, params, extra, batch)
  assert {a.dtype for a in jax.tree.leaves((loss, grads, after, figures))} == {np.dtype(dtype)}
  assert_same_form(extra, after)


def test_default_types(x64):
  for wide, dtype in ((True, np.float64), (False, np.float32)):
    with jax.enable_x64(wide):
      created = jax.eval_shape(build("resnet20")[0].init, jax.random.key(0))
    assert {a.dtype for a in jax.tree.leaves(created)} == {np.dtype(dtype)}


def test_objectives(x64):
  """Softmax regression and least squares by hand, from random weights."""
  rng = np.random.default_rng(1)
  model, batch = MODELS["linear"](VECTOR), make_batch(VECTOR, dtype=np.float64)
  kernel, bias = rng.normal(size=(784, 10)) / 28, rng.normal(size=10)
  params = {"Dense_0": {"kernel": kernel, "bias": bias}}
  logits = batch["x"] @ kernel + bias
  expected = np.log(np.exp(logits).sum(1)) - logits[np.arange(8), batch["y"]]
  figures = quick_jit(model.metrics)(params, {}, batch)
  assert_allclose(figures["loss"], expected, rtol=1e-12)
  assert_array_equal(figures["accuracy"], logits.argmax(1) == batch["y"])
  assert_allclose(quick_jit(model.loss)(params, {}, batch, jax.random.key(0))[0], expected.mean(), rtol=1e-12)

  model, batch = MODELS["linear"](NUMBERS), make_batch(NUMBERS, dtype=np.float64)
  kernel = rng.normal(size=(5, 2))
  expected = 0.5 * ((batch["x"] @ kernel - batch["y"]) ** 2).sum(1)
  params = {"Dense_0": {"kernel": kernel}}
  assert_allclose(quick_jit(model.metrics)(params, {}, batch)["loss"], expected, rtol=1e-12)
  loss, grads = quick_jit(jax.value_and_grad(lambda p: model.loss(p, {}, batch, jax.random.key(0))[0]))(params)
  assert_allclose(loss, expected.mean(), rtol=1e-12)
  assert_allclose(grads["Dense_0"]["kernel"], batch["x"].T @ (batch["x"] @ kernel - batch["y"]) / 8, rtol=1e-12)


def test_transformer_is_causal():
  """A change of token t changes no logits before t, and all logits from t on."""
  module = Transformer(20, layers=2, width=16, heads=2, mlp_ratio=4, dropout=0.0)
  x = make_batch(TEXT, size=2)["x"]
  variables = quick_jit(functools.partial(module.init, train=False))(jax.random.key(0), x)
  apply = quick_jit(lambda x: module.apply(variables, x, train=False))
  logits = apply(x)
  for t in (0, 5, 11):
    changed = apply(np.where(np.arange(12) == t, (x + 1) % 20, x))
    assert_array_equal(changed[:, :t], logits[:, :t])
    assert (changed[:, t:] != logits[:, t:]).any(axis=(0, 2)).all()


@pytest.mark.slow
def test_batch_statistics_change_only_in_training():
  model, meta = build("resnet20")
  params, extra = model.init(jax.random.key(0))
  batch = make_batch(meta)
  batch["x"] = batch["x"] + np.float32(1.0)
  _, after = quick_jit(model.loss)(params, extra, batch, jax.random.key(1))
  assert all(bool((a != b).any()) for a, b in zip(jax.tree.leaves(extra), jax.tree.leaves(after), strict=True))
  # Metrics use the running statistics: an example's loss does not depend on the rest of the batch.
  losses = model.metrics(params, after, batch)["loss"]
  others = {name: np.concatenate([value[:4], value[:4]]) for name, value in batch.items()}
  assert_allclose(losses[:4], model.metrics(params, after, others)["loss"][:4], rtol=1e-5)  # float32
  assert abs(losses - model.metrics(params, extra, batch)["loss"]).max() > 1e-3


@pytest.mark.parametrize("case", ["mlp", pytest.param("transformer", marks=pytest.mark.slow)])
def test_dropout_depends_only_on_the_key(case):
  model, meta = build(case)
  params, extra = model.init(jax.random.key(0))
  batch = make_batch(meta)
  loss = quick_jit(model.loss)
  one, again, other = (loss(params, extra, batch, jax.random.key(k))[0] for k in (1, 1, 2))
  assert one == again
  assert one != other
  assert model.metrics(params, extra, batch)["loss"].mean() not in (one, other)


@pytest.mark.parametrize(
  ("shape", "size", "stride"), [((3, 9, 7, 1), 5, 1), ((3, 8, 8, 3), 3, 2), ((3, 9, 7, 5), 4, 1)]
)
@pytest.mark.sampled(2)
def test_convolve_equals_a_convolution(shape, size, stride, x64, monkeypatch):
  """Values and both gradients equal those of "same" padding from pixel 0 on, also under vmap and in a loop."""
  rng = np.random.default_rng(0)
  x, kernel = rng.normal(size=(2, *shape)), rng.normal(size=(2, size, size, shape[-1], 6))
  pads = ((size - 1) // 2, size // 2)

  def fast(x, kernel):
    numbers = ("NHWC", "HWIO", "NHWC")
    return jnp.sin(convolve(x, kernel, (stride, stride), "SAME", dimension_numbers=numbers)).sum()

  def plain(x, kernel):
    numbers = ("NHWC", "HWIO", "NHWC")
    y = jax.lax.conv_general_dilated(x, kernel, (stride, stride), (pads, pads), dimension_numbers=numbers)
    return jnp.sin(y).sum()

  close = lambda a, b: jax.tree.map(lambda a, b: assert_allclose(a, b, rtol=1e-12, atol=1e-12), a, b)  # noqa: E731
  slopes = jax.value_and_grad(fast, (0, 1))
  plain_slopes = quick_jit(jax.value_and_grad(plain, (0, 1)))
  expected = [plain_slopes(x[i], kernel[i]) for i in range(2)]
  stacked = jax.tree.map(lambda *parts: jnp.stack(parts), *expected)
  close(quick_jit(slopes)(x[0], kernel[0]), expected[0])
  close(quick_jit(jax.vmap(slopes))(x, kernel), stacked)
  close(quick_jit(lambda *pairs: jax.lax.map(lambda pair: slopes(*pair), pairs))(x, kernel), stacked)
  shared = quick_jit(jax.vmap(slopes, in_axes=(0, None)))(x, kernel[0])
  close(jax.tree.map(lambda a: a[0], shared), expected[0])
  assert_allclose(shared[0][1], plain(x[1], kernel[0]), rtol=1e-12, atol=1e-12)
  monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
  assert_allclose(fast(x[0], kernel[0]), expected[0][0], rtol=1e-12, atol=1e-12)


def test_lenet_equals_the_plain_network(x64):
  """Loss and gradients equal those of nn.Conv and nn.max_pool on the same parameters."""

  class Plain(nn.Module):
    @nn.compact
    def __call__(self, x):
      for channels in (16, 32):
        x = nn.max_pool(nn.relu(nn.Conv(channels, (5, 5))(x)), (2, 2), (2, 2))
      x = nn.relu(nn.Dense(128)(x.reshape(x.shape[0], -1)))
      return nn.Dense(10)(x)

  model, batch = MODELS["lenet"](IMAGES), make_batch(IMAGES, size=4, dtype=np.float64)
  params, _ = quick_jit(model.init)(jax.random.key(0))

  def plain(params):
    logits = Plain().apply({"params": params}, batch["x"])
    return optax.softmax_cross_entropy_with_integer_labels(logits, batch["y"]).mean()

  fast = quick_jit(jax.value_and_grad(lambda p: model.loss(p, {}, batch, jax.random.key(0))[0]))(params)
  expected = quick_jit(jax.value_and_grad(plain))(params)
  jax.tree.map(lambda a, b: assert_allclose(a, b, rtol=1e-12, atol=1e-14), fast, expected)


def test_pool_equals_max_pool(x64):
  rng = np.random.default_rng(0)
  x, weight = rng.normal(size=(2, 7, 6, 3)), rng.normal(size=(2, 3, 3, 3))

  def values_and_gradient(pool):
    return quick_jit(lambda x: (pool(x), jax.grad(lambda x: (pool(x) * weight).sum())(x)))(x)

  (fast, gradient), (plain, expected) = map(values_and_gradient, (pool, lambda x: nn.max_pool(x, (2, 2), (2, 2))))
  assert_array_equal(fast, plain)
  assert_allclose(gradient, expected, rtol=1e-12)


def test_dot_general_equals_the_product(x64):
  rng = np.random.default_rng(0)
  x, kernel, weight = rng.normal(size=(3, 4, 5)), rng.normal(size=(5, 6)), rng.normal(size=(3, 4, 6))
  dims = (((2,), (0,)), ((), ()))
  grads = quick_jit(jax.grad(lambda x, k: (dot_general(x, k, dims) * weight).sum(), (0, 1)))(x, kernel)
  assert_allclose(dot_general(x, kernel, dims), x @ kernel, rtol=1e-12)
  assert_allclose(grads[0], weight @ kernel.T, rtol=1e-12)
  assert_allclose(grads[1], np.einsum("abi,abo->io", x, weight), rtol=1e-12)


@pytest.mark.parametrize("name", MODELS)
def test_sizes_are_plain_keywords(name):
  _, *sizes = inspect.signature(MODELS[name]).parameters.values()
  for size in sizes:
    assert size.kind is size.KEYWORD_ONLY
    assert size.default is not size.empty
    assert plain(size.annotation) in (int, float, str, bool, tuple[int, ...])


@pytest.mark.parametrize(
  ("name", "meta", "sizes", "words"),
  [
    ("linear", TEXT, {}, r"data of linear must be numeric arrays.*language.*fit: transformer, gpt2\.$"),
    ("mlp", TEXT, {}, r"data of mlp must be numeric arrays.*fit: transformer, gpt2\.$"),
    ("lenet", TEXT, {}, r"data of lenet must be images.*language.*fit: transformer, gpt2\.$"),
    ("transformer", IMAGES, {}, r"data of transformer must be token sequences.*fit: linear, mlp, lenet, resnet20\.$"),
    ("lenet", VECTOR, {}, r"data of lenet must be images.*\[784\].*fit: linear, mlp\.$"),
    ("resnet20", NUMBERS, {}, r"data of resnet20 must be images.*fit: linear, mlp\.$"),
    ("lenet", {**IMAGES, "shape": (3, 8, 1)}, {}, r"data of lenet must be images .* of 4 x 4.*fit: linear, mlp\.$"),
    (
      "lenet",
      {**IMAGES, "shape": (8, 8, 1)},
      {"channels": (2, 2, 2, 2)},
      r"data of lenet must be images .* of 16 x 16",
    ),
    ("resnet20", {**COLOUR, "shape": (2, 2, 3)}, {}, r"data of resnet20 must be images .* of 4 x 4"),
    ("transformer", TEXT, {"width": 10}, r"transformer.width must be .*, got 10"),
    *(
      (name, {**COLOUR, "shape": shape}, {}, rf"images must be .*channels\], got \[{shape[0]}, .*moveaxis")
      for name, shape in (
        ("lenet", (1, 28, 28)),
        ("resnet20", (3, 32, 32)),
        ("resnet18", (3, 64, 64)),
        ("googlenet", (3, 64, 48)),
        ("alexnet", (4, 224, 224)),
        ("vgg_a", (3, 224, 224)),
      )
    ),
  ],
)
def test_unsuitable_data_is_rejected_in_one_line(name, meta, sizes, words):
  with pytest.raises(ValueError, match=words) as error:
    MODELS[name](meta, **sizes)
  assert "\n" not in str(error.value)


@pytest.mark.parametrize(
  "meta, y, words",
  [
    (VECTOR, np.zeros((8, 1), np.int32), r"labels y must be of shape \[8\], got \[8, 1\]"),
    (
      VECTOR,
      np.eye(10, dtype=np.int32)[:8],
      r"class numbers of shape \[8\], got shape \[8, 10\]\. If y is one-hot, use y\.argmax\(axis=-1\)",
    ),
    (VECTOR, np.zeros(8, np.float32), "labels y must be integers, got float32"),
    (VECTOR, np.zeros(7, np.int32), r"\[8\], got \[7\]"),
    (NUMBERS, np.zeros((8, 3), np.float32), r"\[8, 2\], got \[8, 3\]"),
    (NUMBERS, np.zeros((2, 8), np.float32), r"\[8, 2\], got \[2, 8\]"),  # as many numbers
    (NUMBERS, np.zeros((8, 1, 2), np.float32), r"\[8, 2\], got \[8, 1, 2\]"),
    ({**NUMBERS, "num_outputs": 1}, np.zeros((1, 8), np.float32), r"\[8, 1\], got \[1, 8\]"),
  ],
)
def test_targets_of_another_shape_are_rejected_in_one_line(meta, y, words):
  model = MODELS["linear"](meta)
  params, extra = model.init(jax.random.key(0))
  batch = {"x": np.zeros((8, *meta["shape"]), np.float32), "y": y}
  for call in (lambda *of: model.loss(*of, jax.random.key(0)), model.metrics):
    with pytest.raises(ValueError, match=words) as error:
      call(params, extra, batch)
    assert "\n" not in str(error.value)


def test_the_axis_of_a_single_output_is_optional():
  """Residuals [8, 1] and [8] would broadcast to [8, 8]."""
  model = MODELS["linear"]({**NUMBERS, "num_outputs": 1})
  params, extra = model.init(jax.random.key(0))
  x, y = np.random.default_rng(0).standard_normal((2, 8, 5)).astype(np.float32)
  for targets in (y[:, 0], y[:, :1]):
    loss, _ = model.loss(params, extra, {"x": x, "y": targets}, jax.random.key(0))
    np.testing.assert_allclose(loss, np.mean(y[:, 0] ** 2) / 2, rtol=1e-6)  # W = 0; float32


def test_a_mask_is_rejected():
  model = MODELS["linear"](VECTOR)
  batch = {"x": np.zeros((8, 784), np.float32), "y": np.zeros(8, np.int32), "mask": np.ones(8)}
  with pytest.raises(ValueError, match="batches must be dicts without masks or weights, got one with 'mask'"):
    model.loss(*model.init(jax.random.key(0)), batch, jax.random.key(0))


def test_attention_in_both_types(x64):
  """jax.nn.dot_product_attention computes its softmax in float32; in float64 `attend` uses the formula."""
  q, k, v = (jnp.asarray(x) for x in np.random.default_rng(0).normal(size=(3, 2, 5, 3, 4)))
  scores = np.einsum("bqhd,bkhd->bhqk", q, k) / 2
  weights = np.exp(np.where(np.tri(5, dtype=bool), scores, -np.inf))
  expected = np.einsum("bhqk,bkhd->bqhd", weights / weights.sum(axis=-1, keepdims=True), v)
  assert_allclose(quick_jit(attend)(q, k, v), expected, rtol=1e-12)
  single = (x.astype(np.float32) for x in (q, k, v))
  assert_allclose(quick_jit(attend)(*single), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("limits", [(1, 1), (100, 2**28), (2**15, 12 * 20 * 2)])
def test_text_metrics_of_parts_equal_those_of_the_batch(monkeypatch, limits):
  model = MODELS["gpt2"](TEXT, layers=1, width=16, heads=2)
  params, extra = model.init(jax.random.key(0))
  rng = np.random.default_rng(0)
  batch = {name: rng.integers(0, 20, (9, 12), np.int32) for name in ("x", "y")}
  whole = model.metrics(params, extra, batch)
  monkeypatch.setattr(supervised, "TESTED", limits)
  text = str(jax.make_jaxpr(model.metrics)(params, extra, batch))
  assert "scan" in text and "9,12,20" not in text
  parts = jax.jit(model.metrics)(params, extra, batch)
  for name, values in whole.items():
    assert values.shape == (9,) and len(set(values.tolist())) > 1
    assert_allclose(parts[name], values, rtol=1e-5)


HUGE = [
  ("transformer", TEXT, {"layers": 10**6}, "memory"),
  ("transformer", TEXT, {"layers": 10**6, "width": 8, "heads": 2}, "layers must be at most 1000, got 1000000"),
  ("transformer", TEXT, {"layers": 1, "mlp_ratio": 10**9}, "memory"),
  ("transformer", {**TEXT, "num_outputs": 10**12}, {}, "memory"),
  ("gpt2", TEXT, {"layers": 10**6}, "memory"),
  ("gpt2", TEXT, {"layers": 10**6, "width": 8, "heads": 2}, "layers must be at most 1000"),
  ("gpt2", {**TEXT, "num_outputs": 10**12}, {}, "memory"),
  ("cd_dnn", VECTOR, {"layers": 10**6}, "cd_dnn"),
  ("cd_dnn", VECTOR, {"layers": 10**6, "width": 2}, "layers must be at most 1000"),
  ("cd_dnn", VECTOR, {"width": 10**9}, "memory"),
  ("mlp", VECTOR, {"hidden": (4,) * 10**4}, r"len\(mlp\.hidden\) must be at most 1000, got 10000"),
  ("mlp", VECTOR, {"hidden": (10**9,)}, "memory"),
  ("mlp", {**VECTOR, "num_outputs": 10**12}, {}, "memory"),
  ("resnet20", COLOUR, {"blocks": 10**6}, "memory"),
  ("resnet20", COLOUR, {"blocks": 10**6, "width": 1}, "blocks must be at most 1000"),
  ("resnet20", COLOUR, {"width": 10**9}, "memory"),
  ("resnet18", COLOUR, {"width": 10**9}, "memory"),
  ("resnet50", COLOUR, {"width": 10**9}, "memory"),
  ("vgg16", COLOUR, {"width": 1e9}, "memory"),
  ("vgg_a", COLOUR, {"hidden": 10**9}, "memory"),
  ("alexnet", {**COLOUR, "shape": (227, 227, 3)}, {"hidden": 10**9}, "memory"),
]


@pytest.mark.parametrize(("name", "meta", "sizes", "words"), HUGE)
def test_sizes_beyond_this_machine_are_rejected_before_tracing(name, meta, sizes, words, at_once):
  with pytest.raises(ValueError, match=words) as error:
    MODELS[name](meta, **sizes)
  assert "\n" not in str(error.value) and len(str(error.value)) < 300
