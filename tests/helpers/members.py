"""Small networks trained by workers of several devices (members), and on one device for comparison."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import optax
from helpers.twins import build

from ddl.engine.compiled_program import collectives
from ddl.engine.compiled_trainer import CompiledTrainer
from ddl.engine.execution import ExecutionConfig
from ddl.engine.keys import worker_keys
from ddl.engine.workers import make_workers
from ddl.models import MODELS

BATCH, LAST, KEY = 16, 10, jax.random.key(3)  # examples per step of all workers, steps
HOW = ExecutionConfig("unroll", "scan", 5)
VECTORS = {"task": "classification", "shape": (12,), "num_outputs": 8}
IMAGES = {"task": "classification", "shape": (8, 8, 2), "num_outputs": 8}
TOKENS = {"task": "language", "shape": (6,), "num_outputs": 16}
NETWORKS = {  # small versions of CD-DNN, LeNet, VGG-A and a language model
  "mlp": (VECTORS, {"hidden": (64, 64, 64)}),
  "lenet": (IMAGES, {"channels": (4, 8), "kernel": 3, "hidden": 128}),
  "vgg_a": ({**IMAGES, "shape": (32, 32, 2)}, {"width": 0.07, "hidden": 64, "dropout": 0.0}),
  "transformer": (TOKENS, {"layers": 2, "width": 32, "heads": 4}),
}
CASES = [("mlp", rules) for rules in ("hybrid", "fsdp", "tensor")]
CASES += [("lenet", "fsdp"), ("lenet", "hybrid"), ("vgg_a", "hybrid")] + [
  ("transformer", rules) for rules in ("fsdp", "tensor")
]


@cache
def _model_and_start(name):
  meta, settings = NETWORKS[name]
  model = MODELS[name](meta, **settings)
  return model, jax.tree.map(np.asarray, jax.jit(model.init)(KEY))


def network(name):
  """Return the model with constant initial parameters, as those that Flax draws in float32 depend on the layout."""
  model, start = _model_and_start(name)
  return model._replace(init=lambda key: jax.tree.map(lambda x: jnp.asarray(x, jnp.result_type(float)), start))


def batches(name):
  """Return random examples [steps, BATCH, ...]."""
  meta, rng = NETWORKS[name][0], np.random.default_rng(0)
  shape = (LAST, BATCH, *meta["shape"])
  if meta["task"] == "language":
    return {key: rng.integers(meta["num_outputs"], size=shape, dtype=np.int32) for key in "xy"}
  return {"x": rng.normal(size=shape), "y": rng.integers(meta["num_outputs"], size=shape[:2], dtype=np.int32)}


def feed(name, workers):
  """Return a feed of the global batches, split over the workers."""

  def slices(first, count):
    return {key: np.stack(np.split(x[first : first + count], workers, axis=1)) for key, x in batches(name).items()}

  return slices


def inner():
  """Return the optimizer."""
  return optax.sgd(0.1, momentum=0.9)


@cache
def one_device(name):
  """Return the parameters after SGD with momentum on the global batches."""
  model, optimizer, examples = network(name), inner(), batches(name)
  params, extra = model.init(KEY)
  state, gradient = optimizer.init(params), jax.jit(jax.grad(lambda p, batch: model.loss(p, extra, batch, KEY)[0]))
  for step in range(LAST):
    batch = {key: x[step] for key, x in examples.items()}
    updates, state = optimizer.update(gradient(params, batch), state, params)
    params = optax.apply_updates(params, updates)
  return params


def trained(name, workers, members, sharding, steps=LAST, algorithm=None, how=HOW, **model):
  """Return (trainer, carry) after some steps, by default of synchronous SGD. model: fields of the model to replace."""
  algorithm = algorithm or build("sync_sgd", inner(), workers)
  layout = make_workers(workers, workers * members, members)
  trainer = CompiledTrainer(algorithm, network(name)._replace(**model), layout, how._replace(sharding=sharding))
  for _, carry, _ in trainer.run(trainer.start(KEY), trainer.plan(0, steps, steps), feed(name, workers), KEY):
    last = carry
  return trainer, last


def of_a_step(name, workers, members, sharding, **model):
  """Return the collectives of a compiled step of synchronous SGD. model: fields of the model to replace."""
  how = ExecutionConfig("unroll", "unroll", 1)
  trainer, carry = trained(name, workers, members, sharding, 1, how=how, **model)
  (call,) = trainer.plan(0, 1, 1)
  batch = trainer.workers.put(feed(name, workers)(0, 1), trainer.placement.batch)
  step, keys = trainer.workers.replicate(np.int32(0)), trainer.workers.put(np.asarray(worker_keys(KEY, range(workers))))
  return collectives(trainer.compiled(call.kind, carry, batch, step, keys, ()).as_text(), trainer.workers.mesh)
