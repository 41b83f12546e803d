"""Server algorithms on threads: replay of the record, order of visits, lock-free increments, callbacks and errors."""

import itertools
import os
import signal
import sys
import threading
import time
from functools import cache

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


def delayed(take, seconds):
  """Delay each step of worker w by w * seconds."""

  def take_slowly(worker, step):
    time.sleep(worker * seconds)
    return take(worker, step)

  return take_slowly


def ignore(done, losses, snapshot):
  pass


def make(algorithm, barrier=None, blocks=0, model=BOWL, workers=WORKERS):
  barrier = barrier or barriers.asp()
  algorithm = algorithm._replace(arrivals=algorithm.arrivals._replace(blocks=blocks))
  return Threads(algorithm, model, workers=workers, seed=SEED, barrier=barrier)


@cache
def compiled(name, barrier=None, blocks=0):
  """Return threads for `BOWL` that several tests run, so that they compile only once."""
  return make(build(name), barrier, blocks)


def run(name, barrier=None, blocks=0, take=points, watch=ignore, model=BOWL):
  """Return (threads, initial params and extra, events, operations)."""
  threads = compiled(name, barrier, blocks) if model is BOWL else make(build(name), barrier, blocks, model)
  start = model.init(jax.random.key(0))
  events, done = threads.run(*start, take, VISITS, watch)
  check(events, WORKERS)
  assert len(events.worker) == VISITS
  return threads, start, events, done


def replay(threads, start, events, done, take=points, model=BOWL):
  reference = Sequential(threads.algorithm, model, events, done, WORKERS)
  reference.start(*start)
  reference.run(0, len(done.kind), take)
  return reference


def assert_equal(threads, reference, rtol=0.0):
  pairs = [(getattr(threads, name), getattr(reference, name)) for name in ("server", "params", "state", "extra")]
  actual, expected = (jax.tree.leaves(trees) for trees in zip(*pairs, strict=True))
  assert len(actual) == len(expected)
  for x, y in zip(actual, expected, strict=True):
    np.testing.assert_allclose(x, y, rtol=rtol, atol=rtol)


def largest_lead(events):
  """Return the largest number of rounds by which a worker was ahead of the slowest one when it began a round."""
  clocks = [[np.sum((events.worker == w) & (events.served <= t)) for w in range(WORKERS)] for t in events.start]
  return int(np.max(events.round - np.min(clocks, axis=1)))


# ---- replay


@pytest.mark.parametrize(
  "name, barrier, model, take",
  [
    ("original_easgd", barriers.asp(), BOWL, points),
    ("gosgd", barriers.psp(sample=2, bound=1), BOWL, points),
    pytest.param("async_sgd", barriers.asp(), BOWL, points, marks=pytest.mark.slow),
    pytest.param("hogwild_sgd", barriers.asp(), BOWL, points, marks=pytest.mark.slow),
    pytest.param("async_msgd", barriers.ssp(bound=1), BOWL, points, marks=pytest.mark.slow),
    pytest.param("async_easgd", barriers.asp(), MLP, keyed, marks=pytest.mark.slow),
    pytest.param("dc_asgd", barriers.ssp(bound=1), MLP, keyed, marks=pytest.mark.slow),
  ],
)
def test_replay_of_a_locked_run_is_bit_exact(name, barrier, model, take):
  threads, start, events, done = run(name, barrier, take=delayed(take, 0.0005), model=model)
  assert events.staleness.max() > 0
  if barrier.bound < np.inf:
    assert READ in done.kind
  else:
    assert set(done.kind) == {SERVE}
  if threads.algorithm.arrivals.round_robin:
    np.testing.assert_array_equal(events.worker, np.arange(VISITS) % WORKERS)
    assert (events.start[1:] >= events.released[:-1]).all()
  expected = operations(threads.algorithm, events, workers=WORKERS, barrier=barrier, seed=0)
  for column, expected_column in zip(done, expected, strict=True):
    np.testing.assert_array_equal(column, expected_column)  # the events determine the server's operations
  assert_equal(threads, replay(threads, start, events, done, take, model))


@pytest.mark.parametrize("barrier", [barriers.ssp(bound=1), pytest.param(barriers.asp(), marks=pytest.mark.slow)])
def test_replay_of_a_lock_free_run_is_bit_exact(barrier):
  threads, start, events, done = run("hogwild_sgd", barrier, blocks=3, take=delayed(points, 0.0005))
  assert np.sum(done.kind == ADD) == 3 * VISITS
  more = np.sum(done.kind == LOOK) - 3 * VISITS  # after waiting at the barrier, workers read again
  assert more == 0 if barrier.bound == np.inf else more > 0
  assert_equal(threads, replay(threads, start, events, done))


def test_replay_of_a_lock_free_run_with_a_product_is_equal_up_to_rounding(x64):
  threads, start, events, done = run("hogwild_easgd", blocks=3, take=delayed(points, 0.0005))
  assert jax.tree.leaves(threads.server)[0].dtype == np.float64
  assert_equal(threads, replay(threads, start, events, done), rtol=1e-12)


# ---- order


