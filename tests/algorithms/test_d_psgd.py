"""D-PSGD: messages of its graphs, conservation of the mean, and matrices from files."""

import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.twins import INNER, build, close, drive
from hypothesis import given
from hypothesis import strategies as st
from reference import collective as reference
from reference.gossip import mixing_matrix

from ddl.algorithms.gossip.graphs import hops, matrices
from ddl.group_recorder import record

GRAPHS = ("ring", "torus", "exponential", "one_peer_exponential")


def zero(worker, step, x):
  return jnp.zeros_like(x)


@pytest.mark.parametrize("workers", [1, 2, 3, 4, 6, 7, 8, 12, 16])
@pytest.mark.parametrize("graph", GRAPHS)
def test_the_matrices_are_doubly_stochastic(graph, workers):
  if graph == "one_peer_exponential" and workers not in (1, 2, 4, 8, 16):
    with pytest.raises(ValueError, match=rf"d_psgd.workers must be a power of two .*, got {workers}\."):
      matrices("d_psgd", graph, workers)
    return
  for t, w in enumerate(matrices("d_psgd", graph, workers)):
    np.testing.assert_allclose(w, mixing_matrix(graph, workers, t), rtol=1e-15)
    np.testing.assert_allclose([w.sum(axis=0), w.sum(axis=1)], 1, rtol=1e-14)


def matrix_of(sequence, workers):
  """Return the mixing matrix without its diagonal that a sequence of hops applies."""
  w = np.zeros((workers, workers))
  for hop in sequence:
    for i, (j, weight) in enumerate(zip(hop.sources, hop.weights, strict=True)):
      assert (j is None) == (weight == 0)
      if j is not None:
        w[i, j] += weight
    if hop.shift:
      assert hop.sources == tuple((i - hop.shift) % workers for i in range(workers))
  return w


@given(st.lists(st.permutations([*range(7)]), min_size=1, max_size=4), st.integers(0, 2**32 - 1))
def test_the_number_of_messages_is_the_largest_number_of_neighbours(orders, seed):
  """Koenig's bound holds for any doubly stochastic matrix (a mean of permutations) with some edges removed."""
  w = sum(np.eye(7)[order] for order in orders) / len(orders)
  w[np.random.default_rng(seed).random((7, 7)) < 0.2] = 0
  np.fill_diagonal(w, 0)
  result = hops(w)
  np.testing.assert_array_equal(matrix_of(result, 7), w)
  assert len(result) == max((w > 0).sum(axis=0).max(), (w > 0).sum(axis=1).max())


def test_diagonals_of_graphs_are_shifts():
  assert [hop.shift for hop in hops(matrices("d_psgd", "ring", 8)[0])] == [1, 7]
  assert [hop.shift for hop in hops(matrices("d_psgd", "exponential", 8)[0])] == [1, 2, 4]
  assert [hop.shift for hop in hops(matrices("d_psgd", "torus", 12)[0])] == [4, 8, None, None]


def run(workers, inner="momentum", steps=10, x0=None, grad=None, **hyper):
  start, default = reference.problem(workers, steps)
  x0 = start if x0 is None else x0
  return drive(build("d_psgd", INNER[inner][0], workers, **hyper), x0, grad or default, workers=workers, steps=steps)[0]


def expected_params(workers, steps=10, **hyper):
  x0, grad = reference.problem(workers, steps)
  return reference.d_psgd(x0, grad, workers=workers, steps=steps, inner=INNER["momentum"][1], **hyper).params


@pytest.mark.parametrize("workers", [6, pytest.param(3, marks=pytest.mark.slow)])
def test_other_numbers_of_workers_equal_the_reference(x64, workers):
  for graph in ("ring", "torus", "exponential"):
    close(run(workers, graph=graph), expected_params(workers, graph=graph))


@pytest.mark.parametrize("kind", ["npy", "csv", "txt"])
def test_a_directed_matrix_from_a_file(x64, tmp_path, kind):
  w = (3 * np.eye(8) + 2 * np.eye(8)[[1, 2, 0, 4, 3, 5, 7, 6]] + np.eye(8)[[3, 0, 5, 1, 7, 2, 4, 6]]) / 6
  assert (w != w.T).any()
  path = str(tmp_path / f"w.{kind}")
  np.save(path, w) if kind == "npy" else np.savetxt(path, w, delimiter="," if kind == "csv" else " ", fmt="%.18g")
  close(run(8, graph=path), expected_params(8, graph=path))


