"""Schedules of the outer learning rate, against NumPy in float64 at rtol 1e-12, with inner momentum."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers import servers
from helpers.runs import HYPER, STEPS, WORKERS, equals_twin, feed, make, model, record
from helpers.twins import close, drive, flat_of, outer_cosine
from reference import collective as reference
from reference import server as server_reference

import ddl
from ddl.algorithms import COLLECTIVE, SERVER
from ddl.config import default_experiment
from ddl.config.catalog import outer_rate
from ddl.engine.compiled_trainer import CompiledTrainer
from ddl.engine.execution import ExecutionConfig
from ddl.engine.injected import RunKey, inject
from ddl.engine.workers import make_workers

pytestmark = pytest.mark.usefixtures("x64", "standard_promotion")

KEYS = {
  **dict.fromkeys(
    ("diloco", "muloco", "edit", "streaming_diloco", "eager_diloco", "noloco", "sparseloco", "snoo"),
    "outer_learning_rate",
  ),
  "bmuf": "block_learning_rate", "slowmo": "slow_rate",
  **dict.fromkeys(("scaffold", "fedadam", "fedyogi", "fedadagrad"), "server_rate"),
}  # fmt: skip
NAMES = list(KEYS)
SCHEDULED = {name: HYPER[name] | {KEYS[name]: outer_cosine} for name in NAMES}
ASYNC = {"outer_momentum": 0.9, "every": 3, "decay": 0.2, "period": 2}
LAYOUTS = [(2, ExecutionConfig("map", "scan", 5)), (8, ExecutionConfig("unroll", "unroll", 3))]


@pytest.fixture
def standard_promotion():
  """Use standard type promotion, as users do; the schedules of optax need it."""
  with jax.numpy_dtype_promotion("standard"):
    yield


def cosine(peak, steps):
  """Return a cosine decay to 0 at outer step `steps`, in NumPy."""
  return lambda step: peak * (1 + math.cos(math.pi * min(step, steps) / steps)) / 2


def experiment_of(name, outer_schedule="cosine", **hyper):
  return default_experiment(
    workers=WORKERS, steps=STEPS, algorithm={"name": name, **(hyper or HYPER[name])},
    optimizer={"name": "sgd", "momentum": 0.9, "learning_rate": 0.05}, outer_schedule={"name": outer_schedule},
  )  # fmt: skip


def expected(name, **hyper):
  x0, grad = reference.problem(WORKERS, STEPS)
  inner = reference.heavy_ball(0.05, 0.9)
  return reference.TWINS[name](x0, grad, workers=WORKERS, steps=STEPS, inner=inner, **HYPER[name] | hyper)


def counts(state):
  return [int(np.ravel(count)[0]) for _, count in optax.tree_utils.tree_get_all_with_path(state.outer, "count")]


def test_algorithms_with_an_outer_rate():
  keys = {name: key for name in COLLECTIVE | SERVER if (key := outer_rate(name))}
  assert keys == {**KEYS, **dict.fromkeys(("async_local_sgd", "decoupled_diloco", "fedbuff"), "outer_learning_rate")}


@pytest.mark.parametrize("name", NAMES)
def test_a_config_schedules_the_rate_over_the_outer_steps_of_the_run(name):
  """The peak is the numeric rate, and the length steps // period."""
  peak, outer_steps = HYPER[name][KEYS[name]], STEPS // HYPER[name]["period"]
  history = expected(name, **{KEYS[name]: cosine(peak, outer_steps)})
  x0, grad = reference.problem(WORKERS, STEPS)
  algorithm = experiment_of(name).make_algorithm()
  params, evaluate, state = drive(algorithm, x0, grad, workers=WORKERS, steps=STEPS)
  close(params, history.params)
  close(evaluate, np.repeat(history.evaluate[:, None], WORKERS, axis=1))
  assert not np.allclose(history.evaluate[-1], expected(name).evaluate[-1])
  # Fragments 0 and 1 arrive after steps 5, 9 and 7, 11.
  assert counts(state) == ([2, 2] if name == "streaming_diloco" else [outer_steps])


