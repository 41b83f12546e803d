"""Optimizers and schedules by their optax names: settings, weight decay, clipping; each inside every algorithm."""

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
from ddl.config.optimizers import COMMON, OPTIMIZERS, elementwise, matrices
from ddl.config.schedules import SCHEDULES, recorded

PARAMS = {"kernel": jnp.arange(1.0, 7.0).reshape(2, 3), "bias": jnp.array([0.5, -2.0, 1.0])}
GRADS = jax.tree.map(lambda x: 0.3 * x**2 - 1, PARAMS)


@pytest.fixture(autouse=True)
def as_users_run():
  """Optax itself is not strict about dtypes."""
  with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
    yield


def step(tx):
  """The first update."""
  return tx.update(GRADS, tx.init(PARAMS), PARAMS)[0]


def two_steps(tx):
  """The second update: the first of Adam's kind has the sign alone."""
  updates, state = tx.update(GRADS, tx.init(PARAMS), PARAMS)
  return tx.update(jax.tree.map(lambda g: 0.1 * g + 1, GRADS), state, optax.apply_updates(PARAMS, updates))[0]


def close(actual, expected):
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), actual, expected)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_defaults_are_optax_own(name):
  theirs = getattr(optax, name, None) or getattr(optax.contrib, name)
  result, expected = (step(tx) for tx in (OPTIMIZERS[name](0.1, **({"decay_all": True})), theirs(0.1)))
  close(result, expected)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_weight_decay_leaves_biases_alone_unless_asked(name):
  plain, masked, everything = (
    two_steps(OPTIMIZERS[name](0.1, **settings))
    for settings in ({"weight_decay": 0.0}, {"weight_decay": 0.5}, {"weight_decay": 0.5, "decay_all": True})
  )
  close(masked["bias"], plain["bias"])
  close(masked["kernel"], everything["kernel"])
  if name != "sign_sgd":
    assert not np.allclose(masked["kernel"], plain["kernel"])
    assert name == "muon" or not np.allclose(everything["bias"], plain["bias"])  # muon's decay is of what it turns


def test_decay_is_l2_where_optax_has_none_and_decoupled_where_it_has():
  decayed = step(OPTIMIZERS["sgd"](0.1, weight_decay=0.5))
  close(decayed["kernel"], -0.1 * (GRADS["kernel"] + 0.5 * PARAMS["kernel"]))
  adamw, adam = step(OPTIMIZERS["adamw"](0.1, weight_decay=0.5)), step(OPTIMIZERS["adam"](0.1))
  close(adamw["kernel"], adam["kernel"] - 0.1 * 0.5 * PARAMS["kernel"])


def test_the_global_norm_is_clipped():
  norm = optax.global_norm(GRADS)
  close(step(OPTIMIZERS["sgd"](0.1, clip_norm=1.0)), jax.tree.map(lambda g: -0.1 * g / norm, GRADS))
  close(step(OPTIMIZERS["sgd"](0.1, clip_norm=1e6)), jax.tree.map(lambda g: -0.1 * g, GRADS))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_which_are_element_wise(name):
  """Also where nothing moves at first, and where the decay is smaller than the parameters' rounding."""
  rate, decay = optax.linear_schedule(0.0, 0.1, 200), {"weight_decay": 1e-9}
  cases = [decay | {"decay_all": True}, decay, decay | {"decay_all": True, "clip_norm": 1e9}]
  whole = name in ("lars", "lamb", "novograd", "muon")
  assert [elementwise(OPTIMIZERS[name](rate, **settings)) for settings in cases] == [not whole, False, False]
  assert matrices(PARAMS) == {"kernel": True, "bias": False}


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("warmup", [0, 5])
@pytest.mark.sampled(3)
def test_strips_refuse_what_looks_at_layers(name, warmup):
  """The two first steps of a warm-up hardly move anything."""
  settings = {"algorithm": {"name": "sharded_sync_sgd"}, "schedule": {"name": "constant", "warmup": warmup}}
  refused = [{"clip_norm": 1.0}, {"weight_decay": 0.1}] + [{}] * (name in ("lamb", "lars", "muon", "novograd"))
  for optimizer in refused:
    with pytest.raises(ValueError, match="decay_all"):
      default_experiment(**settings, optimizer={"name": name, **optimizer})
  if len(refused) == 2:
    default_experiment(**settings, optimizer={"name": name, "weight_decay": 0.1, "decay_all": True})


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


