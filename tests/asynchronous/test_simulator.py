"""The simulator against the same events one at a time: bit for bit in one layout, to 1e-12 across layouts."""

import jax
import numpy as np
import optax
import pytest
from helpers.simulations import (
  KEY,
  STEPS,
  TROUBLE,
  WORKERS,
  events_of,
  experiment,
  leaves,
  of_workers,
  one_by_one,
  simulate,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from ddl.algorithms import SERVER
from ddl.asynchronous.simulator import Simulator
from ddl.config.catalog import for_workers
from ddl.engine.compiled_trainer import CompiledTrainer
from ddl.engine.execution import ExecutionConfig
from ddl.engine.traffic import exchange_nbytes
from ddl.engine.workers import make_workers
from ddl.events.barriers import asp, backup, cutoff, ssp
from ddl.events.operations import COLLECT, READ, RESTART, stops, waves


def packed_server(reference):
  """Return the reference's server state with parameters as one vector [..., size], as in the simulator."""
  size, dtype = sum(x.size for x in leaves(reference.params[0])), leaves(reference.params[0])[0].dtype
  _, like, _ = jax.eval_shape(reference.algorithm.init, jax.ShapeDtypeStruct((size,), dtype))

  def pack(shape, part):
    lead = shape.shape[:-1] if shape.shape[-1:] == (size,) else None
    return np.asarray(part) if lead is None else np.concatenate([x.reshape(*lead, -1) for x in leaves(part)], axis=-1)

  return jax.tree.map(pack, like, reference.server)


def has_same_bits(carry, reference):
  server = jax.tree.map(lambda x: x[0], carry.server_state.server)
  is_packed = jax.tree.structure(server) != jax.tree.structure(reference.server)
  pairs = [*zip(leaves(server), leaves(packed_server(reference) if is_packed else reference.server), strict=True)]
  pairs += [*zip(leaves(carry.worker.params), leaves(of_workers(reference)), strict=True)]
  return all(a.tobytes() == b.tobytes() for a, b in pairs)


@pytest.mark.parametrize("name", SERVER)
@pytest.mark.sampled(len(SERVER))
def test_waves_equal_one_event_at_a_time_bit_for_bit(optimized, name):
  config = experiment(name)
  plan = events_of(config.algorithm, **TROUBLE)
  _, carry, losses = simulate(config, plan, gradients="unroll" if name == "async_easgd" else "map")
  reference = one_by_one(config, plan)
  assert has_same_bits(carry, reference)
  differences = [
    np.abs(a - b).max() for a, b in zip(leaves(reference.params[0]), leaves(reference.params[1]), strict=True)
  ]
  assert max(differences) > 0 or config.algorithm.period == 1
  assert len(losses) and np.all(losses > 0)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["async_easgd", "dc_asgd", "hogwild_easgd"])
def test_layouts_are_equal_to_1e_12(name, x64):
  config = experiment(name)
  plan = events_of(config.algorithm, **TROUBLE)
  reference = one_by_one(config, plan)
  for devices, gradients, widest in [(2, "unroll", None), (4, "vmap", None), (2, "map", 1)]:
    _, carry, _ = simulate(config, plan, devices, gradients, widest)
    for a, b in zip(leaves(carry.worker.params), leaves(of_workers(reference)), strict=True):
      np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-13)
    for device in range(devices):
      for a, b in zip(leaves(carry.server_state.server), leaves(packed_server(reference)), strict=True):
        np.testing.assert_allclose(a[device], b, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize(
  "name, barrier, trouble",
  [
    ("async_sgd", ssp(bound=1), TROUBLE),
    ("dc_asgd", ssp(bound=0), {}),
    ("async_easgd", ssp(bound=0), {}),
    ("async_sgd", backup(spare=1), {}),
    ("async_sgd", cutoff(window=2), {}),
    ("async_sgd", asp(), {"death_rate": 0.3, "down_seconds": 0.02}),
    ("dc_asgd", asp(), {"death_rate": 0.3, "down_seconds": 0.02}),
    ("async_easgd", asp(), {"death_rate": 0.3, "down_seconds": 0.02}),
    ("hogwild_sgd", ssp(bound=0), {}),
    ("hogwild_sgd", asp(), {"death_rate": 0.3, "down_seconds": 0.02}),
    ("gosgd", asp(), {"death_rate": 0.3, "down_seconds": 0.02}),
  ],
)
@pytest.mark.sampled(8)
def test_barriers_and_deaths_equal_one_event_at_a_time(name, barrier, trouble):
  config = experiment(name)
  plan = events_of(config.algorithm, barrier, **trouble)
  assert {READ, RESTART, COLLECT} & set(plan[1].kind.tolist()) or name == "async_easgd"
  _, carry, _ = simulate(config, plan, gradients="map")
  assert has_same_bits(carry, one_by_one(config, plan))


@pytest.mark.slow
@pytest.mark.parametrize("barrier", [backup(spare=0), cutoff(window=100)], ids=["backup", "cutoff"])
def test_a_quorum_of_all_workers_is_synchronous_sgd(barrier, x64):
  config = experiment("async_sgd")
  simulator, carry, losses = simulate(config, events_of(config.algorithm, barrier), gradients="map")
  sync_sgd = experiment("sync_sgd")
  trainer = CompiledTrainer(
    sync_sgd.algorithm, sync_sgd.model, make_workers(WORKERS, 1), ExecutionConfig("unroll", "scan", 64)
  )
  sync, expected = trainer.start(jax.random.key(0)), []
  for call, after, loss in trainer.run(sync, trainer.plan(0, STEPS, STEPS), sync_sgd.feed(list(range(WORKERS))), KEY):
    sync = after
    expected.append(trainer.losses(call, loss))
  for a, b in zip(leaves(simulator.consensus(carry).params), leaves(trainer.consensus(sync).params), strict=True):
    np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-13)
  assert np.isclose(losses.mean(), np.concatenate(expected).mean(), rtol=1e-12)


