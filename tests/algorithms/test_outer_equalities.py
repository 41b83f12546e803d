"""SlowMo, BMUF, Eager DiLoCo and NoLoCo: special cases and theorems, in float64 at rtol 1e-12."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers.twins import INNER, W, build, close, drive, lenient, tree_of
from reference import collective as reference

from ddl.algorithms.collective.diloco import diloco_with
from ddl.algorithms.collective.eager_diloco import eager_diloco_with
from ddl.algorithms.collective.noloco import partners

pytestmark = pytest.mark.usefixtures("x64")

RATE, CURVATURE = 0.1, 0.7  # of the quadratics


def run(algorithm, workers=8, steps=12, x0=None, grad=None):
  start, default = reference.problem(workers, steps)
  return drive(algorithm, start if x0 is None else x0, grad or default, workers=workers, steps=steps)[:2]


def create(name, inner="momentum", workers=8, **hyper):
  return build(name, INNER[inner][0], workers, **hyper)


def same(one, other):
  for ours, expected in zip(one, other, strict=True):
    close(ours, expected)


def same_params(one, other):
  close(one[0], other[0])


def bowl(worker, step, x):
  """Gradient of (lambda / 2) |x|^2."""
  return CURVATURE * x


def powers(matrix, first, rounds):
  """Return matrix^k first for k = 1..rounds; first: [states, n]."""
  return np.stack([np.linalg.matrix_power(matrix, k) @ first for k in range(1, rounds + 1)])


# ---- SlowMo


def test_slowmo_without_slow_momentum_is_local_sgd():
  ours = create("slowmo", "adam", period=4, slow_rate=1.0, slow_momentum=0.0)
  same_params(run(ours), run(create("local_sgd", "adam", period=4)))


def test_slowmo_is_diloco_with_heavy_ball():
  """At a constant inner rate the two gammas cancel."""
  ours = create("slowmo", "adam", period=3, slow_rate=0.8, slow_momentum=0.6)
  same(run(ours), run(diloco_with(INNER["adam"][0], optax.sgd(0.8, momentum=0.6), period=3)))


def decaying(count):
  """Return an inner learning rate that decreases twice."""
  return jnp.where(count < 4, 0.05, jnp.where(count < 8, 0.02, 0.01))


def heavy_ball():
  """Return SGD with momentum at this rate in NumPy: v <- mu v + g; u = -gamma(t) v."""
  v, count = 0.0, 0

  def update(g, x):
    nonlocal v, count
    v, count = 0.9 * v + g, count + 1
    return -float(decaying(count - 1)) * v

  return update


def injected(learning_rate):
  """Return SGD with momentum and a recorded learning rate."""
  return optax.inject_hyperparams(optax.sgd)(learning_rate=learning_rate, momentum=0.9)


RECORDED = {  # optimizers with one recorded learning rate
  "injected": injected(decaying),
  "with other injected hyperparameters": optax.chain(
    optax.inject_hyperparams(optax.clip)(max_delta=1e9), injected(decaying), optax.inject_hyperparams(optax.scale)(1.0)
  ),
  "nested in an injected learning rate": optax.inject_hyperparams(lambda learning_rate: injected(decaying))(0.1),
  "nested in another injected hyperparameter": optax.inject_hyperparams(
    lambda max_delta: optax.chain(optax.clip(max_delta), injected(decaying))
  )(1e9),
  "masked": optax.masked(injected(decaying), lambda x: jax.tree.map(lambda _: True, x)),
}


@pytest.mark.parametrize("inner", RECORDED)
def test_slowmo_uses_the_recorded_rate(inner):
  workers, steps, hyper = 8, 12, {"period": 3, "slow_rate": 0.8, "slow_momentum": 0.6}
  x0, grad = reference.problem(workers, steps)
  rate = {"rate": lambda step: float(decaying(step))}
  expected = reference.slowmo(x0, grad, workers=workers, steps=steps, inner=heavy_ball, **hyper, **rate)
  close(run(build("slowmo", lenient(RECORDED[inner]), **hyper), workers)[0], expected.params)


@pytest.mark.parametrize(
  "inner",
  [
    optax.chain(injected(0.1), injected(0.5)),
    optax.partition({"a": injected(decaying), "b": injected(0.1)}, lambda x: {"bias": "a", "kernel": "b"}),
  ],
)
def test_several_recorded_rates_are_refused(inner):
  algorithm = build("slowmo", inner, period=3, slow_rate=0.8, slow_momentum=0.6)
  with pytest.raises(ValueError, match=r"^slowmo\.inner must record at most one learning_rate, got 2\. Use "):
    algorithm.init(W, tree_of(jnp.zeros(7)), jax.random.key(0))


def test_slowmo_assumes_a_constant_rate_if_none_is_recorded():
  workers, steps, hyper = 8, 12, {"period": 3, "slow_rate": 0.8, "slow_momentum": 0.6}
  x0, grad = reference.problem(workers, steps)
  rate = {"rate": lambda step: float(decaying(step))}
  expected = reference.slowmo(x0, grad, workers=workers, steps=steps, inner=heavy_ball, **hyper, **rate)
  params = run(build("slowmo", optax.sgd(decaying, momentum=0.9), **hyper), workers)[0]
  close(params[:5], expected.params[:5])
  assert not np.allclose(params[5], expected.params[5])


@pytest.mark.parametrize("name, hyper", [
  ("slowmo", {"slow_rate": 0.8, "slow_momentum": 0.6}),
  ("bmuf", {"block_learning_rate": 0.8, "block_momentum": 0.6, "nesterov": False}),
])  # fmt: skip
def test_heavy_ball_on_a_quadratic_is_a_matrix_power(name, hyper):
  """With s = (1 - eta lambda)^tau: u' = beta u + (1 - s) z, z' = z - alpha u'."""
  period, rounds = 3, 4
  x0 = reference.problem(8, 12)[0]
  _, z = run(create(name, "sgd", period=period, **hyper), steps=period * rounds, grad=bowl)
  pull = 1 - (1 - RATE * CURVATURE) ** period
  matrix = np.array([[1 - 0.8 * pull, -0.8 * 0.6], [pull, 0.6]])
  close(z[period - 1 :: period, 0], powers(matrix, np.stack([x0, 0 * x0]), rounds)[:, 0])


