"""Optimizers and schedules with optax's names: defaults, weight decay, clipping, and use inside algorithms."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers.twins import build, defaults, drive, flat_of, lenient, tree_of
from helpers.twins import close as to_1e_12
from reference import collective as reference

from ddl.algorithms import COLLECTIVE
from ddl.config import default_experiment
from ddl.config.optimizers import OPTIMIZERS, elementwise, matrices
from ddl.config.schedules import SCHEDULES, recorded
from ddl.errors import OptionError

PARAMS = {"kernel": jnp.arange(1.0, 7.0).reshape(2, 3), "bias": jnp.array([0.5, -2.0, 1.0])}
GRADS = jax.tree.map(lambda x: 0.3 * x**2 - 1, PARAMS)


WHOLE = ("lars", "lamb", "novograd", "muon", "sgd_adamw")  # not element-wise, but by layer or by array


@pytest.fixture(autouse=True)
def standard_promotion():
  """Use standard type promotion, which optax needs."""
  with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
    yield


def step(tx):
  """Return the first update."""
  return tx.update(GRADS, tx.init(PARAMS), PARAMS)[0]


def second_step(tx):
  """Return the second update; Adam's first is only the sign of the gradient."""
  updates, state = tx.update(GRADS, tx.init(PARAMS), PARAMS)
  return tx.update(jax.tree.map(lambda g: 0.1 * g + 1, GRADS), state, optax.apply_updates(PARAMS, updates))[0]


def close(actual, expected):
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), actual, expected)


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.sampled(3)
def test_defaults_and_weight_decay(name):
  """Defaults equal optax's; weight decay applies only to the kernel, unless `decay_all` is set."""
  factory = OPTIMIZERS[name]
  optax_factory = getattr(optax, name, None) or getattr(optax.contrib, name, None)  # None: sgd_adamw
  if optax_factory:
    close(step(factory(0.1, decay_all=True)), step(optax_factory(0.1)))
  plain, masked, everything = (
    second_step(factory(0.1, **settings))
    for settings in ({"weight_decay": 0.0}, {"weight_decay": 0.5}, {"weight_decay": 0.5, "decay_all": True})
  )
  close(masked["bias"], plain["bias"])
  close(masked["kernel"], everything["kernel"])
  if name != "sign_sgd":
    assert not np.allclose(masked["kernel"], plain["kernel"])
    assert name == "muon" or not np.allclose(everything["bias"], plain["bias"])  # muon decays only matrices


def test_weight_decay_is_l2_with_sgd_and_decoupled_with_adamw():
  decayed = step(OPTIMIZERS["sgd"](0.1, weight_decay=0.5))
  close(decayed["kernel"], -0.1 * (GRADS["kernel"] + 0.5 * PARAMS["kernel"]))
  adamw, adam = step(OPTIMIZERS["adamw"](0.1, weight_decay=0.5)), step(OPTIMIZERS["adam"](0.1))
  close(adamw["kernel"], adam["kernel"] - 0.1 * 0.5 * PARAMS["kernel"])


def test_the_global_norm_is_clipped():
  norm = optax.global_norm(GRADS)
  close(step(OPTIMIZERS["sgd"](0.1, clip_norm=1.0)), jax.tree.map(lambda g: -0.1 * g / norm, GRADS))
  close(step(OPTIMIZERS["sgd"](0.1, clip_norm=1e6)), jax.tree.map(lambda g: -0.1 * g, GRADS))


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.sampled(3)
def test_elementwise(name):
  """The result depends neither on a rate of 0 in the first step nor on a decay below the rounding error."""
  rate, decay = optax.linear_schedule(0.0, 0.1, 200), {"weight_decay": 1e-9}
  cases = [decay | {"decay_all": True}, decay, decay | {"decay_all": True, "clip_norm": 1e9}]
  whole = name in WHOLE
  assert [elementwise(OPTIMIZERS[name](rate, **settings)) for settings in cases] == [not whole, False, False]
  assert matrices(PARAMS) == {"kernel": True, "bias": False}


