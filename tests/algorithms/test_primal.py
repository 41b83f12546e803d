"""SNOO and GPA: special cases and equalities, in float64 at rtol 1e-12."""

import jax
import numpy as np
import pytest
from helpers.runs import STEPS, WORKERS
from helpers.twins import INNER, build, close, drive
from reference import collective as reference

from ddl.config.optimizers import OPTIMIZERS
from ddl.engine import traffic

pytestmark = pytest.mark.usefixtures("x64")


def run(name, workers=WORKERS, inner=INNER["momentum"][0], **hyper):
  x0, grad = reference.problem(WORKERS, STEPS)
  return drive(build(name, inner, workers, **hyper), x0, grad, workers=workers, steps=STEPS)


def same(one, other, last=STEPS):
  for ours, expected in zip(one[:2], other[:2], strict=True):
    close(ours[:last], expected[:last])


def test_one_worker_is_diloco():
  hyper = {"period": 3, "outer_learning_rate": 0.7, "outer_momentum": 0.6}
  same(run("snoo", 1, **hyper), run("diloco", 1, **hyper))


def test_with_muon_and_one_worker_snoo_is_muloco():
  hyper = {"period": 4, "outer_learning_rate": 0.7, "outer_momentum": 0.6, "inner": OPTIMIZERS["muon"](0.02)}
  with jax.numpy_dtype_promotion("standard"):
    same(run("snoo", 1, **hyper), run("muloco", 1, **hyper))


@pytest.mark.parametrize("name", ["snoo", "diloco"])
def test_the_identity_as_outer_step(name):
  """SNOO is then synchronous SGD, and DiLoCo local SGD."""
  ours = run(name, period=3, outer_learning_rate=1.0, outer_momentum=0.0)
  close(ours[0], run("sync_sgd")[0] if name == "snoo" else run("local_sgd", period=3)[0])


def test_without_outer_momentum_snoo_is_lookahead():
  """Zhang et al.: after each K-th step the slow weights move towards the fast ones by a share alpha."""
  params, evaluate, _ = run("snoo", period=4, outer_learning_rate=0.5, outer_momentum=0.0)
  x0, grad = reference.problem(WORKERS, STEPS)
  fast, slow, update = x0.copy(), x0.copy(), INNER["momentum"][1]()
  for t in range(STEPS):
    fast = fast + update(sum(grad(i, t, fast) for i in range(WORKERS)) / WORKERS, fast)
    if (t + 1) % 4 == 0:
      slow = slow + 0.5 * (fast - slow)
      fast = slow
    close(params[t], np.repeat(fast[None], WORKERS, axis=0))
    close(evaluate[t], np.repeat(slow[None], WORKERS, axis=0))


def test_the_form_with_two_points_equals_nesterov_momentum():
  """u = z - e D; z <- u + mu (u - u_prev), u_prev = z_0: accelerated gradient descent on the outer gradients."""
  params, evaluate, _ = run("diloco", period=3, outer_learning_rate=0.7, outer_momentum=0.6)
  x0, grad = reference.problem(WORKERS, STEPS)
  z, before = x0.copy(), x0.copy()
  x, updates = np.array([x0] * WORKERS), [INNER["momentum"][1]() for _ in range(WORKERS)]
  for t in range(STEPS):
    for i in range(WORKERS):
      x[i] = x[i] + updates[i](grad(i, t, x[i]), x[i])
    if (t + 1) % 3 == 0:
      u = z - 0.7 * sum(z - x[i] for i in range(WORKERS)) / WORKERS
      z, before = u + 0.6 * (u - before), u
      x[:] = z
    close(params[t], x)
    close(evaluate[t], np.repeat(z[None], WORKERS, axis=0))


def test_the_outer_rate_inside_or_outside_of_the_buffer():
  """MuLoCo: u <- mu u + e D; theta <- theta - mu u - e D, equal to optax's form for a constant rate."""
  evaluate = run("snoo", period=3, outer_learning_rate=0.7, outer_momentum=0.6)[1]
  x0, grad = reference.problem(WORKERS, STEPS)
  theta, x, u, update = x0.copy(), x0.copy(), 0.0, INNER["momentum"][1]()
  for t in range(STEPS):
    x = x + update(sum(grad(i, t, x) for i in range(WORKERS)) / WORKERS, x)
    if (t + 1) % 3 == 0:
      d = theta - x
      u = 0.6 * u + 0.7 * d
      theta = theta - 0.6 * u - 0.7 * d
      x = theta
    close(evaluate[t], np.repeat(theta[None], WORKERS, axis=0))


@pytest.mark.parametrize("train_weight", [0.0, 0.7])
def test_gpa_without_an_average_is_synchronous_sgd(train_weight):
  same(run("gpa", train_weight=train_weight, average_weight=0.0), run("sync_sgd"))


def test_gpa_evaluates_the_average_of_all_steps():
  """With mu_y = 0 it trains as synchronous SGD and evaluates the exponential moving average of its models."""
  params, evaluate, _ = run("gpa", train_weight=0.0, average_weight=0.8)
  close(params, run("sync_sgd")[0])
  x = reference.problem(WORKERS, STEPS)[0]
  for t in range(STEPS):
    x = 0.8 * x + 0.2 * np.asarray(params[t, 0])
    close(evaluate[t, 0], x)


def test_both_send_what_synchronous_sgd_sends():
  params = {"kernel": np.zeros((4, 3), np.float32), "bias": np.zeros(3, np.float32)}
  for name, hyper in (("snoo", {"period": 5}), ("gpa", {})):
    sent = traffic.of(build(name, INNER["sgd"][0], 8, **hyper), params, 8)
    assert sum(item.per_worker(8) for item in sent.local) == 2 * 15 * 4 * 7 / 8
    assert not any(sent.exchanges)
