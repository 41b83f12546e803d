"""With additive gradient noise: expected iterates are the matrix power, covariances solve the Lyapunov equation."""

from functools import partial

import jax
import numpy as np
import optax
import pytest
from helpers import twins
from helpers.noise import GROUP, covariance, run, small, stationary
from reference import linear_collective, linear_outer
from reference.linear import Problem

from ddl.engine.consensus import agree

pytestmark = pytest.mark.usefixtures("x64")
CASES = {  # (hyperparameters, momentum of the inner optimizer)
  "sync_sgd": ({}, 0.5),
  "pipe_sgd": ({"width": 2}, 0.0),
  "local_sgd": ({"period": 3}, 0.3),
  "overlap_local_sgd": ({"period": 2, "pull": 0.6, "momentum": 0.2}, 0.0),
  "diloco": ({"period": 2, "outer_learning_rate": 0.7, "outer_momentum": 0.3}, 0.2),
  "easgd": ({"alpha": 0.2, "period": 2}, 0.2),
  "d_psgd": ({"graph": "ring"}, 0.3),
}
STEPS, SEEDS = 48, 4000
SIGMAS = 4.5  # standard errors; the maximum of 100 normal variables exceeds this with a probability of 0.001


@pytest.mark.parametrize("name", CASES)
@pytest.mark.sampled(2)
def test_moments_of_an_algorithm(name):
  """Unit noise gives the exact response; the moments under normal noise have known standard errors."""
  hyper, momentum = CASES[name]
  problem, x0 = small(momentum), np.array([1.0, -1.0])
  p, n = problem.slopes.shape
  module = linear_outer if hasattr(linear_outer, name) else linear_collective

  def make(problem):
    return getattr(module, name)(problem, x0, **hyper)

  linear = make(problem)
  algorithm = twins.build(name, optax.sgd(problem.rate, momentum or None), p, **hyper)
  single = np.eye(STEPS * p * n).reshape(-1, STEPS, p, n)
  normal = np.random.default_rng(0).normal(size=(SEEDS, STEPS, p, n))
  x, evaluated = map(np.asarray, run(algorithm, problem, x0, np.concatenate([0 * single[:1], single, normal])))
  results = np.concatenate([x.reshape(len(x), -1), evaluated[:, 0]], axis=1)  # [runs, workers n + n]
  read = np.concatenate([linear.params, linear.evaluate])
  mean = read @ linear.after(STEPS // len(linear.cycle))
  twins.close(results[0], mean)

  response = results[1 : 1 + len(single)] - results[0]
  exact = read @ covariance(make, problem, STEPS) @ read.T
  np.testing.assert_allclose(response.T @ response, exact, rtol=1e-11, atol=1e-13)

  sigma = read @ stationary(make, problem) @ read.T
  np.testing.assert_allclose(exact, sigma, rtol=1e-4)  # after 48 steps it is nearly stationary
  samples = results[1 + len(single) :]
  assert np.abs((samples.mean(axis=0) - mean) / np.sqrt(np.diag(sigma) / SEEDS)).max() < SIGMAS
  error = np.sqrt((np.outer(np.diag(sigma), np.diag(sigma)) + sigma**2) / (SEEDS - 1))  # of a normal covariance
  assert (np.abs(np.cov(samples.T) - sigma) / error).max() < SIGMAS


def one_dimension(curvature, rate, workers, momentum=0.0):
  return Problem(np.full((workers, 1, 1), curvature), np.zeros((workers, 1)), rate, momentum)


@pytest.mark.parametrize("workers, rate, alpha", [(1, 0.5, 0.3), (4, 0.4, 0.2), (8, 1.2, 0.05)])
def test_variance_of_the_center_of_easgd(workers, rate, alpha):
  """Lemma 1 of Zhang et al. 2014, arXiv 1412.6651, for a quadratic of curvature h after t steps."""
  problem = one_dimension(0.8, rate, workers)
  make = partial(linear_collective.easgd, x0=np.ones(1), alpha=alpha, period=1)
  a, c = rate * 0.8 + (workers + 1) * alpha, rate * 0.8 * workers * alpha
  gamma, phi = (1 - (a + sign * np.sqrt(a**2 - 4 * c)) / 2 for sign in (-1, 1))

  def lemma(t):
    def part(q, power):
      return (q - power) / (1 - q)

    total = part(gamma**2, gamma ** (2 * t)) + part(phi**2, phi ** (2 * t))
    total -= 2 * part(gamma * phi, (gamma * phi) ** t)
    return (workers * alpha * rate / (gamma - phi)) ** 2 * total / workers

  read = make(problem).evaluate
  for t in (1, 2, 7, 30):
    np.testing.assert_allclose(read @ covariance(make, problem, t) @ read.T, lemma(t), rtol=1e-10, atol=1e-15)
  np.testing.assert_allclose(read @ stationary(make, problem) @ read.T, lemma(np.inf), rtol=1e-10)


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
def test_variance_of_momentum(momentum):
  """The stationary variance of heavy ball: (eta sigma^2 / (p h)) (1 + mu) / ((1 - mu) (2 (1 + mu) - eta h))."""
  curvature, rate, workers = 0.8, 0.4, 4
  problem = one_dimension(curvature, rate, workers, momentum)
  make = partial(linear_collective.sync_sgd, x0=np.ones(1))
  read = make(problem).evaluate
  expected = rate * (1 + momentum) / (1 - momentum) / (2 * (1 + momentum) - rate * curvature) / curvature / workers
  np.testing.assert_allclose(read @ stationary(make, problem) @ read.T, expected, rtol=1e-10)


@pytest.mark.parametrize("steps", [3, *(pytest.param(steps, marks=pytest.mark.slow) for steps in (1, 7))])
def test_distance_of_local_sgd(steps):
  """E distance^2 = (1 - 1/p) eta^2 sigma^2 sum_{s < k} (1 - eta h)^(2 s), k steps after an average."""
  curvature, rate, workers, period = 0.8, 0.4, 4, 8
  algorithm = twins.build("local_sgd", optax.sgd(rate), period=period)
  single = np.eye((period + steps) * workers).reshape(-1, period + steps, workers, 1)
  x, _ = run(algorithm, one_dimension(curvature, rate, workers), np.zeros(1), single)
  distance = jax.vmap(jax.vmap(lambda x: agree(GROUP, x, ())[1], axis_name="w"))(x)[:, 0]
  shrink = (1 - rate * curvature) ** 2
  expected = (1 - 1 / workers) * rate**2 * (1 - shrink**steps) / (1 - shrink)
  twins.close((distance**2).sum(), expected)