@pytest.mark.parametrize("warmup", [0, 5])
def test_sharded_sync_sgd_refuses_optimizers_that_are_not_elementwise(warmup):
  settings = {"algorithm": {"name": "sharded_sync_sgd"}, "schedule": {"name": "constant", "warmup": warmup}}
  for optimizer in ({"name": "sgd", "weight_decay": 0.1}, {"name": "adam", "clip_norm": 1.0}, {"name": "lamb"}):
    with pytest.raises(OptionError) as caught:
      default_experiment(**settings, optimizer=optimizer)
    assert caught.value.option == "config.optimizer.name"
  default_experiment(**settings, optimizer={"name": "adam", "weight_decay": 0.1, "decay_all": True})


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("warmup", [0, 5])
def test_schedules(name, warmup):
  settings = {"at": (10, 30), "factor": 0.1} if name == "decay" else {}
  floor = {} if name == "constant" else {"floor": 0.25}
  rate = SCHEDULES[name](2.0, 40, warmup=warmup, **settings, **floor)
  values = np.array([float(rate(t) if callable(rate) else rate) for t in range(41)])
  if warmup:
    np.testing.assert_allclose(values[:6], np.linspace(0, 2.0, 6), rtol=1e-6)
  assert values[warmup] == pytest.approx(2.0) and (np.diff(values[warmup:]) <= 1e-6).all()
  assert values[40] == pytest.approx(2.0 if name == "constant" else 0.5, rel=1e-5)
  if name == "cosine":
    t = np.arange(41 - warmup) / (40 - warmup)
    np.testing.assert_allclose(values[warmup:], 2 * (0.25 + 0.75 * (1 + np.cos(np.pi * t)) / 2), rtol=1e-5)
  if name == "exponential":
    t = np.arange(41 - warmup) / (40 - warmup)
    np.testing.assert_allclose(values[warmup:], np.maximum(2 * 0.1**t, 0.5), rtol=1e-5)


def inner_rule(tx, tree_of=tree_of):
  """Convert an optax optimizer to the form of the NumPy references: () -> (gradient [n], params [n]) -> update [n].

  FedNova also calls it with a number as the gradient.
  """

  def inner():
    states = []

    def update(g, x):
      grads, params = map(tree_of if np.ndim(g) else jnp.asarray, (jnp.asarray(g), jnp.asarray(x)))
      updates, state = tx.update(grads, states.pop() if states else tx.init(params), params)
      states.append(state)
      return np.asarray(flat_of(updates))

    return update

  return inner


ROTATION = [name for name in OPTIMIZERS if name not in WHOLE]
PAIRS = [  # each algorithm with two optimizers, and those that are not element-wise with two algorithms
  *((name, ROTATION[(k + shift) % len(ROTATION)]) for k, name in enumerate(COLLECTIVE) for shift in (0, 7)),
  *((name, inner) for name in ("dasgd", "slowmo") for inner in OPTIMIZERS if inner not in ROTATION),
]


@pytest.mark.parametrize("name, inner", PAIRS)
@pytest.mark.sampled(20)
def test_optimizers_inside_algorithms(x64, name, inner):
  tx = lenient(OPTIMIZERS[inner](0.05, weight_decay=0.1, decay_all=name == "sharded_sync_sgd", clip_norm=0.0))
  workers, steps, hyper = 3, 6, defaults(name, 3)
  strips = [lambda flat: flat] if name == "sharded_sync_sgd" else []
  # The reference does not see the moments of an optax state, so they are not averaged within the run.
  hyper = {key: (steps + 1 if "period" in key else 2) if value is None else value for key, value in hyper.items()}
  hyper |= {"share": 1.0} if "share" in hyper else {}  # the reference does not sample workers
  hyper |= {"start": 2} if name == "post_local_sgd" else {}  # has no default
  x0, grad = reference.problem(workers, steps)
  expected = reference.TWINS[name](x0, grad, workers=workers, steps=steps, inner=inner_rule(tx, *strips), **hyper)
  params, _, _ = drive(build(name, tx, workers, **hyper), x0, grad, workers=workers, steps=steps)
  to_1e_12(params, expected.params)


