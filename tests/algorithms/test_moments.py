"""DES-LOC and MT-DAO: three periods, equalities, moments in optax states, and bytes, in float64 at rtol 1e-12."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers.twins import INNER, build, close, drive, lenient, tree_of
from reference import collective as reference

from ddl.algorithms.collective.des_loc import FIRST, SECOND, moments, with_moments
from ddl.engine import traffic
from ddl.schedule import Schedule

pytestmark = pytest.mark.usefixtures("x64")

LONG = 1000


def run(algorithm, steps=8, workers=8, **more):
  return drive(algorithm, *reference.problem(workers, steps), workers=workers, steps=steps, **more)


def des_loc(inner, *periods):
  names = ("period", "momentum_period", "variance_period")
  return build("des_loc", INNER[inner][0], **dict(zip(names, periods, strict=True)))


def spread(x):
  """Return the largest difference between workers: x [workers, ...]."""
  return np.ptp(np.asarray(x), axis=0).max()


# ---- DES-LOC


def test_momentum_averaged_at_each_step_is_synchronous_momentum():
  """Exact for linear optimizers; the mean of Adam's quotients is not the quotient of means."""
  close(run(des_loc("momentum", 1, 1, 1))[0], run(build("sync_sgd", INNER["momentum"][0]))[0])
  adam, synchronous = run(des_loc("adam", 1, 1, 1))[0], run(build("sync_sgd", INNER["adam"][0]))[0]
  assert not np.allclose(adam, synchronous, rtol=1e-3)


def test_without_averages_of_moments_it_is_local_sgd():
  close(run(des_loc("adam", 3, LONG, LONG))[0], run(build("local_sgd", INNER["adam"][0], period=3))[0])


def test_equal_periods_are_local_adam():
  """After each average, all workers continue from the same model and the same Adam state."""
  x, _, state = run(des_loc("adam", 4, 4, 4))
  assert spread(x[3]) == spread(x[7]) == 0 < spread(x[6])
  assert all(spread(leaf) == 0 for leaf in jax.tree.leaves(state))
  assert all(spread(leaf) > 0 for leaf in moments(run(des_loc("adam", 4, 4, 4), steps=7)[2], FIRST + SECOND))


@pytest.mark.parametrize("steps, equal", [(2, "model"), (3, "first"), (4, "second")])
def test_each_part_has_its_own_period(steps, equal):
  x, _, state = run(des_loc("adam", 2, 3, 4), steps)
  differ = {"model": x[-1], "first": jnp.stack(moments(state, FIRST)[:1])[0], "second": moments(state, SECOND)[0]}
  equal_parts = {"model", equal} if steps == 4 else {equal}
  assert {name for name, values in differ.items() if spread(values) == 0} == equal_parts


def test_the_default_periods_are_three_and_six_times_that_of_the_model():
  exchanges = build("des_loc", INNER["adam"][0], period=16).exchanges
  assert [exchange.period for exchange in exchanges] == [16, 48, 96]


def test_one_worker_is_its_optimizer():
  algorithm = build("des_loc", INNER["adam"][0], 1, period=2)
  close(run(algorithm, workers=1)[0], run(build("sync_sgd", INNER["adam"][0], 1), workers=1)[0])


def test_a_worker_with_other_moments_has_the_mean_after_the_longest_period():
  """A worker that joins may start with any moments."""

  def prepare(state):
    return with_moments(state, FIRST + SECOND, [x.at[3].add(1.0) for x in moments(state, FIRST + SECOND)])

  state = run(des_loc("adam", 2, 2, 4), steps=4, prepare=prepare)[2]
  assert all(spread(x) == 0 for x in moments(state, FIRST + SECOND))
  assert all(np.abs(x).min() > 1e-3 for x in moments(state, SECOND))


# ---- moments


class Params(NamedTuple):
  """Parameters with the names of moments."""

  mu: jax.Array
  nu: jax.Array


