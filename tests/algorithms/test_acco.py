"""ACCO, and its baseline DPU: equalities, schedules and bytes, in float64 at rtol 1e-12."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers.twins import INNER, build, close, drive, falling, tree_of
from reference import collective as reference

from ddl.engine import traffic
from ddl.schedule import Schedule

pytestmark = pytest.mark.usefixtures("x64")

STEPS = 9


def run(name, inner, grad=None, steps=STEPS, **hyper):
  x0, default = reference.problem(8, 2 * STEPS)
  inner = INNER[inner][0] if isinstance(inner, str) else inner
  return drive(build(name, inner, **hyper), x0, grad or default, workers=8, steps=steps)


def of_the_step(worker, step, x):
  """Return a gradient that does not depend on the model, that of a linear loss."""
  return reference.problem(8, 2 * STEPS)[1](worker, step, 0 * x)


@pytest.mark.parametrize("inner", ["sgd", "momentum", "adam"])
def test_on_a_linear_loss_it_is_synchronous_on_the_batch_of_both_halves(inner):
  """Commit k follows step 2 k + 2 (from 0) and contains the gradients of steps 2 k and 2 k + 1."""

  def both(worker, step, x):
    return (of_the_step(worker, 2 * step, x) + of_the_step(worker, 2 * step + 1, x)) / 2

  ours = run("acco", inner, of_the_step)[1]
  expected = run("sync_sgd", inner, both, steps=4)[1]
  close(ours[2::2], expected)
  close(ours[3::2], expected[:-1])  # the model to evaluate changes only at commits


def test_the_first_half_is_taken_at_an_estimate_that_is_not_kept():
  """With SGD, by hand: x after step 1 is the estimate, after step 2 the first commit."""
  x0, grad = reference.problem(8, 2 * STEPS)
  mean = lambda t, x: np.mean([grad(i, t, x) for i in range(8)], axis=0)  # noqa: E731
  x = np.asarray(run("acco", "sgd")[0])[:, 0]
  estimate = x0 - 0.1 * mean(0, x0)
  first = x0 - 0.05 * (mean(0, x0) + mean(1, x0))
  next_estimate = first - 0.1 * mean(2, estimate)
  close(x[:4], [x0, estimate, first, next_estimate])
  close(x[4], first - 0.05 * (mean(2, estimate) + mean(3, first)))


def test_without_a_rate_nothing_moves():
  params, evaluate, _ = run("acco", optax.sgd(0.0))
  for values in (params, evaluate):
    close(values, np.broadcast_to(reference.problem(8, 2 * STEPS)[0], values.shape))


def test_a_schedule_counts_steps():
  """Commit k has the rate of step 2 k, and so has the estimate before it."""
  estimates, theta, _ = run("acco", optax.sgd(falling), lambda worker, step, x: jnp.ones_like(x))
  x0 = reference.problem(8, 2 * STEPS)[0]
  committed = np.cumsum([0.0] + [falling(2 * k) for k in range(4)])
  close(theta[2::2, 0], x0 - committed[1:, None])
  close(estimates[1::2, 0], x0 - (committed[:-1] + [falling(2 * k) for k in range(4)])[:, None])


def test_dpu_is_pipe_sgd():
  """DPU: a step with the mean gradient at the model before the last step."""
  x0, grad = reference.problem(8, 2 * STEPS)
  theta, update = [x0, x0], INNER["momentum"][1]()
  for t in range(STEPS - 1):
    theta.append(theta[-1] + update(np.mean([grad(i, t, theta[-2]) for i in range(8)], axis=0), theta[-1]))
  close(run("pipe_sgd", "momentum", width=2)[1][:, 0], theta[1:])


def test_bytes():
  """A message after each step except the last one, each an all-reduce of seven parameters."""
  algorithm = build("acco", optax.sgd(0.1))
  sent = traffic.of(algorithm, tree_of(jnp.zeros(7, jnp.float32)), 8)
  assert sent.nbytes(map(Schedule(algorithm.exchanges).due, range(STEPS))) == (STEPS - 1) * 2 * 7 / 8 * 7 * 4