def test_a_fair_lock_serves_requests_in_order():
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


def test_first_come_first_served_without_starvation():
  def take(worker, step):
    time.sleep(0.002)
    return points(worker, step)

  _, _, events, _ = run("async_sgd", take=take)
  assert (np.diff(events.arrival) >= 0).all()
  fewest = np.bincount(events.worker, minlength=WORKERS).min()
  assert fewest >= VISITS // WORKERS // 4  # a loaded machine may delay a thread


@pytest.mark.parametrize("name, blocks", [("hogwild_sgd", 3), pytest.param("async_easgd", 0, marks=pytest.mark.slow)])
def test_a_barrier_bounds_the_lead_of_workers(name, blocks):
  slow = delayed(points, 0.002)
  assert largest_lead(run(name, barriers.asp(), blocks, slow)[2]) > 2
  assert largest_lead(run(name, barriers.ssp(bound=1), blocks, slow)[2]) <= 1


# ---- lock-free increments


@pytest.fixture
def many_switches():
  before = sys.getswitchinterval()
  sys.setswitchinterval(1e-6)
  yield
  sys.setswitchinterval(before)


def run_concurrently(*functions):
  start = threading.Barrier(len(functions))
  threads = [threading.Thread(target=lambda function=function: (start.wait(), function())) for function in functions]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join()


@pytest.mark.parametrize("size", [500, 5000])  # in one piece, and in ten
def test_no_element_of_an_increment_is_lost(size, many_switches):
  center, times = SharedCenter(np.zeros((2, size), np.float32), itertools.count()), 10_000

  def add():
    for _ in range(times):
      center.add(1, np.ones(size, np.float32))

  run_concurrently(add, add)
  np.testing.assert_array_equal(center.copy(), np.float32([[0], [2 * times]]) * np.ones(size, np.float32))


def test_reads_contain_the_increments_ordered_before_them(many_switches):
  center, added, seen = SharedCenter(np.zeros((1, 2000)), itertools.count()), [], []

  def add():
    for _ in range(500):
      added.append(center.add(0, np.ones(2000)))
      time.sleep(0)  # let another thread run

  def look():
    for _ in range(500):
      out = np.empty(2000)
      seen.append((center.look(0, out), out))
      time.sleep(0)

  run_concurrently(add, add, look)
  assert sorted([*added, *(place for place, _ in seen)]) == list(range(1500))
  before = np.searchsorted(np.sort(added), [place for place, _ in seen])
  np.testing.assert_array_equal([out for _, out in seen], np.repeat(before[:, None], 2000, axis=1))
  assert len(set(before)) > 20  # the threads ran concurrently


def test_every_lock_free_visit_reaches_the_center(many_switches):
  add_ones = LockFree(lambda message, seen: jnp.ones_like(seen), lambda message, seen: seen, reads_first=False)
  threads = make(build("hogwild_sgd")._replace(lock_free=add_ones), blocks=3)
  for visits in (1, VISITS):  # 1: all workers compete for it
    events, _ = threads.run(jnp.zeros(8), {"seen": jnp.float32(0)}, points, visits, ignore)
    assert len(events.worker) == visits
    np.testing.assert_array_equal(threads.server, np.full(8, visits))


# ---- callbacks


@pytest.mark.parametrize("name, blocks", [("async_easgd", 0), ("hogwild_sgd", 2)])
def test_watch_receives_each_visit_its_losses_and_the_models(name, blocks):
  calls, last = [], {}

  def watch(done, losses, snapshot):
    calls.append((done, len(losses)))
    assert np.isfinite(losses).all()
    if done == VISITS:
      last.update(snapshot()._asdict())

  threads, _, events, _ = run(name, blocks=blocks, watch=watch)
  algorithm = threads.algorithm
  steps = np.where((events.round == 0) & bool(algorithm.delay), 0, algorithm.period)
  assert calls == list(zip(range(1, VISITS + 1), steps, strict=True))
  params = np.stack(threads.params)
  np.testing.assert_allclose(last["distance"], np.sqrt(np.mean(np.sum((params - params.mean(0)) ** 2, 1))), rtol=1e-6)
  np.testing.assert_allclose(last["extra"]["seen"], np.mean([e["seen"] for e in threads.extra]), rtol=1e-6)
  if not blocks:  # otherwise other threads may add during the snapshot
    np.testing.assert_array_equal(last["params"], algorithm.evaluate(threads.server))
  assert [next(iter(x.devices())) for x in threads.params] == jax.local_devices()[:WORKERS]


