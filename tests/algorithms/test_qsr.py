"""The quadratic synchronization rule: its rounds, and the algorithms that follow it, in float64 at rtol 1e-12."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers.runs import OUTER, STEPS, WORKERS, make, record
from helpers.twins import INNER, build, close, drive, flat_of, tree_of
from hypothesis import given
from hypothesis import strategies as st
from reference import collective as reference
from reference import qsr as qsr_reference

import ddl
from ddl.algorithms import COLLECTIVE, SERVER
from ddl.algorithms.qsr import rounds
from ddl.config.catalog import has_varying_period
from ddl.engine.execution import ExecutionConfig
from ddl.errors import OptionError
from ddl.schedule import Schedule

pytestmark = pytest.mark.usefixtures("x64", "standard_promotion")

FEDERATED = {"share": 1.0}
METHODS = {  # hyperparameters other than the period
  "local_sgd": {},
  "fedavg": FEDERATED,
  "scaffold": FEDERATED | {"server_rate": 0.7},
  "dasgd": {"delay": 1, "keep": 0.25},
  "slowmo": {"slow_rate": 0.9, "slow_momentum": 0.5},
  "bmuf": {"block_learning_rate": 0.9, "block_momentum": 0.5, "nesterov": True},
  "diloco": OUTER,
  "snoo": OUTER,
  "muloco": OUTER,
}
RATE = optax.cosine_decay_schedule(0.1, STEPS)
ALPHA, LEAST = 0.2, 2  # periods 4, 7, 1 in 12 steps


@pytest.fixture
def standard_promotion():
  """Use standard type promotion, as users do; the schedules of optax need it."""
  with jax.numpy_dtype_promotion("standard"):
    yield


def periods(rule, steps):
  """Return the periods of the rounds of a run."""
  taus = []
  while sum(taus) < steps:
    taus.append(rule(len(taus)))
  return taus


def run(name, period, steps=STEPS):
  x0, grad = reference.problem(WORKERS, steps)
  return drive(build(name, INNER["momentum"][0], WORKERS, period=period, **METHODS[name]), x0, grad,
               workers=WORKERS, steps=steps)  # fmt: skip


# ---- the rule


@pytest.mark.parametrize("alpha, power", [(0.051, 2.0), (0.31, 2.0), (0.37, 1.0), (0.21, 3.0), (0.0, 2.0)])
@pytest.mark.parametrize("warmup", [0, 7])
def test_rounds_equal_those_of_the_authors_code(alpha, power, warmup):
  """H_init is the period of the peak."""
  steps = 100
  cosine = lambda t: 0.1 * (1 + math.cos(math.pi * (t - warmup) / (steps - warmup))) / 2  # noqa: E731
  rate = lambda t: 0.1 * t / warmup if t < warmup else cosine(t)  # noqa: E731
  schedule = optax.cosine_decay_schedule(0.1, steps - warmup)
  if warmup:
    schedule = optax.join_schedules([optax.linear_schedule(0.0, 0.1, warmup), schedule], [warmup])
  init_h = max(3, int((alpha / 0.1) ** power * (1 + 1e-9)))
  how = {"steps": steps, "alpha": alpha, "power": power, "min_h": 3, "init_h": init_h, "warmup": warmup}
  expected = qsr_reference.averages(rate, **how)
  times = np.cumsum(periods(ddl.qsr(schedule, steps, alpha=alpha, least=3, power=power), steps)).tolist()
  assert times[-1] == steps and times == expected + [steps] * (times[-1] > expected[-1])


@given(
  st.lists(st.floats(0, 1), min_size=1, max_size=80), st.floats(0, 10), st.integers(1, 9), st.sampled_from([1.0, 2.0])
)
def test_rounds_end_with_the_run_and_grow_as_the_rate_falls(rates, alpha, least, power):
  falling = np.sort(np.array(rates))[::-1]
  taus = rounds(falling, alpha, least, power)
  assert sum(taus) == len(falling) and min(taus[:-1], default=least) >= least
  assert taus[:-1] == sorted(taus[:-1])


def test_a_rate_of_zero_at_the_end_gives_one_round_until_the_end():
  assert rounds(np.array([1.0] * 8 + [0.0] * 30), 1.5, 2, 2.0) == [2, 2, 2, 2, 30]


def test_a_constant_rate_is_exact_in_float32():
  """alpha / eta is 4 - 6e-8 if the rate is rounded to float32."""
  schedule = optax.constant_schedule(np.float32(0.1))
  assert periods(ddl.qsr(schedule, 64, alpha=0.4, least=1), 64) == [16] * 4
  assert periods(ddl.qsr(0.1, 70, alpha=0.4, least=1), 70) == [16] * 4 + [6]


def test_rounds_after_the_run_have_the_mean_period():
  rule = ddl.qsr(0.1, 70, alpha=0.4, least=1)
  assert [rule(k) for k in (4, 5, 1000)] == [6, 14, 14]
  assert [int(rule(jnp.int32(k))) for k in (0, 4, 5, 1000)] == [16, 6, 14, 14]


@pytest.mark.parametrize("rate, settings", [(0.1, {"alpha": -1.0}), (0.1, {"alpha": 0.1, "least": 0}),
                                            (0.1, {"alpha": 0.1, "power": 0.0}), ("x", {"alpha": 0.1})])  # fmt: skip
def test_invalid_settings_are_refused(rate, settings):
  with pytest.raises(OptionError) as refused:
    ddl.qsr(rate, 10, **settings)
  assert refused.value.option.startswith("qsr.")


def test_the_devices_are_not_needed_before_the_first_period():
  def schedule(step):
    calls.append(step)
    return 0.1

  calls = []
  algorithm = ddl.local_sgd(optax.sgd(0.1), period=ddl.qsr(schedule, 10, alpha=0.1))
  Schedule(algorithm.exchanges)
  assert not calls
  assert Schedule(algorithm.exchanges).due(3) and calls


# ---- algorithms with varying periods


def test_algorithms_whose_period_may_vary():
  names = [name for name in COLLECTIVE | SERVER if has_varying_period(name)]
  assert sorted(names) == sorted(METHODS)


@pytest.mark.parametrize("rate, alpha, least, period", [(0.1, 0.2, 2, 4), (0.1, 0.2, 6, 6), (RATE, 0.0, 3, 3)])
def test_a_constant_rate_and_alpha_zero_are_local_sgd(rate, alpha, least, period):
  ours = run("local_sgd", ddl.qsr(rate, STEPS, alpha=alpha, least=least))
  for one, expected in zip(ours[:2], run("local_sgd", period)[:2], strict=True):
    close(one, expected)


def test_a_step_decay_has_two_periods():
  decay = optax.piecewise_constant_schedule(0.1, {4: 0.5})
  ours = run("local_sgd", ddl.qsr(decay, STEPS, alpha=0.1, least=1))
  x0, grad = reference.problem(WORKERS, STEPS)
  post_local_sgd = build("post_local_sgd", INNER["momentum"][0], WORKERS, period=4, start=4)
  post = drive(post_local_sgd, x0, grad, workers=WORKERS, steps=STEPS)
  for one, expected in zip(ours[:2], post[:2], strict=True):
    close(one, expected)


def expected_of(name):
  rate = lambda t: 0.05 * (1 + math.cos(math.pi * t / STEPS))  # noqa: E731
  how = {"steps": STEPS, "alpha": ALPHA, "power": 2, "min_h": LEAST, "init_h": LEAST, "warmup": 0}
  times = qsr_reference.averages(rate, **how)
  assert np.diff([0, *times]).tolist() == [4, 7, 1]
  x0, grad = reference.problem(WORKERS, STEPS)
  how = {"workers": WORKERS, "steps": STEPS, "inner": INNER["momentum"][1]}
  return reference.TWINS[name](x0, grad, **how, period=qsr_reference.Period(times), **METHODS[name])


LAYOUTS = [
  ExecutionConfig("map", "scan", 5),
  ExecutionConfig("unroll", "unroll", 3),
  ExecutionConfig("vmap", "scan", 9),
]


@pytest.mark.parametrize("name", METHODS)
def test_varying_periods_equal_the_reference(name):
  rule, history = ddl.qsr(RATE, STEPS, alpha=ALPHA, least=LEAST), expected_of(name)
  params, evaluate, _ = run(name, rule)
  close(params, history.params)
  close(evaluate, np.repeat(history.evaluate[:, None], WORKERS, axis=1))


@pytest.mark.parametrize("name, devices, how", [(n, (2, 8, 1)[i % 3], LAYOUTS[i % 3]) for i, n in enumerate(METHODS)])
@pytest.mark.sampled(len(METHODS))
def test_compiled_programs_with_varying_periods(name, devices, how):
  history = expected_of(name)
  rule = ddl.qsr(RATE, STEPS, alpha=ALPHA, least=LEAST)
  result = record(make(name, devices, how, period=rule, **METHODS[name]))
  at = np.array(result.ends) - 1
  close(result.params, history.params[at])
  close(result.evaluate, history.evaluate[at])


@pytest.mark.parametrize("name", ["scaffold", "dasgd"])
def test_other_training_loops_with_varying_periods(name):
  """The period is computed while the loop is traced."""
  rule = ddl.qsr(RATE, STEPS, alpha=ALPHA, least=LEAST)
  tx = ddl.as_optax(build(name, INNER["momentum"][0], WORKERS, period=rule, **METHODS[name]), "w")
  x0, grad = reference.problem(WORKERS, STEPS)

  def loop(worker):
    def step(carry, t):
      x, state = carry
      updates, state = tx.update(tree_of(grad(worker, t, flat_of(x))), state, x)
      x = optax.apply_updates(x, updates)
      return (x, state), flat_of(x)

    start = jax.tree.map(jnp.asarray, tree_of(x0))
    return jax.lax.scan(step, (start, tx.init(start)), jnp.arange(STEPS))[1]

  history = jax.jit(jax.vmap(loop, axis_name="w"))(np.arange(WORKERS))
  close(np.swapaxes(np.asarray(history), 0, 1), expected_of(name).params)


@pytest.mark.parametrize("name", ["cocod", "eager_diloco", "streaming_diloco", "noloco", "hierarchical_sgd", "easgd"])
def test_algorithms_with_a_fixed_structure_refuse(name):
  with pytest.raises(OptionError) as refused:
    build(name, INNER["sgd"][0], WORKERS, period=ddl.qsr(0.1, 10, alpha=0.1))
  assert refused.value.option == f"{name}.period" and "\n" not in str(refused.value)
