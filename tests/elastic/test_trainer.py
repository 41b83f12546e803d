"""Workers that come and go against NumPy: float64, rtol 1e-12, momentum inside; copies, keys, restarts, compilation."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.runs import OUTER, each, feed, flat_rows, model
from helpers.twins import INNER, build, close, flat_of
from reference import collective as reference
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
  """A run, and for how many workers it has asked for a trainer."""

  @cache
  def trainer(count):
    created.append(count)
    return (new_trainer if "model" in more else trainer_of)(name, count, **more)

  created = []
  return ElasticTrainer(lambda ids: trainer(len(ids)), Presence(P, changes)), created


def batches(first, steps):
  return feed(first, steps, workers=range(P))


def run(trainer, first=0, held=None, every=STEPS):
  """Yield (step, held) after each call."""
  held = held or trainer.start(jax.random.key(0))
  calls = [call for call in trainer.plan(0, STEPS, every) if call.first >= first]
  for call, now, losses in trainer.run(held, calls, batches, jax.random.key(1)):
    yield call.end, now, trainer.losses(call, losses)


def models(trainer, held):
  return flat_rows(each(trainer.trainer_for(held.ids), held.carry.params, trainer.trainer_for(held.ids).replication.params))


def equals_reference(name, changes, x0, grad, trainer, **hyper):
  expected = churn(name, x0, grad, changes=changes, steps=STEPS, inner=INNER["momentum"][1], **hyper)
  ends = []
  for step, held, _ in run(trainer):
    ids, x, tested = expected[step - 1]
    assert held.ids == ids
    close(models(trainer, held), x)
    close(flat_rows(jax.tree.map(np.asarray, trainer.consensus(held).params), 0), tested)
    ends.append(step)
  assert ends[-1] == STEPS and {step for step, _ in changes[1:]} <= {*ends}


@pytest.mark.parametrize("name", HYPER)
@pytest.mark.parametrize("words", CHANGES)
@pytest.mark.sampled(2)
def test_equals_the_algorithm_of_those_that_are_present(name, words):
  trainer, created = make(name, CHANGES[words])
  equals_reference(name, CHANGES[words], *reference.problem(P, STEPS), trainer, **HYPER[name])
  assert len(created) == len({*created})  # one trainer for each number of workers


def test_several_messages_in_flight_stay():
  hyper, changes = {"period": 1, "delay": 3, "keep": 0.25}, CHANGES["a loss and a return"]
  trainer, _ = make("dasgd", changes, **hyper)
  equals_reference("dasgd", changes, *reference.problem(P, STEPS), trainer, **hyper)


def test_who_joins_has_a_copy_of_a_message_of_the_first_that_stays():
  """Means that all share, and differences of each worker's own, in flight at a change."""
  plain = trainer_of("easgd", P, alpha=0.1, period=1).algorithm
  late = plain._replace(exchanges=(plain.exchanges[0]._replace(delay=3),))
  late_of = cache(lambda count: CompiledTrainer(late, MODEL, make_workers(count, 1), HOW))
  trainer = ElasticTrainer(lambda ids: late_of(len(ids)), Presence(P, ((0, (1, 2, 3)), (6, ALL))))
  for step, held, _ in run(trainer):
    if step == 6:
      now = trainer.regroup(held, ALL, 6).carry
      for (mine, total), (old, before) in zip(now.messages[0], held.carry.messages[0], strict=True):
        close(flat_rows(jax.tree.map(np.asarray, total)), flat_rows(jax.tree.map(np.asarray, before)))
        rows = flat_rows(jax.tree.map(np.asarray, old))
        close(flat_rows(jax.tree.map(np.asarray, mine)), rows[[0, 0, 1, 2]])
        assert np.abs(rows[0] - rows[1]).max() > 1e-3


def test_where_nobody_leaves_no_bit_changes():
  for name in HYPER:
    trainer, _ = make(name, everyone(P).changes)
    plain = make(name, everyone(P).changes)[0].all
    *_, (_, held, losses) = run(trainer)
    calls = plain.plan(0, STEPS, STEPS)
    *_, (_, carry, kept) = plain.run(plain.start(jax.random.key(0)), calls, batches, jax.random.key(1))
    jax.tree.map(np.testing.assert_array_equal, held.carry, carry)
    np.testing.assert_array_equal(losses, plain.losses(calls[-1], kept))