# ---- BMUF


@pytest.mark.parametrize("nesterov", [True, False])
def test_bmuf_without_block_momentum_is_local_sgd(nesterov):
  ours = create("bmuf", "adam", period=4, block_learning_rate=1.0, block_momentum=0.0, nesterov=nesterov)
  same_params(run(ours), run(create("local_sgd", "adam", period=4)))


def test_classical_bmuf_is_slowmo_and_nesterov_bmuf_is_diloco():
  hyper = {"block_learning_rate": 0.7, "block_momentum": 0.9}
  classical = run(create("bmuf", "adam", period=3, nesterov=False, **hyper))
  same(classical, run(create("slowmo", "adam", period=3, slow_rate=0.7, slow_momentum=0.9)))
  ahead = run(create("bmuf", "adam", period=3, nesterov=True, **hyper))
  same(ahead, run(create("diloco", "adam", period=3, outer_learning_rate=0.7, outer_momentum=0.9)))
  assert not np.allclose(classical[0], ahead[0])


# ---- Eager DiLoCo

PAPER = {"outer_learning_rate": 0.7, "outer_momentum": 0.9}
NESTEROV = optax.sgd(0.7, momentum=0.9, nesterov=True)


@pytest.mark.parametrize("period", [1, 4])
def test_eager_diloco_without_delay_is_diloco(period):
  ours = eager_diloco_with(INNER["adam"][0], NESTEROV, period=period, delay=0)
  same(run(ours), run(create("diloco", "adam", period=period, **PAPER)))


def test_eager_diloco_of_one_worker_is_diloco():
  hyper = {"period": 3, **PAPER}
  same(run(create("eager_diloco", "adam", 1, **hyper), 1), run(create("diloco", "adam", 1, **hyper), 1))


def test_eager_diloco_applies_only_its_own_share_in_the_first_round():
  steps, period = 4, 4
  x0, _ = reference.problem(8, steps)
  plain = eager_diloco_with(INNER["momentum"][0], optax.sgd(1.0), period=period, delay=period)
  independent = run(create("independent"), steps=steps)[0][-1]
  close(run(plain, steps=steps)[0][-1], x0[None] + (independent - x0[None]) / 8)


@pytest.mark.parametrize("delay", [0, 3, 4])
def test_each_worker_applies_every_local_step_of_all_workers_once(delay):
  """Without momentum and at rate 1: theta_i = x0 - (own steps so far + other workers' up to the last launch) / p."""
  period, steps, workers = 4, 12 + delay, 8
  x0 = reference.problem(workers, steps)[0]

  def constant(worker, step, x):
    return (1 + worker + step).astype(x.dtype) * jnp.ones_like(x)

  plain = eager_diloco_with(optax.sgd(RATE), optax.sgd(1.0), period=period, delay=delay)
  x = run(plain, workers, steps, grad=constant)[0]

  def moved(worker, until):
    return RATE * sum(1.0 + worker + t for t in range(until))

  for i in range(workers):
    total = moved(i, steps) + sum(moved(j, 12) for j in range(workers) if j != i)
    close(x[-1, i], x0 - total / workers)


