"""Real threads: what they record is what happened, replayed bit for bit; nobody starves and nothing is lost."""

import itertools
import os
import signal
import sys
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers import servers
from reference.sequential import Sequential

from ddl.api import LockFree, Model
from ddl.asynchronous import shared_server
from ddl.asynchronous.shared_server import FairLock, SharedCenter, SharedServer
from ddl.asynchronous.threads import Threads
from ddl.engine.consensus import NotFinite
from ddl.events import barriers
from ddl.events.operations import ADD, LOOK, READ, SERVE, operations
from ddl.events.record import check

WORKERS, VISITS, SEED = 4, 60, 3
HYPER = {
  "async_msgd": {"momentum": 0.9},
  "async_easgd": {"alpha": 0.1, "period": 3},
  "original_easgd": {"alpha": 0.1},
  "hogwild_easgd": {"alpha": 0.1, "period": 2},
  "dc_asgd": {"compensation": 0.5, "adaptive": True},
  "gosgd": {"probability": 0.5},
}


def _loss(params, extra, batch, key):
  noise = (jax.random.key_data(key)[0] % 8).astype(params["w"].dtype)
  scores = (jnp.tanh(batch["x"] @ params["w"]) + 0.1 * noise) @ params["v"]
  loss = optax.softmax_cross_entropy_with_integer_labels(scores, batch["y"]).mean()
  return loss, {"seen": extra["seen"] + 1.0}


def _init(key):
  one, two = jax.random.split(key)
  return {"w": jax.random.normal(one, (8, 16)), "v": jax.random.normal(two, (16, 4))}, {"seen": jnp.float32(0)}


def _bowl(params, extra, batch, key):
  return 0.5 * jnp.sum((params - batch) ** 2), {"seen": extra["seen"] + 1.0}


MLP = Model(_init, _loss)
BOWL = Model(lambda key: (jnp.ones(8), {"seen": jnp.float32(0)}), _bowl)  # compiles fast


def build(name, workers=WORKERS):
  return servers.build(name, optax.sgd(0.05, momentum=0.5), workers=workers, **HYPER.get(name, {}))


def examples(worker, step):
  rng = np.random.default_rng((worker, step))
  batch = {"x": rng.normal(size=(8, 8)).astype(jnp.result_type(float)), "y": rng.integers(4, size=8).astype(np.int32)}
  return batch, np.uint32([worker, step])


def keyed(worker, step):
  batch, data = examples(worker, step)
  return batch, jax.random.wrap_key_data(data)


def points(worker, step):
  rng = np.random.default_rng((worker, step))
  return rng.normal(size=8).astype(jnp.result_type(float)), np.uint32(step)


def late(take, seconds):
  """For workers of unlike speed: a step of worker w takes w * seconds more."""

  def taken(worker, step):
    time.sleep(worker * seconds)
    return take(worker, step)

  return taken


def ignore(done, losses, snapshot):
  pass


def make(algorithm, barrier=None, blocks=0, model=BOWL, workers=WORKERS):
  barrier = barrier or barriers.asp()
  algorithm = algorithm._replace(arrivals=algorithm.arrivals._replace(blocks=blocks))
  return Threads(algorithm, model, workers=workers, seed=SEED, barrier=barrier)


def run(name, barrier=None, blocks=0, take=points, watch=ignore, model=BOWL):
  """(threads, the initial params and extra, events, operations)."""
  threads, start = make(build(name), barrier, blocks, model), model.init(jax.random.key(0))
  events, done = threads.run(*start, take, VISITS, watch)
  check(events, WORKERS)
  assert len(events.worker) == VISITS
  return threads, start, events, done


def replay(threads, start, events, done, take=points, model=BOWL):
  one = Sequential(threads.algorithm, model, events, done, WORKERS)
  one.start(*start)
  one.run(0, len(done.kind), take)
  return one


def same(threads, one, rtol=0.0):
  pairs = [(getattr(threads, name), getattr(one, name)) for name in ("server", "params", "state", "extra")]
  actual, expected = (jax.tree.leaves(each) for each in zip(*pairs, strict=True))
  assert len(actual) == len(expected)
  for x, y in zip(actual, expected, strict=True):
    np.testing.assert_allclose(x, y, rtol=rtol, atol=rtol)


def furthest_ahead(events):
  """The most worker rounds that anybody was ahead of the slowest one when it began a worker round."""
  clocks = [[np.sum((events.worker == w) & (events.served <= t)) for w in range(WORKERS)] for t in events.start]
  return int(np.max(events.round - np.min(clocks, axis=1)))


