"""Numbers of steps per round that depend on the workers' speeds, in schedules, waves, threads and runs."""

import jax
import numpy as np
import pytest
from helpers.servers import build
from helpers.simulations import (
  KEY,
  STEPS,
  TROUBLE,
  WORKERS,
  events_of,
  experiment,
  leaves,
  of_workers,
  one_by_one,
  simulate,
  twin_model,
  twin_rows,
)
from helpers.twins import INNER, close, defaults, flat_of, outer_cosine
from hypothesis import given
from hypothesis import strategies as st
from reference import collective
from reference.server import TWINS

import ddl
from ddl.algorithms import SERVER
from ddl.algorithms.dylu import local_steps
from ddl.asynchronous.simulator import Simulator
from ddl.asynchronous.threads import Threads
from ddl.config.catalog import keywords
from ddl.engine.execution import ExecutionConfig
from ddl.engine.workers import make_workers
from ddl.errors import OptionError
from ddl.events import record
from ddl.events.barriers import Quorum, asp, backup, ssp
from ddl.events.cluster import worker_periods
from ddl.events.schedule import check_schedule, make_schedule, visits_until
from ddl.events.times import constant, lognormal, trace
from ddl.library.functions import train

SPEEDS = (1.0, 1.5, 1.0, 3.0)
PERIOD, PERIODS = 20, (20, 13, 20, 6)
HYPER = {
  "fedbuff": {
    "buffer": 3,
    "weight": "polynomial",
    "outer_learning_rate": 0.5,
    "outer_momentum": 0.9,
    "nesterov": True,
  },
  "async_local_sgd": {"outer_learning_rate": outer_cosine, "outer_momentum": 0.9, "every": 3, "decay": 0.1},
  "halos": {"local_every": 2, "merge_every": 3, "global_every": 2, "link": 1},  # by default with DyLU
}


def with_periods(algorithm, periods):
  return algorithm._replace(periods=lambda times: periods)


# ---- the rule


def test_dylu_of_the_authors_speeds():
  """Liu et al.: .58, .75, 1.51 and 3.33 s per step with H = 20; at least 5 steps."""
  assert local_steps(20)([t / 0.58 for t in (0.58, 0.75, 1.51, 3.33)]) == (20, 15, 7, 5)


