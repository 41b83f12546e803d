"""FedProx and FedNova: workers with different numbers of steps, and equalities, in float64 at rtol 1e-12."""

from functools import cache

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers.twins import INNER, build, close, drive, falling, tree_of
from reference import collective as reference

from ddl.engine import traffic
from ddl.errors import OptionError

pytestmark = pytest.mark.usefixtures("x64")

TAU = (1, 2, 4, 8)


def run(algorithm, steps=12, grad=None, x0=None, workers=8):
  start, default = reference.problem(workers, steps)
  return drive(algorithm, start if x0 is None else x0, grad or default, workers=workers, steps=steps)


# ---- equal steps


def test_fedprox_without_penalty_is_fedavg():
  ours = run(build("fedprox", INNER["momentum"][0], period=4, share=0.5, proximal=0.0))[0]
  close(ours, run(build("fedavg", INNER["momentum"][0], period=4, share=0.5))[0])


@pytest.mark.parametrize("inner", ["momentum", "adam"])
def test_fednova_with_equal_weights_is_fedavg(inner):
  """The weights are equal for equal numbers of steps, whatever the optimizer."""
  expected = run(build("fedavg", INNER[inner][0], period=4, share=0.5))[0]
  close(run(build("fednova", INNER[inner][0], period=4, share=0.5))[0], expected)


def test_a_worker_that_has_taken_its_steps_waits():
  x = np.asarray(run(build("fedprox", INNER["sgd"][0], period=4, share=1.0, local_steps=(1, 4)))[0])
  moved = np.abs(np.diff(x, axis=0)).max(axis=-1) > 0  # [step, worker]; the first step is not in the difference
  assert moved[:3].T.tolist() == [[False, False, True], [True, True, True]] * 4  # the last one is the average
  assert moved[3:7].T.tolist() == [[True, False, False, True], [True, True, True, True]] * 4


# ---- weights


def weights(inner, local_steps, steps=7, period=8):
  """Return s_i of each worker, before the exchange: [workers]."""
  state = run(build("fednova", inner, period=period, share=1.0, local_steps=local_steps), steps)[2]
  return np.asarray(state.weight)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_weights_follow_the_recursion_of_the_paper(momentum):
  """c <- r c + 1, a <- a + c at each step; s = eta a."""
  expected = []
  for tau in (1, 3, 6, 7):
    c = a = 0.0
    for _ in range(tau):
      c = momentum * c + 1
      a += c
    expected.append(0.05 * a)
  close(weights(optax.sgd(0.05, momentum or None), (1, 3, 6, 7)), expected * 2)


def test_weights_follow_the_schedule_and_contain_no_weight_decay():
  close(weights(optax.sgd(falling), (1, 3)), [falling(0), sum(map(falling, range(3)))] * 4)
  close(weights(INNER["decay"][0], (1, 3)), weights(INNER["sgd"][0], (1, 3)))


def test_the_schedule_of_a_worker_that_waits_continues():
  """The second round begins at step 4 for all workers."""
  later = weights(optax.sgd(falling), (1, 4), steps=6, period=4)
  close(later, [falling(4), falling(4) + falling(5)] * 4)


def test_a_rate_of_zero_moves_nothing():
  params, evaluate, _ = run(build("fednova", optax.sgd(0.0), period=2, share=1.0), steps=4)
  start = np.broadcast_to(reference.problem(8, 4)[0], np.shape(params))
  close(params, start)
  close(evaluate, start)


# ---- heterogeneous quadratics


CURVATURE = np.array([0.4, 0.7, 1.0, 1.3])
TARGET = np.array([-2.0, 0.0, 1.0, 3.0])
MINIMUM = CURVATURE @ TARGET / CURVATURE.sum()


def gradient(worker, step, x):
  return jnp.asarray(CURVATURE)[worker] * (x - jnp.asarray(TARGET)[worker])


@cache
def distance(name, rate, momentum=0.0):
  """Return the distance between the minimum of the mean loss and the fixed point, with 1, 2, 4 and 8 steps per round.

  A round is an affine map z -> a z + b, the same for all coordinates, whose fixed point is b / (1 - a).
  """
  more = {"proximal": 0.0} if name == "fedprox" else {}
  algorithm = build(name, optax.sgd(rate, momentum or None), 4, period=8, share=1.0, local_steps=TAU, **more)
  z = np.asarray(run(algorithm, 8, gradient, np.linspace(0, 1, 7), workers=4)[1])[-1, 0]
  slope = z[-1] - z[0]
  close(z, z[0] + slope * np.linspace(0, 1, 7))
  assert 0 < slope < 1
  return abs(z[0] / (1 - slope) - MINIMUM)


@pytest.mark.parametrize("momentum", [0.0, 0.5])
@pytest.mark.sampled(2)
def test_fednova_converges_to_the_minimum_and_fedavg_to_that_of_the_fast_workers(momentum):
  fedavg, fednova = distance("fedprox", 0.05, momentum), distance("fednova", 0.05, momentum)
  assert fedavg > 0.5 and fednova < 0.35 * fedavg
  assert distance("fednova", 0.025, momentum) < 0.6 * fednova  # the rest is proportional to the rate
  assert distance("fedprox", 0.025, momentum) > 0.9 * fedavg


def test_the_penalty_limits_the_drift():
  def drift(proximal):
    algorithm = build("fedprox", optax.sgd(0.1), 4, period=8, share=1.0, proximal=proximal)
    return np.ptp(run(algorithm, 7, gradient, np.zeros(7), workers=4)[0][-1], axis=0).max()

  assert drift(4.0) < 0.4 * drift(0.0)


# ---- bytes and errors


@pytest.mark.parametrize("share, sampled", [(0.25, 2), (1.0, 8)])
def test_bytes(share, sampled):
  """FedNova also sends a number, here in float64."""
  params, factor = tree_of(jnp.zeros(7, jnp.float32)), 7 / 8 if sampled == 8 else sampled / 8
  for name, nbytes in (("fedprox", 7 * 4), ("fednova", 7 * 4 + 8)):
    sent = traffic.of(build(name, optax.sgd(0.1), share=share), params, 8)
    assert sent.local == () and [sent.sent(ops) for ops in sent.exchanges] == [2 * nbytes * factor]
    assert not sent.local_uses_group


@pytest.mark.parametrize("name", ["fedprox", "fednova"])
@pytest.mark.parametrize("local_steps, wrong", [((3, 11), 11), ((0, 1), 0)])
def test_invalid_local_steps_are_refused(name, local_steps, wrong):
  with pytest.raises(OptionError) as error:
    build(name, optax.sgd(0.1), period=10, local_steps=local_steps)
  assert error.value.option.startswith(f"{name}.local_steps") and error.value.value == str(wrong)
