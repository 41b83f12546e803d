"""Schedules in virtual time: event times, operations, records, lockstep times and step times."""

from collections import Counter
from typing import Any, NamedTuple

import numpy as np
import pytest
from helpers.schedules import visit_events
from hypothesis import given, settings
from hypothesis import strategies as st

from ddl import memory
from ddl.api import Arrivals
from ddl.events.barriers import asp, backup, bsp, psp, ssp
from ddl.events.lockstep import ExchangeSeconds, finish, presence_of, walk
from ddl.events.operations import ADD, APPLY, COLLECT, DROP, READ, RESTART, SERVE, operations
from ddl.events.record import Events, check, known, load, save
from ddl.events.schedule import make_schedule
from ddl.events.times import TIMES, markov_chain

COSTS = st.sampled_from([0.0, 0.003, lambda worker: 0.001 * (worker + 1)])
BARRIERS = st.sampled_from([asp(), bsp(), ssp(bound=1), psp(sample=1, bound=0), psp(sample=1, bound=1, redraw=True)])


@st.composite
def settings_of_a_run(draw):
  workers, period = draw(st.integers(2, 6)), draw(st.integers(1, 3))
  slow = draw(st.sampled_from([(), tuple(1.0 + worker for worker in range(workers))]))
  times = TIMES[draw(st.sampled_from(["constant", "lognormal", "gamma"]))](
    workers=workers,
    seed=draw(st.integers(0, 9)),
    slow=slow,
    straggler_rate=draw(st.sampled_from([0.0, 0.2])),
    straggler_factor=4.0,
    straggler_steps=3.0,
    death_rate=draw(st.sampled_from([0.0, 0.2])),
    down_seconds=0.05,
  )
  return dict(
    workers=workers,
    period=period,
    delay=draw(st.integers(0, period)),
    times=times,
    num_visits=draw(st.integers(1, 60)),
    message_seconds=draw(COSTS),
    service_seconds=draw(COSTS),
    seed=draw(st.integers(0, 9)),
  )


def run(barrier=None, **changes):
  plain = dict(workers=4, num_visits=200, period=1, delay=0, message_seconds=0.001, service_seconds=0.0005, seed=0)
  plain |= dict(barrier=barrier or asp(), arrivals=Arrivals()) | changes
  return visit_events(**{"times": TIMES["lognormal"](workers=plain["workers"], seed=0, jitter=0.4)} | plain)


def seconds(cost, worker):
  return cost(worker) if callable(cost) else cost


def previous_event(events, index):
  """Return the index of the same worker's previous event, None for none."""
  return max(np.flatnonzero(events.worker[:index] == events.worker[index]), default=None)


def equal(a, b):
  return all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))


@settings(deadline=None)
@given(settings_of_a_run(), BARRIERS, st.booleans())
def test_event_times_follow_the_rules(config, barrier, lock_free):
  events = visit_events(**config, barrier=barrier, arrivals=Arrivals(blocks=int(lock_free)))
  check(events, config["workers"])
  assert len(events.worker) == config["num_visits"] and not events.dropped.any()
  delay, times, busy_until = config["delay"], config["times"], 0.0
  for i, (worker, round_, start) in enumerate(zip(events.worker, events.round, events.start, strict=True)):
    message, service = (seconds(config[name], worker) for name in ("message_seconds", "service_seconds"))
    first = round_ * config["period"]
    steps = times.steps(worker, first, config["period"])
    deaths = times.deaths(worker, first, steps)
    ready = start + steps[: delay or None].sum()
    assert events.arrival[i] == (start if delay else ready) + message
    queued = 0.0 if lock_free else busy_until
    busy_until = events.served[i]
    assert events.served[i] == max(events.arrival[i], queued) + service
    assert events.restarted[i] == bool(deaths)
    if events.answered[i] == i + 1:
      assert events.released[i] == max(ready, events.served[i] + message)
    elif i + 1 < events.answered[i] < len(events.worker):
      assert events.released[i] == events.served[events.answered[i] - 1] + message
    before = previous_event(events, i)
    free = 0.0 if before is None else events.released[before]
    if delay and before is not None:
      free += times.steps(worker, first - config["period"], config["period"])[delay:].sum()
    lost = sum(death.work_seconds + death.down_seconds for death in deaths)
    assert start >= free + lost - 1e-12
    if barrier == asp() or not delay:  # no other waiting
      assert start == pytest.approx(free + lost, abs=1e-12)
  if not lock_free:
    assert (np.diff(events.arrival) >= 0).all()  # first come, first served


@settings(deadline=None)
@given(settings_of_a_run(), BARRIERS, st.booleans())
def test_the_arguments_determine_the_schedule(config, barrier, lock_free):
  arrivals = Arrivals(peers="uniform", blocks=int(lock_free))
  first, second = (visit_events(**config, barrier=barrier, arrivals=arrivals) for _ in range(2))
  assert equal(first, second)


