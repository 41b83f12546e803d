"""Elastic training against NumPy: float64, rtol 1e-12, inner momentum; messages, keys, checkpoints, compilation."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.runs import OUTER, each, feed, flat_rows, model
from helpers.twins import INNER, build, close, flat_of, outer_cosine
from reference import collective
from reference.churn import churn

from ddl import elastic
from ddl.api import Model
from ddl.elastic import ElasticTrainer
from ddl.engine.calls import MOST_KINDS
from ddl.engine.compiled_trainer import CompiledTrainer
from ddl.engine.execution import ExecutionConfig
from ddl.engine.workers import make_workers
from ddl.events.presence import Presence, everyone

pytestmark = pytest.mark.usefixtures("x64")

P, STEPS = 4, 12
MODEL = model(P, STEPS)
HOW = ExecutionConfig("vmap", "scan", 6)
HYPER = {
  "sync_sgd": {},
  "local_sgd": {"period": 3},
  "dasgd": {"period": 3, "delay": 2, "keep": 0.25},
  "easgd": {"alpha": 0.1, "period": 3},
  "diloco": {"period": 3, **OUTER},
  "d_psgd": {"graph": "ring"},
  "gradient_tracking": {"graph": "ring"},
  "exact_diffusion": {"graph": "ring"},
  "choco_sgd": {"graph": "ring", "compressor": "sign"},
}
ALL = tuple(range(P))
CHANGES = {
  "a loss": ((0, ALL), (6, (0, 2, 3))),
  "a loss and a return": ((0, ALL), (3, (0, 1, 3)), (9, ALL)),
  "a replacement": ((0, ALL), (6, (0, 2, 3)), (6, ALL)),
  "a swap": ((0, (0, 1, 2)), (6, (1, 2, 3))),
  "all but one": ((0, ALL), (3, (2,)), (6, (0, 1, 2))),
}


def new_trainer(name, count, how=HOW, model=MODEL, **hyper):
  algorithm = build(name, INNER["momentum"][0], count, **(hyper or HYPER[name]))
  return CompiledTrainer(algorithm, model, make_workers(count, 2 if count == 4 else 1), how)


trainer_of = cache(new_trainer)


def make(name, changes, **more):
  """Return an elastic trainer, and the numbers of workers for which it has built one."""

  @cache
  def trainer(count):
    created.append(count)
    return (new_trainer if "model" in more else trainer_of)(name, count, **more)

  created = []
  return ElasticTrainer(lambda ids: trainer(len(ids)), Presence(P, changes)), created


def batches(first, steps):
  return feed(first, steps, workers=range(P))


def run(trainer, first=0, carry=None, every=STEPS):
  """Yield (step, carry, losses) after each call."""
  carry = carry or trainer.start(jax.random.key(0))
  calls = [call for call in trainer.plan(0, STEPS, every) if call.first >= first]
  for call, now, losses in trainer.run(carry, calls, batches, jax.random.key(1)):
    yield call.end, now, trainer.losses(call, losses)


def models(trainer, carry):
  inner = trainer.trainer_for(carry.ids)
  return flat_rows(each(inner, carry.carry.params, inner.replication.params))


def equals_reference(name, changes, x0, grad, trainer, **hyper):
  expected = churn(name, x0, grad, changes=changes, steps=STEPS, inner=INNER["momentum"][1], **hyper)
  ends = []
  for step, carry, _ in run(trainer):
    ids, x, consensus = expected[step - 1]
    assert carry.ids == ids
    close(models(trainer, carry), x)
    close(flat_rows(jax.tree.map(np.asarray, trainer.consensus(carry).params), 0), consensus)
    ends.append(step)
  assert ends[-1] == STEPS and {step for step, _ in changes[1:]} <= {*ends}


@pytest.mark.parametrize("name", HYPER)
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.sampled(6)
def test_equals_the_algorithm_on_the_present_workers(name, change):
  trainer, created = make(name, CHANGES[change])
  equals_reference(name, CHANGES[change], *collective.problem(P, STEPS), trainer, **HYPER[name])
  assert len(created) == len({*created})  # one trainer for each number of workers


def test_a_joining_worker_continues_the_schedule_of_the_outer_rate():
  hyper, changes = HYPER["diloco"] | {"outer_learning_rate": outer_cosine}, CHANGES["a loss and a return"]
  trainer, _ = make("diloco", changes, **hyper)
  equals_reference("diloco", changes, *collective.problem(P, STEPS), trainer, **hyper)


def test_several_messages_in_flight_are_kept_at_a_change():
  hyper, changes = {"period": 1, "delay": 3, "keep": 0.25}, CHANGES["a loss and a return"]
  trainer, _ = make("dasgd", changes, **hyper)
  equals_reference("dasgd", changes, *collective.problem(P, STEPS), trainer, **hyper)


def test_a_joining_worker_gets_the_messages_of_the_first_that_stays():
  """In flight are means, equal for all workers, and differences of each worker."""
  plain = trainer_of("easgd", P, alpha=0.1, period=1).algorithm
  delayed = plain._replace(exchanges=(plain.exchanges[0]._replace(delay=3),))
  trainer_with = cache(lambda count: CompiledTrainer(delayed, MODEL, make_workers(count, 1), HOW))
  trainer = ElasticTrainer(lambda ids: trainer_with(len(ids)), Presence(P, ((0, (1, 2, 3)), (6, ALL))))
  for step, carry, _ in run(trainer):
    if step == 6:
      after = trainer.regroup(carry, ALL, 6).carry
      for (difference, mean), (old, old_mean) in zip(after.messages[0], carry.carry.messages[0], strict=True):
        close(flat_rows(jax.tree.map(np.asarray, mean)), flat_rows(jax.tree.map(np.asarray, old_mean)))
        rows = flat_rows(jax.tree.map(np.asarray, old))
        close(flat_rows(jax.tree.map(np.asarray, difference)), rows[[0, 0, 1, 2]])
        assert np.abs(rows[0] - rows[1]).max() > 1e-3


def test_without_changes_the_bits_equal_the_plain_trainer():
  for name in HYPER:
    trainer, _ = make(name, everyone(P).changes)
    plain = make(name, everyone(P).changes)[0].all
    *_, (_, elastic_carry, losses) = run(trainer)
    calls = plain.plan(0, STEPS, STEPS)
    *_, (_, carry, plain_losses) = plain.run(plain.start(jax.random.key(0)), calls, batches, jax.random.key(1))
    jax.tree.map(np.testing.assert_array_equal, elastic_carry.carry, carry)
    np.testing.assert_array_equal(losses, plain.losses(calls[-1], plain_losses))


def test_keys_and_batches_do_not_depend_on_other_workers():
  """Without exchanges, worker 2 has the same model with three others and as the only worker."""
  plain = model(P, STEPS)

  def loss(params, extra, batch, key):
    value, extra = plain.loss(params, extra, batch, None)
    return value + jax.random.uniform(key, dtype=jnp.float64) * jnp.sum(flat_of(params)), extra

  rows = []
  for changes in (((0, ALL),), ((0, ALL), (4, (2,)))):
    trainer, _ = make("local_sgd", changes, model=Model(plain.init, loss), period=100)
    *_, (_, carry, _) = run(trainer)
    rows.append(models(trainer, carry)[carry.ids.index(2)])
  close(*rows)


def test_a_joining_worker_gets_the_mean_statistics():
  plain = model(P, STEPS)

  def loss(params, extra, batch, key):
    return plain.loss(params, {}, batch, key)[0], {
      "seen": extra["seen"] + jnp.asarray([1.0, 10, 100, 1000])[batch["worker"][0]]
    }

  trainer, _ = make(
    "local_sgd", ((0, ALL), (3, (0, 1)), (6, ALL)),
    model=Model(lambda key: (plain.init(key)[0], {"seen": jnp.zeros(())}), loss), period=3,
  )  # fmt: skip
  result = {step: jnp.copy(carry.carry.extra["seen"]) for step, carry, _ in run(trainer)}
  close(result[6], [6.0, 60.0])
  close(result[12], [12.0, 120.0, 33.0 + 600.0, 33.0 + 6000.0])


@pytest.mark.parametrize("name", ["dasgd", *(pytest.param(x, marks=pytest.mark.slow) for x in ("easgd", "sync_sgd"))])
def test_a_restored_run_has_the_same_bits(name):
  changes = CHANGES["a loss and a return"]
  trainer, _ = make(name, changes)
  saved, last = {}, None
  for step, carry, _ in run(trainer, every=2):
    saved[step] = jax.tree.map(np.array, trainer.saved(carry))
    last = carry
  assert {3, 9} < {*saved} and last
  expected = jax.tree.map(np.array, last.carry)
  for step in (2, 3, 4, 9):
    resumed, _ = make(name, changes)
    like = resumed.saved(resumed.start(jax.random.key(0), step))
    checkpoint = jax.tree.map(lambda x, y: jax.device_put(x, y.sharding), saved[step], like)
    *_, (_, carry, _) = run(resumed, step, resumed.restored(checkpoint, step), every=2)
    jax.tree.map(np.testing.assert_array_equal, carry.carry, expected)


def test_sets_of_equal_size_share_a_program():
  changes = ((0, ALL), (2, (0, 1, 2)), (3, (1, 2, 3)), (5, (0, 2, 3)), (8, ALL), (9, (0, 1, 3)), (11, (0, 1, 2)))
  trainer, created = make("sync_sgd", changes, how=HOW._replace(steps_per_call=1))
  assert len([*run(trainer)]) == STEPS
  assert sorted(created) == [2, 3, 4]  # 2: the workers that stay when one leaves and another joins
  assert [len(trainer.trainer_for(ALL[:count])._calls) for count in created] == [1, 1, 0]
  trainer = make("local_sgd", ((0, ALL), *((step, ALL[:2] if step % 2 else ALL) for step in range(3, 90, 7))))[0]
  assert all(
    len({call.kind for call in trainer.plan(0, 99, 20) if len(trainer.presence.at(call.first)) == count}) <= MOST_KINDS
    for count in (2, 4)
  )


def test_bytes_are_those_of_the_present_workers():
  trainer, _ = make("local_sgd", ((0, ALL), (6, (0, 3))))
  params = 7 * 8  # bytes
  for call in trainer.plan(0, STEPS, STEPS):
    p = 4 if call.end <= 6 else 2
    assert trainer.nbytes(call) == call.steps / 3 * 2 * params * (p - 1) / p


def test_algorithms_that_need_all_workers_are_errors():
  params = jax.eval_shape(model(P, STEPS).init, jax.random.key(0))[0]

  def check(name, changes, **hyper):
    elastic.check(lambda count: build(name, INNER["momentum"][0], count, **hyper), params, Presence(P, changes), name)

  for name in HYPER:
    check(name, CHANGES["all but one"], **HYPER[name])
  line = r"^config\.elastic must be False with sharded_sync_sgd, got True\. The algorithm's state has different shapes"
  with pytest.raises(ValueError, match=line):
    check("sharded_sync_sgd", CHANGES["a loss"])
  with pytest.raises(ValueError, match="power of two"):
    check("d_psgd", CHANGES["a loss"], graph="one_peer_exponential")
  check("sgp", CHANGES["a loss"])
  trainer, _ = make("local_sgd", CHANGES["a loss"])
  with pytest.raises(ValueError, match="must remain"):
    trainer.regroup(trainer.start(jax.random.key(0)), (), 3)
