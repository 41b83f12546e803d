"""Barriers: bounds on the lead of workers, and the number of messages that a quorum round waits for."""

import numpy as np
import pytest
from helpers.schedules import visit_events
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from ddl.api import Arrivals
from ddl.events import barriers as estimation
from ddl.events.barriers import BARRIERS, LiveBarrier, Quorum, asp, backup, bsp, cutoff, psp, ssp
from ddl.events.record import check
from ddl.events.times import TIMES

RUNS = st.fixed_dictionaries(
  dict(
    workers=st.integers(2, 6),
    period=st.integers(1, 3),
    num_visits=st.integers(1, 80),
    message_seconds=st.sampled_from([0.0, 0.004]),
    service_seconds=st.sampled_from([0.0, 0.001]),
    seed=st.integers(0, 9),
  )
)


def run(config, barrier, *, delay=0, jitter=0.6, **trouble):
  trouble = dict(death_rate=0.1, down_seconds=0.05) | trouble
  times = TIMES["lognormal"](workers=config["workers"], seed=config["seed"], jitter=jitter, **trouble)
  events = visit_events(**config, delay=delay, times=times, barrier=barrier, arrivals=Arrivals())
  check(events, config["workers"])
  return events


def equal(a, b):
  return all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))


def clocks_at(events, index, workers):
  """Return each worker's finished rounds at the reply that started the event's round: [workers]."""
  before = np.flatnonzero(events.worker[:index] == events.worker[index])
  answered = events.answered[before[-1]] if len(before) else 0
  return np.bincount(events.worker[:answered], minlength=workers)


@settings(deadline=None)
@given(RUNS, st.integers(0, 3))
def test_ssp_releases_a_worker_as_soon_as_the_bound_allows(config, bound):
  events = run(config, ssp(bound=bound))
  for i, (round_, start) in enumerate(zip(events.round, events.start, strict=True)):
    assert round_ - clocks_at(events, i, config["workers"]).min() <= bound
    served = np.bincount(events.worker[events.served <= start], minlength=config["workers"])
    assert round_ - served.min() <= bound
  for i, round_ in enumerate(events.round):
    allowed = len(events.worker)  # the end releases all workers
    for count in range(i + 1, allowed):
      if round_ + 1 - np.bincount(events.worker[:count], minlength=config["workers"]).min() <= bound:
        allowed = count
        break
    assert events.answered[i] == allowed


@settings(deadline=None)
@given(RUNS, st.data(), st.integers(0, 2), st.booleans())
def test_psp_compares_with_a_sample_within_the_bound(config, data, bound, redraw):
  sample = data.draw(st.integers(1, config["workers"] - 1))
  events = run(config, psp(sample=sample, bound=bound, redraw=redraw))
  for i, (worker, round_) in enumerate(zip(events.worker, events.round, strict=True)):
    if round_:
      others = np.delete(clocks_at(events, i, config["workers"]), worker)
      assert np.sum(round_ - others <= bound) >= sample


@settings(deadline=None)
@given(RUNS, st.integers(0, 2), st.booleans(), st.integers(0, 1))
def test_special_cases_of_psp_and_ssp_are_equal(config, bound, redraw, delay):
  all_others = psp(sample=config["workers"] - 1, bound=bound, redraw=redraw)
  assert equal(run(config, all_others, delay=delay), run(config, ssp(bound=bound), delay=delay))
  assert equal(run(config, ssp(bound=0), delay=delay), run(config, bsp(), delay=delay))
  assert equal(run(config, psp(sample=0, bound=0), delay=delay), run(config, asp(), delay=delay))
  assert equal(run(config, ssp(bound=1000), delay=delay), run(config, asp(), delay=delay))


@settings(deadline=None)
@given(RUNS, st.integers(0, 2))
def test_ssp_bounds_the_lead_with_a_delay(config, bound):
  config = config | {"message_seconds": 0.0, "service_seconds": 0.0, "period": 1}
  events = run(config, ssp(bound=bound), delay=1, death_rate=0.0)
  ends = events.released  # period = delay: no steps after the reply
  for round_, start in zip(events.round, events.start, strict=True):
    finished = np.bincount(events.worker[ends <= start], minlength=config["workers"])
    assert round_ - finished.min() <= bound


