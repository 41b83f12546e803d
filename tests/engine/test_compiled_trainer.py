"""The compiled trainer: random keys, batch statistics, replication, checkpoints, donation, compilation, layout."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.runs import HYPER, STEPS, WORKERS, each, equals_twin, feed, flat_rows, make, model, record
from helpers.twins import INNER, build, close, flat_of
from reference import collective as reference

from ddl.api import MOST_EXCHANGES, Exchange, Model
from ddl.engine.compiled_trainer import CompiledTrainer
from ddl.engine.execution import ExecutionConfig
from ddl.engine.workers import make_workers
from ddl.schedule import Schedule

pytestmark = pytest.mark.usefixtures("x64")

SCANNED = ExecutionConfig("vmap", "scan", STEPS)
LAYOUTS = [
  (1, ExecutionConfig("vmap", "scan", STEPS)),
  (2, ExecutionConfig("map", "scan", 5)),
  (8, ExecutionConfig("unroll", "unroll", 3)),
]
COMPILED = "/jax/core/compile/backend_compile_duration"
compiled: list[str] = []
jax.monitoring.register_event_duration_secs_listener(lambda event, *_, **__: compiled.append(event))


def noise(worker, step, key):
  return jax.random.uniform(jax.random.fold_in(jax.random.fold_in(key, worker), step), dtype=jnp.float64)


def noisy_model():
  """The problem's gradient plus noise from the loss's key; extra: a moving average of the batches, and a counter."""
  plain = model()

  def init(key):
    return plain.init(key)[0], {"mean": jnp.zeros(()), "count": jnp.zeros((), jnp.int32)}

  def loss(params, extra, batch, key):
    value, _ = plain.loss(params, {}, batch, None)
    value += jax.random.uniform(key, dtype=jnp.float64) * jnp.sum(flat_of(params))
    number = (batch["worker"][0] * 10 + batch["step"][0]).astype(jnp.float64)
    return value, {"mean": 0.9 * extra["mean"] + 0.1 * number, "count": extra["count"] + 1}

  return Model(init, loss)


def test_messages_in_flight_are_limited():
  assert make("dasgd", 1, SCANNED, period=10, delay=20_000, keep=0.5).schedule.clocks[0].slots == 2000
  for period, delay in ((1, 10_000), (10, 20_490)):
    with pytest.raises(ValueError, match="delay must keep at most 2048 messages of 2 arrays in flight, got "):
      make("dasgd", 1, SCANNED, period=period, delay=delay, keep=0.5)


def test_exchanges_are_limited():
  exchange = Exchange(None, None)  # type: ignore[arg-type]
  assert len(Schedule([exchange] * MOST_EXCHANGES).clocks) == MOST_EXCHANGES
  with pytest.raises(ValueError, match="must be at most 64, got 65"):
    Schedule([exchange] * (MOST_EXCHANGES + 1))


@pytest.mark.parametrize("devices, how", LAYOUTS)
@pytest.mark.parametrize("name", ["sync_sgd", "dasgd"])
@pytest.mark.sampled(3)
def test_keys_depend_on_seed_worker_and_step_and_statistics_on_the_worker(name, devices, how):
  trainer, hyper = make(name, devices, how, model=noisy_model()), HYPER[name]
  calls = trainer.plan(0, STEPS, STEPS)
  *_, (_, carry, _) = trainer.run(trainer.start(jax.random.key(0)), calls, feed, jax.random.key(7))
  x0, grad = reference.problem(WORKERS, STEPS)
  drawn = np.array([[noise(i, t, jax.random.key(7)) for t in range(STEPS)] for i in range(WORKERS)])
  assert len(np.unique(drawn)) == drawn.size

  def noisy(worker, step, x):
    return grad(worker, step, x) + drawn[worker, step]

  expected = reference.TWINS[name](x0, noisy, workers=WORKERS, steps=STEPS, inner=INNER["momentum"][1], **hyper)
  close(flat_rows(each(trainer, carry.params, trainer.replication.params)), expected.params[-1])

  statistics = np.zeros(WORKERS)
  for t in range(STEPS):
    statistics = 0.9 * statistics + 0.1 * (np.arange(WORKERS) * 10 + t)
  close(carry.extra["mean"], statistics)
  consensus = trainer.consensus(carry)
  close(consensus.extra["mean"], statistics.mean())
  assert consensus.extra["count"] == STEPS


@pytest.mark.parametrize("devices", [1, 8])
def test_shared_leaves_have_one_copy_per_device(devices):
  def copies(name):
    result = make(name, devices, SCANNED).replication
    return tuple(set(jax.tree.leaves(part)) for part in (result.params, result.state, result.messages))

  assert copies("sync_sgd") == ({False}, {False}, set())
  assert copies("sharded_sync_sgd") == ({False}, {True}, set())
  assert copies("local_sgd") == ({True}, {True}, {False})  # the mean in flight is the same everywhere
  assert copies("dasgd") == ({True}, {True}, {False})
  assert copies("independent") == ({True}, {True}, set())
  result = make("easgd", devices, SCANNED, inner="adam").replication
  assert set(jax.tree.leaves(result.params)) == {True} and set(jax.tree.leaves(result.state.center)) == {False}
  ((difference, total),) = result.messages
  assert set(jax.tree.leaves(difference)) == {True} and set(jax.tree.leaves(total)) == {False}


@pytest.mark.parametrize("name", ["sync_sgd", "easgd"])
def test_a_checkpoint_has_one_copy_of_shared_leaves(name):
  trainer = make(name, 2, ExecutionConfig("vmap", "scan", 1))
  start = trainer.start(jax.random.key(0))
  for _, carry, _ in trainer.run(start, trainer.plan(0, STEPS, STEPS), feed, jax.random.key(1)):
    saved = trainer.saved(carry)
    assert {len(x) for x in jax.tree.leaves(saved)} <= {1, WORKERS}
    assert {len(x) for x in jax.tree.leaves(carry)} <= {2, WORKERS}
    restored = trainer.restored(saved)
    jax.tree.map(np.testing.assert_array_equal, restored, carry)
    assert [x.sharding for x in jax.tree.leaves(restored)] == [x.sharding for x in jax.tree.leaves(carry)]


def test_calls_donate_the_carry_and_a_second_run_compiles_nothing():
  trainer = make("dasgd", 2, ExecutionConfig("vmap", "scan", 3))
  before = trainer.start(jax.random.key(0))
  for _, carry, _ in trainer.run(before, trainer.plan(0, STEPS, STEPS), feed, jax.random.key(1)):
    assert all(x.is_deleted() for x in jax.tree.leaves((before.params, before.state)))
    trainer.consensus(carry)
    assert not any(x.is_deleted() for x in jax.tree.leaves(carry))
    before = carry
  seconds = trainer.compile_seconds
  assert seconds > 0
  compiled.clear()
  record(trainer)
  assert COMPILED not in compiled and trainer.compile_seconds == seconds
  jax.jit(lambda x: x * 3 + 1)(jnp.arange(5))
  assert COMPILED in compiled  # the listener works


@pytest.mark.parametrize("gradients", ["vmap", "unroll", "map"])
@pytest.mark.parametrize("name", ["dasgd", "sync_sgd"])
@pytest.mark.sampled(3)
def test_states_and_messages_may_contain_empty_trees(name, gradients):
  """None and empty tuples have no leaves."""
  plain = build(name, INNER["momentum"][0], WORKERS, **HYPER[name])

  def with_empty(tree):
    return {"first": None, "tree": tree, "last": ((), None)}

  def local(group, grads, state, params):
    params, after = plain.local(group, grads, state["tree"], params)
    return params, with_empty(after)

  def launch(exchange, group, state, params):
    message, after = exchange.launch(group, state["tree"], params)
    return with_empty(message), with_empty(after)

  def merge(exchange, group, message, state, params):
    params, after = exchange.merge(group, message["tree"], state["tree"], params)
    return params, with_empty(after)

  algorithm = plain._replace(
    init=lambda *args: with_empty(plain.init(*args)),
    local=local,
    exchanges=tuple(e._replace(launch=partial(launch, e), merge=partial(merge, e)) for e in plain.exchanges),
    evaluate=lambda group, state, params: plain.evaluate(group, state["tree"], params),
  )
  trainer = CompiledTrainer(algorithm, model(), make_workers(8, 2), ExecutionConfig(gradients, "scan", 5))
  equals_twin(trainer, record(trainer), name, "momentum", **HYPER[name])


def test_an_invalid_clock_is_rejected_by_the_constructor():
  with pytest.raises(ValueError, match=r"delay must be an integer >= 0, got -1\."):
    make("dasgd", 1, SCANNED, period=2, delay=-1, keep=0.5)


# ---- workers


def test_workers_and_their_batches_are_spread_in_order():
  for devices in (1, 2, 4, 8):
    workers = make_workers(8, devices)
    assert (workers.devices, workers.virtual, workers.count, workers.local) == (
      devices,
      8 // devices,
      8,
      list(range(8)),
    )
    rows = workers.put(np.arange(8.0))
    for rank, device in enumerate(workers.mesh.devices.flat):
      shard = next(s for s in rows.addressable_shards if s.device == device)
      np.testing.assert_array_equal(shard.data, np.arange(8.0)[rank * workers.virtual :][: workers.virtual])
  assert make_workers(6).devices == 6 and make_workers(10).devices == 5 and make_workers(7).devices == 7
  assert make_workers(11).devices == 1


@pytest.mark.parametrize(
  "count, devices, words", [(8, 3, "1, 2, 4, 8"), (6, 12, "1, 2, 3, 6"), (0, None, "workers must be at least 1")]
)
def test_workers_that_do_not_divide_the_devices_are_rejected(count, devices, words):
  with pytest.raises(ValueError, match=words):
    make_workers(count, devices)
