"""Barriers: who may be how far ahead of whom, and how many a round waits for."""

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


def run(given_, barrier, *, delay=0, jitter=0.6, **trouble):
  trouble = dict(death_rate=0.1, down_seconds=0.05) | trouble
  times = TIMES["lognormal"](workers=given_["workers"], seed=given_["seed"], jitter=jitter, **trouble)
  events = visit_events(**given_, delay=delay, times=times, barrier=barrier, arrivals=Arrivals())
  check(events, given_["workers"])
  return events


def equal(a, b):
  return all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))


def clocks_at(events, index, workers):
  """Rounds of each worker that were finished when the reply left that began the event's round: [workers]."""
  before = np.flatnonzero(events.worker[:index] == events.worker[index])
  answered = events.answered[before[-1]] if len(before) else 0
  return np.bincount(events.worker[:answered], minlength=workers)


@settings(deadline=None)
@given(RUNS, st.integers(0, 3))
def test_ssp_holds_back_as_long_as_it_must_and_no_longer(given_, bound):
  events = run(given_, ssp(bound=bound))
  for i, (round_, start) in enumerate(zip(events.round, events.start, strict=True)):
    assert round_ - clocks_at(events, i, given_["workers"]).min() <= bound
    served = np.bincount(events.worker[events.served <= start], minlength=given_["workers"])
    assert round_ - served.min() <= bound
  for i, round_ in enumerate(events.round):
    allowed = len(events.worker)  # at the end everybody is let go
    for count in range(i + 1, allowed):
      if round_ + 1 - np.bincount(events.worker[:count], minlength=given_["workers"]).min() <= bound:
        allowed = count
        break
    assert events.answered[i] == allowed


@settings(deadline=None)
@given(RUNS, st.data(), st.integers(0, 2), st.booleans())
def test_psp_has_a_sample_within_the_bound(given_, data, bound, redraw):
  sample = data.draw(st.integers(1, given_["workers"] - 1))
  events = run(given_, psp(sample=sample, bound=bound, redraw=redraw))
  for i, (worker, round_) in enumerate(zip(events.worker, events.round, strict=True)):
    if round_:
      others = np.delete(clocks_at(events, i, given_["workers"]), worker)
      assert np.sum(round_ - others <= bound) >= sample


@settings(deadline=None)
@given(RUNS, st.integers(0, 2), st.booleans(), st.integers(0, 1))
def test_psp_of_everybody_is_ssp_and_ssp_0_is_bsp(given_, bound, redraw, delay):
  whole = psp(sample=given_["workers"] - 1, bound=bound, redraw=redraw)
  assert equal(run(given_, whole, delay=delay), run(given_, ssp(bound=bound), delay=delay))
  assert equal(run(given_, ssp(bound=0), delay=delay), run(given_, bsp(), delay=delay))
  assert equal(run(given_, psp(sample=0, bound=0), delay=delay), run(given_, asp(), delay=delay))
  assert equal(run(given_, ssp(bound=1000), delay=delay), run(given_, asp(), delay=delay))


@settings(deadline=None)
@given(RUNS, st.integers(0, 2))
def test_the_bound_holds_at_every_start_with_a_delay(given_, bound):
  given_ = given_ | {"message_seconds": 0.0, "service_seconds": 0.0, "period": 1}
  events = run(given_, ssp(bound=bound), delay=1, death_rate=0.0)
  over = events.released  # period = delay: no steps after the answer
  for round_, start in zip(events.round, events.start, strict=True):
    finished = np.bincount(events.worker[over <= start], minlength=given_["workers"])
    assert round_ - finished.min() <= bound


def test_a_kept_sample_waits_longer_than_a_redrawn_one():
  given_ = dict(workers=8, period=1, num_visits=4000, message_seconds=0.0, service_seconds=0.0, seed=0)
  slow = (1.0,) * 7 + (5.0,)
  spans = {
    name: run(given_, barrier, slow=slow, death_rate=0.0).served[-1]
    for name, barrier in {
      "asp": asp(),
      "redraw": psp(sample=2, bound=1, redraw=True),
      "keep": psp(sample=2, bound=1),
      "ssp": ssp(bound=1),
    }.items()
  }
  assert spans["asp"] < 0.95 * spans["redraw"] < 0.9 * spans["keep"] < 0.9 * spans["ssp"]


