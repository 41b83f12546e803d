"""FedAvg and SCAFFOLD: samples of workers, equalities and invariants, in float64 at rtol 1e-12."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers.twins import INNER, build, close, drive, lenient
from reference import collective as reference

from ddl.algorithms.collective.fedavg import restart, sample
from ddl.algorithms.draws import start

pytestmark = pytest.mark.usefixtures("x64")

SAMPLED = {
  "fedavg": {"share": 0.5},
  "scaffold": {"share": 0.5, "server_rate": 0.7},
  "fedprox": {"share": 0.5, "proximal": 0.2, "local_steps": (3, 1, 2)},
  "fednova": {"share": 0.5, "local_steps": (3, 1, 2)},
  "fedadam": {"share": 0.5, "server_rate": 0.3, "b1": 0.8, "b2": 0.9, "adaptivity": 0.01},
  "fedyogi": {"share": 0.5, "server_rate": 0.2, "b1": 0.8, "b2": 0.9, "adaptivity": 0.01},
  "fedadagrad": {"share": 0.5, "server_rate": 0.3, "b1": 0.6, "adaptivity": 0.01},
}


def run(algorithm, workers=8, steps=12, grad=None, x0=None):
  first, default = reference.problem(workers, steps)
  return drive(algorithm, first if x0 is None else x0, grad or default, workers=workers, steps=steps)


def same(one, other):
  for ours, expected in zip(one[:2], other[:2], strict=True):
    close(ours, expected)


def samples(rounds, workers=8, share=0.5, seed=0):
  """Return the ranks sampled in each round, for the key that `drive` passes to `init`."""
  draws = start(jax.random.key(seed))
  return [
    sorted(np.asarray(sample(draws._replace(count=jnp.int32(r)), workers, share)).tolist()) for r in range(rounds)
  ]


# ---- samples


@pytest.mark.parametrize("workers, share, count", [(8, 0.5, 4), (8, 0.1, 1), (5, 0.5, 2), (8, 1.0, 8), (1, 0.3, 1)])
def test_a_sample_has_the_right_number_of_distinct_workers(workers, share, count):
  for ranks in samples(5, workers, share):
    assert len({*ranks}) == count == len(ranks) and {*ranks} <= {*range(workers)}


def test_all_workers_are_sampled_equally_often():
  rounds = 400
  frequency = np.bincount(np.concatenate(samples(rounds)), minlength=8) / rounds
  assert np.abs(frequency - 0.5).max() < 4 * 0.5 / rounds**0.5
  assert samples(5) == samples(400)[:5] != samples(5, seed=1)


@pytest.mark.parametrize("inner", ["momentum", pytest.param("adam", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", SAMPLED)
def test_a_sample_of_the_workers_equals_the_reference(name, inner):
  x0, grad = reference.problem(8, 12)
  hyper = {"period": 3, **SAMPLED[name]}
  params, evaluate, _ = run(build(name, INNER[inner][0], **hyper))
  how = {"workers": 8, "steps": 12, "inner": INNER[inner][1], "samples": samples(5)}
  expected = reference.TWINS[name](x0, grad, **how, **hyper)
  close(params, expected.params)
  close(evaluate, np.repeat(expected.evaluate[:, None], 8, axis=1))


# ---- FedAvg


def test_fedavg_of_all_workers_with_plain_sgd_is_local_sgd():
  ours = run(build("fedavg", INNER["sgd"][0], period=4, share=1.0))
  same(ours, run(build("local_sgd", INNER["sgd"][0], period=4)))


def test_momentum_is_reset_in_each_round():
  """The first round is that of local SGD; the second is that of a run that starts from the first average."""
  ours = run(build("fedavg", INNER["momentum"][0], period=4, share=1.0))[0]
  local = run(build("local_sgd", INNER["momentum"][0], period=4))[0]
  close(ours[:4], local[:4])
  assert not np.allclose(ours[4:8], local[4:8])
  later = lambda worker, step, x: reference.problem(8, 12)[1](worker, step + 4, x)  # noqa: E731
  fresh = run(build("fedavg", INNER["momentum"][0], period=4, share=1.0), steps=8, grad=later, x0=ours[3])[0]
  close(ours[4:], fresh)


STAIRS = optax.piecewise_constant_schedule(0.1, {3: 0.5, 6: 0.5})
SCHEDULED = {  # the same optimizer in three forms
  "schedule": optax.sgd(STAIRS),
  "injected": optax.inject_hyperparams(optax.sgd)(STAIRS),
  "nested in an injected scale": optax.inject_hyperparams(
    lambda scale: optax.chain(optax.sgd(STAIRS), optax.scale(scale))
  )(1.0),
}


@pytest.mark.parametrize("schedule", SCHEDULED)
def test_a_learning_rate_schedule_is_not_reset(schedule):
  decaying = lenient(SCHEDULED[schedule])
  same(run(build("fedavg", decaying, period=4, share=1.0)), run(build("local_sgd", decaying, period=4)))


@pytest.mark.parametrize("name", ["fedavg", "fednova", "scaffold"])
def test_a_schedule_of_the_weight_decay_is_not_reset(name):
  inner = lenient(optax.chain(optax.add_decayed_weights(lambda step: jnp.where(step < 5, 0.5, 0.0)), optax.sgd(0.1)))
  x0, zero = np.ones(7), lambda worker, step, x: 0 * x
  algorithms = build(name, inner, 2, period=5, share=1.0), build("local_sgd", inner, 2, period=5)
  ours, plain = (drive(algorithm, x0, zero, workers=2, steps=15)[1] for algorithm in algorithms)
  close(np.array(ours)[[4, 9, 14]], np.array(plain)[[4, 9, 14]])


def test_an_injected_learning_rate_is_not_reset():
  inner = optax.inject_hyperparams(optax.sgd)(0.1, momentum=0.9)
  _, old = inner.update(jnp.ones(3), inner.init(jnp.ones(3)))
  old = optax.tree_utils.tree_set(old, learning_rate=jnp.asarray(0.02))
  new = restart(inner, old, jnp.ones(3))
  close(optax.tree_utils.tree_get(new, "learning_rate"), 0.02)
  close(optax.tree_utils.tree_get(old, "trace"), np.ones(3))
  close(optax.tree_utils.tree_get(new, "trace"), np.zeros(3))


# ---- SCAFFOLD


@pytest.mark.parametrize("period", [1, 3])
def test_with_plain_sgd_control_variates_are_those_of_option_two(period):
  """The paper's form contains the rate of the inner steps."""
  x0, grad = reference.problem(8, 12)
  hyper = {"period": period, **SAMPLED["scaffold"]}
  how = {"workers": 8, "steps": 12, "inner": INNER["sgd"][1], "samples": samples(13), "rate": 0.1}
  close(run(build("scaffold", INNER["sgd"][0], **hyper))[0], reference.scaffold(x0, grad, **how, **hyper).params)