class LockFree(NamedTuple):
  """The field of a lock-free rule that a schedule depends on."""

  reads_first: bool


class Rule(NamedTuple):
  """The fields of an algorithm that a schedule depends on."""

  period: int = 3
  delay: int = 0
  read: Any = True
  lock_free: Any = None
  arrivals: Arrivals = Arrivals()
  periods: Any = None
  averages: bool = True


@pytest.mark.parametrize("rule", [Rule(), Rule(delay=2, arrivals=Arrivals("round_robin")), Rule(period=1, read=None)])
def test_make_schedule_combines_events_and_operations(rule):
  times = TIMES["lognormal"](workers=4, seed=0, jitter=0.4, death_rate=0.1, down_seconds=0.1)
  events, done = make_schedule(rule, workers=4, steps=12, times=times, message_seconds=0.002, seed=5)
  rounds = 4 * 12 // rule.period + (4 if rule.delay else 0)
  plain = dict(num_visits=rounds, period=rule.period, delay=rule.delay, arrivals=rule.arrivals, times=times)
  assert equal(events, run(**plain, message_seconds=0.002, service_seconds=0.0, seed=5))
  assert equal(done, operations(rule, events, workers=4, barrier=asp(), seed=5)) and done.workers == 4


@pytest.mark.parametrize(
  ("rule", "changes", "line"),
  [
    (Rule(period=9), dict(steps=2), "steps must be enough for at least one exchange .4 workers"),
    (Rule(arrivals=Arrivals(blocks=2)), {}, "arrivals.blocks must be 0 [^\n]*, got 2"),
    (Rule(read=None), dict(barrier=backup(spare=1)), "config.barrier.name must be asp, [^\n]*, got a quorum "),
    (
      Rule(averages=False),
      dict(barrier=backup(spare=1)),
      "config.barrier.name must be asp, [^\n]*, got a quorum [^\n]*[.] A quorum ",
    ),
    (Rule(), dict(workers=3), "times.workers must be [^\n]* .3., got 4"),
  ],
)
def test_invalid_schedules_are_one_line_errors(rule, changes, line):
  times = TIMES["constant"](workers=4, seed=0)
  with pytest.raises(ValueError, match=f"^{line}[^\n]*$"):
    make_schedule(rule, **dict(workers=4, steps=12, times=times) | changes)


@settings(deadline=None)
@given(settings_of_a_run(), st.integers(1, 20))
def test_a_longer_run_starts_with_the_events_of_a_shorter_one(config, more):
  short = visit_events(**config, barrier=asp(), arrivals=Arrivals())
  long = visit_events(**config | {"num_visits": config["num_visits"] + more}, barrier=asp(), arrivals=Arrivals())
  assert equal(short, Events(*(column[: len(short.worker)] for column in long)))


def test_seeds_differ_and_ties_are_ordered_by_worker():
  assert not equal(*(run(psp(sample=1, bound=0), seed=seed) for seed in (0, 1)))
  times = TIMES["constant"](workers=4, seed=0)
  np.testing.assert_array_equal(run(times=times, service_seconds=0.0).worker, np.arange(200) % 4)


@settings(deadline=None)
@given(settings_of_a_run(), BARRIERS, st.booleans())
def test_staleness_and_operations_match_a_recount(config, barrier, lock_free):
  events = visit_events(**config, barrier=barrier, arrivals=Arrivals(blocks=int(lock_free)))
  version, known_version = 0, [0] * config["workers"]
  done = operations(Rule(), events, workers=config["workers"], barrier=barrier, seed=0)
  for kind, worker, event in zip(done.kind, done.worker, done.event, strict=True):
    assert worker == events.worker[event]
    if kind == SERVE:
      assert event == version and events.staleness[event] == version - known_version[worker]
      version += 1
    elif kind == RESTART:
      assert version == min(event, np.sum(events.served <= events.start[event]))
    else:
      assert kind == READ and version == events.answered[event]
    known_version[worker] = version
  assert version == len(events.worker) and np.sum(done.kind == RESTART) == events.restarted.sum()
  waited = np.flatnonzero(events.answered > np.arange(version) + 1)
  np.testing.assert_array_equal(np.sort(done.event[done.kind == READ]), waited)
  assert READ not in operations(Rule(read=None), events, workers=4, barrier=barrier, seed=0).kind


def test_a_restarted_worker_knows_all_visits_served_before_its_start():
  worker, answered = np.array([0, 1, 0, 0]), np.array([1, 2, 3, 4])
  served, start = np.array([1.0, 2.0, 3.0, 4.0]), np.array([0.0, 0.0, 2.0, 3.5])
  for restarted, expected in ((False, [0, 0, 1, 3]), (True, [0, 0, 2, 3])):
    seen = known(worker, start, served, answered, np.array([False, False, restarted, False]))
    np.testing.assert_array_equal(seen, expected)