# ---- replay


@pytest.mark.parametrize(
  "name, barrier, model, take",
  [
    ("async_sgd", barriers.asp(), BOWL, points),
    ("async_easgd", barriers.asp(), MLP, keyed),
    ("dc_asgd", barriers.ssp(bound=1), MLP, keyed),
    ("async_msgd", barriers.ssp(bound=1), BOWL, points),
    ("gosgd", barriers.psp(sample=2, bound=1), BOWL, points),
    ("original_easgd", barriers.asp(), BOWL, points),
  ],
)
@pytest.mark.sampled(3)
def test_a_locked_run_is_replayed_bit_for_bit(name, barrier, model, take):
  threads, start, events, done = run(name, barrier, take=late(take, 0.0005), model=model)
  assert events.staleness.max() > 0
  if barrier.bound < np.inf:
    assert READ in done.kind
  follows = operations(threads.algorithm, events, workers=WORKERS, barrier=barrier, seed=0)
  for actual, expected in zip(done, follows, strict=True):
    np.testing.assert_array_equal(actual, expected)  # the events alone say what the server did
  same(threads, replay(threads, start, events, done, take, model))


@pytest.mark.parametrize("name, barrier", [("hogwild_sgd", barriers.asp()), ("hogwild_sgd", barriers.ssp(bound=1))])
def test_a_run_without_a_lock_is_replayed_bit_for_bit_where_increments_are_sent(name, barrier):
  threads, start, events, done = run(name, barrier, blocks=3, take=late(points, 0.0005))
  assert np.sum(done.kind == ADD) == 3 * VISITS
  more = np.sum(done.kind == LOOK) - 3 * VISITS  # those whom the barrier held back look again
  assert more == 0 if barrier.bound == np.inf else more > 0
  same(threads, replay(threads, start, events, done))


def test_a_run_without_a_lock_is_replayed_up_to_rounding(x64):
  threads, start, events, done = run("hogwild_easgd", blocks=3, take=late(points, 0.0005))
  assert jax.tree.leaves(threads.server)[0].dtype == np.float64
  same(threads, replay(threads, start, events, done), rtol=1e-12)


def test_a_lock_free_algorithm_can_have_a_lock():
  threads, start, events, done = run("hogwild_sgd", blocks=0)
  assert set(done.kind) == {SERVE}
  same(threads, replay(threads, start, events, done))


# ---- order


def test_a_lock_is_given_in_the_order_of_requests():
  requests = itertools.count()
  lock, served = FairLock(lambda: next(requests)), []

  def visit(name):
    with lock as moment:
      served.append((moment, name))

  threads = [threading.Thread(target=visit, args=(name,)) for name in range(8)]
  with lock:
    for thread in threads:
      thread.start()
      time.sleep(0.01)
  for thread in threads:
    thread.join()
  assert len(served) == 8 and served == sorted(served)


def test_first_come_first_served_and_nobody_starves():
  def equal(worker, step):
    time.sleep(0.002)
    return points(worker, step)

  _, _, events, _ = run("async_sgd", take=equal)
  assert (np.diff(events.arrival) >= 0).all()
  fewest = np.bincount(events.worker, minlength=WORKERS).min()
  assert fewest >= VISITS // WORKERS // 4  # a loaded machine may hold one back for a while


def test_a_round_robin_goes_by_rank():
  _, _, events, _ = run("original_easgd", take=late(points, 0.0005))
  np.testing.assert_array_equal(events.worker, np.arange(VISITS) % WORKERS)
  assert (events.start[1:] >= events.released[:-1]).all()


@pytest.mark.parametrize("name, blocks", [("async_easgd", 0), ("hogwild_sgd", 2)])
def test_a_barrier_bounds_how_far_ahead_one_may_be(name, blocks):
  slow = late(points, 0.002)
  assert furthest_ahead(run(name, barriers.asp(), blocks, slow)[2]) > 2
  assert furthest_ahead(run(name, barriers.ssp(bound=1), blocks, slow)[2]) <= 1


# ---- nothing is lost


@pytest.fixture
def many_switches():
  before = sys.getswitchinterval()
  sys.setswitchinterval(1e-6)
  yield
  sys.setswitchinterval(before)


def together(*works):
  start = threading.Barrier(len(works))
  threads = [threading.Thread(target=lambda work=work: (start.wait(), work())) for work in works]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join()