def test_a_fixed_sample_waits_longer_than_a_redrawn_one():
  config = dict(workers=8, period=1, num_visits=4000, message_seconds=0.0, service_seconds=0.0, seed=0)
  slow = (1.0,) * 7 + (5.0,)
  spans = {
    name: run(config, barrier, slow=slow, death_rate=0.0).served[-1]
    for name, barrier in {
      "asp": asp(),
      "redraw": psp(sample=2, bound=1, redraw=True),
      "fixed": psp(sample=2, bound=1),
      "ssp": ssp(bound=1),
    }.items()
  }
  assert spans["asp"] < 0.95 * spans["redraw"] < 0.9 * spans["fixed"] < 0.9 * spans["ssp"]


@settings(deadline=None)
@given(RUNS)
def test_a_quorum_of_all_workers_has_the_times_of_bsp(config):
  config = config | {"num_visits": config["num_visits"] * config["workers"]}
  rounds, expected = run(config, backup(spare=0)), run(config, bsp())
  for name in ("worker", "round", "start", "arrival", "served", "answered", "released", "restarted"):
    np.testing.assert_array_equal(getattr(rounds, name), getattr(expected, name), err_msg=name)
  assert not rounds.dropped.any()
  assert equal(rounds, run(config, cutoff(window=config["num_visits"] + 1)))


@settings(deadline=None)
@given(RUNS, st.data())
def test_backup_serves_the_first_messages_and_drops_the_others(config, data):
  workers = config["workers"]
  spare = data.draw(st.integers(0, workers - 1))
  events = run(config, backup(spare=spare), death_rate=0.3)
  rounds = events.round.max() + 1
  assert (rounds - 1) * workers < config["num_visits"] <= len(events.worker) == rounds * workers
  closed = 0.0
  for round_ in range(rounds):
    of_round = np.flatnonzero(events.round == round_)
    assert of_round.tolist() == list(range(round_ * workers, (round_ + 1) * workers))
    served, late = of_round[: workers - spare], of_round[workers - spare :]
    assert not events.dropped[served].any() and events.dropped[late].all()
    assert (events.start[of_round] >= closed).all() and (np.diff(events.arrival[served]) >= 0).all()
    for i in served:
      closed = max(closed, events.arrival[i]) + config["service_seconds"]
      assert events.served[i] == closed
    assert (events.served[late] == closed).all() and (events.answered[of_round] == of_round[-1] + 1).all()
    assert (events.released[of_round] == closed + config["message_seconds"]).all()
  assert not (events.restarted & events.dropped).any()


def test_dead_workers_miss_rounds():
  config = dict(workers=3, period=1, num_visits=400, message_seconds=0.0, service_seconds=0.0, seed=0)
  events = run(config, backup(spare=1), jitter=0.0, death_rate=0.05, down_seconds=0.1)
  missed = events.dropped & (events.start == events.released)
  assert missed.sum() > 20 and events.restarted.any()
  times = TIMES["lognormal"](workers=3, seed=0, jitter=0.0, death_rate=0.05, down_seconds=0.1)
  died, up = [False] * 3, [0.0] * 3
  for i, worker in enumerate(events.worker):
    for death in times.deaths(worker, events.round[i], times.steps(worker, events.round[i], 1)):
      if up[worker] + death.work_seconds < events.released[i]:  # before its round ends
        died[worker], up[worker] = True, up[worker] + death.work_seconds + death.down_seconds
    assert events.restarted[i] == (died[worker] and not events.dropped[i])  # the first served round after a death
    died[worker], up[worker] = died[worker] and bool(events.dropped[i]), max(up[worker], events.released[i])
  for i in np.flatnonzero(events.restarted):
    before = np.flatnonzero((events.worker[:i] == events.worker[i]) & ~events.dropped[:i])
    free = events.released[before[-1]] if len(before) else 0.0
    assert events.start[i] >= free + 0.1  # it was down after its last served round


def test_deaths_after_the_end_of_a_round_do_not_happen():
  config = dict(workers=3, period=4, num_visits=300, message_seconds=0.0, service_seconds=0.0, seed=0)
  trouble = dict(jitter=0.3, slow=(1.0, 1.5, 6.0), death_rate=0.2, down_seconds=0.02)
  events, times = run(config, backup(spare=1), **trouble), TIMES["lognormal"](workers=3, seed=0, **trouble)
  free, died, missed = [0.0] * 3, [False] * 3, 0
  for i, worker in enumerate(events.worker):
    steps = times.steps(worker, 4 * events.round[i], 4)
    for death in times.deaths(worker, 4 * events.round[i], steps):
      if free[worker] + death.work_seconds >= events.released[i]:
        missed += 1
        break
      died[worker], free[worker] = True, free[worker] + death.work_seconds + death.down_seconds
    assert events.start[i] == pytest.approx(min(free[worker], events.released[i]), rel=1e-12)
    assert events.restarted[i] == (died[worker] and not events.dropped[i])
    died[worker], free[worker] = died[worker] and bool(events.dropped[i]), max(free[worker], events.released[i])
  assert missed > 20 and events.restarted.sum() > 20