@pytest.mark.parametrize("delay", [0, 1])
def test_round_robin_is_serial(delay):
  times = TIMES["lognormal"](workers=4, seed=0)
  events = run(arrivals=Arrivals("round_robin"), period=2, delay=delay, times=times)
  np.testing.assert_array_equal(events.worker, np.arange(200) % 4)
  ends = events.released.copy()
  if delay:
    ends += [times.steps(worker, 2 * round_, 2)[1] for worker, round_ in zip(events.worker, events.round, strict=True)]
  np.testing.assert_allclose(events.start[1:], ends[:-1], rtol=1e-12)
  assert (events.staleness[4:] == 3).all()


def test_round_robin_waits_for_a_dead_worker():
  times = TIMES["lognormal"](workers=4, seed=0, death_rate=0.2, down_seconds=3.0)
  events = run(arrivals=Arrivals("round_robin"), period=2, times=times)
  ends = np.append(0.0, events.released[:-1])
  for i, (worker, round_) in enumerate(zip(events.worker, events.round, strict=True)):
    deaths = times.deaths(worker, 2 * round_, times.steps(worker, 2 * round_, 2))
    assert events.restarted[i] == bool(deaths)
    assert events.start[i] == pytest.approx(ends[i] + sum(map(sum, deaths)), rel=1e-12)
  assert 20 < events.restarted.sum() < 150


@pytest.mark.parametrize(("peers", "workers"), [("uniform", 5), ("uniform", 2), ("bipartite", 6), ("bipartite", 2)])
def test_distribution_of_peers(peers, workers):
  events = run(workers=workers, num_visits=6000, arrivals=Arrivals(peers=peers, peer_probability=0.75))
  met = events.peer >= 0
  assert np.mean(met) == pytest.approx(0.75, abs=0.02)
  pairs = Counter(zip(events.worker[met].tolist(), events.peer[met].tolist(), strict=True))
  allowed = {(a, b) for a in range(workers) for b in range(workers) if a != b}
  if peers == "bipartite":
    allowed = {(a, b) for a, b in allowed if (a - b) % workers in (1, workers - 1)}
    assert all((a + b) % 2 for a, b in allowed)
  assert set(pairs) == allowed
  assert min(pairs.values()) > 0.7 * max(pairs.values())
  synchronous = run(bsp(), workers=workers, num_visits=3000, arrivals=Arrivals(peers=peers, peer_probability=0.75))
  of_round = {(w, t): p for w, t, p in zip(events.worker, events.round, events.peer, strict=True)}
  assert all(
    of_round.get((w, t), p) == p
    for w, t, p in zip(synchronous.worker, synchronous.round, synchronous.peer, strict=True)
  )
  assert (run().peer == -1).all()


@pytest.mark.parametrize("reads_first", [False, True])
@pytest.mark.parametrize("service_seconds", [0.0, 0.02])
def test_order_of_lock_free_operations(reads_first, service_seconds):
  blocks = 5
  events = run(arrivals=Arrivals(blocks=blocks), service_seconds=service_seconds)
  rule = Rule(read=None, lock_free=LockFree(reads_first), arrivals=Arrivals(blocks=blocks))
  done = operations(rule, events, workers=4, barrier=asp(), seed=3)
  assert len(done.kind) == len(events.worker) * 2 * blocks
  place = np.empty((len(events.worker), 2, blocks), int)  # [event, (look, add), block]
  place[done.event, (done.kind == ADD).astype(int), done.block] = np.arange(len(done.kind))
  first, second = (place[:, 0], place[:, 1]) if reads_first else (place[:, 1], place[:, 0])
  assert (first.max(axis=1) < second.min(axis=1)).all()
  begins, ends = first.min(axis=1), second.max(axis=1)
  disjoint = events.served[:, None] < events.arrival[None, :]
  assert (ends[:, None] < begins[None, :])[disjoint].all()
  adds = [np.sort(place[:, 1, block]) for block in range(blocks)]
  seen = np.stack(
    [np.searchsorted(adds[block], place[:, 0, block]) for block in range(blocks)]
  )  # increments before a read
  torn = (seen != seen[0]).any(axis=0)
  assert torn.any() == bool(service_seconds)
  if not service_seconds:
    np.testing.assert_array_equal(done.event, np.repeat(np.arange(len(events.worker)), 2 * blocks))
  assert equal(done, operations(rule, events, workers=4, barrier=asp(), seed=3))
  if service_seconds:
    assert not equal(done, operations(rule, events, workers=4, barrier=asp(), seed=4))


