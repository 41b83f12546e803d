"""CoCoD, Overlap-Local-SGD, Pipe-SGD and SMA: special cases and theorems, in float64 at rtol 1e-12."""

import jax.numpy as jnp
import numpy as np
import pytest
from helpers.twins import INNER, build, close, drive
from reference import collective as reference

pytestmark = pytest.mark.usefixtures("x64")

RATE, CURVATURE = 0.1, 0.7  # of the quadratics
STARTS = np.random.default_rng(1).normal(size=(8, 7))


def run(algorithm, workers=8, steps=12, x0=None, grad=None):
  start, default = reference.problem(workers, steps)
  return drive(algorithm, start if x0 is None else x0, grad or default, workers=workers, steps=steps)[:2]


def create(name, inner="momentum", workers=8, **hyper):
  return build(name, INNER[inner][0], workers, **hyper)


def with_clock(algorithm, **clock):
  """Change the period, delay or offset of an algorithm's exchange."""
  (exchange,) = algorithm.exchanges
  return algorithm._replace(exchanges=(exchange._replace(**clock),))


def same(one, other):
  for ours, expected in zip(one, other, strict=True):
    close(ours, expected)


def bowl(worker, step, x):
  """Gradient of (lambda / 2) |x|^2."""
  return CURVATURE * x


def powers(matrix, first, steps):
  """Return matrix^k first for k = 1..steps; first: [states, n]."""
  return np.stack([np.linalg.matrix_power(matrix, k) @ first for k in range(1, steps + 1)])


# ---- CoCoD


def test_cocod_without_delay_is_local_sgd():
  same(run(with_clock(create("cocod", "adam", period=3), delay=0)), run(create("local_sgd", "adam", period=3)))


def test_cocod_of_one_worker_is_independent():
  same(run(create("cocod", workers=1, period=3), 1), run(create("independent", workers=1), 1))


def test_cocod_of_period_one_is_d_psgd_on_the_complete_graph():
  """With three workers the exponential graph is complete."""
  ours = run(create("cocod", workers=3, period=1), 3)
  same(ours, run(create("d_psgd", workers=3, graph="exponential"), 3))


@pytest.mark.parametrize("period", [1, 3])
def test_cocod_on_a_quadratic(period):
  """The mean follows SGD; deviations are multiplied by s - 1 in each round."""
  steps = 4 * period
  x = run(create("cocod", "sgd", period=period), steps=steps, x0=STARTS, grad=bowl)[0]
  shrink = 1 - RATE * CURVATURE
  close(x.mean(axis=1), np.stack([STARTS.mean(axis=0) * shrink**t for t in range(1, steps + 1)]))
  ends = x[period - 1 :: period]
  deviations = ends - ends.mean(axis=1, keepdims=True)
  close(deviations[1:], (shrink**period - 1) * deviations[:-1])


# ---- Overlap-Local-SGD


def test_overlap_without_momentum_is_dasgd_with_a_delay_of_one_period():
  """The first message of both is sent before the first step."""
  pull = 0.6
  ours = run(create("overlap_local_sgd", "adam", period=3, pull=pull, momentum=0.0))
  dasgd = create("dasgd", "adam", period=3, delay=3, keep=1 - pull)
  same(ours, run(with_clock(dasgd, offset=-3)))


def test_overlap_without_pull_is_independent():
  same(run(create("overlap_local_sgd", "adam", period=3, pull=0.0, momentum=0.7)), run(create("independent", "adam")))


def test_overlap_with_pull_one_never_moves():
  x = run(create("overlap_local_sgd", period=3, pull=1.0, momentum=0.0))[0][2::3]
  close(x, np.broadcast_to(reference.problem(8, 12)[0], x.shape))


def test_overlap_on_a_quadratic_is_a_matrix_power():
  """In each round, for the mean x, z and v: x' = (1 - a) s x + a z, v' = b v + z - x', z' = z - v'."""
  period, rounds, a, b = 2, 5, 0.6, 0.7
  algorithm = create("overlap_local_sgd", "sgd", period=period, pull=a, momentum=b)
  start = reference.problem(8, 12)[0]
  x = run(algorithm, steps=period * rounds, x0=start, grad=bowl)[1][period - 1 :: period, 0]
  s = (1 - RATE * CURVATURE) ** period
  to_x = np.array([[(1 - a) * s, a, 0], [0, 1, 0], [0, 0, 1]])
  to_v = np.array([[1, 0, 0], [0, 1, 0], [-1, 1, b]])
  to_z = np.array([[1, 0, 0], [0, 1, -1], [0, 0, 1]])
  close(x, powers(to_z @ to_v @ to_x, np.stack([start, start, 0 * start]), rounds)[:, 0])


