"""The activations of a loss against counts by hand, with and without `jax.checkpoint`."""

import jax
import jax.numpy as jnp
import pytest

from ddl.api import Model
from ddl.costs.activations import activation_bytes
from ddl.models import MODELS

TOKENS, WIDTH, HEADS, VOCABULARY = 32, 64, 2, 17
TEXT = {"task": "language", "shape": (TOKENS,), "num_outputs": VOCABULARY}


def transformer_values(examples, layers, **settings):
  model = MODELS["transformer"](TEXT, layers=layers, width=WIDTH, heads=HEADS, **settings)
  tokens = jax.ShapeDtypeStruct((examples, TOKENS), "int32")
  return activation_bytes(model, {"x": tokens, "y": tokens}) / 4


@pytest.mark.parametrize("examples", [1, 3])
def test_a_transformer_stores_what_arxiv_2205_05198_counts(examples):
  """A block stores 16 values per token and width, and two per attention score; and four vectors and two sums of norms.

  The paper counts 34 bytes in 16 bits per token and width, of which two are masks of dropout, and 5 per score, of which
  one is the mask and two are the scores after dropout.
  """
  block = TOKENS * (16 * WIDTH + 4) + HEADS * (2 * TOKENS**2 + 2 * TOKENS)
  two, three = (transformer_values(examples, layers) for layers in (2, 3))
  assert three - two == pytest.approx(examples * block, rel=0.01)


def test_a_checkpointed_block_stores_its_input_and_one_block_at_a_time():
  two, three, plain = (transformer_values(1, n, remat=x) for n, x in ((2, True), (3, True), (3, False)))
  assert three - two == TOKENS * WIDTH
  block = plain - transformer_values(1, 2)
  assert block < three < 2 * block + 8 * TOKENS * WIDTH


def test_fused_operations_are_not_stored():
  """The values of tanh follow from the product, but the next product reads them; its result is only summed."""

  def loss(params, extra, batch, key):
    del key
    hidden = jnp.tanh(2 * (batch["x"] @ params["first"])) ** 2
    return jnp.sum(hidden @ params["second"]), extra

  shapes = {"first": jnp.zeros((5, 7)), "second": jnp.zeros((7, 3))}
  model = Model(lambda key: (shapes, {}), loss)
  assert activation_bytes(model, {"x": jax.ShapeDtypeStruct((4, 5), "float32")}) == 4 * 4 * (7 + 7)


def test_pooled_maps_are_stored_before_pooling():
  images = {"x": jax.ShapeDtypeStruct((2, 28, 28, 1), "float32"), "y": jax.ShapeDtypeStruct((2,), "int32")}
  lenet = MODELS["lenet"](
    {"task": "classification", "shape": (28, 28, 1), "num_outputs": 10}, channels=(4, 8), hidden=9
  )
  stored = activation_bytes(lenet, images) / 8
  assert stored == pytest.approx(28 * 28 * 4 + 14 * 14 * (4 + 8) + 7 * 7 * 8 + 2 * 9 + 11, rel=0.2)
