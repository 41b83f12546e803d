"""Models from nnx and Equinox: loss, gradient and statistics equal those of the same network in linen."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen, nnx

from ddl.models.modules import from_equinox, from_flax, from_nnx

META = {"task": "classification", "shape": (4, 4, 1), "num_outputs": 10}
BATCH = {"x": np.random.default_rng(0).normal(size=(6, 4, 4, 1)), "y": np.arange(6)}
KEY = jax.random.key(0)


class Linen(linen.Module):
  norm: bool = True

  @linen.compact
  def __call__(self, x, train):
    x = linen.Dense(8, name="a")(x.reshape(x.shape[0], -1))
    if self.norm:
      x = linen.BatchNorm(use_running_average=not train, name="norm")(x)
    return linen.Dense(10, name="b")(linen.relu(x))


class Nnx(nnx.Module):
  def __init__(self, rngs, rate=0.0):
    self.a, self.b = nnx.Linear(16, 8, rngs=rngs), nnx.Linear(8, 10, rngs=rngs)
    self.norm, self.dropout = nnx.BatchNorm(8, rngs=rngs), nnx.Dropout(rate, rngs=rngs)

  def __call__(self, x):
    return self.b(self.dropout(nnx.relu(self.norm(self.a(x.reshape(x.shape[0], -1))))))


class Equinox(eqx.Module):
  a: eqx.nn.Linear
  b: eqx.nn.Linear
  dropout: eqx.nn.Dropout

  def __init__(self, key, rate=0.0):
    one, two = jax.random.split(key)
    self.a, self.b = eqx.nn.Linear(16, 8, key=one), eqx.nn.Linear(8, 10, key=two)
    self.dropout = eqx.nn.Dropout(rate)

  def __call__(self, x, key=None):
    return self.b(self.dropout(jax.nn.relu(self.a(x.ravel())), key=key))


def gradient(model, params, extra):
  return jax.jit(jax.value_and_grad(model.loss, has_aux=True))(params, extra, BATCH, KEY)


def close(actual, expected):
  assert jax.tree.structure(actual) == jax.tree.structure(expected)
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12), actual, expected)


def test_nnx_equals_linen(x64):
  linen_model, model = from_flax(Linen(), META), from_nnx(Nnx, META)
  params, extra = jax.jit(model.init)(KEY)
  statistics = {"batch_stats": {"norm": extra["norm"]}}
  (loss, extra_after), grads = gradient(model, params, extra)
  (expected, after), expected_grads = gradient(linen_model, params, statistics)
  close((loss, grads, extra_after["norm"]), (expected, expected_grads, after["batch_stats"]["norm"]))
  assert np.abs(extra_after["norm"]["mean"]).max() > 1e-3
  close(jax.jit(model.metrics)(params, extra_after, BATCH), jax.jit(linen_model.metrics)(params, after, BATCH))


def test_equinox_equals_linen(x64):
  linen_model, model = from_flax(Linen(norm=False), META), from_equinox(Equinox, META)
  params, extra = jax.jit(model.init)(KEY)
  assert extra == {} and sorted(params) == ["a.bias", "a.weight", "b.bias", "b.weight"]

  def as_linen(tree):
    return {name: {"kernel": tree[f"{name}.weight"].T, "bias": tree[f"{name}.bias"]} for name in "ab"}

  (loss, _), grads = gradient(model, params, extra)
  (expected, _), expected_grads = gradient(linen_model, as_linen(params), {})
  close((loss, as_linen(grads)), (expected, expected_grads))
  close(jax.jit(model.metrics)(params, {}, BATCH), jax.jit(linen_model.metrics)(as_linen(params), {}, BATCH))


@pytest.mark.parametrize("library", ["nnx", "equinox"])
@pytest.mark.slow
def test_dropout_depends_on_the_key_and_only_in_training(library):
  make = {"nnx": lambda: from_nnx(lambda rngs: Nnx(rngs, 0.5), META),
          "equinox": lambda: from_equinox(lambda key: Equinox(key, 0.5), META)}  # fmt: skip
  model = make[library]()
  params, extra = jax.jit(model.init)(KEY)
  loss, metrics = jax.jit(model.loss), jax.jit(model.metrics)
  losses = [float(loss(params, extra, BATCH, jax.random.key(i))[0]) for i in (1, 1, 2)]
  assert losses[0] == losses[1] != losses[2]
  np.testing.assert_array_equal(*(metrics(params, extra, BATCH)["loss"] for _ in range(2)))


def test_an_equinox_module_with_state_is_rejected():
  class Stateful(eqx.Module):
    norm: eqx.nn.BatchNorm

    def __init__(self, key):
      self.norm = eqx.nn.BatchNorm(16, axis_name="batch", mode="batch")

    def __call__(self, x):
      return x.ravel()

  with pytest.raises(ValueError, match="state"):
    from_equinox(Stateful, META).init(KEY)


def test_parameters_have_the_default_float_type(x64):
  for model in (from_nnx(Nnx, META), from_equinox(Equinox, META)):
    assert {leaf.dtype for leaf in jax.tree.leaves(jax.eval_shape(model.init, KEY)[0])} == {jnp.dtype("float64")}