def outer_gradient(q, late):
  """Return the matrix of a round of (theta, previous theta, m), if its local steps multiply x by 1 - q."""
  delta = np.array([(1 - late) * q, late * q, 0])
  m = np.array([0, 0, 0.9]) + delta
  return np.array([np.array([1, 0, 0]) - 0.7 * (delta + 0.9 * m), [1, 0, 0], m])


def test_eager_diloco_on_a_quadratic_is_a_matrix_power():
  """The matrix describes the means; 7/8 of the outer gradient are one round old."""
  period, rounds = 3, 5
  x0 = reference.problem(8, 12)[0]
  algorithm = create("eager_diloco", "sgd", period=period, **PAPER)
  theta = run(algorithm, steps=period * rounds, x0=x0, grad=bowl)[1][period - 1 :: period, 0]
  share = 1 - (1 - RATE * CURVATURE) ** period
  close(theta, powers(outer_gradient(share, 7 / 8), np.stack([x0, 0 * x0, 0 * x0]), rounds)[:, 0])


@pytest.mark.parametrize("late, limit", [(7 / 8, 0.457), (1.0, 0.361)])
def test_eager_diloco_is_stable_up_to_the_limit_of_its_docstring(late, limit):
  for share, stable in ((limit, True), (limit + 0.002, False)):
    assert (np.abs(np.linalg.eigvals(outer_gradient(share, late))).max() < 1) == stable


# ---- NoLoCo

PAIRS = {"period": 2, "outer_learning_rate": 0.7, "outer_momentum": 0.5, "attraction": 0.7, "pairings": 3}


def test_noloco_of_two_workers_is_diloco_with_heavy_ball():
  ours = run(create("noloco", "adam", 2, **PAIRS), 2)
  same(ours, run(diloco_with(INNER["adam"][0], optax.sgd(0.7, momentum=0.5), period=2), 2))


def test_noloco_of_two_workers_without_momentum_is_local_sgd():
  plain = PAIRS | {"outer_learning_rate": 1.0, "outer_momentum": 0.0, "attraction": 1.0}
  same_params(run(create("noloco", "adam", 2, **plain), 2), run(create("local_sgd", "adam", 2, period=2), 2))


@pytest.mark.parametrize("workers", [1, 2, 5, 8])
def test_pairings_are_symmetric_and_leave_at_most_one_worker_unpaired(workers):
  for partner in partners(workers, 6):
    assert [partner[j] for j in partner] == list(range(workers))
    assert sum(i == j for i, j in enumerate(partner)) == workers % 2
  assert partners(workers, 6)[:4] == partners(workers, 4)
  assert len({tuple(partner) for partner in partners(8, 6)}) > 1


@pytest.mark.parametrize("workers", [8, pytest.param(5, marks=pytest.mark.slow)])
def test_noloco_conserves_the_mean_and_contracts_pairs(workers):
  """Without gradients and momentum the difference of a pair shrinks by 1 - gamma and its mean is constant."""
  x0 = np.random.default_rng(1).normal(size=(workers, 7))
  still = PAIRS | {"period": 1, "outer_momentum": 0.0}
  x = run(create("noloco", workers=workers, **still), workers, 6, x0, lambda i, t, x: jnp.zeros_like(x))[0]
  close(x.mean(axis=1), np.repeat(x0.mean(axis=0)[None], 6, axis=0))
  before = x0
  for t in range(6):
    partner = np.array(partners(workers, 3)[t % 3])
    close(x[t] - x[t][partner], (1 - 0.7) * (before - before[partner]))
    before = x[t]


def test_the_mean_of_noloco_on_a_quadratic_is_a_matrix_power():
  """From any initial models: delta' = alpha delta - beta (1 - s) phi, phi' = phi + delta', s = (1 - eta lambda)^tau."""
  x0 = np.random.default_rng(1).normal(size=(8, 7))
  mean = run(create("noloco", "sgd", **PAIRS), steps=10, x0=x0, grad=bowl)[1][1::2, 0]
  pull = 0.7 * (1 - (1 - RATE * CURVATURE) ** 2)
  matrix = np.array([[1 - pull, 0.5], [-pull, 0.5]])
  start = x0.mean(axis=0)
  close(mean, powers(matrix, np.stack([start, 0 * start]), 5)[:, 0])


@pytest.mark.parametrize(
  "hyper, words",
  [
    ({"attraction": 0.5}, r"attraction with outer_momentum 0.5 must be in \(0.5, 2.5\), got 0.5"),
    ({"attraction": 2.5}, "attraction .*got 2.5"),
    ({"pairings": 0}, "pairings must be .*got 0"),
    ({"pairings": 65}, r"pairings must be an integer in \[1, 64\], got 65"),
  ],
)
def test_invalid_hyperparameters_are_refused(hyper, words):
  with pytest.raises(ValueError, match=words) as refused:
    create("noloco", **(PAIRS | hyper))
  assert "\n" not in str(refused.value)
