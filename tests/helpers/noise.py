"""Runs on quadratics with gradient noise, and the exact moments of the same runs from matrices."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import optax
from reference.linear import Problem, product
from scipy.linalg import solve_discrete_lyapunov

from ddl.as_optax import as_optax
from ddl.group import Group

GROUP = Group("w")


@cache
def small(momentum: float, workers: int = 4, n: int = 2) -> Problem:
  """Return quadratics with eigenvalues from 0.5 to 1.5; after 48 steps the initial error is negligible."""
  rng = np.random.default_rng(1)
  turns = [np.linalg.qr(rng.normal(size=(n, n)))[0] for _ in range(workers)]
  curvatures = np.stack([q @ np.diag(rng.uniform(0.5, 1.5, n)) @ q.T for q in turns])
  return Problem(curvatures, rng.normal(size=(workers, n)), 0.4, momentum)


def run(algorithm, problem, x0, noise):
  """Train with `noise` [runs, steps, workers, n] subtracted from gradients; return (params, evaluated params).

  Both results have the shape [runs, workers, n].
  """
  rule, (a, b) = as_optax(algorithm, "w"), (jnp.asarray(problem.curvatures), jnp.asarray(problem.slopes))

  def worker(x, a, b, noise):
    def step(carry, noise):
      x, state = carry
      updates, state = rule.update(a @ x - b - noise, state, x)
      return (optax.apply_updates(x, updates), state), None

    (x, state), _ = jax.lax.scan(step, (x, rule.init(x)), noise)
    return x, algorithm.evaluate(GROUP, state.algorithm, x)

  workers = jax.vmap(worker, in_axes=(None, 0, 0, 1), axis_name="w")
  return jax.jit(jax.vmap(workers, in_axes=(None, None, None, 0)))(jnp.asarray(x0), a, b, jnp.asarray(noise))


def entries(make, problem):
  """Return for each step of a cycle the matrix [size, workers n] that maps noise to the state."""
  zero = problem._replace(slopes=np.zeros_like(problem.slopes))
  without = make(zero)
  matrices = [np.zeros((len(without.start), problem.slopes.size)) for _ in without.cycle]
  for k in range(problem.slopes.size):
    unit = np.eye(problem.slopes.size)[k].reshape(problem.slopes.shape)
    for matrix, step, rest in zip(matrices, make(zero._replace(slopes=unit)).cycle, without.cycle, strict=True):
      matrix[:, k] = step[:, -1] - rest[:, -1]  # slopes act on the state like noise
  return matrices


def covariance(make, problem, steps):
  """Return the state's covariance after `steps`, with noise of variance 1 in each coordinate of each gradient."""
  linear, into = make(problem), entries(make, problem)
  assert not linear.first
  result = np.zeros_like(linear.cycle[0])
  for t in range(steps):
    m, b = linear.cycle[t % len(linear.cycle)], into[t % len(into)]
    result = m @ result @ m.T + b @ b.T
  return result


def stationary(make, problem):
  """Solve Sigma = M Sigma M^T + Q for the stationary covariance at the end of a cycle.

  The constant coordinate of the state is excluded.
  """
  m, q = product(make(problem).cycle), covariance(make, problem, len(make(problem).cycle))
  result = np.zeros_like(m)
  result[:-1, :-1] = solve_discrete_lyapunov(m[:-1, :-1], q[:-1, :-1], method="direct")
  return result