@settings(deadline=None)
@given(RUNS)
def test_a_quorum_of_all_is_bsp_in_time(given_):
  given_ = given_ | {"num_visits": given_["num_visits"] * given_["workers"]}
  rounds, one_by_one = run(given_, backup(spare=0)), run(given_, bsp())
  for name in ("worker", "round", "start", "arrival", "served", "answered", "released", "restarted"):
    np.testing.assert_array_equal(getattr(rounds, name), getattr(one_by_one, name), err_msg=name)
  assert not rounds.dropped.any()
  assert equal(rounds, run(given_, cutoff(window=given_["num_visits"] + 1)))


@settings(deadline=None)
@given(RUNS, st.data())
def test_backup_serves_the_first_and_drops_the_rest(given_, data):
  workers = given_["workers"]
  spare = data.draw(st.integers(0, workers - 1))
  events = run(given_, backup(spare=spare), death_rate=0.3)
  rounds = events.round.max() + 1
  assert (rounds - 1) * workers < given_["num_visits"] <= len(events.worker) == rounds * workers
  closed = 0.0
  for round_ in range(rounds):
    mine = np.flatnonzero(events.round == round_)
    assert mine.tolist() == list(range(round_ * workers, (round_ + 1) * workers))
    came, late = mine[: workers - spare], mine[workers - spare :]
    assert not events.dropped[came].any() and events.dropped[late].all()
    assert (events.start[mine] >= closed).all() and (np.diff(events.arrival[came]) >= 0).all()
    for i in came:
      closed = max(closed, events.arrival[i]) + given_["service_seconds"]
      assert events.served[i] == closed
    assert (events.served[late] == closed).all() and (events.answered[mine] == mine[-1] + 1).all()
    assert (events.released[mine] == closed + given_["message_seconds"]).all()
  assert not (events.restarted & events.dropped).any()


def test_the_dead_sleep_through_rounds():
  given_ = dict(workers=3, period=1, num_visits=400, message_seconds=0.0, service_seconds=0.0, seed=0)
  events = run(given_, backup(spare=1), jitter=0.0, death_rate=0.05, down_seconds=0.1)
  asleep = events.dropped & (events.start == events.released)
  assert asleep.sum() > 20 and events.restarted.any()
  times = TIMES["lognormal"](workers=3, seed=0, jitter=0.0, death_rate=0.05, down_seconds=0.1)
  died, up = [False] * 3, [0.0] * 3
  for i, worker in enumerate(events.worker):
    for death in times.deaths(worker, events.round[i], times.steps(worker, events.round[i], 1)):
      if up[worker] + death.work_seconds < events.released[i]:  # before the round is over for it
        died[worker], up[worker] = True, up[worker] + death.work_seconds + death.down_seconds
    assert events.restarted[i] == (died[worker] and not events.dropped[i])  # its first served worker round since
    died[worker], up[worker] = died[worker] and bool(events.dropped[i]), max(up[worker], events.released[i])
  for i in np.flatnonzero(events.restarted):
    before = np.flatnonzero((events.worker[:i] == events.worker[i]) & ~events.dropped[:i])
    free = events.released[before[-1]] if len(before) else 0.0
    assert events.start[i] >= free + 0.1  # it was down since it was served last


def test_a_dropped_worker_does_not_come_to_the_deaths_after_the_round():
  given_ = dict(workers=3, period=4, num_visits=300, message_seconds=0.0, service_seconds=0.0, seed=0)
  trouble = dict(jitter=0.3, slow=(1.0, 1.5, 6.0), death_rate=0.2, down_seconds=0.02)
  events, times = run(given_, backup(spare=1), **trouble), TIMES["lognormal"](workers=3, seed=0, **trouble)
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