def test_the_complete_graph_is_an_all_reduce(x64, tmp_path):
  path = str(tmp_path / "complete.npy")
  np.save(path, np.full((8, 8), 1 / 8))
  x0, grad = reference.problem(8, 6)
  x, rate = np.array([x0] * 8), 0.1
  for t, ours in enumerate(run(8, "sgd", 6, graph=path)):
    x = x.mean(axis=0) - rate * np.array([grad(i, t, x[i]) for i in range(8)])
    close(ours, x)


@pytest.mark.parametrize("workers", [8, *(pytest.param(n, marks=pytest.mark.slow) for n in (2, 4))])
def test_one_peer_mixing_gives_the_mean_in_log2_p_steps(x64, workers):
  x0, steps = np.random.default_rng(1).normal(size=(workers, 7)), workers.bit_length() - 1
  x = run(workers, "sgd", steps, x0, zero, graph="one_peer_exponential")
  close(x[-1], np.stack([x0.mean(axis=0)] * workers))
  assert steps == 1 or np.ptp(x[-2], axis=0).max() > 0.1


@pytest.mark.parametrize("graph", GRAPHS)
def test_mixing_conserves_the_mean(x64, graph):
  x0 = np.random.default_rng(1).normal(size=(8, 7))
  x = run(8, "sgd", 5, x0, zero, graph=graph)
  close(x.mean(axis=1), np.stack([x0.mean(axis=0)] * 5))


def test_a_matrix_of_pairs_is_one_permute(tmp_path):
  path = str(tmp_path / "pairs.csv")
  w = np.kron(np.eye(2), np.full((2, 2), 0.5))  # two separate pairs
  np.savetxt(path, w, delimiter=",")
  algorithm = build("d_psgd", INNER["sgd"][0], 4, graph=path)
  x = {"a": jax.ShapeDtypeStruct((5, 4), jnp.float32)}
  state = jax.eval_shape(lambda x: algorithm.init(None, x, None), x)
  sent = record(algorithm.exchanges[0].launch, state, x, workers=4)[0].sent
  assert [(op.kind, op.nbytes) for op in sent] == [("permute", 80)]


@pytest.mark.parametrize(
  "matrix, words",
  [
    ([[0.5, 0.5], [0.4, 0.5]], "got a sum of 0.9 in row 1"),
    ([[0.6, 0.4], [0.6, 0.4]], "got a sum of 1.2 in column 0"),
    ([[1.5, -0.5], [-0.5, 1.5]], "negative or non-finite"),
    ([[np.nan, 1], [1, 0]], "negative or non-finite"),
    (np.eye(3), r"must be a matrix of shape \[2, 2\], got \[3, 3\]"),
    ([1.0, 0.0], r"must be a matrix of shape \[2, 2\], got \[2\]"),
  ],
)
def test_matrices_that_are_not_doubly_stochastic_are_refused(tmp_path, matrix, words):
  np.save(tmp_path / "w.npy", np.array(matrix, float))
  with pytest.raises(ValueError, match=words):
    matrices("d_psgd", str(tmp_path / "w.npy"), 2)


def test_unreadable_graphs_are_refused(tmp_path):
  (tmp_path / "words.csv").write_text("0.5,half\n0.5,0.5\n")
  (tmp_path / "short.npy").write_bytes(b"\x93NUM")
  os.mkfifo(tmp_path / "pipe.npy")
  os.mkfifo(tmp_path / "pipe.csv")
  for name in ("words.csv", "short.npy", "none.txt", "pipe.npy", "pipe.csv"):
    with pytest.raises(ValueError, match=f"^d_psgd.graph must .*{name} ") as refused:
      matrices("d_psgd", str(tmp_path / name), 2)
    assert "\n" not in str(refused.value)
  with pytest.raises(ValueError, match=r"graph must be one of ring, torus, exponential, one_peer_exp.*got 'star'"):
    matrices("d_psgd", "star", 2)