def test_lock_free_restarts_precede_their_visit():
  times = TIMES["constant"](workers=4, seed=0, death_rate=0.3, down_seconds=0.1)
  for costs in (0.0, 0.004):
    events = run(arrivals=Arrivals(blocks=3), times=times, delay=1, message_seconds=0.0, service_seconds=costs)
    rule = Rule(lock_free=LockFree(False), arrivals=Arrivals(blocks=3))
    done = operations(rule, events, workers=4, barrier=asp(), seed=0)
    restarts = np.flatnonzero(done.kind == RESTART)
    assert len(restarts) == events.restarted.sum() > 20
    for at in restarts:
      of_event = np.flatnonzero(done.event == done.event[at])
      assert of_event[0] == at and len(of_event) == 7


@pytest.mark.parametrize("spare", [0, 2])
def test_operations_of_a_quorum(spare):
  times = TIMES["lognormal"](workers=4, seed=0, jitter=0.5, death_rate=0.2, down_seconds=0.05)
  events = run(backup(spare=spare), times=times)
  done = operations(Rule(), events, workers=4, barrier=backup(spare=spare), seed=0)
  assert events.restarted.any() and set(done.kind) == {COLLECT, APPLY, READ, RESTART} | ({DROP} if spare else set())
  at, sent = 0, 4 - spare
  for round_ in range(events.round.max() + 1):
    collected = []
    while done.kind[at] in (COLLECT, RESTART):
      if done.kind[at] == COLLECT:
        collected.append(done.event[at])
        assert done.weight[at] == 1 / sent
      else:
        assert events.restarted[done.event[at]] and done.event[at] not in collected
      at += 1
    assert collected == np.flatnonzero((events.round == round_) & ~events.dropped).tolist() and len(collected) == sent
    assert done.kind[at] == APPLY and done.event[at] == collected[-1]
    dropped = np.flatnonzero((events.round == round_) & events.dropped)
    assert (done.kind[at + 1 : at + 1 + spare] == DROP).all()
    assert done.event[at + 1 : at + 1 + spare].tolist() == dropped.tolist()
    at += spare
    assert (done.kind[at + 1 : at + 5] == READ).all() and (done.worker[at + 1 : at + 5] == range(4)).all()
    assert (events.round[done.event[at + 1 : at + 5]] == round_).all()
    at += 5
  assert at == len(done.kind) and not events.staleness.any()


def test_a_saved_record_is_loaded_unchanged(tmp_path):
  events = run(bsp(), arrivals=Arrivals(peers="uniform"))
  save(tmp_path / "events", events)
  loaded = load(tmp_path / "events")
  assert equal(events, loaded) and all(a.dtype == b.dtype for a, b in zip(events, loaded, strict=True))


def test_other_files_are_one_line_errors(tmp_path):
  np.savez(tmp_path / "other.npz", worker=np.arange(3))
  (tmp_path / "text").write_text("nothing")
  np.save(tmp_path / "array", np.arange(3))
  for name in ("other.npz", "text", "array.npy"):
    with pytest.raises(ValueError, match=r"^\S+ is not a record of events: [^\n]+$"):
      load(tmp_path / name)


def test_a_record_larger_than_the_memory_is_an_error(tmp_path, monkeypatch):
  np.savez_compressed(tmp_path / "large.npz", worker=np.zeros(10**6, np.int32))
  monkeypatch.setattr(memory, "total", lambda: 3 * 10**6)
  with pytest.raises(ValueError, match=r"large\.npz must fit into memory, got at least"):
    load(tmp_path / "large.npz")


def with_value(name, index, value):
  def change(events):
    column = getattr(events, name).copy()
    column[index] = value
    return events._replace(**{name: column})

  return change


@pytest.mark.parametrize(
  ("change", "line"),
  [
    (with_value("served", 3, np.nan), "event 3: served "),
    (with_value("start", 0, -1.0), "event 0: start "),
    (with_value("released", 5, np.inf), "event 5: released "),
    (with_value("worker", 2, 4), "event 2: worker .* 4"),
    (with_value("worker", 2, -1), "event 2: worker "),
    (with_value("round", 7, 9), "event 7: round "),
    (with_value("served", 6, 1e-9), "event 6: served "),
    (with_value("peer", 1, 4), "event 1: peer "),
    (with_value("answered", 8, 8), "event 8: answered "),
    (with_value("answered", 8, 201), "event 8: answered "),
    (with_value("arrival", 4, 0.0), "event 4: arrival must not be before start"),
    (with_value("arrival", 4, 0.9), "event 4: served must not be before arrival"),
    (with_value("released", 4, 0.001), "event 4: released must not be before"),
    (lambda events: events._replace(start=events.start[1:]), r"events\.start must be \[200\] [^\n]*, got \[199\]"),
  ],
)
def test_impossible_records_are_one_line_errors(change, line):
  events = run()
  check(events, 4)
  with pytest.raises(ValueError, match=f"^[^\n]*{line}[^\n]*$"):
    check(change(events), 4)