@pytest.mark.parametrize("size", [500, 501, 5000])
def test_no_element_of_an_increment_is_lost(size, many_switches):
  center, times = SharedCenter(np.zeros((2, size), np.float32), itertools.count()), 10_000

  def add():
    for _ in range(times):
      center.add(1, np.ones(size, np.float32))

  together(add, add)
  np.testing.assert_array_equal(center.copy(), np.float32([[0], [2 * times]]) * np.ones(size, np.float32))


def test_what_is_read_fits_the_places_of_the_operations(many_switches):
  center, added, seen = SharedCenter(np.zeros((1, 2000)), itertools.count()), [], []

  def add():
    for _ in range(500):
      added.append(center.add(0, np.ones(2000)))
      time.sleep(0)  # lets the others in

  def look():
    for _ in range(500):
      out = np.empty(2000)
      seen.append((center.look(0, out), out))
      time.sleep(0)

  together(add, add, look)
  assert sorted([*added, *(place for place, _ in seen)]) == list(range(1500))
  before = np.searchsorted(np.sort(added), [place for place, _ in seen])
  np.testing.assert_array_equal([out for _, out in seen], np.repeat(before[:, None], 2000, axis=1))
  assert len(set(before)) > 20  # they did run at the same time


def test_every_visit_of_a_run_without_a_lock_reaches_the_center(many_switches):
  one_each = LockFree(lambda message, seen: jnp.ones_like(seen), lambda message, seen: seen, reads_first=False)
  threads = make(build("hogwild_sgd")._replace(lock_free=one_each), blocks=3)
  for visits in (1, VISITS):  # 1: all workers come for it
    events, _ = threads.run(jnp.zeros(8), {"seen": jnp.float32(0)}, points, visits, ignore)
    assert len(events.worker) == visits
    np.testing.assert_array_equal(threads.server, np.full(8, visits))


# ---- watching


@pytest.mark.parametrize("name, blocks", [("async_easgd", 0), ("hogwild_sgd", 2)])
def test_watch_sees_each_visit_its_losses_and_the_models(name, blocks):
  seen, last = [], {}

  def watch(done, losses, snapshot):
    seen.append((done, len(losses)))
    assert np.isfinite(losses).all()
    if done == VISITS:
      last.update(snapshot()._asdict())

  threads, _, events, _ = run(name, blocks=blocks, watch=watch)
  algorithm = threads.algorithm
  steps = np.where((events.round == 0) & bool(algorithm.delay), 0, algorithm.period)
  assert seen == list(zip(range(1, VISITS + 1), steps, strict=True))
  params = np.stack(threads.params)
  np.testing.assert_allclose(last["distance"], np.sqrt(np.mean(np.sum((params - params.mean(0)) ** 2, 1))), rtol=1e-6)
  np.testing.assert_allclose(last["extra"]["seen"], np.mean([e["seen"] for e in threads.extra]), rtol=1e-6)
  if not blocks:  # else others may be adding while watch looks
    np.testing.assert_array_equal(last["params"], algorithm.evaluate(threads.server))
  assert [next(iter(x.devices())) for x in threads.params] == jax.local_devices()[:WORKERS]


@pytest.mark.parametrize("name, blocks", [("async_easgd", 0), ("hogwild_sgd", 2)])
def test_the_clock_stands_while_watch_looks_and_nothing_is_compiled_while_it_goes(name, blocks, monkeypatch):
  compiled, before, moment = [], [], itertools.count(1e-3, 1e-3)
  jax.monitoring.register_event_duration_secs_listener(
    lambda name, *_, **__: compiled.append(name) if threading.current_thread() is not threading.main_thread() else None
  )
  late = [0.0]
  monkeypatch.setattr(shared_server.time, "perf_counter", lambda: next(moment) + late[0])
  started = SharedServer.open
  monkeypatch.setattr(SharedServer, "open", lambda shared: (started(shared), before.append(so_far())))

  def so_far():
    return sum("backend_compile" in name for name in compiled)

  def watch(done, losses, snapshot):
    late[0] += 1e6  # seconds

  threads, _, events, _ = run(name, blocks=blocks, watch=watch)
  assert events.released.max() < 1e4 and events.released.max() <= threads.progress().seconds < 1e4
  assert so_far() == before[-1] > before[0] == 0  # the first one is that of the server's making