@pytest.mark.parametrize("pull", [-0.1, 1.5])
def test_an_invalid_pull_is_refused(pull):
  with pytest.raises(ValueError, match=rf"overlap_local_sgd.pull must be in \[0, 1\], got {pull}"):
    create("overlap_local_sgd", period=3, pull=pull, momentum=0.0)


# ---- Pipe-SGD


@pytest.mark.parametrize("inner", ["momentum", "decay"])
def test_pipe_sgd_of_width_one_is_sync_sgd(inner):
  same(run(create("pipe_sgd", inner, width=1)), run(create("sync_sgd", inner)))


@pytest.mark.parametrize("width", [2, 4])
def test_pipe_sgd_is_sync_sgd_with_delayed_gradients(width):
  """The gradient at step t is that of the params K - 1 steps earlier."""
  steps, late = 12, width - 1
  x0, grad = reference.problem(8, steps)
  ours = run(create("pipe_sgd", "adam", width=width))[0]
  points = jnp.asarray(np.concatenate([np.broadcast_to(x0, (1, 8, 7)), ours]))

  def stale(worker, step, x):
    return grad(worker, step, points[step, 0])  # applied K - 1 steps later

  expected = run(create("sync_sgd", "adam"), steps=steps - late, x0=x0, grad=stale)[0]
  close(ours[late:], expected)
  close(ours[:late], np.broadcast_to(x0, (late, 8, 7)))


def test_pipe_sgd_on_a_quadratic_is_a_matrix_power():
  """x(t + 1) = x(t) - eta lambda x(t - 1)."""
  x = run(create("pipe_sgd", "sgd", width=2), grad=bowl)[1][:, 0]
  start = reference.problem(8, 12)[0]
  close(x, np.concatenate([start[None], powers(companion(RATE * CURVATURE), np.stack([start, start]), 11)[:, 0]]))
  for product, stable in ((0.99, True), (1.01, False)):
    assert (np.abs(np.linalg.eigvals(companion(product))).max() < 1) == stable


def companion(product):
  return np.array([[1.0, -product], [1.0, 0.0]])


def test_a_width_of_zero_is_refused():
  with pytest.raises(ValueError, match=r"pipe_sgd\.width must be an integer >= 1, got 0"):
    create("pipe_sgd", width=0)


# ---- SMA


@pytest.mark.parametrize("period", [1, 3])
def test_sma_without_momentum_is_easgd(period):
  hyper = {"alpha": 0.1, "period": period}
  same(run(create("sma", "adam", momentum=0.0, **hyper)), run(create("easgd", "adam", **hyper)))


def test_the_center_of_sma_with_alpha_one_pth_is_the_previous_mean():
  x, z = run(create("sma", alpha=1 / 8, momentum=0.0, period=1))
  close(z[1:, 0], x[:-1].mean(axis=1))


def test_sma_on_a_quadratic_is_a_matrix_power():
  """The means follow w' = (1 - eta lambda - alpha) w + alpha z, z' = z + p alpha (w - z) + mu (z - z_prev)."""
  alpha, momentum = 0.1, 0.5
  x, z = run(create("sma", "sgd", alpha=alpha, momentum=momentum, period=1), x0=STARTS, grad=bowl)
  mean, first = x.mean(axis=1), STARTS.mean(axis=0)
  matrix = np.array(
    [
      [1 - RATE * CURVATURE - alpha, alpha, 0],
      [8 * alpha, 1 - 8 * alpha + momentum, -momentum],
      [0, 1, 0],
    ]
  )
  # z starts from another x0 on each worker, but the mean is linear in z and follows the same matrix.
  result = powers(matrix, np.stack([first] * 3), 12)
  close(mean, result[:, 0])
  close(z.mean(axis=1), result[:, 1])
