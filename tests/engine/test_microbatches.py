"""Microbatches: the gradients equal those of the whole batch in all runtimes."""

from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.members import CASES, KEY, one_device, trained
from helpers.runs import HYPER, STEPS, equals_twin, feed, make, record
from helpers.runs import model as problem
from helpers.servers import build as build_server
from helpers.sessions import config, normalized
from helpers.simulations import events_of, experiment, leaves, of_workers, one_by_one, simulate, twin_model, twin_rows
from helpers.twins import INNER, close, defaults, flat_of
from reference import collective as reference
from reference.server import TWINS

from ddl.algorithms import COLLECTIVE, SERVER
from ddl.api import Model
from ddl.asynchronous.simulator import Simulator
from ddl.config.catalog import keywords
from ddl.engine.execution import ExecutionConfig
from ddl.engine.local_step import gradient_of
from ddl.engine.placement import gather
from ddl.engine.workers import make_workers
from ddl.events.schedule import make_schedule
from ddl.events.times import lognormal
from ddl.run.build import build

DIGITS = "--config=configs/digits.py"


@pytest.mark.parametrize("name", ["mlp", "transformer"])
@pytest.mark.parametrize("parts", [4, 2, 16])
@pytest.mark.sampled(7)
def test_ten_steps_equal_those_of_the_whole_batch(x64, parts, name):
  _, carry = trained(name, 1, 1, "fsdp", microbatches=parts)
  for a, b in zip(leaves(carry.params), leaves(one_device(name)), strict=True):
    np.testing.assert_allclose(a[0], b, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("case", [case for case in CASES if case[0] != "vgg_a"])
@pytest.mark.sampled(7)
def test_members_share_each_microbatch(x64, case):
  name, sharding = case
  _, carry = trained(name, 2, 2, sharding, microbatches=4)
  for a, b in zip(leaves(gather(carry.params)), leaves(one_device(name)), strict=True):
    np.testing.assert_allclose(a[0], b, rtol=1e-10, atol=1e-12)


# ---- two halves, whose gradients differ and have the mean of the references' problem


def halved(model):
  """Return the model with two microbatches; "half" adds a constant to each gradient of an example."""

  def loss(params, extra, batch, key):
    value, extra = model.loss(params, extra, batch, key)
    return value + jnp.mean(batch["half"]) * jnp.sum(flat_of(params)), extra

  return model._replace(loss=loss, microbatches=2)


def of_two(feed):
  """Convert a feed of batches of one example to a feed of batches of two."""

  def take(*args, **more):
    two = {key: np.repeat(x, 2, axis=-1) for key, x in feed(*args, **more).items()}
    return two | {"half": np.array(np.broadcast_to([3.0, -3.0], two["step"].shape))}

  return take


@pytest.mark.parametrize("name", COLLECTIVE)
@pytest.mark.sampled(len(COLLECTIVE) // 2)
def test_collective_algorithms_with_two_microbatches_equal_the_reference(x64, name):
  trainer = make(name, 2, ExecutionConfig("vmap", "scan", STEPS), model=halved(problem()), **HYPER[name])
  equals_twin(trainer, record(trainer, take=of_two(feed)), name, "momentum", **HYPER[name])


@pytest.mark.parametrize("name", SERVER)
@pytest.mark.sampled(len(SERVER))
def test_server_algorithms_with_two_microbatches_equal_the_reference(x64, name):
  hyper, workers, steps = {"period": 3} if "period" in keywords(SERVER[name].factory) else {}, 4, STEPS
  algorithm = build_server(name, "momentum", workers=workers, **hyper)
  algorithm = algorithm._replace(arrivals=algorithm.arrivals._replace(blocks=0))
  times = lognormal(workers=workers, seed=0, jitter=0.3)
  events, operations = make_schedule(algorithm, workers=workers, steps=steps, times=times, message_seconds=0.001)
  model, layout = halved(twin_model(workers, 4 * steps)), make_workers(workers, 2)
  simulator = Simulator(algorithm, model, layout, ExecutionConfig("vmap", "scan", 64), events, operations)
  for _, carry, _ in simulator.run(simulator.start(KEY), simulator.plan(0, steps, steps), of_two(twin_rows), KEY):
    center = flat_of(simulator.consensus(carry).params)
  x0, grad = reference.problem(workers, 4 * steps)
  how = {"order": events.worker, "peers": events.peer, "workers": workers, "inner": INNER["momentum"][1]}
  close(center, TWINS[name](x0, grad, **how, **(defaults(name, workers) | hyper)).evaluate[-1])


@pytest.mark.parametrize("dense", [True, False])
def test_each_microbatch_has_its_key_and_the_statistics_of_the_previous_one(dense):
  """The loss is linear, so that the gradient is the mean of the inputs plus noise from the key."""

  def loss(params, extra, batch, key):
    noise = jax.random.normal(key, params.shape)
    return jnp.mean(batch["x"] @ params) + params @ noise, {"count": extra["count"] + 1, "first": batch["x"][0]}

  x = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)
  model = Model(lambda key: (jnp.ones(4), {"count": 0, "first": jnp.zeros(4)}), loss, dense=dense, microbatches=3)
  extra = {"count": jnp.int32(0), "first": jnp.zeros(4)}
  (value, after), grads = jax.jit(gradient_of(model))(jnp.ones(4), extra, {"x": x}, KEY)
  noise = np.mean([jax.random.normal(jax.random.fold_in(KEY, i), (4,)) for i in range(3)], axis=0)
  np.testing.assert_allclose(grads, x.mean(axis=0) + noise, rtol=1e-5)
  np.testing.assert_allclose(value, (x.mean(axis=0) + noise).sum(), rtol=1e-5)
  assert int(after["count"]) == 3
  np.testing.assert_array_equal(after["first"], x[2])  # the last of three microbatches has examples 2 and 5


@pytest.mark.slow
@pytest.mark.parametrize("name", ["async_easgd", "hogwild_sgd"])
def test_server_algorithms_accept_microbatches(name):
  setting = experiment(name)
  schedule = events_of(setting.algorithm)
  _, carry, losses = simulate(setting, schedule)
  parted = setting._replace(model=setting.model._replace(microbatches=2))
  _, other, theirs = simulate(parted, schedule)
  np.testing.assert_allclose(theirs, losses, rtol=1e-4)
  alone = of_workers(one_by_one(parted, schedule))
  for result in (carry.worker.params, alone):
    for a, b in zip(leaves(other.worker.params), leaves(result), strict=True):
      np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


def test_a_step_stores_activations_of_one_microbatch():
  widths = (8, *[128] * 4)
  weights = {f"w{i}": jax.ShapeDtypeStruct(shape, jnp.float32) for i, shape in enumerate(pairwise(widths))}

  def loss(params, extra, batch, key):
    x = batch["x"]
    for w in params.values():
      x = jnp.tanh(x @ w)
    return jnp.mean(x), extra

  def temporaries(parts):
    model = Model(lambda key: ({}, {}), loss, dense=True, microbatches=parts)
    shapes = weights, {}, {"x": jax.ShapeDtypeStruct((2**14, 8), jnp.float32)}, jax.eval_shape(lambda: KEY)
    return jax.jit(gradient_of(model)).lower(*shapes).compile().memory_analysis().temp_size_in_bytes

  assert temporaries(8) < temporaries(1) / 4


@pytest.mark.slow
def test_batch_norm_uses_the_statistics_of_a_microbatch():
  model = normalized()
  params, extra = model.init(KEY)
  rng = np.random.default_rng(0)
  batch = {"x": rng.normal(size=(8, 8, 8, 1)).astype(np.float32), "y": rng.integers(10, size=8)}
  whole, parted = (gradient_of(model._replace(microbatches=k))(params, extra, batch, KEY)[1] for k in (1, 2))
  differ = [not np.allclose(a, b, rtol=1e-3) for a, b in zip(leaves(whole), leaves(parted), strict=True)]
  assert any(differ)


def test_microbatches_of_an_experiment(wrong):
  model = build(config(microbatches=4)).model
  assert model.microbatches == 4
  wrong([DIGITS, "--config.microbatches=5"], "config.microbatches must be a divisor", "got 5", "config.batch=16")
  wrong([DIGITS, "--config.microbatches=0"], "config.microbatches must be an integer >= 1, got 0")
  wrong([DIGITS, "--config.microbatches=8", "--config.batch=8", "--members=2", "--devices=2", "--config.workers=1"],
        "config.batch must be a multiple of 16", "got 8")  # fmt: skip
