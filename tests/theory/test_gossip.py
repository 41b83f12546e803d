"""Without gradients the distance of gossiping workers shrinks at the spectral gap of their graph."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers import servers, twins
from reference.gossip import mixing_matrix

from ddl.api import Visit

pytestmark = pytest.mark.usefixtures("x64")
GRAPHS = [("ring", 8), ("torus", 16), ("exponential", 8), ("exponential", 6)]
ROUNDS = 5


def zero(worker, step, x):
  return jnp.zeros_like(x)


def distances(x):
  """Root mean square over the workers of |x_i - mean x|; x: [..., workers, n]."""
  apart = x - x.mean(axis=-2, keepdims=True)
  return np.sqrt((apart**2).sum(axis=-1).mean(axis=-1))


def mix(graph, workers, x0):
  algorithm = twins.build("d_psgd", optax.sgd(0.1), workers, graph=graph)
  return np.asarray(twins.drive(algorithm, x0, zero, workers=workers, steps=ROUNDS)[0])


@pytest.mark.parametrize("graph, workers", GRAPHS)
def test_distance_shrinks_by_the_second_eigenvalue(graph, workers):
  """Exactly so from the slowest mode; from anywhere at most by the second singular value, the same of these graphs."""
  w = mixing_matrix(graph, workers, 0)
  values, vectors = np.linalg.eig(w)
  order = np.argsort(-np.abs(values))
  second, slowest = abs(values[order[1]]), vectors[:, order[1]]
  np.testing.assert_allclose(np.linalg.svd(w)[1][1], second, rtol=1e-12)  # circulants are normal
  anywhere = np.random.default_rng(0).normal(size=(workers, 5))
  # Of a conjugate pair the real and the imaginary part shrink together.
  x0 = np.column_stack([slowest.real, slowest.imag, anywhere])
  x = np.concatenate([x0[None], mix(graph, workers, x0)])
  for t in range(ROUNDS + 1):
    twins.close(x[t], np.linalg.matrix_power(w, t) @ x0)
  twins.close(distances(x[..., :2]), second ** np.arange(ROUNDS + 1) * distances(x0[:, :2]))
  rest = distances(x[..., 2:])
  assert (rest <= second ** np.arange(ROUNDS + 1) * rest[0] * (1 + 1e-12)).all()


def test_the_gap_of_each_graph():
  """Closed forms: ring (1 + 2 cos(2 pi / p)) / 3, torus of 4 x 4 3/5, exponential of p = 2^k 1 - 2 / (k + 1)."""

  def second(graph, workers):
    return np.sort(np.abs(np.linalg.eigvals(mixing_matrix(graph, workers, 0))))[-2]

  for workers in (5, 8, 16):
    np.testing.assert_allclose(second("ring", workers), (1 + 2 * np.cos(2 * np.pi / workers)) / 3, rtol=1e-12)
  np.testing.assert_allclose(second("torus", 16), 3 / 5, rtol=1e-12)
  for k in (2, 3, 4, 5):
    np.testing.assert_allclose(second("exponential", 2**k), 1 - 2 / (k + 1), rtol=1e-12)


def test_one_peer_rounds_reach_the_mean():
  """The product of log2 p rounds is the mean, of which every eigenvalue but one is 0."""
  x0 = np.random.default_rng(0).normal(size=(8, 7))
  x = mix("one_peer_exponential", 8, x0)
  product = np.linalg.multi_dot([mixing_matrix("one_peer_exponential", 8, t) for t in (2, 1, 0)])
  twins.close(product, np.full((8, 8), 1 / 8))
  assert distances(x[1]) > 1e-2 and (distances(x[2:]) < 1e-14).all()


def expected_share(name, x, pairs):
  """The mean over equally likely visits (i, j) of distance^2 after over distance^2 before, of models x: [p, 7]."""
  algorithm = servers.build(name, workers=len(x))
  board = jax.vmap(twins.tree_of)(jnp.asarray(x))
  nothing = jax.tree.map(lambda each: jnp.zeros_like(each[0]), board)

  def visit(i, j):
    return jax.vmap(twins.flat_of)(algorithm.serve(board, nothing, Visit(i, j))[0])

  after = np.asarray(jax.vmap(visit)(*map(jnp.asarray, np.transpose(pairs).astype(np.int32))))
  return (distances(after) ** 2).mean() / distances(x) ** 2


@pytest.mark.parametrize("p", [3, 6])
@pytest.mark.sampled(2)
def test_random_peers_in_expectation(p):
  """A pull or a push: 1 - 1/(2p) - 1/(p (p-1)) a visit; a mean of both: 1 - 1/(p-1). From any models."""
  x, pairs = np.random.default_rng(0).normal(size=(p, 7)), [(i, j) for i in range(p) for j in range(p) if i != j]
  for name in ("pull_gossip", "push_gossip"):
    twins.close(expected_share(name, x, pairs), 1 - 1 / (2 * p) - 1 / (p * (p - 1)))
  twins.close(expected_share("ad_psgd", x, pairs), 1 - 1 / (p - 1))


@pytest.mark.parametrize("p", [4, 8])
@pytest.mark.sampled(2)
def test_pairs_on_a_ring_in_expectation(p):
  """AD-PSGD's neighbours: 1 - (1 - cos(2 pi / p)) / p a visit in the slowest mode, the second eigenvalue of E W."""
  angles = 2 * np.pi * np.arange(p) / p
  x = np.column_stack([np.cos(angles), np.sin(angles), *np.zeros((5, p))])
  pairs = [(i, (i + s) % p) for i in range(p) for s in (1, -1)]
  share = 1 - (1 - np.cos(2 * np.pi / p)) / p
  twins.close(expected_share("ad_psgd", x, pairs), share)
  differences = [np.eye(p)[i] - np.eye(p)[j] for i, j in pairs]
  mean = np.mean([np.eye(p) - np.outer(d, d) / 2 for d in differences], axis=0)
  np.testing.assert_allclose(np.sort(np.linalg.eigvalsh(mean))[-2], share, rtol=1e-12)