def test_a_round_starts_after_the_previous_one():
  events = run()
  at = np.flatnonzero(events.worker == 0)[1]
  with pytest.raises(ValueError, match=f"event {at}: start "):
    check(with_value("start", at, 0.0)(events), 4)


@pytest.mark.parametrize(
  ("changes", "line"),
  [
    (dict(num_visits=0), "num_visits must be >= 1, got 0"),
    (dict(workers=0, times=None), "workers must be an integer >= 1, got 0"),
    (dict(period=0), "period must be >= 1, got 0"),
    (dict(delay=2), "delay must be from 0 to the period .1., got 2"),
    (dict(message_seconds=-1.0), "message_seconds of worker 0 must be [^\n]*, got -1"),
    (
      dict(service_seconds=lambda worker: np.nan if worker == 2 else 0.0),
      "service_seconds of worker 2 must be [^\n]*, got nan",
    ),
    (dict(arrivals=Arrivals(peers="ring")), "peers must be [^\n]*, got 'ring'"),
    (dict(arrivals=Arrivals(peers="bipartite"), workers=3), "workers must be even with bipartite peers, got 3"),
    (dict(arrivals=Arrivals(peers="uniform"), workers=1), "workers must be two or more [^\n]*, got 1"),
    (dict(arrivals=Arrivals(peers="uniform", peer_probability=1.5)), "peer_probability must be [^\n]*, got 1.5"),
    (dict(arrivals=Arrivals(peers="uniform"), seed=-1), "seed must be >= 0, got -1"),
    (dict(arrivals=Arrivals("round_robin"), barrier=bsp()), "asp"),
    (dict(arrivals=Arrivals("by rank")), "arrivals.order must be [^\n]*, got 'by rank'"),
    (dict(arrivals=Arrivals(blocks=-1)), "arrivals.blocks must be >= 0, got -1"),
  ],
)
def test_invalid_settings_are_one_line_errors(changes, line):
  with pytest.raises(ValueError, match=f"^[^\n]*{line}[^\n]*$"):
    run(**changes)


def every(period, delay, seconds, offset=0):
  """Return an exchange after offset + period, offset + 2 period, ... steps."""
  return ExchangeSeconds(lambda step: step >= offset + period and (step - offset) % period == 0, delay, seconds)


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("exchange", [0.0, 0.015, 0.1])
def test_lockstep_of_equal_workers(overlap, exchange):
  period, rounds, step = 4, 6, 0.01
  times = TIMES["constant"](workers=3, seed=0, seconds=step)
  for delay in range(period + 1):
    settings = {
      "round_steps": period,
      "times": times,
      "exchanges": [every(period, delay, exchange)],
      "overlap": overlap,
    }
    done = finish(workers=3, steps=period * rounds, **settings)
    assert (np.diff(done) > 0).all() and done.shape == (period * rounds,)
    cost = period * step + (max(0.0, exchange - delay * step) if overlap else exchange)
    exchanges = np.arange(1, rounds + 1) if not delay else np.arange(rounds)  # with a delay, none in the first round
    np.testing.assert_allclose(
      done[period - 1 :: period], np.arange(1, rounds + 1) * period * step + exchanges * (cost - period * step)
    )


ONES = dict(workers=2, round_steps=2, times=TIMES["constant"](workers=2, seed=0, seconds=1.0))


def test_lockstep_with_steps_of_1_s_and_messages_of_5_s():

  def ends(*exchanges):
    return list(finish(**ONES, steps=6, exchanges=exchanges))

  at = lambda *steps: ExchangeSeconds(lambda step: step in steps, 0, 5.0)  # noqa: E731
  assert ends(at(1, 2, 4, 6)) == [6, 12, 13, 19, 20, 26]
  assert ends(at(1, 2, 3, 5)) == [6, 12, 18, 19, 25, 26]
  assert ends(at(1, 2), every(2, 1, 5.0, offset=2)) == [6, 12, 13, 14, 19, 20]
  assert ends(every(2, 1, 5.0, offset=-2)) == [
    5,
    6,
    11,
    12,
    17,
    18,
  ]  # the first message is launched before the first step


def test_several_messages_share_one_link():
  """Each message of 2 s is launched after a step of 1 s, and awaited three steps later."""
  done = finish(**ONES, steps=8, exchanges=[every(1, 3, 2.0)])
  # One after the other, they leave at 1, 3, 5, 7, 9 s and arrive at 3, 5, 7, 9, 11 s.
  assert list(done) == [1, 2, 3, 4, 5, 7, 9, 11]


