"""The README shows what is there: its table is the generated one, and its examples run."""

import re
from pathlib import Path

import jax
import numpy as np
import optax

from ddl.runtime.execution import ExecutionConfig
from ddl.runtime.trainer import Trainer
from ddl.runtime.workers import AXIS, make_workers
from experiments.commands.list import markdown
from experiments.config.factories import keywords

README = (Path(__file__).parents[3] / "README.md").read_text()
STEPS = 1000


def block(word):
  return next(code for code in re.findall(r"```python\n(.*?)```", README, re.DOTALL) if word in code)


def test_the_table_of_algorithms_is_the_generated_one():
  assert markdown() in README


def test_a_users_model_trains():
  found = []
  exec(block("def init(key)"), {"print": lambda *values: found.append(values)})
  assert len(found) > 10 and found[-2][0] == STEPS
  np.testing.assert_allclose(found[-1][0]["w"], [1.0, -2.0, 3.0], rtol=1e-4)


def test_a_new_algorithm_runs():
  names = {}
  exec(block("def overlap_local_sgd"), names)
  spec = names["SPEC"]
  assert set(spec.hyper) == set(keywords(spec.factory))
  algorithm = spec.factory(optax.sgd(0.1), period=4, pull=0.6, axis_name=AXIS)
  model_names = {}
  exec(block("def init(key)").split("algorithm =")[0], model_names)
  model = model_names["Model"](model_names["init"], model_names["loss"], dense=True)
  trainer = Trainer(algorithm, model, make_workers(8, 2), ExecutionConfig("vmap", "scan", 8))
  carry = trainer.start(jax.random.key(0))

  def feed(first, steps):
    return {"x": np.ones((8, steps, 2, 3), np.float32), "y": np.ones((8, steps, 2), np.float32)}

  for _, _, losses in trainer.run(carry, trainer.plan(0, 40, 40), feed, jax.random.key(1)):
    last = float(losses[-1])
  assert last < 1e-3


def test_as_optax_example_finds_the_mean():
  found = []
  exec(block("as_optax(algorithm"), {"print": found.append})
  np.testing.assert_allclose(found[0], [4.5, 5.5, 6.5], atol=0.05)
