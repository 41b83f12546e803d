"""Equalities between algorithms and theorems about them, in float64 at rtol 1e-12."""

from functools import cache

import hypothesis.extra.numpy as hnp
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers.twins import INNER, W, build, close, drive, tree_of
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import collective as reference

from ddl.group import Present

pytestmark = pytest.mark.usefixtures("x64")


def run(name, inner="momentum", *, workers=8, steps=10, x0=None, grad=None, **hyper):
  """Return the params of all steps: [steps, workers, n]."""
  start, default = reference.problem(workers, steps)
  algorithm = build(name, INNER[inner][0], workers, **hyper)
  x0 = start if x0 is None else x0
  return drive(algorithm, x0, grad or default, workers=workers, steps=steps)[0]


def zero(worker, step, x):
  return jnp.zeros_like(x)


def test_sync_sgd_is_one_worker_on_the_global_batch():
  x0, grad = reference.problem(8, 10)

  def mean(worker, step, x):
    return sum(grad(i, step, x) for i in range(8)) / 8

  one = run("sync_sgd", "adam", workers=1, x0=x0, grad=mean)
  close(run("sync_sgd", "adam"), np.repeat(one, 8, axis=1))


def test_local_sgd_of_one_step_is_sync_sgd_for_plain_sgd():
  close(run("local_sgd", "sgd", period=1), run("sync_sgd", "sgd"))
  assert not np.allclose(
    run("local_sgd", "adam", period=1), run("sync_sgd", "adam")
  )  # each worker has its own optimizer state


@pytest.mark.parametrize("inner", ["momentum", "nesterov", "adamw", "decay"])
@pytest.mark.parametrize("workers", [8, pytest.param(3, marks=pytest.mark.slow)])
def test_sharded_equals_unsharded(inner, workers):
  close(run("sharded_sync_sgd", inner, workers=workers), run("sync_sgd", inner, workers=workers))


ABSENT = {
  "sync_sgd": {},
  "local_sgd": {"period": 3},
  "post_local_sgd": {"period": 3, "start": 2},
  "dasgd": {"period": 3, "delay": 2, "keep": 0.25},
  "diloco": {"period": 3, "outer_learning_rate": 0.7, "outer_momentum": 0.9},
  "streaming_diloco": {
    "period": 4, "outer_learning_rate": 0.7, "outer_momentum": 0.9, "fragments": 2, "delay": 3, "keep": 0.25
  },
  "easgd": {"alpha": 0.1, "period": 2},
  "eamsgd": {"alpha": 0.1, "momentum": 0.9, "period": 2},
  "des_loc": {"period": 2, "momentum_period": 3, "variance_period": 4},
  "edit": {"period": 2, "temperature": 0.7, "threshold": 1.0, "detector_rate": 0.5, "detector_warmup": 2},
  "acco": {},
}  # fmt: skip


@pytest.mark.parametrize("name", ABSENT)
@pytest.mark.sampled(2)
def test_without_worker_3_it_is_the_algorithm_of_the_seven_others(name):
  steps, others = 8, np.array([0, 1, 2, 4, 5, 6, 7])
  x0, grad = reference.problem(8, steps)
  algorithm = build(name, INNER["momentum"][0], **ABSENT[name])
  left = drive(algorithm, x0, grad, workers=8, steps=steps, group=lambda rank: Present(W, rank != 3))
  few = drive(algorithm, x0, lambda i, t, x: grad(jnp.asarray(others)[i], t, x), workers=7, steps=steps)
  for one, other in zip(left[:2], few[:2], strict=True):
    close(np.asarray(one)[:, others], other)


def test_a_sharded_optimizer_state_has_one_pth_of_the_size():
  algorithm = build("sharded_sync_sgd", optax.adam(0.1))
  params = {"a": jnp.zeros((8, 300, 20)), "b": jnp.zeros((8, 401))}  # 6401 values per worker
  init = jax.vmap(lambda x: algorithm.init(W, x, jax.random.key(0)), axis_name="w")
  state = jax.eval_shape(init, params)
  sizes = [leaf.shape for leaf in jax.tree.leaves(state) if leaf.ndim > 1]
  assert sizes == [(8, 801), (8, 801)]  # mu and nu: ceil(6401 / 8)


def test_dasgd_without_delay_and_keep_is_local_sgd():
  close(run("dasgd", "adam", period=3, delay=0, keep=0), run("local_sgd", "adam", period=3))


@pytest.mark.parametrize("delay", [0, 2, 3])
def test_dasgd_with_keep_one_is_independent(delay):
  close(run("dasgd", "adam", period=3, delay=delay, keep=1), run("independent", "adam"))