def test_keys_and_batches_are_those_of_the_worker_whoever_else_is_there():
  """Worker 2's model without exchanges, beside three others and alone, with numbers drawn from its keys."""
  plain = model(P, STEPS)

  def loss(params, extra, batch, key):
    value, extra = plain.loss(params, extra, batch, None)
    return value + jax.random.uniform(key, dtype=jnp.float64) * jnp.sum(flat_of(params)), extra

  rows = []
  for changes in (((0, ALL),), ((0, ALL), (4, (2,)))):
    trainer, _ = make("local_sgd", changes, model=Model(plain.init, loss), period=100)
    *_, (_, held, _) = run(trainer)
    rows.append(models(trainer, held)[held.ids.index(2)])
  close(*rows)


def test_statistics_of_who_joins_are_the_mean():
  plain = model(P, STEPS)

  def loss(params, extra, batch, key):
    return plain.loss(params, {}, batch, key)[0], {
      "seen": extra["seen"] + jnp.asarray([1.0, 10, 100, 1000])[batch["worker"][0]]
    }

  trainer, _ = make(
    "local_sgd", ((0, ALL), (3, (0, 1)), (6, ALL)),
    model=Model(lambda key: (plain.init(key)[0], {"seen": jnp.zeros(())}), loss), period=3,
  )  # fmt: skip
  result = {
    step: held.carry.extra["seen"] for step, held, _ in ((a, jax.tree.map(jnp.copy, b), c) for a, b, c in run(trainer))
  }
  close(result[6], [6.0, 60.0])
  close(result[12], [12.0, 120.0, 33.0 + 600.0, 33.0 + 6000.0])


@pytest.mark.parametrize("name", ["dasgd", "easgd", "sync_sgd"])
@pytest.mark.sampled(3)
def test_what_was_saved_goes_on_to_the_last_bit(name):
  changes = CHANGES["a loss and a return"]
  trainer, _ = make(name, changes)
  saved, last = {}, None
  for step, held, _ in run(trainer, every=2):
    saved[step] = jax.tree.map(np.array, trainer.saved(held))
    last = held
  assert {3, 9} < {*saved} and last
  expected = jax.tree.map(np.array, last.carry)
  for step in (2, 3, 4, 9):
    again, _ = make(name, changes)
    like = again.saved(again.start(jax.random.key(0), step))
    carry = jax.tree.map(lambda x, own: jax.device_put(x, own.sharding), saved[step], like)
    *_, (_, held, _) = run(again, step, again.restored(carry, step), every=2)
    jax.tree.map(np.testing.assert_array_equal, held.carry, expected)


def test_the_programs_of_a_number_of_workers_serve_all_sets_of_them():
  changes = ((0, ALL), (2, (0, 1, 2)), (3, (1, 2, 3)), (5, (0, 2, 3)), (8, ALL), (9, (0, 1, 3)), (11, (0, 1, 2)))
  trainer, created = make("sync_sgd", changes, how=HOW._replace(steps_per_call=1))
  assert len([*run(trainer)]) == STEPS
  assert sorted(created) == [2, 3, 4]  # two stay where one goes and another comes
  assert [len(trainer.trainer_for(ALL[:count])._calls) for count in created] == [1, 1, 0]
  calls = make("local_sgd", ((0, ALL), *((step, ALL[:2] if step % 2 else ALL) for step in range(3, 90, 7))))[0]
  assert all(
    len({call.kind for call in calls.plan(0, 99, 20) if len(calls.presence.at(call.first)) == count}) <= MOST_KINDS
    for count in (2, 4)
  )


def test_bytes_are_those_of_the_present():
  trainer, _ = make("local_sgd", ((0, ALL), (6, (0, 3))))
  params = 7 * 8  # bytes
  for call in trainer.plan(0, STEPS, STEPS):
    p = 4 if call.end <= 6 else 2
    assert trainer.nbytes(call) == call.steps / 3 * 2 * params * (p - 1) / p


def test_what_cannot_go_on_with_fewer_is_refused():
  params = jax.eval_shape(model(P, STEPS).init, jax.random.key(0))[0]

  def check(name, changes, **hyper):
    elastic.check(lambda count: build(name, INNER["momentum"][0], count, **hyper), params, Presence(P, changes))

  for name in HYPER:
    check(name, CHANGES["all but one"], **HYPER[name])
  with pytest.raises(ValueError, match="must have the same shapes"):
    check("sharded_sync_sgd", CHANGES["a loss"])
  with pytest.raises(ValueError, match="power of two"):
    check("d_psgd", CHANGES["a loss"], graph="one_peer_exponential")
  check("sgp", CHANGES["a loss"])
  trainer, _ = make("local_sgd", CHANGES["a loss"])
  with pytest.raises(ValueError, match="must stay"):
    trainer.regroup(trainer.start(jax.random.key(0)), (), 3)