@given(st.integers(1, 50), st.lists(st.floats(1, 50), min_size=1, max_size=5))
def test_dylu_is_at_most_the_period_and_equal_for_equal_speeds(period, times):
  assert local_steps(period)([1.0] * len(times)) == (period,) * len(times)
  for time, steps in zip(times, local_steps(period)(times), strict=True):
    assert 1 <= steps <= period and (steps * time <= period * (1 + 1e-6) or steps <= 5)
  whole = [float(round(time)) for time in times]
  assert local_steps(period)(whole) == tuple(min(period, max(5, period // int(time))) for time in whole)


def test_step_times_are_relative_to_the_fastest_worker(tmp_path):
  seen = []
  algorithm = build("fedbuff", workers=2, period=4)._replace(periods=lambda times: seen.append(times) or [4, 2])
  (tmp_path / "times.csv").write_text("1,3\n3,5\n")
  for times in (lognormal(workers=2, seed=0, slow=(3.0, 1.5)), trace(workers=2, seed=0, path=f"{tmp_path}/times.csv")):
    assert worker_periods(algorithm, times.means) == (4, 2)
  assert seen == [[2.0, 1.0], [1.0, 2.0]]


@pytest.mark.parametrize("periods", [(4, 4), (4, 4, 0), (4, 4, 5), (4, 4, 1.5)])
def test_invalid_periods_are_refused(periods):
  algorithm = with_periods(build("fedbuff", workers=3, period=4), periods)
  with pytest.raises(OptionError) as error:
    worker_periods(algorithm, (1.0, 1.0, 2.0))
  assert (error.value.option, error.value.value) == ("the periods of the algorithm", periods)


# ---- schedules


def plan(algorithm, steps=60, barrier=None, slow=SPEEDS, **times):
  return make_schedule(
    algorithm, workers=WORKERS, steps=steps, times=lognormal(workers=WORKERS, seed=0, slow=slow, **times),
    barrier=barrier or asp(), message_seconds=0.001,
  )  # fmt: skip


def test_workers_of_different_speeds_arrive_at_the_same_rate():
  algorithm = build("fedbuff", workers=WORKERS, period=PERIOD, dylu=True)
  events, _ = make_schedule(
    algorithm, workers=WORKERS, steps=400, times=constant(workers=WORKERS, seed=0, slow=SPEEDS), message_seconds=0.0
  )
  record.check(events, WORKERS)
  assert [int(events.period[events.worker == worker][0]) for worker in range(WORKERS)] == list(PERIODS)
  visits = np.bincount(events.worker)
  assert visits.max() < 1.2 * visits.min()
  fixed, _ = make_schedule(
    build("fedbuff", workers=WORKERS, period=PERIOD), workers=WORKERS, steps=400,
    times=constant(workers=WORKERS, seed=0, slow=SPEEDS),
  )  # fmt: skip
  assert np.bincount(fixed.worker).max() > 2.5 * np.bincount(fixed.worker).min()
  spans = events.arrival - events.start
  np.testing.assert_allclose(spans, 0.01 * events.period * np.array(SPEEDS)[events.worker], rtol=1e-9)


@pytest.mark.parametrize("barrier", [None, ssp(bound=1), backup(spare=1)])
def test_a_run_has_as_many_steps_as_with_equal_speeds(barrier):
  algorithm = build("fedbuff", workers=WORKERS, period=PERIOD, dylu=True, buffer=1)  # a quorum refuses larger buffers
  for steps in (20, 60, 100):
    events, operations = plan(algorithm, steps, barrier)
    check_schedule(algorithm, events, operations, WORKERS)
    count = visits_until(algorithm, events, WORKERS, steps)
    done = np.cumsum(events.period)
    assert done[count - 1] <= steps * WORKERS
    assert len(events.worker) - count < (WORKERS if isinstance(barrier, Quorum) else 1)  # a quorum ends whole rounds
    missing = steps * WORKERS - done[[count - 2, count - 1]]
    assert missing[1] < PERIOD <= missing[0]
    with pytest.raises(OptionError):
      visits_until(algorithm, events, WORKERS, steps + 4 * PERIOD)


@pytest.mark.parametrize("name", HYPER)
def test_equal_speeds_give_the_same_schedule(name):
  one, other = (plan(build(name, workers=WORKERS, period=PERIOD, dylu=dylu), slow=()) for dylu in (False, True))
  for a, b in zip([*one[0], *one[1]], [*other[0], *other[1]], strict=True):
    np.testing.assert_array_equal(a, b)


def test_a_schedule_with_other_periods_is_refused():
  algorithm = build("fedbuff", workers=WORKERS, period=PERIOD, dylu=True)
  schedule = plan(algorithm)
  for other in (build("fedbuff", workers=WORKERS, period=PERIOD), with_periods(algorithm, None)._replace(period=13)):
    with pytest.raises(OptionError) as error:
      check_schedule(other, *schedule, WORKERS)
    assert (error.value.option, error.value.value) == ("the periods of the schedule", [6, 13, 20])


# ---- waves and threads


DELAYED = {"alpha": 0.1, "period": 3}


@pytest.mark.parametrize(
  "name, hyper, periods, trouble",
  [
    ("fedbuff", {"period": 4}, (4, 2, 1, 3), TROUBLE),
    ("async_easgd", DELAYED, (3, 1, 1, 2), TROUBLE),
    ("downpour", {"period": 3}, (3, 2, 1, 3), {"death_rate": 0.2, "down_seconds": 0.02}),
    ("async_easgd", DELAYED, (3, 1, 1, 2), {"death_rate": 0.2, "down_seconds": 0.02}),
  ],
)
@pytest.mark.parametrize("gradients", ["map", "unroll"])
@pytest.mark.sampled(4)
def test_waves_equal_one_event_at_a_time_bit_for_bit(optimized, name, hyper, periods, trouble, gradients):
  config = experiment(name, **hyper)
  config = config._replace(algorithm=with_periods(config.algorithm, periods))
  events, _ = schedule = events_of(config.algorithm, **trouble)
  assert set(events.period.tolist()) == set(periods) and events.restarted.any() == ("death_rate" in trouble)
  simulator, carry, losses = simulate(config, schedule, gradients=gradients)
  reference = one_by_one(config, schedule)
  for a, b in zip(leaves(carry.worker.params), leaves(of_workers(reference)), strict=True):
    assert a.tobytes() == b.tobytes()
  count = visits_until(config.algorithm, events, WORKERS, STEPS)
  steps = events.period[:count][simulator.plans.has_steps[:count]].sum()
  assert len(losses) == steps and np.all(losses > 0)


@pytest.mark.parametrize("devices, gradients", [(1, "vmap"), (2, "unroll")])
@pytest.mark.parametrize("name", HYPER)
@pytest.mark.sampled(2)
def test_simulation_equals_the_reference(x64, name, devices, gradients):
  """The slowest worker takes 6 steps per round; `falling` decreases with a worker's own steps."""
  algorithm, steps = make(name, "falling adam"), 60
  events, operations = plan(algorithm, steps)
  assert set(events.period.tolist()) == set(PERIODS)
  layout, how = make_workers(WORKERS, devices), ExecutionConfig(gradients, "scan", 64)
  simulator = Simulator(algorithm, twin_model(WORKERS, 4 * steps), layout, how, events, operations)
  carry = simulator.start(KEY)
  for _, after, _ in simulator.run(carry, simulator.plan(0, steps, 25), twin_rows, KEY):
    carry = after
  close(flat_of(simulator.consensus(carry).params), expected(name, events, steps, "falling adam"))


def make(name, inner):
  assert {name for name, spec in SERVER.items() if "dylu" in keywords(spec.factory)} == set(HYPER)
  default = keywords(SERVER[name].factory)["dylu"].default
  return build(name, inner, workers=WORKERS, period=PERIOD, **HYPER[name], **({} if default else {"dylu": True}))


def expected(name, events, steps, inner):
  x0, grad = collective.problem(WORKERS, 4 * steps)
  hyper = defaults(name, WORKERS) | HYPER[name] | {"period": PERIOD, "dylu": PERIODS}
  order, peers, inner = events.worker, events.peer, INNER[inner][1]
  return TWINS[name](x0, grad, order=order, peers=peers, workers=WORKERS, inner=inner, **hyper).evaluate[-1]


@pytest.mark.parametrize("barrier", [asp(), ssp(bound=0)])
@pytest.mark.parametrize("name", HYPER)
@pytest.mark.sampled(2)
def test_threads_equal_the_reference(x64, name, barrier):
  algorithm = make(name, "momentum")
  model, steps, visits = twin_model(WORKERS, 4 * 60), 60, 12
  threads = Threads(algorithm, model, workers=WORKERS, seed=0, barrier=barrier, step_times=SPEEDS)
  assert threads.periods == PERIODS

  def take(worker, step):
    return {"worker": np.int32([worker]), "step": np.int32([min(step, 239)])}, KEY

  completed = []  # after each visit
  events, _ = threads.run(
    *model.init(KEY), take, visits, lambda done, losses, snapshot: completed.append(threads.progress().visits)
  )
  record.check(events, WORKERS)
  assert visits * PERIOD - max(PERIODS) < events.period.sum() <= visits * PERIOD
  assert threads.progress().visits == visits
  assert visits_until(algorithm, events, WORKERS, steps) == len(events.worker)
  for step in range(5, steps + 1, 5):  # a replay evaluates after the same visits
    assert visits_until(algorithm, events, WORKERS, step) == np.searchsorted(completed, step * WORKERS // PERIOD) + 1
  if barrier == asp():  # with a barrier, workers read
    close(flat_of(algorithm.evaluate(threads.server)), expected(name, events, 60, "momentum"))


# ---- runs


FEDBUFF = {"name": "fedbuff", "period": 8, "buffer": 2}


def run(folder, dylu, slow=()):
  return train(
    algorithm=FEDBUFF | {"dylu": dylu}, workers=4, steps=24, batch=4, eval_every=8, model={"hidden": (4,)},
    times={"slow": slow}, workdir=str(folder),
  )  # fmt: skip


@pytest.mark.slow
def test_a_run_with_equal_speeds_is_the_same_bit_for_bit(tmp_path):
  plain, dynamic = (run(tmp_path / str(dylu), dylu) for dylu in (False, True))
  for a, b in zip(*(jax.tree.leaves(result.params) for result in (plain, dynamic)), strict=True):
    assert np.asarray(a).tobytes() == np.asarray(b).tobytes()
  slower = run(tmp_path / "slower", True, (1.0, 1.0, 1.0, 1.5))
  events = record.load(tmp_path / "slower" / "events.npz")
  assert set(events.period.tolist()) == {8, 5} and events.period.sum() > 24 * 4 - 8
  assert isinstance(slower, type(plain)) and hasattr(ddl, "fedbuff")


@pytest.mark.slow
def test_threads_of_a_run_use_the_step_times_of_the_config(call, tmp_path):
  flags = ("--config=configs/async_easgd_digits.py", "--config.algorithm.name=fedbuff", "--config.algorithm.alpha=None")
  flags += ("--config.algorithm.period=8", "--config.algorithm.dylu=True", "--config.model.hidden=(4,)")
  flags += ("--config.workers=2", "--config.steps=16", "--config.batch=4", "--config.times.slow=(1.0,1.5)")
  code, _, stderr = call("train", *flags, "--runtime=threads", f"--workdir={tmp_path}/threads")
  assert code == 0 and "config.times.slow" not in stderr
  events = record.load(tmp_path / "threads" / "events.npz")
  assert events.period.tolist() == [(8, 5)[worker] for worker in events.worker]
  assert 32 - 8 < events.period.sum() <= 32
  assert call("train", *flags, f"--replay={tmp_path}/threads/events.npz", f"--workdir={tmp_path}/replay")[0] == 0
  code, _, stderr = call("train", *flags, "--runtime=ray", f"--workdir={tmp_path}/ray")
  assert code and "runtime must be simulator or threads for workers with different periods, got ray" in stderr