def without_control_variates(algorithm):
  """Remove the control variates from SCAFFOLD."""
  (exchange,) = algorithm.exchanges

  def merge(*args):
    params, state = exchange.merge(*args)
    zeros = jax.tree.map(jnp.zeros_like, state.all)
    return params, state._replace(own=zeros, all=zeros)

  return algorithm._replace(exchanges=(exchange._replace(merge=merge),))


@pytest.mark.parametrize("share", [0.5, 1.0])
def test_without_control_variates_scaffold_is_fedavg(share):
  ours = build("scaffold", INNER["adam"][0], period=3, share=share, server_rate=1.0)
  fedavg = run(build("fedavg", INNER["adam"][0], period=3, share=share))[0]
  close(run(without_control_variates(ours))[0], fedavg)
  assert not np.allclose(run(ours)[0], fedavg)


def test_equal_workers_train_like_one():
  """Without heterogeneity FedAvg does not depend on the sample, and SCAFFOLD of all workers corrects nothing."""
  grad = lambda worker, step, x: reference.problem(8, 12)[1](0 * worker, step, x)  # noqa: E731
  fedavg = run(build("fedavg", INNER["sgd"][0], period=3, share=0.5), grad=grad)
  same(fedavg, run(build("independent", INNER["sgd"][0]), grad=grad))
  ours = run(build("scaffold", INNER["sgd"][0], period=3, share=1.0, server_rate=1.0), grad=grad)[0]
  close(ours, fedavg[0])


@pytest.mark.parametrize("share", [0.5, 1.0])
def test_c_is_the_mean_of_the_control_variates(share):
  state = run(build("scaffold", INNER["adam"][0], period=3, share=share, server_rate=0.7))[2]
  jax.tree.map(lambda own, c: close(c, np.repeat(np.mean(own, axis=0)[None], 8, axis=0)), state.own, state.all)
  assert np.ptp(state.own["kernel"], axis=0).max() > 0.1


@pytest.mark.slow
def test_scaffold_converges_to_the_minimum_and_fedavg_does_not():
  """The mean loss is that of quadratics (a_i / 2) (x - b_i)^2."""
  curvature, target = np.linspace(0.2, 1.6, 8), np.linspace(-3.0, 2.0, 8)
  grad = lambda worker, step, x: jnp.asarray(curvature)[worker] * (x - jnp.asarray(target)[worker])  # noqa: E731
  minimum = np.full(7, curvature @ target / curvature.sum())
  ends = {}
  for name, more in {"fedavg": {}, "scaffold": {"server_rate": 1.0}}.items():
    ends[name] = run(build(name, INNER["sgd"][0], period=5, share=1.0, **more), steps=300, grad=grad)[1][-1, 0]
  np.testing.assert_allclose(ends["scaffold"], minimum, rtol=1e-6)
  assert np.abs(ends["fedavg"] - minimum).min() > 0.05


@pytest.mark.parametrize("name", SAMPLED)
@pytest.mark.parametrize("share", [0.0, -0.5, 1.5])
def test_an_invalid_share_is_refused(name, share):
  with pytest.raises(ValueError, match=rf"^{name}\.share must be in \(0, 1\], got {share:g}\.$") as refused:
    build(name, INNER["sgd"][0], **({"period": 3} | SAMPLED[name] | {"share": share}))
  assert "\n" not in str(refused.value)
