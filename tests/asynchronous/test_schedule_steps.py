"""Server algorithms in virtual time and on threads against their NumPy references, with step-dependent rates."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers.servers import build
from helpers.simulations import twin_model, twin_rows
from helpers.twins import INNER, close, defaults, flat_of, outer_cosine
from reference import collective
from reference import server as server_reference
from reference.sequential import Sequential

from ddl.algorithms import SERVER
from ddl.asynchronous.simulator import Simulator
from ddl.asynchronous.threads import Threads
from ddl.config.catalog import keywords
from ddl.engine.execution import ExecutionConfig
from ddl.engine.workers import make_workers
from ddl.events.barriers import asp, backup
from ddl.events.operations import stops
from ddl.events.schedule import make_schedule
from ddl.events.times import lognormal

pytestmark = pytest.mark.usefixtures("x64")
WORKERS, STEPS = 4, 12
KEY = jax.random.key(1)
SLOW = {"slow": (1.0, 1.0, 1.0, 3.0)}
DEATHS = {"death_rate": 0.2, "down_seconds": 0.02}


def make(name, inner="falling", **hyper):
  algorithm = build(name, inner, workers=WORKERS, **hyper)
  return algorithm._replace(arrivals=algorithm.arrivals._replace(blocks=0))


def plan(algorithm, barrier=None, **trouble):
  times = lognormal(workers=WORKERS, seed=0, **trouble)
  return make_schedule(
    algorithm, workers=WORKERS, steps=STEPS, times=times, barrier=barrier or asp(), message_seconds=0.001
  )


def simulate(algorithm, schedule, model, devices=1, gradients="map"):
  layout, how = make_workers(WORKERS, devices), ExecutionConfig(gradients, "scan", 64)
  simulator = Simulator(algorithm, model, layout, how, *schedule)
  carry = simulator.start(KEY)
  for _, after, _ in simulator.run(carry, simulator.plan(0, STEPS, STEPS), twin_rows, KEY):
    carry = after
  return simulator, carry


def reference_center(name, events, inner="falling", **hyper):
  """Return the center after the last event, in NumPy."""
  x0, grad = collective.problem(WORKERS, 4 * STEPS)
  order, peers = events.worker, events.peer
  hyper, inner = defaults(name, WORKERS) | hyper, INNER[inner][1]
  twin = server_reference.TWINS[name](x0, grad, order=order, peers=peers, workers=WORKERS, inner=inner, **hyper)
  return twin.evaluate[-1]


PERIODS = [(name, {"period": 3} if "period" in keywords(spec.factory) else {}) for name, spec in SERVER.items()]
PERIODS += [("async_easgd", {"period": 1}), ("downpour", {"period": 4})]
OUTER = ("async_local_sgd", "fedbuff", "decoupled_diloco")
PERIODS += [(name, {"period": 3, "outer_learning_rate": outer_cosine}) for name in OUTER]


@pytest.mark.parametrize("devices, packed", [(1, True), (2, True), (1, False)])
@pytest.mark.parametrize("name, hyper", PERIODS)
@pytest.mark.sampled(6)
def test_simulation_equals_the_reference(name, hyper, devices, packed, monkeypatch):
  monkeypatch.setattr("ddl.engine.execution.PACKED_BYTES", 2**17 if packed else 1)
  algorithm = make(name, **hyper)
  schedule = plan(algorithm, **SLOW)
  assert np.ptp(np.bincount(schedule[0].worker)) > 1 or algorithm.arrivals.round_robin
  simulator, carry = simulate(algorithm, schedule, twin_model(WORKERS, 4 * STEPS), devices)
  assert simulator.is_packed == (packed and name != "decoupled_diloco")
  close(flat_of(simulator.consensus(carry).params), reference_center(name, schedule[0], **hyper))


def schedule_counts(state):
  """Return the step counts of the optimizer schedules in a state: [workers] each."""
  schedules = jax.tree.leaves(state, is_leaf=lambda x: isinstance(x, optax.ScaleByScheduleState))
  return [np.asarray(x.count) for x in schedules if isinstance(x, optax.ScaleByScheduleState)]


@pytest.mark.parametrize(
  "name, hyper, barrier, trouble",
  [
    ("async_easgd", {"period": 3}, None, DEATHS),
    ("downpour", {"period": 3}, backup(spare=1), DEATHS),
    pytest.param("hogwild_sgd", {}, None, DEATHS, marks=pytest.mark.slow),
    pytest.param("dynsgd", {"period": 2}, backup(spare=1), SLOW, marks=pytest.mark.slow),
  ],
)
def test_optimizer_schedules_continue_after_deaths_and_dropped_rounds(name, hyper, barrier, trouble):
  algorithm, model = make(name, **hyper), twin_model(WORKERS, 4 * STEPS)
  events, operations = schedule = plan(algorithm, barrier, **trouble)
  assert events.restarted.any() or events.dropped.any()
  _, carry = simulate(algorithm, schedule, model)
  reference = Sequential(algorithm, model, *schedule, WORKERS)
  reference.start(*model.init(KEY))
  reference.run(0, stops(operations, [len(events.worker)])[0], lambda w, t: ({"worker": [w], "step": [t]}, KEY))
  rounds = np.bincount(events.worker, minlength=WORKERS) - (algorithm.delay > 0)
  (counts,) = schedule_counts(carry.worker.state)
  np.testing.assert_array_equal(counts, rounds * algorithm.period)
  assert [int(*schedule_counts(state)) for state in reference.state] == counts.tolist()


def test_the_mean_message_of_a_quorum_has_the_middle_step_of_its_round():
  """With unit gradients, each round of three steps moves z by three times the rate at its middle step."""
  algorithm = make("downpour", optax.sgd(lambda step: 0.1 * (1 - step / STEPS)), period=3)
  model = twin_model(WORKERS, STEPS)
  unit_gradients = model._replace(
    loss=lambda params, extra, batch, key: (sum(map(jnp.sum, jax.tree.leaves(params))), extra)
  )
  simulator, carry = simulate(algorithm, plan(algorithm, backup(spare=1), **SLOW), unit_gradients)
  fall = sum(3 * 0.1 * (1 - k / STEPS) for k in range(1, STEPS, 3))
  moved = flat_of(simulator.consensus(carry).params) - flat_of(model.init(KEY)[0])
  np.testing.assert_allclose(moved, np.full(7, -fall), rtol=1e-6)  # optax's schedules are in float32


THREADS = [  # with values other than the defaults, besides those of PERIODS
  ("fedbuff", {"period": 3, "buffer": 2}), ("ringmaster_asgd", {"threshold": 2}),
  ("halos", {"period": 3, "merge_every": 2, "link": 1}), ("async_local_sgd", {"period": 3, "every": 2}),
  ("decoupled_diloco", {"period": 3, "quorum": 2}), ("decoupled_diloco", {"period": 3, "delay": 0, "fragments": 2}),
]  # fmt: skip


@pytest.mark.parametrize("name, hyper", PERIODS + THREADS)
@pytest.mark.sampled(6)
def test_threads_equal_the_reference(name, hyper):
  threads = Threads(make(name, **hyper), twin_model(WORKERS, 4 * STEPS), workers=WORKERS, seed=0, barrier=asp())
  start = twin_model(WORKERS, 4 * STEPS).init(KEY)
  visits = WORKERS * STEPS // threads.algorithm.period

  def take(worker, step):
    return {"worker": np.int32([worker]), "step": np.int32([min(step, 4 * STEPS - 1)])}, KEY

  events, _ = threads.run(*start, take, visits, lambda done, losses, snapshot: None)
  assert np.bincount(events.worker).max() * threads.algorithm.period <= 4 * STEPS
  close(flat_of(threads.algorithm.evaluate(threads.server)), reference_center(name, events, **hyper))
