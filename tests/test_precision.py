"""Losses in bfloat16 with parameters in float32, and parameters of several types, in all runtimes."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers.members import IMAGES, KEY, NETWORKS, VECTORS, network
from helpers.sessions import config
from helpers.simulations import events_of, experiment, leaves, simulate
from helpers.twins import build as create
from helpers.twins import defaults, lenient

from ddl.algorithms import COLLECTIVE, SERVER
from ddl.api import Model
from ddl.asynchronous.threads import Threads
from ddl.engine.compiled_trainer import CompiledTrainer
from ddl.engine.execution import ExecutionConfig
from ddl.engine.local_step import gradient_of
from ddl.engine.placement import Placement
from ddl.engine.workers import make_workers
from ddl.events.barriers import asp
from ddl.models import MODELS
from ddl.precision import in_bfloat16, ravel
from ddl.run.build import build

DIGITS = "--config=configs/digits.py"
SMALL = {name: NETWORKS[name] for name in ("mlp", "lenet", "transformer")} | {
  "linear": (VECTORS, {}),
  "resnet20": ({**IMAGES, "shape": (16, 16, 3)}, {}),
}


def random_batch(meta, count=8):
  rng = np.random.default_rng(0)
  if meta["task"] == "language":
    return {key: rng.integers(meta["num_outputs"], size=(count, *meta["shape"]), dtype=np.int32) for key in "xy"}
  x = rng.normal(size=(count, *meta["shape"])).astype(np.float32)
  return {"x": x, "y": rng.integers(meta["num_outputs"], size=count, dtype=np.int32)}


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.sampled(8)
def test_gradients_are_close_to_those_of_float32(name):
  meta, settings = SMALL[name]
  model = MODELS[name](meta, **settings)
  params, extra = jax.jit(model.init)(KEY)
  batch = random_batch(meta)
  with jax.numpy_dtype_promotion("standard"):  # the gradient of `jax.nn.dot_product_attention` is not strict
    (exact, _), exact_grads = jax.jit(gradient_of(model))(params, extra, batch, KEY)
    (value, after), grads = jax.jit(gradient_of(in_bfloat16(model)))(params, extra, batch, KEY)
  assert value.dtype == jnp.float32 and {x.dtype for x in jax.tree.leaves(grads)} == {jnp.dtype("float32")}
  assert jax.tree.map(jnp.dtype, after) == jax.tree.map(jnp.dtype, extra)
  assert abs(value - exact) < 0.03 * exact
  flat, expected = (np.concatenate([x.ravel() for x in leaves(tree)]) for tree in (grads, exact_grads))
  limit = 0.25 if name == "resnet20" else 0.05  # it has 20 layers and batch statistics of 8 examples
  assert 0 < np.linalg.norm(flat - expected) < limit * np.linalg.norm(expected)
  metrics = in_bfloat16(model).metrics(params, extra, batch)
  assert {x.dtype for x in metrics.values()} == {jnp.dtype("float32")}


def test_inputs_and_parameters_are_bfloat16_and_the_state_is_float32():
  dtypes = {}

  def loss(params, extra, batch, key):
    dtypes.update(params=params["w"].dtype, x=batch["x"].dtype, y=batch["y"].dtype, extra=extra["mean"].dtype)
    return jnp.mean(batch["x"] @ params["w"]), {"mean": jnp.mean(batch["x"])}

  model = in_bfloat16(Model(lambda key: ({"w": jnp.ones(12)}, {"mean": jnp.zeros(())}), loss))
  (value, after), grads = gradient_of(model)(*model.init(KEY), random_batch(VECTORS), KEY)
  assert dtypes == {"params": jnp.bfloat16, "x": jnp.bfloat16, "y": jnp.int32, "extra": jnp.float32}
  assert value.dtype == after["mean"].dtype == grads["w"].dtype == jnp.float32


def test_the_softmax_is_in_float32():
  model, batch = in_bfloat16(MODELS["linear"](VECTORS)), random_batch(VECTORS)
  rng = np.random.default_rng(1)
  params = jax.tree.map(lambda x: rng.normal(size=x.shape).astype(np.float32), model.init(KEY)[0])
  (kernel,), (bias,) = ([x for x in jax.tree.leaves(params) if x.ndim == n] for n in (2, 1))
  x, w, b = (jnp.asarray(array, jnp.bfloat16) for array in (batch["x"], kernel, bias))
  scores = np.float32(x @ w + b[None])
  expected = np.log(np.exp(scores).sum(axis=1)) - scores[np.arange(8), batch["y"]]
  np.testing.assert_allclose(model.metrics(params, {}, batch)["loss"], expected, rtol=1e-5)


@pytest.mark.parametrize("name", ["mlp", pytest.param("resnet20", marks=pytest.mark.slow), "transformer"])
def test_every_product_is_in_bfloat16(name):
  meta, settings = SMALL[name]
  model = in_bfloat16(MODELS[name](meta, **settings))
  params, extra = jax.eval_shape(model.init, KEY)
  with jax.numpy_dtype_promotion("standard"):
    text = str(jax.make_jaxpr(gradient_of(model))(params, extra, random_batch(meta), KEY))
  kinds = [line.split(" = ")[0].split(":")[1].split("[")[0] for line in text.split("\n") if "= dot_general[" in line]
  kinds += [line.split(" = ")[0].split(":")[1].split("[")[0] for line in text.split("\n") if "= conv_general" in line]
  assert len(kinds) > 3 and set(kinds) <= ({"bf16", "f32"} if name == "transformer" else {"bf16"})
  assert kinds.count("f32") <= 6  # attention accumulates in float32


@pytest.mark.parametrize("sharding", ["fsdp", "tensor"])
def test_members_gather_parameters_in_bfloat16(sharding):
  """Before XLA's CPU passes, all sharded parameters and their gradients are bfloat16."""
  model, workers = in_bfloat16(network("mlp")), make_workers(2, 4, 2)
  placed = Placement(model, workers, sharding).model
  params, extra = jax.eval_shape(model.init, KEY)
  with jax.set_mesh(workers.mesh):
    jaxpr = jax.make_jaxpr(jax.grad(placed.loss, has_aux=True))(params, extra, random_batch(VECTORS), KEY)
  kinds = [line.split(":")[1].split("[")[0] for line in str(jaxpr).split("\n") if "= sharding_constraint[" in line]
  assert len(kinds) > 8 and set(kinds) <= {"bf16", "f32", "i32"}
  assert kinds.count("f32") == (sharding == "fsdp")  # the inputs