def test_cutoff_mostly_drops_a_slow_worker():
  config = dict(workers=4, period=1, num_visits=300, message_seconds=0.0, service_seconds=0.0, seed=0)
  events = run(config, cutoff(window=5), slow=(1.0, 1.0, 20.0, 1.0), jitter=0.05, death_rate=0.0)
  assert not events.dropped[:20].any()
  rates = [events.dropped[20:][events.worker[20:] == worker].mean() for worker in range(4)]
  assert (
    rates[2] > 0.7 > 0.4 > max(rates[:2] + rates[3:])
  )  # served at times, when the window no longer contains its times


COUNT, MEAN, DEVIATION = 16, -3.0, 0.8
DRAWS = np.exp(np.random.default_rng(0).normal(MEAN, DEVIATION, (100_000, COUNT)))
EXPECTED = np.sort(DRAWS, axis=1).mean(axis=0)
BEST = int(np.argmax(np.arange(1, COUNT + 1) / EXPECTED)) + 1


def observed(closed_after, rounds=200):
  """Return times, and whether they are seen, of a server that closes each round after this number of messages."""
  times = DRAWS[:rounds]
  limit = np.sort(times, axis=1)[:, closed_after - 1 : closed_after]
  return np.minimum(times, limit).ravel(), (times <= limit).ravel()


def test_order_statistics_equal_monte_carlo_means():
  np.testing.assert_allclose(estimation.order_statistics(MEAN, DEVIATION, COUNT), EXPECTED, rtol=0.01)
  total = COUNT * np.exp(MEAN + DEVIATION**2 / 2)
  assert estimation.order_statistics(MEAN, DEVIATION, COUNT).sum() == pytest.approx(total, rel=1e-9)


def test_elfving_approximates_a_narrow_distribution():
  exact = estimation.order_statistics(MEAN, 0.05, COUNT)
  np.testing.assert_allclose(estimation.elfving(MEAN, 0.05, COUNT), exact, rtol=0.01)
  average, spread = np.exp(MEAN + 0.05**2 / 2), np.exp(MEAN + 0.05**2 / 2) * np.sqrt(np.expm1(0.05**2))
  third = average + spread * norm.ppf((3 - np.pi / 8) / (COUNT - np.pi / 4 + 1))
  assert estimation.elfving(MEAN, 0.05, COUNT)[2] == pytest.approx(third, rel=1e-12)


@pytest.mark.parametrize("closed_after", [4, 10, 16])
def test_the_fit_treats_dropped_times_as_censored(closed_after):
  seconds, seen = observed(closed_after)
  mean, deviation = estimation.fit(np.log(seconds), seen)
  assert mean == pytest.approx(MEAN, abs=0.05) and deviation == pytest.approx(DEVIATION, abs=0.05)
  if closed_after < COUNT:
    uncensored = estimation.fit(np.log(seconds[seen]), seen[seen])
    assert uncensored[0] < MEAN - 0.3 and uncensored[1] < DEVIATION - 0.1
    z = (np.log(seconds) - mean) / deviation  # at the maximum the gradient of the likelihood is zero
    slope = np.where(seen, z, np.exp(norm.logpdf(z) - norm.logsf(z)))
    assert abs(slope.mean()) < 1e-5 and abs((slope * z - seen).mean()) < 1e-5


@pytest.mark.parametrize("closed_after", [BEST, COUNT])
def test_the_estimated_cutoff_is_optimal(closed_after):
  seconds, seen = observed(closed_after)
  cutoff_ = estimation.best(seconds, seen, workers=COUNT, estimator="window")
  assert 2 < BEST < COUNT - 2 and abs(cutoff_ - BEST) <= 1
  if closed_after < COUNT:
    uncensored = estimation.best(seconds[seen], seen[seen], workers=COUNT, estimator="window")
    assert uncensored > BEST + 1  # without late times the distribution looks narrow