def test_exchanges_with_different_periods_share_the_link():
  """a: after 2, 4, 6 steps, 2 s, delay 2; b: after 3 and 6 steps, 1 s, without delay."""
  done = finish(**ONES, steps=6, exchanges=[every(2, 2, 2.0), every(3, 0, 1.0)])
  # a leaves at 2 s and arrives at 4 s, while b waits for the link from 3 s: 4 to 5 s. The fourth step ends at 6 s, when
  # a's second leaves, to arrive at 8 s; the sixth ends at 8 s, and b's second message takes until 9 s.
  assert list(done) == [1, 2, 5, 6, 7, 9]


@pytest.mark.parametrize("overlap, ends", [(True, [1.5, 3, 4.5, 6, 7.5]), (False, [1.5, 3, 6.5, 8, 11.5])])
def test_collectives_of_the_local_step_cost_at_each_step(overlap, ends):
  """They take 0.5 s; without overlap there is also a message of 2 s after every second step."""
  exchanges = [every(2, 2, 2.0)] if not overlap else []
  assert list(finish(**ONES, steps=5, exchanges=exchanges, local_seconds=0.5, overlap=overlap)) == ends


def test_collectives_of_the_local_step_wait_for_the_link():
  """The message launched after two steps uses the link from 3 to 5 s, before the third step's collective."""
  done = finish(**ONES, steps=4, exchanges=[every(2, 2, 2.0)], local_seconds=0.5)
  assert list(done) == [1.5, 3, 5.5, 7]


def test_lockstep_has_the_times_of_bsp():
  times = TIMES["lognormal"](workers=4, seed=0, jitter=0.4, death_rate=0.1, down_seconds=0.1)
  events = run(bsp(), period=3, service_seconds=0.0, times=times, num_visits=80)
  done = finish(workers=4, steps=60, round_steps=3, times=times, exchanges=[every(3, 0, 0.002)])
  released = [events.released[events.round == round_].max() for round_ in range(20)]
  np.testing.assert_allclose(done[2::3], released, rtol=1e-12)


def test_lockstep_waits_only_for_delayed_messages():
  times = TIMES["lognormal"](workers=3, seed=0, jitter=0.5)
  steps = np.stack([times.steps(worker, 0, 20) for worker in range(3)])
  ends = finish(workers=3, steps=20, round_steps=4, times=times, exchanges=[every(4, 2, 0.0)])
  clock = np.zeros(3)
  for round_ in range(5):
    launched = clock.max()
    clock = clock + steps[:, 4 * round_ : 4 * round_ + 2].sum(axis=1)
    clock = np.maximum(clock, launched) if round_ else clock
    clock = clock + steps[:, 4 * round_ + 2 : 4 * round_ + 4].sum(axis=1)
    assert ends[4 * round_ + 3] == pytest.approx(clock.max(), rel=1e-12)


def test_without_exchanges_workers_do_not_wait():
  times = TIMES["lognormal"](workers=3, seed=0, jitter=0.5)
  steps = np.stack([times.steps(worker, 0, 20) for worker in range(3)])
  done = finish(workers=3, steps=20, round_steps=1, times=times)
  np.testing.assert_allclose(done, steps.cumsum(axis=1).max(axis=0), rtol=1e-12)
  assert done[-1] < finish(workers=3, steps=20, round_steps=1, times=times, local_seconds=0.0)[-1]


@pytest.mark.parametrize(
  "bad",
  [
    dict(round_steps=0),
    dict(exchanges=[every(1, -1, 0.0)]),
    dict(exchanges=[every(1, 0, -1.0)]),
    dict(local_seconds=-1.0),
  ],
)
def test_invalid_lockstep_settings_are_one_line_errors(bad):
  with pytest.raises(ValueError, match=r"^[^\n]+$"):
    finish(**ONES | {"steps": 4} | bad)


@given(st.sampled_from(["lognormal", "gamma"]), st.permutations(range(40)), st.integers(1, 70))
@settings(deadline=None, max_examples=20)
def test_step_times_do_not_depend_on_the_order_of_calls(name, order, count):
  make = dict(workers=3, seed=5, straggler_rate=0.1, straggler_factor=3.0, straggler_steps=4.0, death_rate=0.3)
  times, shuffled = TIMES[name](**make), TIMES[name](**make)
  for round_ in order:
    shuffled.steps(round_ % 3, 30 * round_, count)
  for round_ in range(40):
    seconds = times.steps(1, 30 * round_, count)
    np.testing.assert_array_equal(seconds, shuffled.steps(1, 30 * round_, count))
    assert times.deaths(1, 30 * round_, seconds) == shuffled.deaths(1, 30 * round_, seconds)
  assert not np.array_equal(times.steps(0, 0, 5), times.steps(1, 0, 5))


