"""FedAdam, FedYogi and FedAdagrad: special cases, equalities and bytes, in float64 at rtol 1e-12."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers.twins import INNER, build, close, drive, tree_of
from reference import collective as reference

from ddl.algorithms.collective.diloco import diloco_with
from ddl.algorithms.collective.fedavg import restart
from ddl.algorithms.collective.fedopt import fedopt_with
from ddl.engine import traffic

pytestmark = pytest.mark.usefixtures("x64")

STEPS, PERIOD = 12, 3
ADAPTIVE = ("fedadam", "fedyogi", "fedadagrad")


def run(algorithm, grad=None, x0=None, steps=STEPS):
  start, default = reference.problem(8, steps)
  return drive(algorithm, start if x0 is None else x0, grad or default, workers=8, steps=steps)[:2]


@pytest.mark.parametrize("share", [0.5, 1.0])
def test_with_sgd_of_rate_one_it_is_fedavg(share):
  ours = run(fedopt_with(INNER["momentum"][0], optax.sgd(1.0), period=PERIOD, share=share))
  expected = run(build("fedavg", INNER["momentum"][0], period=PERIOD, share=share))
  close(ours[0], expected[0])
  close(ours[1][PERIOD - 1 :: PERIOD], expected[0][PERIOD - 1 :: PERIOD])  # z is the mean at the end of a round


@pytest.mark.parametrize("inner", ["sgd", "adam"])
def test_with_nesterov_and_all_workers_it_is_diloco_with_new_inner_optimizers(inner):
  inner, outer = INNER[inner][0], optax.sgd(0.7, momentum=0.9, nesterov=True)
  diloco = diloco_with(inner, outer, period=PERIOD)
  (exchange,) = diloco.exchanges

  def merge(group, message, state, params):
    params, state = exchange.merge(group, message, state, params)
    return params, state._replace(inner=restart(inner, state.inner, params))

  ours = run(fedopt_with(inner, outer, period=PERIOD, share=1.0))
  for one, other in zip(ours, run(diloco._replace(exchanges=(exchange._replace(merge=merge),))), strict=True):
    close(one, other)


@pytest.mark.parametrize("name", ["fedadam", "fedyogi"])
def test_without_memory_a_step_is_the_sign_of_the_mean_change(name):
  """With b2 = 0, v = D^2 in FedAdam; in FedYogi only if v was at least D^2 or 0, as at the start."""
  hyper = {"share": 1.0, "server_rate": 0.25, "b1": 0.0, "b2": 0.0, "adaptivity": 1e-20}
  x0, z = reference.problem(8, STEPS)[0], run(build(name, INNER["sgd"][0], period=PERIOD, **hyper))[1][:, 0]
  mean = np.mean(run(build("independent", INNER["sgd"][0]))[0][PERIOD - 1], axis=0)
  close(z[PERIOD - 1], x0 + 0.25 * np.sign(mean - x0))
  if name == "fedadam":
    steps = np.diff(np.concatenate([x0[None], z[PERIOD - 1 :: PERIOD]]), axis=0)
    close(np.abs(steps), np.full_like(steps, 0.25))


def test_yogi_is_adam_as_long_as_v_is_the_square():
  """The gradient is 1 or -1 and all numbers are sums of a few powers of two, so that v = D^2 = tau^2 holds exactly."""
  signs = jnp.asarray([1.0, -1, 1, 1, -1, -1, 1])
  hyper = {"period": 2, "share": 1.0, "server_rate": 1.0, "b1": 0.5, "b2": 0.5, "adaptivity": 0.25}
  runs = [
    run(build(name, optax.sgd(0.125), **hyper), lambda i, t, x: signs + 0 * x, x0=np.zeros(7))
    for name in ("fedadam", "fedyogi")
  ]
  np.testing.assert_array_equal(*(params for params, _ in runs))
  # m = (1 - 2^-r) D after round r, and sqrt(v) + tau = 2 |D|
  np.testing.assert_array_equal(runs[0][1][-1, 0], -signs * sum((1 - 0.5**r) / 2 for r in range(1, 7)))


@pytest.mark.parametrize("name", ADAPTIVE)
def test_the_server_moves_with_the_workers(name):
  """D is z - x; with the other sign the loss would rise."""
  hyper = {"share": 1.0, "server_rate": 0.05}
  z = run(build(name, INNER["sgd"][0], period=PERIOD, **hyper), lambda i, t, x: x, x0=np.full(7, 2.0), steps=30)[1]
  assert (np.diff(z[PERIOD - 1 :: PERIOD, 0], axis=0) < 0).all() and (z[-1] < 2).all()


@pytest.mark.parametrize("name", ADAPTIVE)
@pytest.mark.parametrize("share, sampled", [(0.25, 2), (1.0, 8)])
def test_bytes(name, share, sampled):
  """A sampled worker sends its change and receives the new model; a mean of all workers is an all-reduce."""
  params = tree_of(jnp.zeros(7, jnp.float32))
  sent = traffic.of(build(name, optax.sgd(0.1), share=share), params, 8)
  factor = 7 / 8 if sampled == 8 else sampled / 8
  assert sent.local == () and [sent.sent(ops) for ops in sent.exchanges] == [2 * 7 * 4 * factor]
