"""The workers' distance from their mean."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ddl.engine.consensus import agree
from ddl.group import Group


def distance(x):
  return jax.vmap(lambda x: agree(Group("w"), {"x": x}, ())[1], axis_name="w")(jnp.asarray(x, jnp.float32))


@pytest.mark.parametrize("workers", [2, 3, 16, 17, 100])
def test_workers_that_agree_have_no_distance(workers):
  """Their mean is rounded, so that they would differ from it."""
  one = np.random.default_rng(0).normal(size=1000).astype(np.float32)
  everyone = np.broadcast_to(one, (workers, 1000))
  assert workers == 2 or (np.add.reduce(everyone, axis=0) / np.float32(workers) != one).any()
  assert not np.asarray(distance(everyone)).any()


def test_the_distance_of_others_is_that_from_their_mean():
  x = 100 + np.random.default_rng(0).normal(size=(7, 50))
  x = x.astype(np.float32).astype(np.float64)
  expected = np.sqrt(np.mean(np.sum((x - x.mean(0)) ** 2, axis=1)))
  np.testing.assert_allclose(distance(x), expected, rtol=1e-5)  # float32


@pytest.mark.parametrize("worker", [0, 3])
def test_a_worker_that_is_not_finite_is_seen(worker):
  x = np.ones((4, 5))
  x[worker, 2] = np.inf
  assert not np.isfinite(distance(x)).any()