@pytest.mark.parametrize(
  "delay, keep", [(2, 1), (2, 0), *(pytest.param(*case, marks=pytest.mark.slow) for case in ((0, 0.25), (3, 0.25)))]
)
def test_dasgd_with_one_worker_is_sgd_unless_it_merges_an_old_model(delay, keep):
  steps, period, rate = 10, 3, 0.1
  x0, grad = reference.problem(1, steps)
  ours = run("dasgd", "sgd", workers=1, period=period, delay=delay, keep=keep)[:, 0]
  x = [x0, *ours]  # x[k]: after k steps
  for k in range(steps):
    stepped = x[k] - rate * grad(0, k, x[k])
    if delay and k >= period and k % period == delay - 1:
      stepped = keep * stepped + (1 - keep) * x[k + 1 - delay]
    close(x[k + 1], stepped)
  plain = run("independent", "sgd", workers=1)[:, 0]
  assert np.allclose(ours, plain, rtol=1e-12) == (delay == 0 or keep == 1)


@pytest.mark.parametrize("delay", [0, 1, 3])
def test_dasgd_deviations_shrink_by_keep_at_each_merge(delay):
  period, keep, steps = 3, 0.3, 13
  x0 = np.random.default_rng(1).normal(size=(8, 7))
  x = np.concatenate([x0[None], run("dasgd", x0=x0, grad=zero, steps=steps, period=period, delay=delay, keep=keep)])
  deviation = x - x.mean(axis=1, keepdims=True)
  for t in range(steps):
    merges = (t + 1) % period == 0 if delay == 0 else t >= period and t % period == delay - 1
    close(deviation[t + 1], deviation[t] * (keep if merges else 1))
  close(x.mean(axis=1), np.repeat(x0.mean(axis=0)[None], steps + 1, axis=0))


def test_dasgd_progress_per_round_is_that_of_its_docstring():
  period, delay, keep, rate = 4, 1, 0.25, 0.1
  x = run("dasgd", "sgd", grad=lambda i, t, x: jnp.ones_like(x), steps=12, period=period, delay=delay, keep=keep)
  close(x[11] - x[7], np.full((8, 7), -rate * (period - (1 - keep) * delay)))


def test_post_local_sgd_is_local_sgd_or_sync_sgd_at_its_limits():
  close(run("post_local_sgd", "adam", period=3, start=0), run("local_sgd", "adam", period=3))
  close(run("post_local_sgd", "sgd", period=3, start=1000), run("sync_sgd", "sgd"))
  # Rounds are counted from `start`: the averages follow steps 1, 2, 5, 8.
  differ = np.ptp(run("post_local_sgd", period=3, start=2), axis=1).max(axis=-1) > 1e-9
  assert differ.tolist() == [False, False, True, True, False, True, True, False, True, True]


def test_easgd_without_pull_is_independent():
  close(run("easgd", "adam", alpha=0, period=2), run("independent", "adam"))


@pytest.mark.parametrize("period", [1, 3])
def test_eamsgd_without_momentum_is_easgd(period):
  close(run("eamsgd", "sgd", alpha=0.1, momentum=0, period=period), run("easgd", "sgd", alpha=0.1, period=period))


def test_round_robin_of_one_worker_is_easgd():
  close(run("round_robin_easgd", workers=1, alpha=0.2), run("easgd", workers=1, alpha=0.2, period=1))


@cache
def without_gradients(name):
  """Return a compiled function (x0: [3, 7], z0: [7], alpha) -> params and centers of 6 steps: [6, 3, 7] each."""
  more = {"easgd": {"period": 2}, "eamsgd": {"period": 2, "momentum": 0.9}, "round_robin_easgd": {}}[name]

  @jax.jit
  def go(x0, z0, alpha):
    algorithm = build(name, optax.sgd(0.1, momentum=0.9), alpha=alpha, **more)
    center = jax.tree.map(lambda z: jnp.stack([z] * 3), tree_of(z0))
    return drive(algorithm, x0, zero, workers=3, steps=6, prepare=lambda state: state._replace(center=center))[:2]

  return go


TINY = 1e-300  # XLA flushes subnormal numbers to 0


@pytest.mark.parametrize("name", ["easgd", "eamsgd", "round_robin_easgd"])
@settings(max_examples=25, deadline=None)
@given(
  points=hnp.arrays(np.float64, (4, 7), elements=st.floats(-1e3, 1e3, allow_subnormal=False)), alpha=st.floats(0, 0.6)
)
def test_elastic_exchange_conserves_the_sum(name, points, alpha):
  """Without gradients sum_i x_i + z is constant, from any start, and z is equal on all workers."""
  with jax.enable_x64(True):
    x, z = map(np.array, without_gradients(name)(points[:3], points[3], alpha))
  assert (z == z[:, :1]).all()
  expected, size = points.sum(axis=0), np.abs(points).max()
  np.testing.assert_allclose(x.sum(axis=1) + z[:, 0], np.stack([expected] * 6), rtol=0, atol=1e-12 * size + TINY)
  gap = np.abs(points[0] - points[3]).max()
  np.testing.assert_allclose(np.abs(x[0, 0] - points[0]).max(), alpha * gap, rtol=1e-9, atol=1e-12 * size + TINY)
