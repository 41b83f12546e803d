"""Without gradients the distance between workers decreases at a rate given by the spectral gap of their graph."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers import servers, twins
from reference.gossip import mixing_matrix

from ddl.api import Visit

pytestmark = pytest.mark.usefixtures("x64")
GRAPHS = [
  ("ring", 8), ("exponential", 8),
  pytest.param("torus", 16, marks=pytest.mark.slow), pytest.param("exponential", 6, marks=pytest.mark.slow),
]  # fmt: skip
ROUNDS = 5


def zero(worker, step, x):
  return jnp.zeros_like(x)


def distances(x):
  """Return the root mean square over the workers of |x_i - mean x|; x: [..., workers, n]."""
  deviations = x - x.mean(axis=-2, keepdims=True)
  return np.sqrt((deviations**2).sum(axis=-1).mean(axis=-1))


def mix(graph, workers, x0):
  algorithm = twins.build("d_psgd", optax.sgd(0.1), workers, graph=graph)
  return np.asarray(twins.drive(algorithm, x0, zero, workers=workers, steps=ROUNDS)[0])


@pytest.mark.parametrize("graph, workers", GRAPHS)
def test_distance_shrinks_by_the_second_eigenvalue(graph, workers):
  """The slowest mode shrinks exactly at this rate, any other start at least as fast."""
  w = mixing_matrix(graph, workers, 0)
  values, vectors = np.linalg.eig(w)
  order = np.argsort(-np.abs(values))
  second, slowest = abs(values[order[1]]), vectors[:, order[1]]
  np.testing.assert_allclose(np.linalg.svd(w)[1][1], second, rtol=1e-12)  # circulants are normal
  random = np.random.default_rng(0).normal(size=(workers, 5))
  # The eigenvector can be complex; its real and imaginary parts shrink at the same rate.
  x0 = np.column_stack([slowest.real, slowest.imag, random])
  x = np.concatenate([x0[None], mix(graph, workers, x0)])
  for t in range(ROUNDS + 1):
    twins.close(x[t], np.linalg.matrix_power(w, t) @ x0)
  twins.close(distances(x[..., :2]), second ** np.arange(ROUNDS + 1) * distances(x0[:, :2]))
  rest = distances(x[..., 2:])
  assert (rest <= second ** np.arange(ROUNDS + 1) * rest[0] * (1 + 1e-12)).all()


def test_the_second_eigenvalue_of_each_graph():
  """Closed forms: ring (1 + 2 cos(2 pi / p)) / 3, torus of 4 x 4 3/5, exponential of p = 2^k 1 - 2 / (k + 1)."""

  def second(graph, workers):
    return np.sort(np.abs(np.linalg.eigvals(mixing_matrix(graph, workers, 0))))[-2]

  for workers in (5, 8, 16):
    np.testing.assert_allclose(second("ring", workers), (1 + 2 * np.cos(2 * np.pi / workers)) / 3, rtol=1e-12)
  np.testing.assert_allclose(second("torus", 16), 3 / 5, rtol=1e-12)
  for k in (2, 3, 4, 5):
    np.testing.assert_allclose(second("exponential", 2**k), 1 - 2 / (k + 1), rtol=1e-12)


def test_one_peer_rounds_reach_the_mean():
  """The product of log2 p mixing matrices is the matrix of the mean."""
  x0 = np.random.default_rng(0).normal(size=(8, 7))
  x = mix("one_peer_exponential", 8, x0)
  product = np.linalg.multi_dot([mixing_matrix("one_peer_exponential", 8, t) for t in (2, 1, 0)])
  twins.close(product, np.full((8, 8), 1 / 8))
  assert distances(x[1]) > 1e-2 and (distances(x[2:]) < 1e-14).all()


def expected_share(name, x, pairs):
  """Return the expected ratio of distance^2 after and before a visit, uniform over pairs; x: [p, 7]."""
  algorithm = servers.build(name, workers=len(x))
  board = jax.vmap(twins.tree_of)(jnp.asarray(x))
  no_change = jax.tree.map(lambda models: jnp.zeros_like(models[0]), board)

  def visit(i, j):
    return jax.vmap(twins.flat_of)(algorithm.serve(board, no_change, Visit(i, j))[0])

  after = np.asarray(jax.jit(jax.vmap(visit))(*map(jnp.asarray, np.transpose(pairs).astype(np.int32))))
  return (distances(after) ** 2).mean() / distances(x) ** 2


@pytest.mark.parametrize("p", [3, 6])
@pytest.mark.sampled(2)
def test_random_peers_in_expectation(p):
  """A pull or a push multiplies distance^2 by 1 - 1/(2p) - 1/(p (p-1)), a mean of both by 1 - 1/(p-1)."""
  x, pairs = np.random.default_rng(0).normal(size=(p, 7)), [(i, j) for i in range(p) for j in range(p) if i != j]
  for name in ("pull_gossip", "push_gossip"):
    twins.close(expected_share(name, x, pairs), 1 - 1 / (2 * p) - 1 / (p * (p - 1)))
  twins.close(expected_share("ad_psgd", x, pairs), 1 - 1 / (p - 1))


@pytest.mark.parametrize("p", [4, 8])
@pytest.mark.sampled(2)
def test_pairs_on_a_ring_in_expectation(p):
  """AD-PSGD multiplies distance^2 of the slowest mode by the second eigenvalue of E W, 1 - (1 - cos(2 pi / p)) / p."""
  angles = 2 * np.pi * np.arange(p) / p
  x = np.column_stack([np.cos(angles), np.sin(angles), *np.zeros((5, p))])
  pairs = [(i, (i + s) % p) for i in range(p) for s in (1, -1)]
  share = 1 - (1 - np.cos(2 * np.pi / p)) / p
  twins.close(expected_share("ad_psgd", x, pairs), share)
  differences = [np.eye(p)[i] - np.eye(p)[j] for i, j in pairs]
  mean = np.mean([np.eye(p) - np.outer(d, d) / 2 for d in differences], axis=0)
  np.testing.assert_allclose(np.sort(np.linalg.eigvalsh(mean))[-2], share, rtol=1e-12)
