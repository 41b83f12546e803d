"""Strongly convex quadratics that differ between four workers."""

from functools import cache

import jax.numpy as jnp
import numpy as np
from reference.linear import Problem

P, N, RATE = 4, 7, 0.1  # workers, parameters (those of `helpers.twins.tree_of`), learning rate
X0 = np.linspace(-1.0, 1.0, N)


@cache
def problem(momentum: float) -> Problem:
  """Return quadratics with dense curvatures of eigenvalues between 0.3 and 2."""
  rng = np.random.default_rng(0)
  turns = [np.linalg.qr(rng.normal(size=(N, N)))[0] for _ in range(P)]
  curvatures = np.stack([q @ np.diag(rng.uniform(0.3, 2.0, N)) @ q.T for q in turns])
  return Problem(curvatures, rng.normal(size=(P, N)), RATE, momentum)


def gradient(worker, step, x):
  """Return A_i x - b_i."""
  curvatures, slopes, *_ = problem(0.0)
  return jnp.asarray(curvatures)[worker] @ x - jnp.asarray(slopes)[worker]