@pytest.mark.parametrize("estimator", estimation.ESTIMATORS)
def test_cutoff_waits_for_all_workers_of_equal_speed(estimator):
  assert estimation.best(np.full(40, 0.3), np.ones(40, bool), workers=8, estimator=estimator) == 8
  config = dict(workers=8, period=2, num_visits=80, message_seconds=0.0, service_seconds=0.0, seed=0)
  events = run(config, cutoff(window=2, estimator=estimator), jitter=0.0, death_rate=0.0)
  assert not events.dropped.any()


@pytest.mark.parametrize("estimator", estimation.ESTIMATORS)
def test_cutoff_serves_more_messages_per_second(estimator):
  config = dict(workers=COUNT, period=1, num_visits=4000, message_seconds=0.0, service_seconds=0.0, seed=0)
  options = dict(jitter=float(np.sqrt(np.expm1(DEVIATION**2))), death_rate=0.0)
  events = run(config, cutoff(window=10, estimator=estimator), **options)
  rate = np.sum(~events.dropped) / events.served[-1]
  synchronous = run(config, bsp(), **options)
  assert rate > 1.2 * len(synchronous.worker) / synchronous.served[-1]
  if estimator == "window":
    counts = np.bincount(events.round[~events.dropped])[10:]
    assert np.median(counts) == pytest.approx(BEST, abs=1)


@pytest.mark.parametrize(
  ("name", "hyper", "line"),
  [
    ("ssp", dict(bound=-1), "ssp.bound must be an integer >= 0, got -1"),
    ("ssp", dict(bound=0.5), "ssp.bound must be an integer >= 0, got 0.5"),
    ("psp", dict(sample=-1, bound=0), "psp.sample must be an integer >= 0, got -1"),
    ("psp", dict(sample=1, bound=float("nan")), "psp.bound must be an integer >= 0, got nan"),
    ("psp", dict(sample=4, bound=0), "psp.sample must be at most [^\n]* .3., got 4"),
    ("backup", dict(spare=-1), "backup.spare must be an integer >= 0, got -1"),
    ("backup", dict(spare=4), "backup.spare must be below [^\n]* .4., got 4"),
    ("cutoff", dict(window=0), "cutoff.window must be an integer >= 1, got 0"),
    ("cutoff", dict(window=3, estimator="guess"), "cutoff.estimator must be one of [a-z, ]*, got 'guess'"),
  ],
)
def test_invalid_barriers_are_one_line_errors(name, hyper, line):
  config = dict(workers=4, period=1, num_visits=8, message_seconds=0.0, service_seconds=0.0, seed=0)
  with pytest.raises(ValueError, match=f"^{line}[^\n]*$"):
    run(config, BARRIERS[name](**hyper))


@pytest.mark.parametrize(
  ("delay", "arrivals"),
  [(1, Arrivals()), (0, Arrivals(peers="uniform")), (0, Arrivals("round_robin")), (0, Arrivals(blocks=1))],
)
def test_quorum_conflicts_are_errors(delay, arrivals):
  settings_ = dict(workers=4, period=1, num_visits=8, message_seconds=0.0, service_seconds=0.0, seed=0)
  times = TIMES["constant"](workers=4, seed=0)
  for barrier in (backup(spare=1), cutoff(window=2)):
    assert isinstance(barrier, Quorum)
    with pytest.raises(
      ValueError, match=r"^config\.barrier\.name must be asp, bsp, ssp or psp with [^\n]*, got a quorum [^\n]*$"
    ):
      visit_events(**settings_, delay=delay, arrivals=arrivals, times=times, barrier=barrier)


def test_absent_workers_do_not_delay_others_and_rejoin_with_the_slowest():
  members = LiveBarrier(ssp(bound=1), workers=3, seed=0, present=False)
  for worker in range(3):
    members.join(worker)
  assert [members.finish(worker) for worker in (0, 0, 1)] == [[0], [], [1]] and members.waiting_for == {0: 2}
  assert members.leave(2) == [0] and members.waiting_for == {}
  assert [members.finish(worker) for worker in (0, 1, 0, 1)] == [[], [0, 1], [], [0, 1]]
  members.join(2)  # with 3 worker rounds, as worker 1
  assert members.finish(0) == [] and members.waiting_for == {0: 1}
  assert members.leave(1) == [] and members.waiting_for == {0: 2}  # worker 2 has rejoined
  assert members.finish(2) == [0, 2]