def test_a_worker_that_is_always_late_is_mostly_dropped():
  given_ = dict(workers=4, period=1, num_visits=300, message_seconds=0.0, service_seconds=0.0, seed=0)
  events = run(given_, cutoff(window=5), slow=(1.0, 1.0, 20.0, 1.0), jitter=0.05, death_rate=0.0)
  assert not events.dropped[:20].any()
  rates = [events.dropped[20:][events.worker[20:] == worker].mean() for worker in range(4)]
  assert rates[2] > 0.7 > 0.4 > max(rates[:2] + rates[3:])  # waited for in a while, as its time is then forgotten


COUNT, MEAN, DEVIATION = 16, -3.0, 0.8
DRAWS = np.exp(np.random.default_rng(0).normal(MEAN, DEVIATION, (100_000, COUNT)))
EXPECTED = np.sort(DRAWS, axis=1).mean(axis=0)
BEST = int(np.argmax(np.arange(1, COUNT + 1) / EXPECTED)) + 1


def observed(closed_after, rounds=200):
  """Times as a server sees them that closes each round after so many messages."""
  times = DRAWS[:rounds]
  limit = np.sort(times, axis=1)[:, closed_after - 1 : closed_after]
  return np.minimum(times, limit).ravel(), (times <= limit).ravel()


def test_order_statistics_are_those_of_monte_carlo():
  np.testing.assert_allclose(estimation.order_statistics(MEAN, DEVIATION, COUNT), EXPECTED, rtol=0.01)
  total = COUNT * np.exp(MEAN + DEVIATION**2 / 2)
  assert estimation.order_statistics(MEAN, DEVIATION, COUNT).sum() == pytest.approx(total, rel=1e-9)


def test_elfving_is_near_for_a_narrow_distribution():
  exact = estimation.order_statistics(MEAN, 0.05, COUNT)
  np.testing.assert_allclose(estimation.elfving(MEAN, 0.05, COUNT), exact, rtol=0.01)
  average, spread = np.exp(MEAN + 0.05**2 / 2), np.exp(MEAN + 0.05**2 / 2) * np.sqrt(np.expm1(0.05**2))
  third = average + spread * norm.ppf((3 - np.pi / 8) / (COUNT - np.pi / 4 + 1))
  assert estimation.elfving(MEAN, 0.05, COUNT)[2] == pytest.approx(third, rel=1e-12)


@pytest.mark.parametrize("closed_after", [4, 10, 16])
def test_the_fit_takes_dropped_times_as_censored(closed_after):
  seconds, seen = observed(closed_after)
  mean, deviation = estimation.fit(np.log(seconds), seen)
  assert mean == pytest.approx(MEAN, abs=0.05) and deviation == pytest.approx(DEVIATION, abs=0.05)
  if closed_after < COUNT:
    ignored = estimation.fit(np.log(seconds[seen]), seen[seen])
    assert ignored[0] < MEAN - 0.3 and ignored[1] < DEVIATION - 0.1
    z = (np.log(seconds) - mean) / deviation  # the likelihood's slope is zero there
    slope = np.where(seen, z, np.exp(norm.logpdf(z) - norm.logsf(z)))
    assert abs(slope.mean()) < 1e-5 and abs((slope * z - seen).mean()) < 1e-5


@pytest.mark.parametrize("closed_after", [BEST, COUNT])
def test_the_chosen_cutoff_is_the_best_one(closed_after):
  seconds, seen = observed(closed_after)
  options = estimation.best(seconds, seen, workers=COUNT, estimator="window")
  assert 2 < BEST < COUNT - 2 and abs(options - BEST) <= 1
  if closed_after < COUNT:
    greedy = estimation.best(seconds[seen], seen[seen], workers=COUNT, estimator="window")
    assert greedy > BEST + 1  # those that it never sees late look narrow, so it waits for too many


@pytest.mark.parametrize("estimator", estimation.ESTIMATORS)
def test_equal_times_are_all_waited_for(estimator):
  assert estimation.best(np.full(40, 0.3), np.ones(40, bool), workers=8, estimator=estimator) == 8
  given_ = dict(workers=8, period=2, num_visits=80, message_seconds=0.0, service_seconds=0.0, seed=0)
  events = run(given_, cutoff(window=2, estimator=estimator), jitter=0.0, death_rate=0.0)
  assert not events.dropped.any()


