"""Server algorithms on parameters as one vector: the same values, and which optimizers do not allow it."""

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
WARM = optax.linear_schedule(0.0, 0.1, 200)  # nothing moves at first


def build(name, inner):
  return servers.build(name, inner, workers=WORKERS)


def drawn(tree, seed):
  rng = np.random.default_rng(seed)
  return jax.tree.map(lambda x: jnp.asarray(rng.normal(size=np.shape(x)), np.asarray(x).dtype), tree)


@pytest.mark.parametrize("name", SERVER)
@pytest.mark.sampled(5)
def test_a_vector_is_served_as_the_tree_is(name):
  algorithm = build(name, optax.sgd(0.1, momentum=0.9))
  assert is_elementwise(algorithm, PARAMS)
  rule = packed(algorithm, PARAMS)
  (state, server, reply), (_, ours, reported) = algorithm.init(PARAMS), rule.init(PARAMS)
  params, mine = PARAMS, PARAMS
  for round_, worker in enumerate((2, 0, 2, 3, 0)):
    visit = Visit(jnp.int32(worker), jnp.int32(-1 if algorithm.arrivals.peers == "none" else (worker + 1) % WORKERS))
    (params, state), (mine, _) = (algorithm.local(drawn(PARAMS, round_), state, x) for x in (params, mine))
    server, reply = algorithm.serve(server, algorithm.request(state, params), visit)
    ours, reported = rule.serve(ours, rule.request(state, mine), visit)
    assert max(np.ndim(x) for x in jax.tree.leaves(reported)) <= 1  # no matrix of the model is sent
    params, after = algorithm.merge(reply, state, params)
    mine, mine_after = rule.merge(reported, state, mine)
    for a, b in zip(leaves((params, after)), leaves((mine, mine_after)), strict=True):
      np.testing.assert_array_equal(a, b)
    state = after
  for a, b in zip(leaves(algorithm.evaluate(server)), leaves(rule.evaluate(ours)), strict=True):
    np.testing.assert_array_equal(a, b)
  assert max(np.abs(a - b).max() for a, b in zip(leaves(params), leaves(PARAMS), strict=True)) > 0


def matrices(params):
  return jax.tree.map(lambda x: np.ndim(x) > 1, params)


@pytest.mark.parametrize(
  ("whole", "inner"),
  [
    (True, optax.sgd(0.1, nesterov=True, momentum=0.9)),
    (True, optax.adagrad(0.1)),
    (True, optax.chain(optax.clip(0.1), optax.sgd(0.1))),  # each value by itself
    (False, optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(0.1))),
    (False, optax.chain(optax.clip_by_block_rms(1.0), optax.sgd(0.1))),
    (False, optax.lars(0.1)),
    (False, optax.chain(optax.add_decayed_weights(0.1, mask=matrices), optax.sgd(0.1))),
    (False, optax.chain(optax.add_decayed_weights(0.1, mask=matrices(PARAMS)), optax.sgd(0.1))),
    (False, optax.chain(optax.add_decayed_weights(1e-9, mask=matrices), optax.sgd(WARM))),
    (True, optax.chain(optax.add_decayed_weights(1e-9), optax.sgd(WARM))),
  ],
)
def test_optimisers_that_look_at_more_than_a_coordinate_are_found(whole, inner):
  assert is_elementwise(build("async_sgd", inner), PARAMS) == whole


@pytest.mark.parametrize("name", SERVER)
def test_only_the_server_s_optimizer_decides(name):
  masked = optax.chain(optax.add_decayed_weights(5e-4, mask=matrices), optax.sgd(WARM))
  at_the_server = ("async_sgd", "downpour", "dc_asgd", "staleness_aware_sgd", "async_msgd")
  assert is_elementwise(build(name, masked), PARAMS) == (name not in at_the_server)


def test_a_rule_of_whole_arrays_is_not_packed():
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


DECAYED = {  # hyper-parameters of an optimizer -> an independent update (x, state) -> (x, state) without gradients
  "sgd": ({"momentum": 0.9, "weight_decay": 0.02}, lambda x, m: (x - 0.1 * (0.9 * m + 0.02 * x), 0.9 * m + 0.02 * x)),
  "adamw": ({"weight_decay": 0.02}, lambda x, m: (x - 0.1 * 0.02 * x, m)),
  "lion": ({"weight_decay": 0.02}, lambda x, m: (x - 0.1 * 0.02 * x, m)),
  "nadamw": ({"weight_decay": 0.02}, lambda x, m: (x - 0.1 * 0.02 * x, m)),
}


def no_data(rounds, steps):
  return {"x": np.zeros((len(rounds), steps, 1))}


@pytest.mark.parametrize("devices", [1, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("inner", DECAYED)
@pytest.mark.parametrize("name", ["async_sgd", "downpour", "dc_asgd", "staleness_aware_sgd"])
@pytest.mark.sampled(10)
def test_the_decay_of_small_models(x64, name, inner, devices):
  """Without gradients each visit to a server that has the optimizer decays the matrix, and the bias stays."""
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


def test_what_the_workers_keep_to_themselves_may_look_at_whole_arrays():
  assert is_elementwise(build("async_easgd", optax.lars(0.1)), PARAMS)


def test_parameters_of_several_types_are_left_apart_where_that_is_free():
  mixed = PARAMS | {"b": PARAMS["b"].astype(jnp.bfloat16)}
  assert is_elementwise(build("async_easgd", optax.sgd(0.1)), mixed)
  assert packs(PARAMS) and not packs(mixed)
  flat, unravel = ravel(mixed)
  assert flat.dtype == np.float32
  assert {jnp.dtype(x.dtype) for x in jax.tree.leaves(unravel(flat))} == {jnp.dtype("bfloat16"), jnp.dtype("float32")}


@pytest.mark.parametrize(
  "name",
  ["async_easgd", *(pytest.param(name, marks=pytest.mark.slow) for name in ("async_msgd", "dc_asgd", "hogwild_easgd"))],
)
@pytest.mark.slow
def test_a_large_model_is_simulated_as_a_tree_with_the_same_bits(name, monkeypatch):
  config = experiment(name)
  plan = events_of(config.algorithm, **TROUBLE)
  created = [simulate(config, plan, devices=2)]
  monkeypatch.setattr("ddl.engine.execution.PACKED_BYTES", 8)
  created.append(simulate(config, plan, devices=2))
  (small, first, losses), (large, second, again) = created
  assert small.is_packed and not large.is_packed
  pairs = [(losses, again), *zip(leaves(first.worker.params), leaves(second.worker.params), strict=True)]
  consensus = [simulator.consensus(carry) for simulator, carry, _ in created]
  for a, b in [*pairs, *zip(*map(leaves, consensus), strict=True)]:
    np.testing.assert_array_equal(a, b)


@pytest.mark.slow
def test_a_server_that_clips_a_norm_is_simulated_as_a_tree():
  config = experiment("async_sgd")
  clipping = build("async_sgd", optax.chain(optax.clip_by_global_norm(0.01), optax.sgd(0.5)))
  config = config._replace(algorithm=clipping)
  plan = events_of(clipping, **TROUBLE)
  simulator, carry, losses = simulate(config, plan)
  assert not simulator.is_packed and len(losses) == STEPS * WORKERS
  for a, b in zip(leaves(carry.worker.params), leaves(of_workers(one_by_one(config, plan))), strict=True):
    np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
