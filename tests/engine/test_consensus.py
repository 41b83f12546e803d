"""The workers' distance from their mean."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ddl.engine.consensus import agree
from ddl.group import Group


@jax.jit
def distance(x):
  return jax.vmap(lambda x: agree(Group("w"), {"x": x}, ())[1], axis_name="w")(jnp.asarray(x, jnp.float32))


@pytest.mark.parametrize("workers", [3, 100])
def test_equal_workers_have_distance_0(workers):
  """Although their mean differs from them by rounding."""
  one = np.random.default_rng(0).normal(size=1000).astype(np.float32)
  copies = np.broadcast_to(one, (workers, 1000))
  assert (np.add.reduce(copies, axis=0) / np.float32(workers) != one).any()
  assert not np.asarray(distance(copies)).any()


def test_the_distance_is_the_root_mean_square_from_the_mean():
  x = 100 + np.random.default_rng(0).normal(size=(7, 50))
  x = x.astype(np.float32).astype(np.float64)
  expected = np.sqrt(np.mean(np.sum((x - x.mean(0)) ** 2, axis=1)))
  np.testing.assert_allclose(distance(x), expected, rtol=1e-5)  # float32


@pytest.mark.parametrize("worker", [0, 3])
def test_the_distance_shows_a_worker_that_is_not_finite(worker):
  x = np.ones((4, 5))
  x[worker, 2] = np.inf
  assert not np.isfinite(distance(x)).any()
