"""The README shows what is there: its table is the generated one, and its examples run."""

import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax

from ddl import collectives
from ddl.algorithms import COLLECTIVE
from ddl.api import Algorithm, descend
from ddl.runtime.rounds import How
from ddl.runtime.trainer import Trainer
from ddl.runtime.workers import AXIS, make_workers
from experiments.listing import markdown

README = (Path(__file__).parent.parent / "README.md").read_text()
STEPS = 1000


def block(word):
  return next(code for code in re.findall(r"```python\n(.*?)```", README, re.DOTALL) if word in code)


def test_the_table_of_algorithms_is_the_generated_one():
  assert markdown() in README


def test_a_users_model_trains():
  rng = np.random.default_rng(0)
  x = rng.normal(size=(8, STEPS, 16, 3)).astype(np.float32)
  y = x @ np.array([1.0, -2.0, 3.0], np.float32)

  def feed(first, steps):
    return {"x": x[:, first : first + steps], "y": y[:, first : first + steps]}

  found = {}
  names = {"jax": jax, "jnp": jnp, "optax": optax, "COLLECTIVE": COLLECTIVE, "feed": feed, "print": found.update}
  exec(block("def init(key)"), names)
  np.testing.assert_allclose(found["w"], [1.0, -2.0, 3.0], rtol=1e-4)


def test_a_new_algorithm_runs():
  names = {"jax": jax, "collectives": collectives, "Algorithm": Algorithm, "descend": descend}
  exec(block("def overlap_local_sgd"), names)
  algorithm = names["overlap_local_sgd"](optax.sgd(0.1), period=4, pull=0.6, axis_name=AXIS)
  model_names = {"jax": jax, "jnp": jnp}
  exec(block("def init(key)").split("algorithm =")[0], model_names)
  model = model_names["Model"](model_names["init"], model_names["loss"], dense=True)
  trainer = Trainer(algorithm, model, make_workers(8, 2), How("vmap", "scan", 8))
  carry = trainer.start(jax.random.key(0))

  def feed(first, steps):
    return {"x": np.ones((8, steps, 2, 3), np.float32), "y": np.ones((8, steps, 2), np.float32)}

  for _, _, losses in trainer.run(carry, trainer.plan(0, 40, 40), feed, jax.random.key(1)):
    last = float(losses[-1])
  assert last < 1e-3


def test_as_optax_example_is_an_optax_transformation():
  names = {"optax": optax}
  exec(block("as_optax(algorithm").split("updates, state")[0], names)
  assert isinstance(names["tx"], optax.GradientTransformationExtraArgs)
