"""Wrappers with a momentum per worker: equalities, convergence, memories, bytes and refusals."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers.twins import INNER, W, build, close, drive, flat_of, tree_of
from reference import collective as reference

from ddl.algorithms import WRAPPERS
from ddl.engine import traffic

pytestmark = pytest.mark.usefixtures("x64")

TABLE = np.random.default_rng(1).normal(size=(3, 6, 7))  # gradients [workers, steps, n]
PARAMS = {"kernel": jax.ShapeDtypeStruct((10, 3), jnp.float32), "bias": jax.ShapeDtypeStruct((3,), jnp.float32)}


def wrap(name, inner=None, base="sync_sgd", **hyper):
  return WRAPPERS[name].factory(build(base, inner or INNER["sgd"][0]), **hyper)


def run(algorithm, grad=None, workers=3, steps=6):
  """Return the params of worker 0 [steps, n] and the state after training on TABLE or another gradient."""
  x0 = reference.problem(workers, steps)[0]
  grad = grad or (lambda i, t, x: jnp.asarray(TABLE)[i, t])
  params, _, state = drive(algorithm, x0, grad, workers=workers, steps=steps)
  return np.asarray(params[:, 0]), state


def steps_of(params, rate=1.0):
  """Return the means that SGD applied: [steps, n]."""
  return -np.diff(np.concatenate([reference.problem(3, 6)[0][None], params]), axis=0) / rate


def test_a_traced_momentum_equals_a_constant_one():
  """A sweep traces the settings of a wrapper; its factory must not branch on their values."""

  def trained(name, momentum):
    algorithm = wrap(name, **({"share": 0.34} if name != "sign" else {}), momentum=momentum)

    def one(grads):
      params = jax.tree.map(jnp.zeros_like, grads)
      state = algorithm.init(W, params, jax.random.key(0))
      for _ in range(3):
        params, state = algorithm.local(W, grads, state, params)
      return flat_of(params)

    return jax.vmap(one, axis_name="w")(jax.vmap(tree_of)(jnp.asarray(TABLE[:, 0])))

  for name in ("sign", "ef21"):
    close(jax.jit(partial(trained, name))(0.8), trained(name, 0.8))


# ---- EF21


@pytest.mark.parametrize("momentum", [0.0, 0.8])
def test_ef21_that_sends_all_averages_each_workers_momentum(momentum):
  params, _ = run(wrap("ef21", optax.sgd(1.0), share=1.0, momentum=momentum))
  v, expected = TABLE[:, 0], []
  for t in range(6):
    v = momentum * v + (1 - momentum) * TABLE[:, t]
    expected.append(v.mean(axis=0))
  close(steps_of(params), expected)


def test_the_estimate_of_ef21_is_the_mean_of_the_workers_estimates():
  _, state = run(wrap("ef21", share=0.34, momentum=0.8))
  (memory,) = state.memory.local
  for array in memory:
    close(array.mean, np.broadcast_to(np.mean(array.own, axis=0), array.own.shape))
    assert np.abs(array.momentum[0] - array.own).max() > 1e-3 or array.own.ndim == 1


def test_ef21_learns_a_constant_gradient_in_n_over_k_steps():
  """The kernel has 6 values, of which each worker sends 2 per step."""
  params, _ = run(wrap("ef21", optax.sgd(1.0), share=0.34, momentum=0.0), lambda i, t, x: jnp.asarray(TABLE)[i, 0])
  mean = TABLE[:, 0].mean(axis=0)
  applied = steps_of(params)
  close(applied[2:], np.broadcast_to(mean, (4, 7)))
  assert np.abs(applied[:2] - mean).max(axis=1).min() > 0.1


def test_ef21_reaches_the_optimum_of_different_losses():
  """Three quadratics on which sending only the largest value diverges; error feedback stops at a distance."""
  a = np.array([[-3.0, 2, 2], [2, -3, 2], [2, 2, -3]])
  b = np.array([[1.0, 2, -1], [-2, 1, 3], [1, -3, -2]])  # the mean is 0, so that the optimum is 0

  def grad(i, x):
    return 2 * a[i] * (a[i] @ x) + x / 2 + b[i]

  def distance(name, **hyper):
    algorithm = wrap(name, optax.sgd(0.02), share=0.34, **hyper)
    slopes, offsets = jnp.asarray(a), jnp.asarray(b)

    def one(rank):
      def step(carry, _):
        x, state = carry
        g = 2 * slopes[rank] * jnp.dot(slopes[rank], x) + x / 2 + offsets[rank]
        return algorithm.local(W, g, state, x), None

      x = jnp.ones(3)
      return jax.lax.scan(step, (x, algorithm.init(W, x, jax.random.key(0))), None, 1500)[0][0]

    return np.abs(jax.jit(jax.vmap(one, axis_name="w"))(jnp.arange(3))[0]).max()

  x = np.ones(3)
  for _ in range(200):
    sent = np.zeros((3, 3))
    for i in range(3):
      g = grad(i, x) - b[i]
      sent[i, np.argmax(np.abs(g))] = g[np.argmax(np.abs(g))]
    x = x - 0.02 * sent.mean(axis=0)
  assert np.abs(x).max() > 10
  assert distance("ef21", momentum=0.0) < 1e-6 < 1e-3 < distance("topk")


@pytest.mark.parametrize("workers", [1, 8])
def test_ef21_sends_as_many_bytes_as_topk(workers):
  sent = traffic.of(wrap("ef21", share=0.1), PARAMS, workers)
  assert sent.sent(sent.local) == 4 * (4 + 4) * (workers - 1)
  assert [op.kind for op in sent.local] == ["all_gather"] * (workers > 1)