@pytest.mark.parametrize("estimator", estimation.ESTIMATORS)
def test_cutoff_serves_more_messages_per_second(estimator):
  given_ = dict(workers=COUNT, period=1, num_visits=4000, message_seconds=0.0, service_seconds=0.0, seed=0)
  how = dict(jitter=float(np.sqrt(np.expm1(DEVIATION**2))), death_rate=0.0)
  events = run(given_, cutoff(window=10, estimator=estimator), **how)
  rate = np.sum(~events.dropped) / events.served[-1]
  all_of_them = run(given_, bsp(), **how)
  assert rate > 1.2 * len(all_of_them.worker) / all_of_them.served[-1]
  if estimator == "window":
    taken = np.bincount(events.round[~events.dropped])[10:]
    assert np.median(taken) == pytest.approx(BEST, abs=1)


@pytest.mark.parametrize(
  ("name", "hyper", "line"),
  [
    ("ssp", dict(bound=-1), "ssp.bound must be an integer >= 0, got -1"),
    ("ssp", dict(bound=0.5), "ssp.bound must be an integer >= 0, got 0.5"),
    ("psp", dict(sample=-1, bound=0), "psp.sample must be an integer >= 0, got -1"),
    ("psp", dict(sample=1, bound=float("nan")), "psp.bound must be an integer >= 0, got nan"),
    ("psp", dict(sample=4, bound=0), "psp.sample must be at most 3, [^\n]*, got 4"),
    ("backup", dict(spare=-1), "backup.spare must be an integer >= 0, got -1"),
    ("backup", dict(spare=4), "backup.spare must be below 4, [^\n]*, got 4"),
    ("cutoff", dict(window=0), "cutoff.window must be an integer >= 1, got 0"),
    ("cutoff", dict(window=3, estimator="guess"), "cutoff.estimator must be one of [a-z, ]*, got 'guess'"),
  ],
)
def test_bad_barriers_are_one_line(name, hyper, line):
  given_ = dict(workers=4, period=1, num_visits=8, message_seconds=0.0, service_seconds=0.0, seed=0)
  with pytest.raises(ValueError, match=f"^{line}[^\n]*$"):
    run(given_, BARRIERS[name](**hyper))


@pytest.mark.parametrize(
  ("delay", "arrivals"),
  [(1, Arrivals()), (0, Arrivals(peers="uniform")), (0, Arrivals("round_robin")), (0, Arrivals(blocks=1))],
)
def test_what_a_quorum_does_not_go_with(delay, arrivals):
  settings_ = dict(workers=4, period=1, num_visits=8, message_seconds=0.0, service_seconds=0.0, seed=0)
  times = TIMES["constant"](workers=4, seed=0)
  for barrier in (backup(spare=1), cutoff(window=2)):
    assert isinstance(barrier, Quorum)
    with pytest.raises(ValueError, match=r"^barrier must be asp, bsp, ssp or psp with [^\n]*$"):
      visit_events(**settings_, delay=delay, arrivals=arrivals, times=times, barrier=barrier)


def test_a_worker_that_left_holds_nobody_up_and_comes_back_with_the_slowest():
  members = LiveBarrier(ssp(bound=1), workers=3, seed=0, present=False)
  for worker in range(3):
    members.join(worker)
  assert [members.finish(worker) for worker in (0, 0, 1)] == [[0], [], [1]] and members.held == {0: 2}
  assert members.leave(2) == [0] and members.held == {}
  assert [members.finish(worker) for worker in (0, 1, 0, 1)] == [[], [0, 1], [], [0, 1]]
  members.join(2)  # with 3 worker rounds, as worker 1
  assert members.finish(0) == [] and members.held == {0: 1}
  assert members.leave(1) == [] and members.held == {0: 2}  # which is there again
  assert members.finish(2) == [0, 2]