@pytest.mark.parametrize("name, blocks", [("async_easgd", 0), ("hogwild_sgd", 2)])
def test_the_clock_excludes_watch_and_compilation(name, blocks, monkeypatch):
  compilations, before, moments, watching = [], [], itertools.count(1e-3, 1e-3), [0.0]
  jax.monitoring.register_event_duration_secs_listener(
    lambda name, *_, **__: (
      compilations.append(name) if threading.current_thread() is not threading.main_thread() else None
    )
  )
  monkeypatch.setattr(shared_server.time, "perf_counter", lambda: next(moments) + watching[0])
  open_server = SharedServer.open
  monkeypatch.setattr(SharedServer, "open", lambda shared: (open_server(shared), before.append(count())))

  def count():
    return sum("backend_compile" in name for name in compilations)

  def watch(done, losses, snapshot):
    watching[0] += 1e6  # seconds

  threads = make(build(name), blocks=blocks)
  events, _ = threads.run(*BOWL.init(jax.random.key(0)), points, VISITS, watch)
  assert events.released.max() < 1e4 and events.released.max() <= threads.progress().seconds < 1e4
  assert count() == before[-1] > before[0] == 0  # the clock opens in the constructor, and again after compilation


def test_progress_counts_visits_with_a_peer():
  seen = []
  threads, start = compiled("gosgd"), BOWL.init(jax.random.key(0))
  events, _ = threads.run(*start, points, VISITS, lambda *_: seen.append(threads.progress()))
  assert [p.visits for p in seen] == list(range(1, VISITS + 1))
  assert [p.exchanges for p in seen] == np.cumsum(events.peer >= 0).tolist() != [p.visits for p in seen]


# ---- errors and stops


def failing(how, worker, step):
  """Return `points` with an error or NaN at one step of one worker."""

  def take(w, s):
    if (w, s) == (worker, step):
      if how == "raise":
        raise OSError("the disk is gone")
      return np.full(8, np.nan, np.float32), np.uint32(0)
    return points(w, s)

  return take


CASES = [
  ("async_sgd", barriers.bsp(), 0),
  ("hogwild_sgd", None, 2),
  pytest.param("original_easgd", None, 0, marks=pytest.mark.slow),
]


@pytest.mark.parametrize("name, barrier, blocks", CASES)
def test_an_error_in_one_thread_stops_all_and_names_the_step(name, barrier, blocks):
  visits = 100 * VISITS  # without a barrier, others may complete many visits before the failing step
  before, threads, start = threading.active_count(), compiled(name, barrier, blocks), BOWL.init(None)
  with pytest.raises(OSError, match="the disk is gone") as error:
    threads.run(*start, failing("raise", 2, 5), visits, ignore)
  assert error.value.__notes__ == ["in the thread of worker 2, at its step 6"]
  with pytest.raises(NotFinite) as error:
    threads.run(*start, failing("nan", 1, 3), visits, ignore)
  assert str(error.value) == "worker 1: the loss is nan at its step 4"
  assert threading.active_count() == before


def test_errors_before_the_start_and_in_watch_are_raised():
  def watch(done, losses, snapshot):
    if done == 7:
      raise LookupError("enough")

  with pytest.raises(OSError, match="the disk is gone"):
    run("async_sgd", take=failing("raise", 3, 0))
  with pytest.raises(LookupError, match="enough"):
    run("async_sgd", barriers.bsp(), watch=watch)


def test_control_c_ends_all_threads():
  before, handler = threading.active_count(), signal.signal(signal.SIGINT, signal.default_int_handler)

  def watch(done, losses, snapshot):
    if done == 5:
      os.kill(os.getpid(), signal.SIGINT)

  def endless(worker, step):
    time.sleep(0.01)
    return points(worker, step)

  threads, start = compiled("async_sgd"), BOWL.init(jax.random.key(0))
  try:  # jobs in the background of a shell ignore Ctrl-C
    with pytest.raises(KeyboardInterrupt):
      threads.run(*start, endless, 10_000, watch)
  finally:
    signal.signal(signal.SIGINT, handler)
  assert threading.active_count() == before


@pytest.mark.parametrize("name, barrier, blocks", CASES)
def test_a_stopped_run_can_be_replayed(name, barrier, blocks):
  before, threads, start = threading.active_count(), compiled(name, barrier, blocks), BOWL.init(jax.random.key(0))
  events, done = threads.run(*start, points, 10**6, lambda done, *_: done == 9 and threads.stop())
  check(events, WORKERS)
  assert 9 <= len(events.worker) < 10**6 and threading.active_count() == before
  assert_equal(threads, replay(threads, start, events, done))
  threads.stop()  # before the run
  events, _ = threads.run(*start, points, 10**6, ignore)
  assert len(events.worker) < 10**6


def test_invalid_settings_are_errors():
  with pytest.raises(
    ValueError, match=r"config\.barrier\.name must be asp, bsp, ssp or psp with threads, got a quorum"
  ):
    make(build("async_sgd"), barriers.backup(spare=1))
  line = r"^config\.barrier\.name must be asp if workers arrive in round-robin order, got a barrier with bound 1\.$"
  with pytest.raises(ValueError, match=line):
    make(build("original_easgd"), barriers.ssp(bound=1))
  with pytest.raises(ValueError, match="workers must be an integer >= 1, got 0"):
    make(build("async_sgd"), workers=0)
  with pytest.raises(ValueError, match="blocks must be an integer >= 0, got -1"):
    make(build("async_sgd"), blocks=-1)
  with pytest.raises(ValueError, match="visits must be an integer >= 1, got 0"):
    make(build("async_sgd")).run(jnp.ones(8), {}, points, 0, ignore)