def test_progress_counts_the_visits_that_exchange():
  seen = []
  threads, start = make(build("gosgd")), BOWL.init(jax.random.key(0))
  events, _ = threads.run(*start, points, VISITS, lambda *_: seen.append(threads.progress()))
  assert [p.visits for p in seen] == list(range(1, VISITS + 1))
  assert [p.exchanges for p in seen] == np.cumsum(events.peer >= 0).tolist() != [p.visits for p in seen]


# ---- trouble


def spoilt(how, worker, step):
  """`points`, but for one worker's step."""

  def take(w, s):
    if (w, s) == (worker, step):
      if how == "raise":
        raise OSError("the disk is gone")
      return np.full(8, np.nan, np.float32), np.uint32(0)
    return points(w, s)

  return take


@pytest.mark.parametrize(
  "name, barrier, blocks",
  [
    ("async_sgd", barriers.bsp(), 0),
    ("async_easgd", barriers.ssp(bound=1), 0),
    ("original_easgd", None, 0),
    ("hogwild_sgd", None, 2),
  ],
)
def test_trouble_in_one_thread_stops_all_and_says_at_which_step(name, barrier, blocks):
  visits = 100 * VISITS  # nobody says how many visits the others get in before a free worker comes to its step
  before, threads, start = threading.active_count(), make(build(name), barrier, blocks), BOWL.init(None)
  with pytest.raises(OSError, match="the disk is gone") as caught:
    threads.run(*start, spoilt("raise", 2, 5), visits, ignore)
  assert caught.value.__notes__ == ["in the thread of worker 2, at its step 6"]
  with pytest.raises(NotFinite) as caught:
    threads.run(*start, spoilt("nan", 1, 3), visits, ignore)
  assert str(caught.value) == "worker 1: the loss is nan at its step 4"
  assert threading.active_count() == before


def test_trouble_before_the_start_and_in_watch():
  def watch(done, losses, snapshot):
    if done == 7:
      raise LookupError("enough")

  with pytest.raises(OSError, match="the disk is gone"):
    run("async_sgd", take=spoilt("raise", 3, 0))
  with pytest.raises(LookupError, match="enough"):
    run("async_sgd", barriers.bsp(), watch=watch)


def test_control_c_ends_all_threads():
  before, was = threading.active_count(), signal.signal(signal.SIGINT, signal.default_int_handler)

  def watch(done, losses, snapshot):
    if done == 5:
      os.kill(os.getpid(), signal.SIGINT)

  def endless(worker, step):
    time.sleep(0.01)
    return points(worker, step)

  threads, start = make(build("async_sgd")), BOWL.init(jax.random.key(0))
  try:  # what runs the tests may ignore Ctrl-C, as a shell's job in the background does
    with pytest.raises(KeyboardInterrupt):
      threads.run(*start, endless, 10_000, watch)
  finally:
    signal.signal(signal.SIGINT, was)
  assert threading.active_count() == before


@pytest.mark.parametrize(
  "name, barrier, blocks", [("async_sgd", barriers.bsp(), 0), ("original_easgd", None, 0), ("hogwild_sgd", None, 2)]
)
def test_a_stop_ends_all_threads_and_leaves_the_record(name, barrier, blocks):
  before, threads, start = threading.active_count(), make(build(name), barrier, blocks), BOWL.init(jax.random.key(0))
  events, done = threads.run(*start, points, 10**6, lambda done, *_: done == 9 and threads.stop())
  check(events, WORKERS)
  assert 9 <= len(events.worker) < 10**6 and threading.active_count() == before
  same(threads, replay(threads, start, events, done))
  threads.stop()  # before it begins
  events, _ = threads.run(*start, points, 10**6, ignore)
  assert len(events.worker) < 10**6


def test_what_cannot_be_is_refused():
  with pytest.raises(ValueError, match="barrier must be asp, bsp, ssp or psp"):
    make(build("async_sgd"), barriers.backup(spare=1))
  with pytest.raises(ValueError, match="asp for a round-robin algorithm"):
    make(build("original_easgd"), barriers.ssp(bound=1))
  with pytest.raises(ValueError, match="workers must be an integer >= 1, got 0"):
    make(build("async_sgd"), workers=0)
  with pytest.raises(ValueError, match="blocks must be an integer >= 0, got -1"):
    make(build("async_sgd"), blocks=-1)
  with pytest.raises(ValueError, match="visits must be an integer >= 1, got 0"):
    make(build("async_sgd")).run(jnp.ones(8), {}, points, 0, ignore)
