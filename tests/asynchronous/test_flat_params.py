"""Server algorithms on one parameter vector: equal values, and optimizers that prevent it."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers import servers
from helpers.simulations import STEPS, TROUBLE, events_of, experiment, leaves, of_workers, one_by_one, simulate
from helpers.twins import lenient

from ddl.algorithms import SERVER
from ddl.api import Model, Visit
from ddl.asynchronous.flat_params import check_lock_free, is_elementwise, packed
from ddl.asynchronous.simulator import Simulator
from ddl.config.optimizers import OPTIMIZERS
from ddl.engine.execution import ExecutionConfig, packs
from ddl.engine.workers import make_workers
from ddl.events import times
from ddl.events.schedule import make_schedule
from ddl.precision import ravel

PARAMS = {
  "w": np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4),
  "b": np.linspace(0, 2, 5, dtype=np.float32),
  "deep": {"scale": np.float32(0.5) * np.ones((), np.float32)},
}
WORKERS = 4
PACKED = [name for name in SERVER if name != "decoupled_diloco"]  # its server selects a fragment, and averages norms
WARM = optax.linear_schedule(0.0, 0.1, 200)  # from a rate of 0


def build(name, inner):
  return servers.build(name, inner, workers=WORKERS)


def random_like(tree, seed):
  rng = np.random.default_rng(seed)
  return jax.tree.map(lambda x: jnp.asarray(rng.normal(size=np.shape(x)), np.asarray(x).dtype), tree)


@pytest.mark.parametrize("name", PACKED)
@pytest.mark.sampled(5)
def test_a_packed_algorithm_equals_that_on_trees(name):
  algorithm = build(name, optax.sgd(0.1, momentum=0.9))
  assert is_elementwise(algorithm, PARAMS)
  rule = packed(algorithm, PARAMS)
  (state, server, reply), (_, packed_server, packed_reply) = algorithm.init(PARAMS), rule.init(PARAMS)
  params, packed_params = PARAMS, PARAMS
  for round_, worker in enumerate((2, 0, 2, 3, 0)):
    visit = Visit(jnp.int32(worker), jnp.int32(-1 if algorithm.arrivals.peers == "none" else (worker + 1) % WORKERS))
    grads = random_like(PARAMS, round_)
    (params, state), (packed_params, _) = (algorithm.local(grads, state, x) for x in (params, packed_params))
    server, reply = algorithm.serve(server, algorithm.request(state, params), visit)
    packed_server, packed_reply = rule.serve(packed_server, rule.request(state, packed_params), visit)
    assert max(np.ndim(x) for x in jax.tree.leaves(packed_reply)) <= 1
    params, after = algorithm.merge(reply, state, params)
    packed_params, packed_after = rule.merge(packed_reply, state, packed_params)
    for a, b in zip(leaves((params, after)), leaves((packed_params, packed_after)), strict=True):
      np.testing.assert_array_equal(a, b)
    state = after
  for a, b in zip(leaves(algorithm.evaluate(server)), leaves(rule.evaluate(packed_server)), strict=True):
    np.testing.assert_array_equal(a, b)
  assert max(np.abs(a - b).max() for a, b in zip(leaves(params), leaves(PARAMS), strict=True)) > 0


def matrices(params):
  return jax.tree.map(lambda x: np.ndim(x) > 1, params)


@pytest.mark.parametrize(
  ("expected", "inner"),
  [
    (True, optax.sgd(0.1, nesterov=True, momentum=0.9)),
    (True, optax.adagrad(0.1)),
    (True, optax.chain(optax.clip(0.1), optax.sgd(0.1))),  # clips each value
    (False, optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(0.1))),
    (False, optax.chain(optax.clip_by_block_rms(1.0), optax.sgd(0.1))),
    (False, optax.lars(0.1)),
    (False, optax.chain(optax.add_decayed_weights(0.1, mask=matrices), optax.sgd(0.1))),
    (False, optax.chain(optax.add_decayed_weights(0.1, mask=matrices(PARAMS)), optax.sgd(0.1))),
    (False, optax.chain(optax.add_decayed_weights(1e-9, mask=matrices), optax.sgd(WARM))),
    (True, optax.chain(optax.add_decayed_weights(1e-9), optax.sgd(WARM))),
  ],
)
def test_is_elementwise_detects_layer_wise_optimizers(expected, inner):
  assert is_elementwise(build("async_sgd", inner), PARAMS) == expected


@pytest.mark.parametrize("name", PACKED)
def test_only_the_optimizer_of_the_server_must_be_elementwise(name):
  masked = optax.chain(optax.add_decayed_weights(5e-4, mask=matrices), optax.sgd(WARM))
  at_the_server = ("async_sgd", "downpour", "dc_asgd", "staleness_aware_sgd", "async_msgd")
  at_the_server += ("ringmaster_asgd", "rennala_sgd")
  assert is_elementwise(build(name, masked), PARAMS) == (name not in at_the_server)


@pytest.mark.parametrize("average, fragments", [("radial", 4), ("mean", 1)])
def test_a_server_of_fragments_is_not_elementwise(average, fragments):
  rule = servers.build("decoupled_diloco", optax.sgd(0.1), workers=WORKERS, average=average, fragments=fragments)
  assert not is_elementwise(rule, PARAMS)


def test_rules_of_whole_arrays_are_not_elementwise():
  algorithm = build("async_easgd", optax.sgd(0.1))

  def serve(server, message, visit):
    server, reply = algorithm.serve(server, message, visit)
    return server, jax.tree.map(lambda x: jnp.where(jnp.linalg.norm(x) > 1e9, 0 * x, x), reply)

  assert is_elementwise(algorithm, PARAMS) and not is_elementwise(algorithm._replace(serve=serve), PARAMS)
  rule = build("hogwild_easgd", optax.sgd(0.1))
  norms = rule.lock_free._replace(increment=lambda w, z: jax.tree.map(lambda w, z: (w - z) / w.size, w, z))
  check_lock_free(rule, PARAMS)
  with pytest.raises(ValueError, match=r"^LockFree\.increment must be element-wise"):
    check_lock_free(rule._replace(lock_free=norms), PARAMS)


DECAYED = {  # optimizer -> (hyperparameters, its update (x, state) -> (x, state) without gradients)
  "sgd": ({"momentum": 0.9, "weight_decay": 0.02}, lambda x, m: (x - 0.1 * (0.9 * m + 0.02 * x), 0.9 * m + 0.02 * x)),
  "adamw": ({"weight_decay": 0.02}, lambda x, m: (x - 0.1 * 0.02 * x, m)),
  "lion": ({"weight_decay": 0.02}, lambda x, m: (x - 0.1 * 0.02 * x, m)),
  "nadamw": ({"weight_decay": 0.02}, lambda x, m: (x - 0.1 * 0.02 * x, m)),
}


def no_data(rounds, steps):
  return {"x": np.zeros((len(rounds), steps, 1))}


@pytest.mark.parametrize(
  "name, inner, devices",
  [("async_sgd", "sgd", 1), ("downpour", "adamw", 2), ("dc_asgd", "nadamw", 1), ("staleness_aware_sgd", "lion", 2)],
)
@pytest.mark.sampled(4)
def test_weight_decay_at_the_server_applies_only_to_matrices(x64, name, inner, devices):
  """Without gradients each visit decays the matrix, and the bias stays constant."""
  settings, update = DECAYED[inner]

  def loss(params, extra, batch, key):
    return 0 * (params["matrix"].sum() + params["bias"].sum()), extra

  model = Model(lambda key: ({"matrix": jnp.ones((3, 2)), "bias": jnp.ones(3)}, {}), loss)
  algorithm = build(name, lenient(OPTIMIZERS[inner](0.1, **settings)))
  steps, layout = 8 * algorithm.period, make_workers(WORKERS, devices)
  schedule = make_schedule(algorithm, workers=WORKERS, steps=steps, times=times.constant(workers=WORKERS, seed=0))
  simulator = Simulator(algorithm, model, layout, ExecutionConfig("vmap", "scan", steps), *schedule)
  carry, calls = simulator.start(jax.random.key(0)), simulator.plan(0, steps, steps)
  *_, (_, carry, _) = simulator.run(carry, calls, no_data, jax.random.key(1))
  x, m = 1.0, 0.0
  for visit in range(8 * WORKERS):
    after, m = update(x, m)
    staleness = max(min(visit, WORKERS - 1), 1) if name == "staleness_aware_sgd" else 1
    x += (after - x) / staleness
  params = simulator.consensus(carry).params
  np.testing.assert_allclose(params["matrix"], x, rtol=1e-12)
  np.testing.assert_array_equal(params["bias"], 1.0)


def test_parameters_of_several_types_stay_a_tree():
  mixed = PARAMS | {"b": PARAMS["b"].astype(jnp.bfloat16)}
  assert is_elementwise(build("async_easgd", optax.sgd(0.1)), mixed)
  assert packs(PARAMS) and not packs(mixed)
  flat, unravel = ravel(mixed)
  assert flat.dtype == np.float32
  assert {jnp.dtype(x.dtype) for x in jax.tree.leaves(unravel(flat))} == {jnp.dtype("bfloat16"), jnp.dtype("float32")}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["async_easgd", "hogwild_easgd"])
def test_simulation_of_trees_equals_that_of_vectors_bit_for_bit(name, monkeypatch):
  config = experiment(name)
  plan = events_of(config.algorithm, **TROUBLE)
  runs = [simulate(config, plan, devices=2)]
  monkeypatch.setattr("ddl.engine.execution.PACKED_BYTES", 8)
  runs.append(simulate(config, plan, devices=2))
  (small, first, losses), (large, second, again) = runs
  assert small.is_packed and not large.is_packed
  pairs = [(losses, again), *zip(leaves(first.worker.params), leaves(second.worker.params), strict=True)]
  consensus = [simulator.consensus(carry) for simulator, carry, _ in runs]
  for a, b in [*pairs, *zip(*map(leaves, consensus), strict=True)]:
    np.testing.assert_array_equal(a, b)


@pytest.mark.slow
def test_a_layer_wise_server_is_simulated_as_a_tree():
  config = experiment("async_sgd")
  clipping = build("async_sgd", optax.chain(optax.clip_by_global_norm(0.01), optax.sgd(0.5)))
  config = config._replace(algorithm=clipping)
  plan = events_of(clipping, **TROUBLE)
  simulator, carry, losses = simulate(config, plan)
  assert not simulator.is_packed and len(losses) == STEPS * WORKERS
  for a, b in zip(leaves(carry.worker.params), leaves(of_workers(one_by_one(config, plan))), strict=True):
    np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
