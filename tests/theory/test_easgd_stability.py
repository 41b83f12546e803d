"""Stability of EASGD on a quadratic, compared with the condition of Zhang et al. 2014, arXiv 1412.6651.

For workers that exchange in turn the paper proves 0 <= eta h <= 2, 0 <= alpha <= (4 - 2 eta h) / (4 - eta h).
"""

import numpy as np
import pytest
from reference import linear_collective, linear_server
from reference.linear import Problem, product

from experiments.papers.easgd import STABLE, published, radii, synchronous

ETAS, ALPHAS = np.array([0.05, 0.4, 1.0, 1.6, 1.95, 2.05]), np.array([0.01, 0.1, 0.22, 0.35, 0.6, 0.8, 0.97])
INSIDE = (ETAS[:, None] <= 2) & (published(ETAS[:, None]) >= ALPHAS)


def by_formula(matrices, workers, eta, alpha, **hyper):
  """Return the spectral radius of the paper's matrix without the constant coordinate."""
  problem = Problem(np.ones((workers, 1, 1)), np.zeros((workers, 1)), eta, 0.0)
  m = product(matrices(problem, np.ones(1), alpha=alpha, **hyper).cycle)[:-1, :-1]
  return np.abs(np.linalg.eigvals(m)).max()


@pytest.mark.parametrize(
  "name, workers, matrices, hyper",
  [
    ("original_easgd", 2, linear_server.async_easgd, {}),
    ("round_robin_easgd", 3, linear_collective.round_robin_easgd, {}),
    ("easgd", 3, linear_collective.easgd, {"period": 1}),
  ],
)
def test_a_round_of_the_implementation_is_the_matrix_of_the_paper(name, workers, matrices, hyper):
  etas, alphas = ETAS[1:4], ALPHAS[1:5:3]
  expected = [[by_formula(matrices, workers, eta, alpha, **hyper) for alpha in alphas] for eta in etas]
  np.testing.assert_allclose(
    radii(name, workers, etas, alphas), expected, rtol=1e-7
  )  # some eigenvalues nearly coincide


def check_boundary(name, workers, limit):
  """Assert that the spectral radius is 1 at alpha = limit(eta), smaller below and larger above."""
  for eta in ETAS[:5]:
    below, on, above = radii(name, workers, np.array([eta]), limit(eta) * np.array([0.999, 1, 1.001]))[0]
    assert below < 1 < above
    np.testing.assert_allclose(on, 1, rtol=1e-12)


def test_one_worker_is_stable_exactly_under_the_published_condition():
  np.testing.assert_array_equal(radii("original_easgd", 1, ETAS, ALPHAS) <= STABLE, INSIDE)
  check_boundary("original_easgd", 1, published)


@pytest.mark.parametrize("name, workers", [("original_easgd", 2), ("round_robin_easgd", 2), ("round_robin_easgd", 4)])
def test_workers_in_turn_are_stable_under_the_published_condition(name, workers):
  assert (radii(name, workers, ETAS, ALPHAS)[INSIDE] <= STABLE).all()
  assert (radii(name, workers, np.array([2.05, 2.3]), ALPHAS[:2]) > STABLE).all()


@pytest.mark.parametrize("workers", [1, 4])
def test_sync_easgd_is_stable_exactly_under_the_derived_condition(workers):
  """The condition is alpha <= (4 - 2 eta h) / (2 (p + 1) - p eta h); for one worker it is the published one."""
  inside = (ETAS[:, None] <= 2) & (synchronous(ETAS[:, None], workers) >= ALPHAS)
  np.testing.assert_array_equal(radii("easgd", workers, ETAS, ALPHAS) <= STABLE, inside)
  check_boundary("easgd", workers, lambda eta: synchronous(eta, workers))
  np.testing.assert_allclose(synchronous(ETAS, 1), published(ETAS), rtol=1e-15)