@pytest.mark.slow
def test_several_lock_free_restarts_in_one_wave_equal_one_event_at_a_time(optimized):
  config = experiment("hogwild_easgd")
  plan = events_of(config.algorithm, seed=1, message=0.05, death_rate=0.35, down_seconds=0.0)
  _, carry, _ = simulate(config, plan, gradients="map")
  assert has_same_bits(carry, one_by_one(config, plan))


def test_another_schedule_reuses_the_executable():
  config = experiment("async_sgd")
  simulator, _, _ = simulate(config, events_of(config.algorithm), gradients="map")
  seconds = simulator.compile_seconds
  plan = events_of(config.algorithm, seed=3)
  simulator.follow(*plan)
  carry = simulator.start(jax.random.key(0))
  for _, after, _ in simulator.run(carry, simulator.plan(0, STEPS, 4), config.training_feed([]), KEY):
    carry = after
  assert simulator.compile_seconds == seconds > 0
  assert has_same_bits(carry, one_by_one(config, plan))


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 10_000), st.booleans(), st.integers(1, WORKERS))
def test_no_round_of_a_wave_needs_a_reply_of_the_same_wave(seed, lock_free, widest):
  name = "hogwild_easgd" if lock_free else "async_sgd"
  algorithm = SERVER[name].factory(optax.sgd(0.1), **for_workers("algorithm", name, WORKERS))
  events, ops = events_of(algorithm, None if lock_free else ssp(bound=1), seed, slow=(1.0, 1.0, 3.0, 1.0))
  counts = [0, 5, 11, len(events.worker)]
  cuts = stops(ops, counts[1:])
  parts = waves(ops, cuts, widest)
  at, visited = 0, []
  for cut, part in zip(cuts, parts, strict=True):
    for wave in part:
      assert wave.first == at and wave.last > wave.first and len(wave.visits) <= widest
      before = set()
      for i in range(wave.first, wave.last):
        event, worker = int(ops.event[i]), int(ops.worker[i])
        if event in wave.visits and event not in visited:
          assert worker not in before  # no reply to it in this wave
          visited.append(event)
        before.add(worker)
      at = wave.last
    assert at == cut
  assert sorted(visited) == list(range(len(events.worker)))


@pytest.mark.parametrize(
  "name, models",
  [
    *[("pull_gossip", 1), ("push_gossip", 1), ("ad_psgd", 2), ("gosgd", 1), ("async_sgd", 2), ("async_easgd", 2)],
    *[("async_local_sgd", 2), ("halos", 2 + 2 / 8)],  # a region's model and the global one at every eighth update
  ],
)
def test_bytes_of_a_visit(name, models):
  config = experiment(name, period=3, merge_every=4, link=2) if name == "halos" else experiment(name)
  size = sum(x.nbytes for x in jax.tree.leaves(config.model.init(jax.random.key(0))[0]))
  assert exchange_nbytes(config.algorithm, config.model) == models * size


def test_bytes_of_a_run_with_two_tiers():
  """12 visits: a model each way, and one more each way for every fourth of them."""
  config = experiment("halos", period=3, merge_every=4)
  schedule = events_of(config.algorithm)
  simulator = Simulator(
    config.algorithm, config.model, make_workers(WORKERS, 1), ExecutionConfig("unroll", "scan", 3), *schedule
  )
  size = sum(x.nbytes for x in jax.tree.leaves(config.model.init(jax.random.key(0))[0]))
  sent = sum(map(simulator.nbytes, simulator.plan(0, STEPS, 4)))
  assert sent == (12 * 2 + 3 * 2) * size / WORKERS


def test_bytes_of_a_quorum():
  """A dropped worker only receives the new model, and nothing in the last round."""
  config = experiment("async_sgd")
  schedule = events_of(config.algorithm, backup(spare=1))
  assert len(schedule[0].worker) == WORKERS * STEPS
  simulator = Simulator(
    config.algorithm, config.model, make_workers(WORKERS, 1), ExecutionConfig("unroll", "scan", 3), *schedule
  )
  size = sum(x.nbytes for x in jax.tree.leaves(config.model.init(jax.random.key(0))[0]))
  sent = sum(map(simulator.nbytes, simulator.plan(0, STEPS, 4)))
  assert sent == (STEPS * (WORKERS - 1) * 2 + (STEPS - 1)) * size / WORKERS
