"""Algorithms that send signs: equalities with other algorithms, ties, and bytes."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers.twins import INNER, build, close, drive, lenient, tree_of
from reference import collective as reference

from ddl.algorithms import WRAPPERS
from ddl.engine import traffic

pytestmark = pytest.mark.usefixtures("x64")

DECOUPLED = optax.chain(optax.add_decayed_weights(0.1), optax.scale(-0.05))
LION = lenient(optax.lion(0.05, b1=0.9, b2=0.99, weight_decay=0.1))


def lion(inner, aggregate="vote", **betas):
  return build("distributed_lion", inner, aggregate=aggregate, **betas)


def run(algorithm, workers, grad, steps=6):
  return np.asarray(drive(algorithm, reference.problem(workers, steps)[0], grad, workers=workers, steps=steps)[0])


# ---- Distributed Lion


@pytest.mark.parametrize("aggregate", ["vote", "mean"])
@pytest.mark.parametrize("workers", [1, 3])
def test_distributed_lion_of_equal_gradients_is_lion(workers, aggregate):
  grad = reference.problem(1, 6)[1]

  def same(worker, step, x):
    return grad(0 * worker, step, x)

  close(run(lion(DECOUPLED, aggregate), workers, same), run(build("sync_sgd", LION), workers, same))


def test_distributed_lion_with_equal_betas_is_signum():
  grad = reference.problem(8, 6)[1]
  signum = WRAPPERS["sign"].factory(build("sync_sgd", INNER["momentum"][0]), momentum=0.8)
  close(run(lion(INNER["momentum"][0], b1=0.8, b2=0.8), 8, grad), run(signum, 8, grad))


def test_the_mean_of_two_workers_moves_only_values_on_which_they_agree():
  grads = jnp.array([[3.0, -1.0, 2.0, -4.0, 1.0, 1.0, -1.0], [1.0, 1.0, -2.0, -1.0, 5.0, -9.0, -3.0]])
  agree = np.array([1, 0, 0, -1, 1, 0, -1])
  moved = np.diff(run(lion(optax.sgd(0.1), "mean"), 2, lambda i, t, x: grads[i], steps=2)[:, 0], axis=0)[0]
  close(moved, -0.1 * agree)


@pytest.mark.parametrize("aggregate, moves", [("vote", [1, 1, -1]), ("mean", [0, 1, -1])])
def test_zeros_and_ties_of_distributed_lion_count_as_plus(aggregate, moves):
  grads = jnp.array([[1.0, 0.0, -1.0, 0, 0, 0, 0], [-1.0, 0.0, -1.0, 0, 0, 0, 0]])
  x = run(lion(optax.sgd(1.0), aggregate), 2, lambda i, t, x: grads[i], steps=1)[0, 0]
  close(reference.problem(2, 1)[0] - x, [*moves, 1, 1, 1, 1])


@pytest.mark.parametrize("workers, strip, bits", [(1, 5, 1), (2, 3, 2), (8, 1, 4)])
def test_bytes_of_distributed_lion(workers, strip, bits):
  """33 values in strips of whole bytes; 1 bit up; 1 bit (vote) or enough bits for a count of 0..p (mean) down."""
  for aggregate, down in (("vote", 1), ("mean", bits)):
    sent = traffic.of(lion(optax.sgd(0.1), aggregate), {"a": jnp.zeros((11, 3))}, workers)
    assert sent.sent(sent.local) == (workers - 1) * strip * (1 + down)
    assert not sent.exchanges and not sent.evaluate


def test_an_unknown_aggregate_is_refused():
  with pytest.raises(ValueError, match="aggregate must be one of vote, mean, got 'median'"):
    traffic.of(lion(optax.sgd(0.1), "median"), tree_of(jnp.zeros(7)), 2)