def test_moments_of_optax_states():
  params = {"a": jnp.ones(2), "b": jnp.ones((3, 2))}

  def counts(optimizer):
    state = optimizer.init(params)
    return len(moments(state, FIRST)), len(moments(state, SECOND))

  schedule = optax.linear_schedule(0.1, 0.0, 10)
  assert counts(optax.adam(schedule)) == (2, 2)
  assert counts(optax.chain(optax.clip(1.0), optax.adamw(0.1))) == (2, 2)
  assert counts(optax.inject_hyperparams(optax.adam)(0.1)) == (2, 2)
  assert counts(optax.sgd(0.1, momentum=0.9)) == counts(optax.lion(0.1)) == (2, 0)
  assert counts(optax.contrib.ademamix(0.1)) == (4, 2)
  assert counts(optax.masked(optax.adam(0.1), {"a": True, "b": False})) == (1, 1)
  assert counts(optax.rmsprop(0.1)) == (0, 2)
  assert counts(optax.sgd(0.1)) == (0, 0)


def test_parameters_may_have_the_names_of_moments():
  state = optax.adam(0.1).init(Params(jnp.zeros(2), jnp.zeros(3)))
  assert [x.shape for x in moments(state, FIRST)] == [x.shape for x in moments(state, SECOND)] == [(2,), (3,)]


def test_moments_are_replaced_and_nothing_else_is():
  state = optax.adam(0.1).init({"a": jnp.ones(2)})
  after = with_moments(state, SECOND, [jnp.full(2, 5.0)])
  assert jax.tree.structure(after) == jax.tree.structure(state)
  np.testing.assert_array_equal(after[0].nu["a"], [5, 5])
  np.testing.assert_array_equal(after[0].mu["a"], [0, 0])
  assert after[0].count == 0


def test_an_optimizer_without_moments_is_refused():
  """Recording the messages, as every run does first, is enough."""
  with pytest.raises(ValueError, match=r"^des_loc\.inner must have moments .*got an optimizer without them\."):
    traffic.of(build("des_loc", optax.sgd(0.1)), tree_of(jnp.zeros(7)), 8)


# ---- MT-DAO


def test_mt_dao_without_the_gradient_is_des_loc_with_adam():
  hyper = {"period": 3, "momentum_period": 2, "variance_period": 4}
  adam = lenient(optax.adam(0.05, b1=0.95, b2=0.99))
  ours = build("mt_dao", optax.sgd(0.05), **hyper, b1=0.95, b2=0.99, weight=1.0, eps=1e-8)
  close(run(ours)[0], run(build("des_loc", adam, **hyper))[0])


def test_mt_dao_without_momentum_is_des_loc_with_rmsprop():
  """The periods of MT-DAO are equal by default."""
  bias_corrected = lenient(optax.rmsprop(0.05, decay=0.99, eps=1e-8, eps_in_sqrt=False, bias_correction=True))
  ours = build("mt_dao", optax.sgd(0.05), period=3, b2=0.99, weight=0.0)
  hyper = {"period": 3, "momentum_period": 3, "variance_period": 3}
  close(run(ours)[0], run(build("des_loc", bias_corrected, **hyper))[0])


# ---- bytes


@pytest.mark.parametrize(
  "name, inner, sent",
  [("des_loc", "adam", [1, 1, 1]), ("des_loc", "momentum", [1, 1, 0]), ("mt_dao", "sgd", [1, 1, 1])],
)
def test_bytes(name, inner, sent):
  model = 2 * 7 / 8 * 7 * 4  # an all-reduce of seven parameters
  params = tree_of(jnp.zeros(7, jnp.float32))
  algorithm = build(name, INNER[inner][0], period=2, momentum_period=3, variance_period=4)
  recorded, schedule = traffic.of(algorithm, params, 8), Schedule(algorithm.exchanges)
  assert recorded.local == () and [recorded.sent(ops) for ops in recorded.exchanges] == [n * model for n in sent]
  counts = np.array([6, 4, 3])  # in 12 steps
  assert recorded.nbytes(map(schedule.due, range(12))) == counts @ sent * model


def test_the_default_periods_send_half_of_local_adam():
  periods = [exchange.period for exchange in build("des_loc", INNER["adam"][0]).exchanges]
  assert sum(1 / k for k in periods) == 3 / periods[0] / 2
