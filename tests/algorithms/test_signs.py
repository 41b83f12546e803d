"""Algorithms that send signs: equalities with other algorithms, ties, and bytes."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers.twins import INNER, W, build, close, drive, lenient, tree_of
from reference import collective as reference
from reference.signs import one_bit_adam

from ddl.algorithms import WRAPPERS
from ddl.engine import traffic
from ddl.schedule import Schedule

pytestmark = pytest.mark.usefixtures("x64")

DECOUPLED = optax.chain(optax.add_decayed_weights(0.1), optax.scale(-0.05))
LION = lenient(optax.lion(0.05, b1=0.9, b2=0.99, weight_decay=0.1))


def lion(inner, aggregate="vote", **betas):
  return build("distributed_lion", inner, aggregate=aggregate, **betas)


def run(algorithm, workers, grad, steps=6):
  return np.asarray(drive(algorithm, reference.problem(workers, steps)[0], grad, workers=workers, steps=steps)[0])


# ---- Distributed Lion


@pytest.mark.parametrize("aggregate", ["vote", "mean"])
@pytest.mark.parametrize("workers", [1, 3])
def test_distributed_lion_of_equal_gradients_is_lion(workers, aggregate):
  grad = reference.problem(1, 6)[1]

  def same(worker, step, x):
    return grad(0 * worker, step, x)

  close(run(lion(DECOUPLED, aggregate), workers, same), run(build("sync_sgd", LION), workers, same))


def test_distributed_lion_with_equal_betas_is_signum():
  grad = reference.problem(8, 6)[1]
  signum = WRAPPERS["sign"].factory(build("sync_sgd", INNER["momentum"][0]), momentum=0.8)
  close(run(lion(INNER["momentum"][0], b1=0.8, b2=0.8), 8, grad), run(signum, 8, grad))


def test_the_mean_of_two_workers_moves_only_values_on_which_they_agree():
  grads = jnp.array([[3.0, -1.0, 2.0, -4.0, 1.0, 1.0, -1.0], [1.0, 1.0, -2.0, -1.0, 5.0, -9.0, -3.0]])
  agree = np.array([1, 0, 0, -1, 1, 0, -1])
  moved = np.diff(run(lion(optax.sgd(0.1), "mean"), 2, lambda i, t, x: grads[i], steps=2)[:, 0], axis=0)[0]
  close(moved, -0.1 * agree)


@pytest.mark.parametrize("aggregate, moves", [("vote", [1, 1, -1]), ("mean", [0, 1, -1])])
def test_zeros_and_ties_of_distributed_lion_count_as_plus(aggregate, moves):
  grads = jnp.array([[1.0, 0.0, -1.0, 0, 0, 0, 0], [-1.0, 0.0, -1.0, 0, 0, 0, 0]])
  x = run(lion(optax.sgd(1.0), aggregate), 2, lambda i, t, x: grads[i], steps=1)[0, 0]
  close(reference.problem(2, 1)[0] - x, [*moves, 1, 1, 1, 1])


@pytest.mark.parametrize("workers, strip, bits", [(1, 5, 1), (2, 3, 2), (8, 1, 4)])
def test_bytes_of_distributed_lion(workers, strip, bits):
  """33 values in strips of whole bytes; 1 bit up; 1 bit (vote) or enough bits for a count of 0..p (mean) down."""
  for aggregate, down in (("vote", 1), ("mean", bits)):
    sent = traffic.of(lion(optax.sgd(0.1), aggregate), {"a": jnp.zeros((11, 3))}, workers)
    assert sent.sent(sent.local) == (workers - 1) * strip * (1 + down)
    assert not sent.exchanges and not sent.evaluate


def test_an_unknown_aggregate_is_refused():
  with pytest.raises(ValueError, match="aggregate must be one of vote, mean, got 'median'"):
    traffic.of(lion(optax.sgd(0.1), "median"), tree_of(jnp.zeros(7)), 2)


# ---- 1-bit Adam

BETAS = {"b1": 0.9, "b2": 0.99, "eps": 1e-8}


def gradients(workers, size, steps=7):
  return np.random.default_rng(size).normal(size=(workers, steps, size))


def states(table, freeze_step):
  """Return the params and the state after each step on gradients [workers, steps, n], from 0, with a rate of 0.1."""
  algorithm = build("one_bit_adam", optax.sgd(0.1), freeze_step=freeze_step, **BETAS)
  schedule = Schedule(algorithm.exchanges)

  def one(grads):
    params, out = jnp.zeros(grads.shape[1]), []
    state = algorithm.init(W, params, jax.random.key(0))
    for t, g in enumerate(grads):
      params, state = algorithm.local(W, g, state, params)
      (due,) = schedule.due(t).exchange
      message, state = algorithm.exchanges[due].launch(W, state, params)
      params, state = algorithm.exchanges[due].merge(W, message, state, params)
      out.append((params, state))
    return out

  return jax.device_get(jax.jit(jax.vmap(one, axis_name="w"))(jnp.asarray(table)))


@cache
def history():
  return states(gradients(3, 40), 3)


def uncorrected_adam(b1, b2, eps):
  """Return Adam without bias correction."""

  def update(g, state, params=None):
    m, v = state
    m = jax.tree.map(lambda m, g: b1 * m + (1 - b1) * g, m, g)
    v = jax.tree.map(lambda v, g: b2 * v + (1 - b2) * g * g, v, g)
    return jax.tree.map(lambda m, v: -0.05 * m / (jnp.sqrt(v) + eps), m, v), (m, v)

  def init(params):
    return (jax.tree.map(jnp.zeros_like, params),) * 2

  return optax.GradientTransformation(init, update)


def test_the_first_phase_is_synchronous_adam():
  grad = reference.problem(3, 6)[1]
  ours = run(build("one_bit_adam", optax.sgd(0.05), freeze_step=100, **BETAS), 3, grad)
  close(ours, run(build("sync_sgd", uncorrected_adam(**BETAS)), 3, grad))


@pytest.mark.parametrize("workers, size", [(3, 40), (4, 5)])
def test_strips_of_one_bit_adam(workers, size):
  """With 40 values, the three workers own 16, 16 and 8; with 5 values, only the first worker owns any."""
  table = gradients(workers, size)
  expected = one_bit_adam(
    np.zeros(size),
    lambda i, t, x: table[i, t],
    workers=workers,
    steps=7,
    inner=reference.sgd(0.1),
    freeze_step=3,
    **BETAS,
  )
  result = history() if size == 40 else states(table, 3)
  close([params for params, _ in result], expected.params)


def test_one_value_is_sent_exactly():
  """Its sign and its norm determine it, so that a frozen variance makes it SGD with momentum."""
  table, m, v, x = gradients(3, 1), 0.0, 0.0, 0.0
  for t, (params, _) in enumerate(states(table, 2)):
    g = table[:, t].mean()
    m, v = 0.9 * m + 0.1 * g, 0.99 * v + 0.01 * g**2 if t < 2 else v
    x = x - 0.1 * m / (np.sqrt(v) + 1e-8)
    close(params, np.full((3, 1), x))


def test_errors_hold_what_was_not_sent():
  table = gradients(3, 40)
  for t in range(3, 7):
    before, after = (history()[step][1] for step in (t - 1, t))
    wanted = 0.9 * before.momentum + 0.1 * table[:, t] + before.error
    sent = after.momentum + after.error.mean(axis=0) + after.strip_error.sum(axis=0)
    close(sent, np.broadcast_to(wanted.mean(axis=0) + before.strip_error.sum(axis=0), sent.shape))
    assert np.abs(after.error).max() > 0.01 < np.abs(after.strip_error).max()


def test_equal_momenta_have_no_error_of_strips():
  state = states(np.repeat(gradients(1, 40), 3, axis=0), 3)[3][1]
  assert np.abs(state.strip_error).max() < 1e-15 and np.abs(state.error).max() > 0.01


def test_values_without_a_variance_do_not_move():
  table = gradients(3, 40)
  table[:, :3, 4:6] = 0.0
  params, state = states(table, 3)[-1]
  for array in (params, state.momentum, state.error, state.strip_error):
    assert (array[:, 4:6] == 0).all()
  assert (params[:, :4] != 0).all() and np.abs(params).max() < 10


@pytest.mark.parametrize("workers, strip", [(1, 5), (2, 3), (8, 1)])
def test_bytes_of_one_bit_adam(workers, strip):
  """33 values: an all-reduce, then strips of whole bytes with a scale in both directions."""
  params = {"a": jnp.zeros((11, 3), jnp.float32)}
  sent = traffic.of(build("one_bit_adam", optax.sgd(0.1), freeze_step=5), params, workers)
  assert not sent.local and not sent.evaluate
  phases = [2 * 33 * 4 * (workers - 1) / workers, 2 * (workers - 1) * (strip + 4)]
  assert [sent.sent(ops) for ops in sent.exchanges] == phases
  due = Schedule(build("one_bit_adam", optax.sgd(0.1), freeze_step=5).exchanges).due
  assert sent.nbytes(map(due, range(12))) == 5 * phases[0] + 7 * phases[1]