@pytest.mark.parametrize("name", NAMES)
def test_only_a_schedule_adds_counts_to_the_state(name):
  def state(schedule):
    algorithm = experiment_of(name, schedule).make_algorithm()
    return drive(algorithm, *reference.problem(WORKERS, STEPS), workers=WORKERS, steps=1)[2]

  plain, scheduled = state("constant"), state("cosine")
  assert not counts(plain) and counts(scheduled)
  assert len(jax.tree.leaves(scheduled)) == len(jax.tree.leaves(plain)) + len(counts(scheduled))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("devices, how", LAYOUTS)
@pytest.mark.sampled(8)
def test_compiled_programs_equal_the_reference(name, devices, how):
  """Each device stores one count, because all workers agree on it."""
  trainer = make(name, devices, how, **SCHEDULED[name])
  equals_twin(trainer, record(trainer), name, "momentum", **SCHEDULED[name])
  per_worker = optax.tree_utils.tree_get_all_with_path(trainer.replication.state.outer, "count")
  assert per_worker and not any(value for _, value in per_worker)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.sampled(8)
def test_runs_of_one_program_that_differ_in_the_peak_equal_the_reference(name):
  experiment, path = experiment_of(name), f"algorithm.{KEYS[name]}"
  assert experiment.traceable(path)
  peaks, key = (0.9, 0.5, 0.2), jax.random.key(0)

  def batches(first, steps):
    return {name: np.stack([x] * len(peaks), axis=1) for name, x in feed(first, steps).items()}

  algorithm = inject(lambda values: experiment.with_numbers(values).make_algorithm(), experiment.numbers([path]))
  trainer = CompiledTrainer(algorithm, model(), make_workers(WORKERS, 2), ExecutionConfig("vmap", "scan", STEPS))
  start = trainer.join([trainer.start(RunKey(key, {path: peak})) for peak in peaks])
  *_, (_, carry, _) = trainer.run(start, trainer.plan(0, STEPS, STEPS), batches, jnp.stack([key] * len(peaks)))
  for peak, consensus in zip(peaks, trainer.consensuses(carry), strict=True):
    history = expected(name, **{KEYS[name]: cosine(peak, STEPS // HYPER[name]["period"])})
    close(flat_of(consensus.params), history.evaluate[-1])


def test_async_local_sgd_counts_the_rounds_of_the_visiting_worker():
  workers, steps = 4, 8
  experiment = default_experiment(
    workers=workers, steps=steps, algorithm={"name": "async_local_sgd", "outer_learning_rate": 0.9, **ASYNC},
    optimizer={"name": "sgd", "momentum": 0.9, "learning_rate": 0.05}, outer_schedule={"name": "cosine"},
  )  # fmt: skip
  x0, grad = reference.problem(workers, 4 * servers.EVENTS)
  order, peers = servers.visits(workers, seed=workers)
  history = server_reference.async_local_sgd(
    x0, grad, order=order, peers=peers, workers=workers, inner=reference.heavy_ball(0.05, 0.9),
    outer_learning_rate=cosine(0.9, steps // ASYNC["period"]), **ASYNC,
  )  # fmt: skip
  params, evaluate, *_ = servers.drive(experiment.make_algorithm(), x0, grad, order, peers, workers=workers)
  close(params, history.params)
  close(evaluate, history.evaluate)


@pytest.mark.parametrize("name", NAMES)
def test_types_of_the_state_do_not_change(name):
  """Also with parameters of two types."""
  algorithm = experiment_of(name).make_algorithm()
  group, params = ddl.Group("w"), {"a": jnp.zeros((2, 3), jnp.float32), "b": jnp.zeros((), jnp.bfloat16)}

  def rounds(params):
    state = after = algorithm.init(group, params, jax.random.key(0))
    for exchange in algorithm.exchanges:
      message, after = exchange.launch(group, after, params)
      params, after = exchange.merge(group, message, after, params)
    return state, after

  before, after = jax.eval_shape(
    jax.vmap(rounds, axis_name="w"), jax.tree.map(lambda x: jnp.stack([x] * WORKERS), params)
  )
  assert jax.tree.map(lambda x: (x.shape, x.dtype), before) == jax.tree.map(lambda x: (x.shape, x.dtype), after)