def mixed():
  """Return a perceptron with bfloat16 matrices and float32 biases."""

  def init(key):
    one, two = jax.random.split(key)
    w = jax.random.normal(one, (12, 16), jnp.bfloat16) / 4, jax.random.normal(two, (16, 8), jnp.bfloat16) / 4
    return {"w": list(w), "b": [jnp.zeros(16, jnp.float32), jnp.zeros(8, jnp.float32)]}, {}

  def loss(params, extra, batch, key):
    del key
    x = batch["x"].astype(jnp.bfloat16)
    for w, b in zip(params["w"], params["b"], strict=True):
      x = jnp.tanh((x @ w).astype(jnp.float32) + b[None]).astype(jnp.bfloat16)
    scores = x.astype(jnp.float32)
    return optax.softmax_cross_entropy_with_integer_labels(scores, batch["y"].astype(jnp.int32)).mean(), extra

  return Model(init, loss, dense=True)


def algorithm_of(name, inner, workers):
  start = {"start": 2} if name == "post_local_sgd" else {}  # has no default
  return create(name, inner, workers, **defaults(name, workers) | start)


def types(tree):
  return [x.dtype for x in jax.tree.leaves(tree)]


def trained_mixed(algorithm, gradients, devices=2):
  trainer = CompiledTrainer(algorithm, mixed(), make_workers(4, devices), ExecutionConfig(gradients, "scan", 3))
  batch = {key: np.stack([np.stack([x] * 6)] * 4) for key, x in random_batch(VECTORS).items()}
  runs, losses = trainer.plan(0, 6, 6), []
  for call, after, loss in trainer.run(trainer.start(KEY), runs, lambda first, steps: first_steps(batch, steps), KEY):
    carry = after
    losses.append(trainer.losses(call, loss))
  return trainer, carry, np.concatenate(losses)


