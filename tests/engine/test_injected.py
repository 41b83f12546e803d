"""Runs of a batch that differ in their hyperparameters: each equals the reference with those constants."""

import inspect
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers.runs import HYPER, STEPS, WORKERS, feed, model
from helpers.twins import close, flat_of
from reference import collective as reference

from ddl.algorithms import COLLECTIVE
from ddl.config.catalog import traceable
from ddl.config.optimizers import OPTIMIZERS
from ddl.engine.compiled_trainer import CompiledTrainer
from ddl.engine.execution import ExecutionConfig
from ddl.engine.injected import RunKey, inject
from ddl.engine.workers import make_workers

pytestmark = pytest.mark.usefixtures("x64")
RUNS, KEY = 3, jax.random.key(0)
HOW = ExecutionConfig("vmap", "scan", 5)


def settings(name, run):
  """Return (learning rate, momentum) and the algorithm's numeric hyperparameters; run 0 has its default values."""
  numbers = {key: value for key, value in HYPER.get(name, {}).items() if traceable("algorithm", name, key, value)}
  return (0.05 * (1 - 0.2 * run), 0.9 - 0.1 * run), {key: value * (1 - 0.1 * run) for key, value in numbers.items()}


def algorithm(name, values):
  numbers = dict(values)
  inner = optax.sgd(numbers.pop("learning_rate"), momentum=numbers.pop("inner momentum"))
  factory = inspect.unwrap(COLLECTIVE[name].factory)  # without checks, which need concrete numbers
  more = {"workers": WORKERS} if "workers" in inspect.signature(factory).parameters else {}
  return factory(inner, **HYPER.get(name, {}) | numbers, **more)


@pytest.mark.parametrize("name", COLLECTIVE)
@pytest.mark.sampled(16)
def test_each_run_equals_the_reference_with_its_constants(name):
  def values(run):
    (rate, momentum), numbers = settings(name, run)
    return {"learning_rate": rate, "inner momentum": momentum} | numbers

  def batches(first, steps):
    return {key: np.stack([x] * RUNS, axis=1) for key, x in feed(first, steps).items()}

  trainer = CompiledTrainer(inject(partial(algorithm, name), values(0)), model(), make_workers(WORKERS, 2), HOW)
  start = trainer.join([trainer.start(RunKey(KEY, values(run))) for run in range(RUNS)])
  for _, carry, _ in trainer.run(start, trainer.plan(0, STEPS, STEPS), batches, jnp.stack([KEY] * RUNS)):  # noqa: B007
    pass
  results = [flat_of(consensus.params) for consensus in trainer.consensuses(carry)]
  x0, grad = reference.problem(WORKERS, STEPS)
  for run, result in enumerate(results):
    inner, numbers = settings(name, run)
    hyper = HYPER.get(name, {}) | numbers
    twin = reference.TWINS[name](x0, grad, workers=WORKERS, steps=STEPS, inner=reference.heavy_ball(*inner), **hyper)
    close(result, twin.evaluate[-1])
  if name != "independent":
    assert not np.allclose(results[0], results[1])


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.sampled(4)
def test_an_optimizer_with_traced_settings_equals_one_with_constants(name):
  more = {"weight_decay": 0.1, "clip_norm": 0.5, "momentum": 0.9}
  numbers = {
    key: 0.95 * value
    for key, parameter in inspect.signature(OPTIMIZERS[name]).parameters.items()
    if key != "rate"
    for value in [parameter.default or more.get(key, 0.0)]
    if traceable("optimizer", name, key, value)
  } | {"rate": 0.1}
  params = {"kernel": jnp.linspace(-1, 1, 12).reshape(3, 4), "bias": jnp.linspace(0.5, 1, 4)}

  def trained(values):
    values = dict(values)
    optimizer = OPTIMIZERS[name](values.pop("rate"), **values)
    model, state = params, optimizer.init(params)
    for step in range(3):
      grads = jax.tree.map(lambda x, step=step: jnp.sin(x + step), model)
      updates, state = optimizer.update(grads, state, model)
      model = optax.apply_updates(model, updates)
    return model

  with jax.numpy_dtype_promotion("standard"):  # optax raises b1 to the power of an integer
    traced = jax.jit(trained)({key: jnp.asarray(value) for key, value in numbers.items()})
    constant = jax.jit(lambda: trained(numbers))()
  jax.tree.map(close, traced, constant)
