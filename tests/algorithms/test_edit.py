"""EDiT and A-EDiT: special cases, outliers, weights, clipping and bytes, in float64 at rtol 1e-12."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers.twins import INNER, build, close, drive, falling, lenient, tree_of
from reference import collective as reference

from ddl.engine import traffic

pytestmark = pytest.mark.usefixtures("x64")

OUTER = {"outer_learning_rate": 0.7, "outer_momentum": 0.8}
MOST = 10  # steps of the problem
LARGE = 1e30
OFF = {"clip": LARGE, "detector_warmup": 1000}  # without clipping and detection
MEAN = {"temperature": LARGE, **OFF}


def run(name, inner="momentum", steps=8, grad=None, workers=8, **hyper):
  x0, default = reference.problem(workers, MOST)
  algorithm = build(name, INNER[inner][0] if isinstance(inner, str) else inner, workers, period=2, **hyper)
  return drive(algorithm, x0, grad or default, workers=workers, steps=steps)


def same(one, other):
  for ours, expected in zip(one[:2], other[:2], strict=True):
    close(ours, expected)


@pytest.mark.parametrize("workers", [1, 8])
def test_with_equal_weights_it_is_diloco(workers):
  same(run("edit", workers=workers, **OUTER, **MEAN), run("diloco", workers=workers, **OUTER))


def test_one_worker_has_no_weights():
  same(run("edit", workers=1, **OUTER, temperature=0.3, **OFF), run("diloco", workers=1, **OUTER))


# ---- outliers


def equal(worker, step, x):
  return reference.problem(8, MOST)[1](0 * worker, step, x)


def with_a_fault(workers, steps=(4, 5)):
  """Return equal gradients, except that those of some workers are huge at some steps."""
  fault = jnp.isin(jnp.arange(8), jnp.asarray(workers)), jnp.isin(jnp.arange(8), jnp.asarray(steps))
  return lambda worker, step, x: equal(worker, step, x) * jnp.where(fault[0][worker] & fault[1][step], 1e6, 1.0)


DETECT = {"clip": LARGE, "detector_rate": 0.5, "detector_warmup": 2}


@pytest.mark.parametrize("temperature", [0.1, LARGE])
def test_equal_changes_are_their_mean_and_an_outlier_is_left_out(temperature):
  """The others train as DiLoCo of equal workers does, and the worker with the fault continues from the result."""
  expected = run("diloco", "sgd", grad=equal, **OUTER)
  hyper = {**OUTER, "temperature": temperature, **DETECT}
  same(run("edit", "sgd", grad=equal, **hyper), expected)
  faulty = run("edit", "sgd", grad=with_a_fault([3]), **hyper)
  close(faulty[1], expected[1])
  close(np.delete(faulty[0], 3, axis=1), np.delete(expected[0], 3, axis=1))
  assert np.abs(faulty[0][4, 3] - expected[0][4, 3]).max() > 1e3


def test_if_all_workers_are_outliers_nothing_changes():
  """Neither the model nor the momentum nor the detectors do."""
  _, z, state = run("edit", "sgd", steps=6, grad=with_a_fault(range(8)), **OUTER, **DETECT)
  np.testing.assert_array_equal(z[5], z[3])
  before = run("edit", "sgd", steps=5, grad=with_a_fault(range(8)), **OUTER, **DETECT)[2]
  for one, other in ((state.momentum, before.momentum), (state.detector, before.detector)):
    jax.tree.map(np.testing.assert_array_equal, one, other)
  assert (np.asarray(state.detector.count) == 2).all()


def test_the_reference_runs_contain_outliers():
  """With the settings of the comparison, some detectors leave out some norms."""
  hyper = {"temperature": 0.7, "clip": 0.5, "threshold": 1.0, "detector_rate": 0.5, "detector_warmup": 2}
  counts = np.asarray(run("edit", steps=10, **OUTER, **hyper)[2].detector.count)
  assert counts.shape == (8, 2) and 2 <= counts.min() < counts.max() == 5


# ---- weights and clipping


def test_a_low_temperature_takes_the_smallest_change():
  """Norms far beyond the range of exp(-G / T) give neither 0 / 0 nor infinities."""
  rates = jnp.arange(1.0, 9)

  def grad(worker, step, x):
    return 1e4 * rates[worker] * jnp.ones_like(x)

  x0, plain = reference.problem(8, MOST)[0], {"outer_learning_rate": 1.0, "outer_momentum": 0.0}
  z = run("edit", "sgd", steps=2, grad=grad, **plain, **OFF)[1][-1, 0]
  close(z, x0 - 2 * 0.1 * 1e4)


def test_the_norm_of_the_mean_is_clipped_over_all_arrays():
  plain = {"outer_learning_rate": 1.0, "outer_momentum": 0.0, "temperature": LARGE, "detector_warmup": 1000}
  x0, limit = reference.problem(8, MOST)[0], 0.01
  clipped = run("edit", steps=2, **plain, clip=limit)[1][-1, 0] - x0
  free = run("edit", steps=2, **plain, clip=LARGE)[1][-1, 0] - x0
  norm = np.linalg.norm(free)
  assert norm > limit
  close(clipped, free * limit / (norm + 1e-6))


# ---- A-EDiT


def test_a_slow_worker_keeps_its_optimizer_state_but_not_its_schedule():
  inner = lenient(optax.adam(falling))
  state = run("edit", inner, steps=6, **OUTER, **MEAN, local_steps=(2, 1))[2]
  adam, schedule = state.inner
  assert np.asarray(adam.count).tolist() == [6, 3] * 4 and np.asarray(schedule.count).tolist() == [6] * 8


def test_steps_are_counted_per_round():
  x = np.asarray(run("edit", "sgd", steps=4, **OUTER, **MEAN, local_steps=(1, 2))[0])
  start = reference.problem(8, MOST)[0]
  assert (np.abs(x[0] - start).max(axis=-1) > 0).all()  # all take the first step of a round
  assert (np.abs(x[2] - x[1]).max(axis=-1) > 0).all()


# ---- bytes


def test_bytes():
  """Seven parameters and, for each of two arrays, a score and a weight in float64."""
  sent = traffic.of(build("edit", optax.sgd(0.1)), tree_of(jnp.zeros(7, jnp.float32)), 8)
  assert sent.local == () and not sent.local_uses_group
  assert [sent.sent(ops) for ops in sent.exchanges] == [2 * 7 / 8 * (7 * 4 + 2 * 2 * 8)]