@pytest.mark.parametrize("name", ["lognormal", "gamma"])
def test_moments_of_step_times(name):
  times = TIMES[name](workers=2, seed=0, seconds=0.02, jitter=0.5, slow=(1.0, 3.0))
  for worker, factor in ((0, 1.0), (1, 3.0)):
    draws = times.steps(worker, 0, 200_000)
    assert draws.mean() == pytest.approx(0.02 * factor, rel=0.01)
    assert draws.std() == pytest.approx(0.01 * factor, rel=0.02)
  whole = times.steps(0, 1500, 500)
  np.testing.assert_array_equal(whole, np.concatenate([times.steps(0, 1500 + part, 50) for part in range(0, 500, 50)]))
  for first in range(3):  # across blocks of draws
    assert len(times.steps(0, first, 1025)) == 1025
  exact = TIMES[name](workers=2, seed=0, seconds=0.02, jitter=0.0)
  np.testing.assert_allclose(exact.steps(0, 0, 9), np.full(9, 0.02), rtol=1e-14)


def test_rates_of_stragglers_and_deaths():
  times = TIMES["constant"](
    workers=1, seed=1, straggler_rate=0.05, straggler_factor=7.0, straggler_steps=5.0, death_rate=0.1, down_seconds=2.0
  )
  steps = times.steps(0, 0, 40_000)
  assert set(np.round(steps, 12)) == {0.01, 0.07}
  slow = steps > 0.05
  starts = np.sum(~slow[:-1] & slow[1:])
  assert starts / np.sum(~slow) == pytest.approx(0.05, rel=0.1)
  assert np.sum(slow) / starts == pytest.approx(5.0, rel=0.1)
  deaths = times.deaths(0, 0, np.ones(5000))
  assert len(deaths) / 5000 == pytest.approx(0.1, rel=0.15) and {death.down_seconds for death in deaths} == {2.0}
  assert np.mean([death.work_seconds % 1 for death in deaths]) == pytest.approx(0.5, abs=0.05)  # of a step


@given(st.floats(0, 1), st.floats(1, 9), st.booleans(), st.integers(0, 99))
@settings(deadline=None)
def test_markov_chain_equals_a_loop(rate, mean, slow, seed):
  draws = np.random.default_rng(seed).random(50)
  chain = markov_chain(draws < rate, draws < 1 / mean, slow)
  for draw, now in zip(draws, chain, strict=True):
    slow = draw >= 1 / mean if slow else draw < rate
    assert now == slow


# ---- every period meets the same machine


ROUGH = dict(jitter=0.3, straggler_rate=0.05, straggler_factor=5.0, straggler_steps=4.0)
PERIODS = (1, 4, 16)


def deaths_by_step(times, steps):
  """(worker, step) -> (seconds of the step before the death, seconds down), from rounds of one step."""
  rounds = [(w, k, times.deaths(w, k, times.steps(w, k, 1))) for w in range(times.workers) for k in range(steps)]
  return {(w, k): (death.work_seconds, death.down_seconds) for w, k, deaths in rounds for death in deaths}


@pytest.mark.parametrize("seed", range(3))
def test_slow_spells_do_not_depend_on_the_period(seed):
  """steps of 1 s, five times slower with a chance of 0.05 per step, for one step on average."""
  seconds = []
  for period in PERIODS:
    times = TIMES["constant"](workers=1, seed=seed, seconds=1.0, straggler_rate=0.05, straggler_factor=5.0)
    events = run(
      workers=1, num_visits=64 // period, period=period, times=times, message_seconds=0.0, service_seconds=0.0
    )
    seconds += [events.served[-1], finish(workers=1, steps=64, round_steps=period, times=times)[-1]]
  assert seconds == [(72.0, 84.0, 76.0)[seed]] * 6