@pytest.mark.parametrize("period", [1, 3])
def test_slowmo_reads_the_rate_of_a_schedule(x64, period):
  """The parameters also agree in the first step of the warm-up, whose rate is 0. All rates are exact in float32."""
  workers, steps, warmup, hyper = 3, 12, 4, {"period": period, "slow_rate": 0.8, "slow_momentum": 0.6}
  experiment = default_experiment(
    workers=workers, steps=steps, algorithm={"name": "slowmo", **hyper},
    optimizer={"name": "sgd", "momentum": 0.0, "learning_rate": 0.125}, schedule={"name": "linear", "warmup": warmup},
  )  # fmt: skip
  rates = optax.join_schedules(
    [optax.linear_schedule(0.0, 0.125, warmup), optax.linear_schedule(0.125, 0.0, steps - warmup)], [warmup]
  )

  def rate(t):
    return float(rates(jnp.int32(t)))  # computed in float32, as optax does for an integer count

  def descent():
    steps_rates = iter(map(rate, range(steps)))
    return lambda g, x: -next(steps_rates) * g

  x0, grad = reference.problem(workers, steps)
  expected = reference.slowmo(
    x0, grad, workers=workers, steps=steps, inner=descent, **hyper, rate=lambda t: rate(t) or 1.0
  )
  to_1e_12(drive(experiment.make_algorithm(), x0, grad, workers=workers, steps=steps)[0], expected.params)


def test_slowmo_reads_the_innermost_recorded_rate(x64):
  """The optimizer uses twice the rate of the schedule, and records it itself."""
  rate = optax.linear_schedule(0.0, 0.125, 16)
  tx = recorded(optax.inject_hyperparams(optax.sgd)(lambda count: 2.0 * rate(count)), rate)
  algorithm = build("slowmo", tx, 2, period=1, slow_rate=1.0, slow_momentum=0.5)
  params, _, _ = drive(algorithm, np.zeros(7), lambda worker, step, x: x + 1, workers=2, steps=4)
  z, u = np.zeros(7), np.zeros(7)
  for step in range(4):
    gamma = step / 64
    u = 0.5 * u + (z + 1) * (gamma > 0)  # (z - xbar) / gamma
    z = z - gamma * u
  to_1e_12(params[-1], np.broadcast_to(z, (2, 7)))


@pytest.mark.parametrize(("rule", "factor"), [("none", 1.0), ("linear", 4.0), ("sqrt", 2.0)])
def test_a_scaling_rule_multiplies_the_rate_by_the_global_batch(rule, factor):
  base = 0 if rule == "none" else 32
  settings = {"workers": 8, "batch": 16, "rate_scaling": rule, "base_batch": base, "schedule": {"name": "cosine"}}
  experiment = default_experiment(optimizer={"learning_rate": 0.05}, **settings)
  schedule = experiment.make_schedule()
  assert callable(schedule) and float(schedule(0)) == pytest.approx(0.05 * factor, rel=1e-6)
  close(step(experiment.make_optimizer()), jax.tree.map(lambda g: -0.05 * factor * g, GRADS))


@pytest.mark.parametrize(
  ("option", "settings"),
  [
    ("config.rate_scaling", {"rate_scaling": "cubic", "base_batch": 32}),
    ("config.base_batch", {"rate_scaling": "linear"}),
    ("config.base_batch", {"base_batch": 32}),
  ],
)
def test_invalid_scaling_rules_are_errors(option, settings):
  with pytest.raises(OptionError) as error:
    default_experiment(**settings)
  assert error.value.option == option
