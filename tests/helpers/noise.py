"""Runs on quadratics with given gradient noise, many in one compiled call; moments of the same by matrices."""

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
  """Dense curvatures with eigenvalues from 0.5 to 1.5, at a rate at which 48 steps forget the start."""
  rng = np.random.default_rng(1)
  turns = [np.linalg.qr(rng.normal(size=(n, n)))[0] for _ in range(workers)]
  curvatures = np.stack([q @ np.diag(rng.uniform(0.5, 1.5, n)) @ q.T for q in turns])
  return Problem(curvatures, rng.normal(size=(workers, n)), 0.4, momentum)


def run(algorithm, problem, x0, noise):
  """noise: [runs, steps, workers, n], taken off the gradients; returns (params, evaluate): [runs, workers, n] each."""
  rule, (a, b) = as_optax(algorithm, "w"), (jnp.asarray(problem.curvatures), jnp.asarray(problem.slopes))

  def worker(x, a, b, noise):
    def step(carry, off):
      x, state = carry
      updates, state = rule.update(a @ x - b - off, state, x)
      return (optax.apply_updates(x, updates), state), None

    (x, state), _ = jax.lax.scan(step, (x, rule.init(x)), noise)
    return x, algorithm.evaluate(GROUP, state.algorithm, x)

  workers = jax.vmap(worker, in_axes=(None, 0, 0, 1), axis_name="w")
  return jax.jit(jax.vmap(workers, in_axes=(None, None, None, 0)))(jnp.asarray(x0), a, b, jnp.asarray(noise))


def entries(make, problem):
  """B of each step of a cycle, [size, workers n] each: how the state takes noise, which it takes as it takes slopes."""
  zero = problem._replace(slopes=np.zeros_like(problem.slopes))
  still = make(zero)
  created = [np.zeros((len(still.start), problem.slopes.size)) for _ in still.cycle]
  for k in range(problem.slopes.size):
    unit = np.eye(problem.slopes.size)[k].reshape(problem.slopes.shape)
    for column, moved, rest in zip(created, make(zero._replace(slopes=unit)).cycle, still.cycle, strict=True):
      column[:, k] = moved[:, -1] - rest[:, -1]
  return created


def covariance(make, problem, steps):
  """Of the state after these steps, of independent noise of variance 1 in every gradient's coordinate."""
  linear, into = make(problem), entries(make, problem)
  assert not linear.first
  result = np.zeros_like(linear.cycle[0])
  for t in range(steps):
    m, b = linear.cycle[t % len(linear.cycle)], into[t % len(into)]
    result = m @ result @ m.T + b @ b.T
  return result


def stationary(make, problem):
  """Sigma = M Sigma M^T + Q, of the end of a cycle: the discrete Lyapunov equation without the constant coordinate."""
  m, q = product(make(problem).cycle), covariance(make, problem, len(make(problem).cycle))
  result = np.zeros_like(m)
  result[:-1, :-1] = solve_discrete_lyapunov(m[:-1, :-1], q[:-1, :-1], method="direct")
  return result
