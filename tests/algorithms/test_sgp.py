"""Stochastic gradient push: weights, exact averages and equalities, in float64 at rtol 1e-12."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.twins import INNER, build, close, drive
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P
from reference import collective as reference
from reference.gossip import pushes

from ddl.algorithms.gossip.sgp import one_peer_exponential, push_sum
from ddl.as_optax import as_optax

pytestmark = pytest.mark.usefixtures("x64")

# Column stochastic, but not row stochastic: worker 0 sends to all others, each of which sends to the next one.
UNEVEN = np.array([[1 / 4, 0, 0, 1 / 2], [1 / 4, 1 / 2, 0, 0], [1 / 4, 1 / 2, 1 / 2, 0], [1 / 4, 0, 1 / 2, 1 / 2]])
STARTS = np.random.default_rng(1).normal(size=(8, 7))


def run(algorithm, workers=8, steps=12, x0=None, grad=None):
  start, default = reference.problem(workers, steps)
  return drive(algorithm, start if x0 is None else x0, grad or default, workers=workers, steps=steps)


def zero(worker, step, x):
  return jnp.zeros_like(x)


@pytest.mark.parametrize("workers", [1, 2, 3, 5, 6, 8])
def test_each_round_of_the_graph_is_doubly_stochastic(workers):
  rounds = one_peer_exponential(workers)
  assert len(rounds) == int(np.ceil(np.log2(workers)))
  for ours, expected in zip(rounds, pushes(workers), strict=False):
    np.testing.assert_array_equal(ours, expected)
    np.testing.assert_array_equal([ours.sum(axis=0), ours.sum(axis=1)], 1)


@pytest.mark.parametrize("workers", [8, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 2, 5))])
def test_the_weights_of_doubly_stochastic_rounds_stay_one(workers):
  _, _, state = run(build("sgp", INNER["adam"][0], workers), workers, 7)
  np.testing.assert_array_equal(state.weight, np.ones(workers))


@pytest.mark.parametrize("workers", [8, *(pytest.param(n, marks=pytest.mark.slow) for n in (2, 4))])
def test_log2_p_rounds_give_the_mean(workers):
  steps = workers.bit_length() - 1
  z = run(build("sgp", INNER["sgd"][0], workers), workers, steps, STARTS[:workers], zero)[0]
  close(z[-1], np.stack([STARTS[:workers].mean(axis=0)] * workers))
  assert steps == 1 or np.ptp(z[-2], axis=0).max() > 0.1


@pytest.mark.parametrize("overlap", [1, 3])
def test_log2_p_overlapped_rounds_give_the_mean(overlap):
  z = run(build("overlap_sgp", INNER["sgd"][0], overlap=overlap), 8, 3 * overlap, STARTS, zero)[0]
  close(z[-1], np.stack([STARTS.mean(axis=0)] * 8))


@pytest.mark.parametrize("workers", [5, *(pytest.param(n, marks=pytest.mark.slow) for n in (3, 6))])
def test_other_numbers_of_workers_equal_the_reference(workers):
  x0, grad = reference.problem(workers, 12)
  how = {"workers": workers, "steps": 12, "inner": INNER["momentum"][1]}
  close(run(build("sgp", INNER["momentum"][0], workers), workers)[0], reference.sgp(x0, grad, **how).params)
  ours = run(build("overlap_sgp", INNER["momentum"][0], workers, overlap=2), workers)[0]
  close(ours, reference.overlap_sgp(x0, grad, overlap=2, **how).params)


@pytest.mark.parametrize("overlap", [0, 3])
def test_any_column_stochastic_rounds_equal_the_reference(overlap):
  x0, grad = reference.problem(4, 12)
  rounds = [UNEVEN, one_peer_exponential(4)[0]]
  how = {"workers": 4, "steps": 12, "inner": INNER["adam"][1], "rounds": rounds}
  expected = reference.overlap_sgp(x0, grad, overlap=overlap, **how) if overlap else reference.sgp(x0, grad, **how)
  z, _, state = run(push_sum(INNER["adam"][0], rounds, overlap=overlap), 4)
  close(z, expected.params)
  assert np.ptp(state.weight) > 0.1


def test_weights_correct_the_bias_of_the_graph():
  """x_i tends to a share of the sum that differs between workers, z_i tends to the mean."""
  z, _, state = run(push_sum(INNER["sgd"][0], [UNEVEN], overlap=0), 4, 80, STARTS[:4], zero)
  np.testing.assert_allclose(z[-1], np.stack([STARTS[:4].mean(axis=0)] * 4), rtol=1e-9)
  close(state.weight.sum(), 4.0)
  assert np.ptp(state.weight) > 0.1


def test_half_of_the_weights_is_in_flight_within_a_round():
  steps = 5
  state = run(build("overlap_sgp", INNER["sgd"][0], overlap=2), 8, steps)[2]
  np.testing.assert_array_equal(state.weight, np.full(8, 0.5))


@pytest.mark.parametrize("overlap", [1, 2])
def test_only_updates_change_the_sum_of_x(overlap):
  """On any graph sum_i w_i z_i, with the messages in flight, is the initial sum plus all updates."""

  def constant(worker, step, x):
    return (1 + worker + step).astype(x.dtype) * jnp.ones_like(x)

  algorithm = push_sum(INNER["sgd"][0], [UNEVEN], overlap=overlap)
  z, _, state = run(algorithm, 4, 4 * overlap, STARTS[:4], constant)
  before_launch = np.linalg.solve(np.diag(np.diag(UNEVEN)), state.weight)
  total = STARTS[:4].sum(axis=0) - 0.1 * sum(1.0 + i + t for i in range(4) for t in range(4 * overlap))
  close(before_launch @ z[-1], total)
  close(before_launch.sum(), 4.0)


def test_an_overlap_of_one_step_is_d_psgd_on_the_same_graph():
  ours = run(build("overlap_sgp", INNER["adam"][0], overlap=1))[0]
  close(ours, run(build("d_psgd", INNER["adam"][0], graph="one_peer_exponential"))[0])


@pytest.mark.parametrize("name, hyper", [("sgp", {}), ("overlap_sgp", {"overlap": 1})])
def test_the_state_for_two_workers_is_a_valid_scan_carry(name, hyper):
  """With two workers no round has a condition, so the weights must vary over the workers from `init` on."""
  tx = as_optax(build(name, INNER["sgd"][0], 2, **hyper), "w")
  mesh = jax.make_mesh((2,), ("w",), axis_types=(AxisType.Auto,), devices=jax.devices()[:2])

  def loop(x):
    def step(carry, _):
      updates, state = tx.update(jnp.zeros_like(x[0]), carry[1], carry[0])
      return (carry[0] + updates, state), None

    return jax.lax.scan(step, (x[0], tx.init(x[0])), length=3)[0][0][None]

  result = jax.jit(jax.shard_map(loop, mesh=mesh, in_specs=P("w"), out_specs=P("w")))(jnp.asarray(STARTS[:2]))
  close(result, np.stack([STARTS[:2].mean(axis=0)] * 2))


def test_an_overlap_of_zero_is_refused():
  with pytest.raises(ValueError, match="overlap must be an integer >= 1, got 0") as refused:
    build("overlap_sgp", INNER["sgd"][0], overlap=0)
  assert "\n" not in str(refused.value)