def test_common_settings_are_of_every_optimizer():
  for make in OPTIMIZERS.values():
    make(0.1, **COMMON)


def plain(tx, tree_of=tree_of):
  """The optax rule as a NumPy twin takes one: () -> (gradient [n], params [n]) -> update [n]."""

  def inner():
    states = []

    def update(g, x):
      grads, params = tree_of(jnp.asarray(g)), tree_of(jnp.asarray(x))
      updates, state = tx.update(grads, states.pop() if states else tx.init(params), params)
      states.append(state)
      return np.asarray(flat_of(updates))

    return update

  return inner


@pytest.mark.parametrize("inner", OPTIMIZERS)
@pytest.mark.parametrize("name", COLLECTIVE)
@pytest.mark.sampled(67)
def test_every_optimizer_inside_every_algorithm(x64, name, inner):
  tx = lenient(OPTIMIZERS[inner](0.05, weight_decay=0.1, decay_all=name == "sharded_sync_sgd", clip_norm=0.0))
  if name == "sharded_sync_sgd" and not elementwise(tx):
    pytest.skip("refused")
  workers, steps, hyper = 3, 6, defaults(name, 3)
  strips = [lambda flat: flat] if name == "sharded_sync_sgd" else []
  hyper = {key: 2 if value is None else value for key, value in hyper.items()}
  hyper |= {"share": 1.0} if "share" in hyper else {}  # the twin draws no samples of its own
  x0, grad = reference.problem(workers, steps)
  twin = reference.TWINS[name](x0, grad, workers=workers, steps=steps, inner=plain(tx, *strips), **hyper)
  params, _, _ = drive(build(name, tx, workers, **hyper), x0, grad, workers=workers, steps=steps)
  to_1e_12(params, twin.params)


@pytest.mark.parametrize("period", [1, 3])
def test_slow_momentum_reads_the_rate_of_a_schedule(x64, period):
  """The first step of a warm-up has a rate of zero: nothing moves. Eighths and quarters are exact in float32."""
  workers, steps, warmup, hyper = 3, 12, 4, {"period": period, "slow_rate": 0.8, "slow_momentum": 0.6}
  experiment = default_experiment(
    workers=workers, steps=steps, algorithm={"name": "slowmo", **hyper},
    optimizer={"name": "sgd", "momentum": 0.0, "learning_rate": 0.1}, schedule={"name": "linear", "warmup": warmup},
  )  # fmt: skip
  rates = optax.join_schedules(
    [optax.linear_schedule(0.0, 0.1, warmup), optax.linear_schedule(0.1, 0.0, steps - warmup)], [warmup]
  )

  def rate(t):
    return float(rates(jnp.int32(t)))  # a count, as optax has it: its division gives float32

  def descent():
    steps_rates = iter(map(rate, range(steps)))
    return lambda g, x: -next(steps_rates) * g

  x0, grad = reference.problem(workers, steps)
  twin = reference.slowmo(x0, grad, workers=workers, steps=steps, inner=descent, **hyper, rate=lambda t: rate(t) or 1.0)
  to_1e_12(drive(experiment.make_algorithm(), x0, grad, workers=workers, steps=steps)[0], twin.params)


def test_the_rate_that_an_optimizer_uses_counts_where_it_records_that_too(x64):
  """The innermost of two records: the optimizer takes twice the rate of the schedule."""
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