@pytest.mark.parametrize("period", PERIODS)
def test_schedule_and_lockstep_have_the_same_stragglers_and_deaths(period):
  """A death costs the work since the start of the round, and `down_seconds`."""
  workers, steps = 3, 192  # the schedule has half of them
  times = TIMES["gamma"](workers=workers, seed=2, slow=(1.0, 1.0, 2.5), death_rate=0.04, down_seconds=0.3, **ROUGH)
  table = np.stack([times.steps(worker, 0, steps) for worker in range(workers)])
  lost = np.zeros((workers, steps // period))
  deaths = deaths_by_step(times, steps)
  for (worker, step), (work, down) in deaths.items():
    first = step - step % period
    lost[worker, step // period] += table[worker, first:step].sum() + work + down
  rounds = table.reshape(workers, -1, period).sum(axis=2) + lost  # of each round
  assert len(deaths) > 8 and (lost > 0.3).any(axis=1).all()
  events = run(
    workers=workers,
    num_visits=workers * steps // period // 2,
    period=period,
    times=times,
    message_seconds=0.0,
    service_seconds=0.0,
  )
  for worker in range(workers):
    ends = events.served[events.worker == worker]
    np.testing.assert_allclose(ends, rounds[worker].cumsum()[: len(ends)], rtol=1e-12)
    restarted = events.restarted[events.worker == worker]
    np.testing.assert_array_equal(restarted, lost[worker, : len(ends)] > 0)
  options = dict(workers=workers, steps=steps, round_steps=period, times=times)
  synchronous = finish(**options, exchanges=[every(period, 0, 0.0)])[period - 1 :: period]
  np.testing.assert_allclose(synchronous, rounds.max(axis=0).cumsum(), rtol=1e-12)
  np.testing.assert_allclose(finish(**options)[-1], rounds.sum(axis=1).max(), rtol=1e-12)


@pytest.mark.parametrize("period", PERIODS)
def test_elastic_workers_leave_in_the_round_of_their_death(period):
  times = TIMES["lognormal"](workers=6, seed=1, death_rate=0.02, down_seconds=1e6, **ROUGH)
  first = {}
  for worker, step in deaths_by_step(times, 48):
    first[worker] = min(step, first.get(worker, 48))
  assert 2 < len(first) < 6
  members = presence_of(6, walk(workers=6, steps=48, round_steps=period, times=times, present=True))
  for step in range(48):
    assert members.at(step) == tuple(w for w in range(6) if first.get(w, 48) // period * period > step - step % period)


def test_a_death_after_the_last_step_costs_nothing():
  times = TIMES["constant"](workers=2, seed=0, seconds=1.0, death_rate=0.1, down_seconds=100.0)
  steps = {step for _, step in deaths_by_step(times, 60)}
  end = next(k for k in sorted(steps) if k % 4 and not steps & {*range(k - k % 4, k)})
  before = end - end % 4
  done = finish(workers=2, steps=end, round_steps=4, times=times)
  assert done[-1] - (done[before - 1] if before else 0.0) == end % 4


def test_step_times_from_a_trace(tmp_path):
  table = np.random.default_rng(0).random((6, 3)) + 0.1
  np.savetxt(tmp_path / "a.csv", table, delimiter=",")
  np.savetxt(tmp_path / "a.txt", table, header="seconds")
  np.save(tmp_path / "a.npy", table)
  for name in ("a.csv", "a.txt", "a.npy"):
    times = TIMES["trace"](workers=3, seed=0, path=str(tmp_path / name))
    np.testing.assert_allclose(times.steps(2, 2, 2), table[2:4, 2], rtol=1e-12)
    events = run(bsp(), workers=3, times=times, num_visits=18)  # uses all rows
    check(events, 3)
    with pytest.raises(ValueError, match=r"^the number of rows of \S+ must be at least [^\n]*, got 6\.$"):
      run(bsp(), workers=3, times=times, num_visits=19)


@pytest.mark.parametrize(
  ("text", "line"),
  [
    ("1,2\n3,x\n", "not a table"),
    ("1,2\n3\n", "not a table"),
    ("1,-2\n", "row 0, column 1 of [^\n]*, got -2"),
    ("1,2\n1,nan\n", "row 1, column 1 of [^\n]*, got nan"),
    ("1\n1\n", "columns of [^\n]*, got 1"),
    ("", "the file has no numbers"),
  ],
)
def test_invalid_traces_are_one_line_errors(tmp_path, text, line):
  (tmp_path / "trace.csv").write_text(text)
  with pytest.raises(ValueError, match=f"^[^\n]*{line}[^\n]*$"):
    TIMES["trace"](workers=2, seed=0, path=str(tmp_path / "trace.csv"))
  with pytest.raises(FileNotFoundError, match=r"none\.csv"):
    TIMES["trace"](workers=2, seed=0, path=str(tmp_path / "none.csv"))


BAD_TIMES = [
  dict(workers=0),
  dict(seed=-1),
  dict(seconds=0.0),
  dict(seconds=-1.0),
  dict(seconds=np.inf),
  dict(jitter=-0.1),
  dict(jitter=np.nan),
  dict(slow=(1.0,)),
  dict(slow=(1.0, 0.0)),
  dict(straggler_rate=1.5),
  dict(straggler_rate=np.nan),
  dict(straggler_factor=0.0),
  dict(straggler_steps=0.5),
  dict(death_rate=-0.1),
  dict(down_seconds=-1.0),
]


@pytest.mark.parametrize(
  "name, bad",
  [
    (name, bad)
    for name in ("constant", "lognormal", "gamma")
    for bad in BAD_TIMES
    if name != "constant" or "jitter" not in bad
  ],
)
def test_invalid_step_times_are_one_line_errors(name, bad):
  with pytest.raises(ValueError, match=rf"^[^\n]*{next(iter(bad))}[^\n]*$"):
    TIMES[name](**dict(workers=2, seed=0) | bad)
