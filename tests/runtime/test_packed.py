"""Server algorithms on parameters as one vector: the same values, and which optimizers do not allow it."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers.simulations import STEPS, TROUBLE, events_of, experiment, leaves, of_workers, one_by_one, simulate

from ddl.algorithms import SERVER
from ddl.api import Visit
from ddl.runtime.execution import packs
from ddl.runtime.flat_params import divides, flatten, packed

PARAMS = {
  "w": np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4),
  "b": np.linspace(0, 2, 5, dtype=np.float32),
  "deep": {"scale": np.float32(0.5) * np.ones((), np.float32)},
}
WORKERS = 4


def build(name, inner):
  hyper = {k: h.default(WORKERS) if callable(h.default) else h.default for k, h in SERVER[name].hyper.items()}
  return SERVER[name].factory(inner, workers=WORKERS, **hyper)


def drawn(tree, seed):
  rng = np.random.default_rng(seed)
  return jax.tree.map(lambda x: jnp.asarray(rng.normal(size=np.shape(x)), np.asarray(x).dtype), tree)


@pytest.mark.parametrize("name", SERVER)
@pytest.mark.sampled(5)
def test_a_vector_is_served_as_the_tree_is(name):
  algorithm = build(name, optax.sgd(0.1, momentum=0.9))
  assert divides(algorithm, PARAMS)
  rule = packed(algorithm, PARAMS)
  (state, server, reply), (_, ours, told) = algorithm.init(PARAMS), rule.init(PARAMS)
  params, mine = PARAMS, PARAMS
  for round_, worker in enumerate((2, 0, 2, 3, 0)):
    visit = Visit(jnp.int32(worker), jnp.int32(-1 if algorithm.arrivals.peers == "none" else (worker + 1) % WORKERS))
    (params, state), (mine, _) = (algorithm.local(drawn(PARAMS, round_), state, x) for x in (params, mine))
    server, reply = algorithm.serve(server, algorithm.request(state, params), visit)
    ours, told = rule.serve(ours, rule.request(state, mine), visit)
    assert max(np.ndim(x) for x in jax.tree.leaves(told)) <= 1  # no matrix of the model is sent
    params, after = algorithm.merge(reply, state, params)
    mine, mine_after = rule.merge(told, state, mine)
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
  ],
)
def test_optimisers_that_look_at_more_than_a_coordinate_are_found(whole, inner):
  assert divides(build("async_sgd", inner), PARAMS) == whole


def test_what_the_workers_keep_to_themselves_may_look_at_whole_arrays():
  assert divides(build("async_easgd", optax.lars(0.1)), PARAMS)


def test_parameters_of_several_types_are_left_apart_where_that_is_free():
  mixed = PARAMS | {"b": PARAMS["b"].astype(jnp.bfloat16)}
  assert divides(build("async_easgd", optax.sgd(0.1)), mixed)
  assert packs(PARAMS) and not packs(mixed)
  flat, unravel = flatten(mixed)
  assert flat.dtype == np.float32
  assert {jnp.dtype(x.dtype) for x in jax.tree.leaves(unravel(flat))} == {jnp.dtype("bfloat16"), jnp.dtype("float32")}


@pytest.mark.parametrize(
  "name",
  ["async_easgd", *(pytest.param(name, marks=pytest.mark.slow) for name in ("async_msgd", "dc_asgd", "hogwild_easgd"))],
)
@pytest.mark.slow
def test_a_large_model_is_simulated_as_a_tree_with_the_same_bits(name, monkeypatch):
  chosen = experiment(name)
  plan = events_of(chosen.algorithm, **TROUBLE)
  made = [simulate(chosen, plan, devices=2)]
  monkeypatch.setattr("ddl.runtime.execution.PACKED_BYTES", 8)
  made.append(simulate(chosen, plan, devices=2))
  (small, first, losses), (large, second, again) = made
  assert small.algorithm is not chosen.algorithm and large.algorithm is chosen.algorithm
  pairs = [(losses, again), *zip(leaves(first.worker.params), leaves(second.worker.params), strict=True)]
  consensus = [simulator.consensus(carry) for simulator, carry, _ in made]
  for a, b in [*pairs, *zip(*map(leaves, consensus), strict=True)]:
    np.testing.assert_array_equal(a, b)


@pytest.mark.slow
def test_a_server_that_clips_a_norm_is_simulated_as_a_tree():
  chosen = experiment("async_sgd")
  clipping = build("async_sgd", optax.chain(optax.clip_by_global_norm(0.01), optax.sgd(0.5)))
  chosen = chosen._replace(algorithm=clipping)
  plan = events_of(clipping, **TROUBLE)
  simulator, carry, losses = simulate(chosen, plan)
  assert simulator.algorithm is clipping and len(losses) == STEPS * WORKERS
  for a, b in zip(leaves(carry.worker.params), leaves(of_workers(one_by_one(chosen, plan))), strict=True):
    np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