def first_steps(batch, steps):
  return {key: x[:, :steps] for key, x in batch.items()}


@pytest.mark.parametrize("name, gradients", [(name, ("unroll", "vmap")[i % 2]) for i, name in enumerate(COLLECTIVE)])
@pytest.mark.sampled(28)
def test_collective_algorithms_keep_mixed_types(name, gradients):
  inner = lenient(optax.sgd(0.1, momentum=0.9))
  trainer, carry, losses = trained_mixed(algorithm_of(name, inner, 4), gradients)
  expected = types(jax.eval_shape(mixed().init, KEY)[0])
  assert len(set(expected)) == 2 and types(carry.params) == expected
  assert types(trainer.consensus(carry).params) == expected
  assert np.isfinite(losses).all() and losses[-1] < losses[0]


@pytest.mark.parametrize("name", SERVER)
@pytest.mark.sampled(len(SERVER))
def test_simulated_servers_keep_mixed_types(name):
  setting = experiment(name)._replace(model=on_digits())
  simulator, carry, losses = simulate(setting, events_of(setting.algorithm))
  expected = types(jax.eval_shape(on_digits().init, KEY)[0])
  assert types(carry.worker.params) == expected and types(simulator.consensus(carry).params) == expected
  assert np.isfinite(losses).all()


def on_digits():
  """Return a linear model of the digits with a bfloat16 matrix."""

  def init(key):
    return {"w": jax.random.normal(key, (64, 10), jnp.bfloat16) / 8, "b": jnp.zeros(10, jnp.float32)}, {}

  def loss(params, extra, batch, key):
    del key
    x = batch["x"].reshape(-1, 64).astype(jnp.bfloat16)
    scores = (x @ params["w"]).astype(jnp.float32) + params["b"][None]
    return optax.softmax_cross_entropy_with_integer_labels(scores, batch["y"]).mean(), extra

  return Model(init, loss, dense=True)


@pytest.mark.parametrize("name, blocks", [("async_measgd", 0), ("hogwild_easgd", 3)])
@pytest.mark.slow
def test_threads_keep_mixed_types(name, blocks):
  setting = experiment(name)
  algorithm = setting.algorithm._replace(arrivals=setting.algorithm.arrivals._replace(blocks=blocks))
  threads, start = Threads(algorithm, on_digits(), workers=4, seed=0, barrier=asp()), on_digits().init(KEY)

  def take(worker, step):
    return jax.tree.map(lambda x: x[0, 0], setting.feed([worker])(step, 1)), KEY

  threads.run(*start, take, 12, lambda done, losses, snapshot: None)
  assert types(start[0]) == types(algorithm.evaluate(threads.server))
  changes = []
  for params in threads.params:
    assert types(params) == types(start[0])
    changes.append(
      [float(jnp.abs(a - b).max()) for a, b in zip(*map(jax.tree.leaves, (params, start[0])), strict=True)]
    )
  assert np.max(changes, axis=0).min() > 0  # a slow thread may have made no step


def test_arrays_of_several_types_are_packed_into_the_widest():
  tree = {"a": jnp.ones((2, 3), jnp.bfloat16), "b": jnp.full(4, 1 / 3, jnp.float32)}
  vector, unravel = ravel(tree)
  assert vector.dtype == jnp.float32 and vector.shape == (10,)
  restored = unravel(vector)
  assert types(restored) == types(tree)
  jax.tree.map(np.testing.assert_array_equal, restored, tree)


def test_the_precision_of_an_experiment(wrong):
  model = build(config(precision="bfloat16")).model
  assert model.compute_dtype == jnp.bfloat16 and build(config()).model.compute_dtype is None
  wrong([DIGITS, "--config.precision=float16"], "config.precision must be one of", "float32, bfloat16")
