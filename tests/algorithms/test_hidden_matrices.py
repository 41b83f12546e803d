"""The matrices that Muon and Dion orthogonalize, in ddl's models and in trees of other libraries."""

import jax
import numpy as np
import optax
import pytest

import ddl
from ddl.config.optimizers import OPTIMIZERS
from ddl.models import MODELS
from ddl.run.build import param_shapes

IMAGES = {"task": "classification", "shape": (32, 32, 3), "num_outputs": 10, "description": ""}
TEXT = {"task": "language", "shape": (16,), "num_outputs": 50, "description": ""}


def names(params):
  """Return the paths of the hidden matrices."""
  paths = jax.tree_util.tree_leaves_with_path(ddl.hidden_matrices(params))
  return [jax.tree_util.keystr(path, simple=True, separator="/") for path, hidden in paths if hidden]


BLOCK = [f"Block_{i}/{layer}/kernel" for i in range(2) for layer in ("attended", "down", "qkv", "up")]


@pytest.mark.parametrize(
  ("name", "meta", "settings", "expected"),
  [
    ("linear", IMAGES, {}, ["Dense_0/kernel"]),
    ("mlp", IMAGES, {"hidden": (8,) * 11}, [f"Dense_{i}/kernel" for i in (0, 1, 10, *range(2, 10))]),
    ("lenet", IMAGES, {}, ["Dense_0/kernel"]),
    ("resnet20", IMAGES, {}, []),
    ("transformer", TEXT, {"layers": 2, "width": 8, "heads": 2}, BLOCK),
    ("gpt2", TEXT, {"layers": 2, "width": 8, "heads": 2}, BLOCK),
  ],
)
def test_models(name, meta, settings, expected):
  assert names(param_shapes(MODELS[name](meta, **settings))) == expected


def test_names_of_other_libraries():
  matrix, vector = np.zeros((2, 3)), np.zeros(3)
  gpt = {"wte": {"weight": matrix}, "wpe": {"weight": matrix}, "h": [{"attn": {"weight": matrix, "bias": vector}}] * 2}
  assert names(gpt | {"lm_head": {"weight": matrix}}) == ["h/0/attn/weight", "h/1/attn/weight"]
  assert names(gpt) == ["h/0/attn/weight", "h/1/attn/weight"]
  layers = {"layers": [{"weight": matrix, "bias": vector}] * 3}
  assert names(layers) == ["layers/0/weight", "layers/1/weight"]
  assert names({"classifier": {"kernel": matrix}, "fc": {"kernel": matrix}}) == ["fc/kernel"]
  assert names({"w": vector}) == []


def test_muon_equals_optax_on_hidden_matrices_and_adamw_elsewhere(x64):
  generator = np.random.default_rng(0)
  shapes = {"Embed_0": {"embedding": (7, 4)}, "Block_0": {"up": {"kernel": (4, 6)}}, "Dense_0": {"kernel": (4, 7)}}
  params, gradients = (
    jax.tree.map(lambda s: generator.normal(size=s), shapes, is_leaf=lambda s: isinstance(s, tuple)) for _ in range(2)
  )
  with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):

    def update(tx):
      _, state = tx.update(gradients, tx.init(params), params)
      return tx.update(jax.tree.map(lambda g: g + 0.3, gradients), state, params)[0]

    ours = update(OPTIMIZERS["muon"](0.1, weight_decay=0.2, adam_b2=0.99))
    everywhere = update(optax.contrib.muon(0.1, weight_decay=0.2, adam_b2=0.99))
    adamw = update(optax.adamw(0.1, b2=0.99, weight_decay=0.0, nesterov=True))
  np.testing.assert_allclose(ours["Block_0"]["up"]["kernel"], everywhere["Block_0"]["up"]["kernel"], rtol=1e-12)
  for name, key in (("Embed_0", "embedding"), ("Dense_0", "kernel")):
    np.testing.assert_allclose(ours[name][key], adamw[name][key], rtol=1e-12)
    assert not np.allclose(ours[name][key], everywhere[name][key])
