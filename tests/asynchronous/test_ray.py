"""Server algorithms over sockets and on Ray: replayed one by one, killed at random, resumed, and refused."""

import itertools
import os
import random
import shutil
import signal
import socket
import sys
import threading
import time
import types
from contextlib import suppress
from importlib.util import find_spec

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers import servers
from reference.sequential import Sequential

from ddl.algorithms import SERVER
from ddl.api import Model
from ddl.asynchronous import flat_params, ray_master, ray_transport
from ddl.asynchronous.ray_cluster import NO_BARRIER, RayCluster, connect
from ddl.asynchronous.ray_master import Shard
from ddl.asynchronous.ray_worker import RayWorker
from ddl.events import barriers, record
from ddl.events.operations import operations
from ddl.precision import ravel

needs_ray = pytest.mark.skipif(find_spec("ray") is None, reason="Ray is missing: pip install -r requirements-ray.txt")
WORKERS = 2
PARAMS = {"b": np.zeros(2, np.float32), "w": np.linspace(-1, 1, 10, dtype=np.float32).reshape(5, 2)}
EXTRA = {"seen": np.zeros(2, np.float32)}
TARGET = np.arange(10, dtype=np.float32).reshape(5, 2) / 5


def take(worker, step):
  rng = np.random.default_rng([worker, step])
  x = rng.normal(size=(8, 5)).astype(np.float32)
  return {"x": x, "y": x @ TARGET + np.float32(0.5)}, jax.random.key(0)


def loss(params, extra, batch, key):
  del key
  error = batch["x"] @ params["w"].astype(jnp.float32) + params["b"][None] - batch["y"]
  return jnp.float32(0.5) * jnp.mean(error * error), {"seen": extra["seen"] + jnp.mean(error, axis=0)}


def make(worker):
  del worker
  return Model(lambda key: (PARAMS, EXTRA), loss), take


def build(name, learning_rate=0.05, **hyper):
  rate = optax.linear_schedule(learning_rate, 0.2 * learning_rate, 25)  # of a worker's steps
  inner = optax.sgd(rate, momentum=0.5)
  return servers.build(name, inner, workers=WORKERS, **hyper)


def replay(algorithm, events):
  """The center after the recorded events, one at a time."""
  what = operations(algorithm, events, workers=WORKERS, barrier=barriers.asp(), seed=0)
  runner = Sequential(algorithm, make(0)[0], events, what, WORKERS)
  runner.start(jax.tree.map(jnp.asarray, PARAMS), jax.tree.map(jnp.asarray, EXTRA))
  runner.run(0, len(what.kind), take)
  return algorithm.evaluate(runner.server)


def whole(shards):
  return np.concatenate([shard.snapshot(None).params for shard in shards])


def close(actual, params):
  """One flat vector against a tree: float32, where XLA may fuse a vector's sums otherwise than a matrix's."""
  np.testing.assert_allclose(
    actual, np.concatenate([np.ravel(params["b"]), np.ravel(params["w"])]), rtol=2e-6, atol=1e-6
  )


def in_threads(
  algorithm, folder, *, workers, shards, visits, barrier=NO_BARRIER, seconds=0.0, begun=lambda: None, params=PARAMS
):
  """The shards after so many visits by workers that are threads here: all but Ray."""
  flat, _ = ravel(params)
  settings = {"visits": visits, "workers": WORKERS, "folder": str(folder), "every": 0, "marks": ()}
  settings |= {"barrier": barrier, "seed": 0}
  parts = [flat[part] for part in ray_transport.cut(flat.size, shards)]
  masters = [Shard(k, algorithm, part, EXTRA, token=b"secret", **settings) for k, part in enumerate(parts)]
  settings = {"addresses": [m.open(None, "127.0.0.1") for m in masters], "token": b"secret", "workers": WORKERS}
  settings |= {"barrier": barrier, "seed": 0}

  def late(worker, step):
    time.sleep(seconds * worker)
    return take(worker, step)

  staff = [RayWorker(w, algorithm, lambda w: (make(w)[0], late), params, EXTRA, **settings) for w in range(workers)]
  for worker in staff:
    worker.prepare()
  starts = [[master.begin(w) for master in masters] for w in range(workers)]
  begun()
  threads = [threading.Thread(target=staff[w].work, args=starts[w], daemon=True) for w in range(workers)]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join(60)
    assert not thread.is_alive()
  return masters


def furthest_ahead(events, workers=WORKERS):
  """The most rounds that anybody was ahead of the slowest one when it began a round."""
  clocks = [[np.sum((events.worker == w) & (events.served <= t)) for w in range(workers)] for t in events.start]
  return int(np.max(events.round - np.min(clocks, axis=1)))


CASES = {"async_msgd": {}, "async_measgd": {"period": 3}, "dynsgd": {"period": 2}, "gosgd": {"probability": 0.5}}


@pytest.mark.parametrize("name", [*CASES, "original_easgd"])
def test_a_shards_record_replays(name, tmp_path):
  algorithm = build(name, **CASES.get(name, {}))
  (master,) = in_threads(algorithm, tmp_path, workers=2, shards=1, visits=25)
  events = master.events()
  record.check(events, WORKERS)
  assert len(events.worker) == master.served == 25
  known = record.known(events.worker, events.start, events.served, events.answered, events.restarted)
  np.testing.assert_array_equal(events.staleness, np.arange(25) - known)
  if algorithm.arrivals.round_robin:
    np.testing.assert_array_equal(events.worker, np.arange(25) % WORKERS)
  close(whole([master]), replay(algorithm, events))


@pytest.mark.parametrize("name, shards", [("async_measgd", 3), ("dc_asgd", 2), ("downpour", 12)])
def test_shards_equal_the_whole_for_one_worker(name, shards, tmp_path):
  algorithm = build(name)
  masters = in_threads(algorithm, tmp_path, workers=1, shards=shards, visits=12)
  assert [m.served for m in masters] == [12] * shards
  close(whole(masters), replay(algorithm, masters[0].events()))


def test_a_master_holds_parameters_of_several_types(tmp_path):
  """In the type that holds them all; the workers train with the model's own."""
  params = {"b": PARAMS["b"], "w": PARAMS["w"].astype(jnp.bfloat16)}
  algorithm = build("async_measgd")
  assert flat_params.is_elementwise(algorithm, params)
  masters = in_threads(algorithm, tmp_path, workers=2, shards=2, visits=12, params=params)
  _, unravel = ravel(params)
  result = unravel(whole(masters))
  assert (
    jax.tree.map(lambda x: x.dtype, result) == jax.tree.map(lambda x: x.dtype, params)
    and whole(masters).dtype == np.float32
  )
  assert np.abs(np.float32(result["w"]) - PARAMS["w"]).max() > 0.01


@pytest.mark.parametrize(
  "name, barrier",
  [
    ("dynsgd", barriers.bsp()),
    ("async_measgd", barriers.ssp(bound=1)),
    ("dc_asgd", barriers.psp(sample=1, bound=1, redraw=True)),
  ],
)
def test_a_barrier_holds_workers_back_and_tells_them_anew(name, barrier, tmp_path):
  algorithm = build(name)
  (master,) = in_threads(algorithm, tmp_path, workers=2, shards=1, visits=25, barrier=barrier, seconds=0.003)
  events = master.record.events()
  record.check(events, WORKERS)
  assert furthest_ahead(events) <= barrier.bound
  held = events.answered > np.arange(25) + 1
  assert held.any() == (not algorithm.delay)  # worker 0 is the faster one; with a delay it waits after the answer
  close(whole([master]), replay(algorithm, events))


def test_behind_a_barrier_every_shard_tells_of_all_turns_before(tmp_path, monkeypatch):
  seen, read = [], Shard.read

  def recorded_read(shard, request):
    seen.append((shard.index, int(request["worker"]), int(request["round"]), shard.served))
    return read(shard, request)

  monkeypatch.setattr(Shard, "read", recorded_read)
  in_threads(build("async_sgd"), tmp_path, workers=2, shards=3, visits=24, barrier=barriers.bsp(), seconds=0.001)
  assert {(k, w, t) for k, w, t, _ in seen} == set(itertools.product(range(3), range(2), range(1, 12)))
  assert all(served >= WORKERS * turn for _, _, turn, served in seen)


def test_nothing_is_compiled_once_the_clock_goes(tmp_path):
  compiled, before = [], []
  jax.monitoring.register_event_duration_secs_listener(lambda name, *_, **__: compiled.append(name))

  def so_far():
    return sum("backend_compile" in name for name in compiled)

  in_threads(build("dynsgd"), tmp_path, workers=2, shards=2, visits=20, begun=lambda: before.append(so_far()))
  assert so_far() == before[0] > 0


def test_messages_are_cut_by_bytes():
  assert [p.stop - p.start for p in ray_transport.cut(12, 5)] == [2, 2, 3, 2, 3]
  with pytest.raises(ValueError, match=r"shards must be in \[1, 12\]"):
    ray_transport.cut(12, 13)


def test_a_stranger_is_not_admitted(tmp_path):
  algorithm = build("async_msgd")
  master = Shard(
    0,
    algorithm,
    np.zeros(12, np.float32),
    EXTRA,
    visits=9,
    workers=2,
    barrier=NO_BARRIER,
    seed=0,
    marks=(),
    folder=tmp_path,
    every=0,
    token=b"secret",
  )
  with socket.create_connection(master.open(None, "127.0.0.1"), timeout=5) as connection:
    connection.sendall(b"sesame" + bytes(1000))
    with suppress(ConnectionResetError):
      assert connection.recv(1) == b""
  assert master.served == 0


def test_half_a_checkpoint_is_none(tmp_path):
  events = record.Events(*(np.zeros(0, kind) for kind in record.TYPES.values()))
  for shard, label in ((0, 10), (0, 20), (1, 10)):
    ray_master.save(tmp_path, shard, label, {"a": np.full(3, label)}, events, keep=0)
  (tmp_path / "shard1-000000020.half").write_bytes(b"PK")
  assert ray_master.newest(tmp_path, 2) == 10
  assert ray_master.load(tmp_path, 1, 10, {"a": np.zeros(3)})[0]["a"].tolist() == [10, 10, 10]
  with pytest.raises(ValueError, match="must be a checkpoint of this model"):
    ray_master.load(tmp_path, 1, 10, {"a": np.zeros(4)})


def test_without_ray(monkeypatch, tmp_path):
  monkeypatch.setitem(sys.modules, "ray", None)
  with pytest.raises(ValueError, match=r"pip install -r requirements-ray\.txt"):
    RayCluster(build("async_msgd"), make, workers=1, shards=1, folder=tmp_path)


@pytest.fixture(scope="module")
def ray():
  connect(None, cpus=8)
  import ray

  ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # the workers have no tests
  yield ray
  ray.shutdown()


def cluster(folder, algorithm, **settings):
  return RayCluster(algorithm, make, **{"workers": WORKERS, "shards": 1, "folder": folder} | settings)


def test_loss(params):
  return float(loss(params, EXTRA, take(7, 7)[0], None)[0])


test_loss.__test__ = False


@needs_ray
@pytest.mark.slow
def test_workers_killed_at_random_lose_their_turn_alone(ray, tmp_path):
  algorithm, rng, shown, killed = build("async_measgd", period=2), random.Random(5), [], []
  runner = cluster(tmp_path, algorithm)

  def watch(snapshot):
    shown.append(snapshot)
    at_work = sorted(set(runner.supervisor.working.values()))
    if snapshot.progress.visits < 300 and at_work and len(killed) < 3:
      time.sleep(rng.random() / 50)
      for worker in at_work if len(killed) else [rng.choice(at_work)]:
        with suppress(ray.exceptions.RayActorError):  # it is dead already, and not replaced yet
          os.kill(ray.get(runner.supervisor.actors[worker].pid.remote()), signal.SIGKILL)
          killed.append(worker)

  events = runner.run(PARAMS, EXTRA, 300, watch, range(50, 400, 50))
  record.check(events, WORKERS)
  assert len(killed) >= 2 and events.restarted.sum() >= 1
  assert [snapshot.progress.visits for snapshot in shown] == list(range(50, 350, 50)) and len(events.worker) == 300
  assert [snapshot.progress.seconds for snapshot in shown] == [events.served[at - 1] for at in range(50, 350, 50)]
  with np.load(tmp_path / "shard0-000000300.npz") as saved:
    assert len(saved["worker"]) == 300
  close(ravel(shown[-1].params)[0], replay(algorithm, events))
  assert test_loss(shown[-1].params) < 0.01 * test_loss(PARAMS)
  assert all(np.isfinite(snapshot.extra["seen"]).all() for snapshot in shown)
  assert [sum(map(len, snapshot.losses)) for snapshot in shown] == 6 * [2 * 50]


@needs_ray
@pytest.mark.slow
def test_a_killed_worker_holds_nobody_up_at_a_barrier(ray, tmp_path):
  seen, runner = {}, cluster(tmp_path, build("async_sgd"), barrier=barriers.bsp())

  def watch(snapshot):
    first = "killed" not in seen
    if first:
      os.kill(ray.get(runner.supervisor.actors[1].pid.remote()), signal.SIGKILL)
    _, rounds, _, _ = ray.get(runner.supervisor.shards[0].progress.remote(0))
    if first:
      seen["killed"] = rounds[1]
    elif rounds[1] > seen["killed"] + 20:  # the next one has come, and made some rounds
      runner.stop()
    seen["params"] = snapshot.params

  events = runner.run(PARAMS, EXTRA, 10**6, watch, range(50, 10**6, 50))
  record.check(events, WORKERS)
  (back,) = np.flatnonzero(events.restarted)
  last = np.flatnonzero(events.worker[:back] == 1)[-1]
  assert back - last > 20  # rounds of worker 0 alone: nobody waited for the dead one
  after = events.worker[back:-1]
  # Now they do again: apart by a round, and by another that was served, not yet finished, when the other came back.
  assert abs((after == 0).sum() - (after == 1).sum()) <= 2 and len(after) > 20
  close(ravel(seen["params"])[0], replay(runner.algorithm, events))


@needs_ray
@pytest.mark.slow
def test_a_worker_that_can_not_be_made_says_why(ray, tmp_path, monkeypatch):
  only_here = types.ModuleType("only_here")
  exec("def make(worker): ...", only_here.__dict__)
  monkeypatch.setitem(sys.modules, "only_here", only_here)
  runner = RayCluster(build("async_sgd"), only_here.make, workers=1, shards=1, folder=tmp_path)
  with pytest.raises(ValueError, match=r"^worker 0 cannot start: ModuleNotFoundError: No module named 'only_here'$"):
    runner.run(PARAMS, EXTRA, 30, print, [])


@needs_ray
def test_an_optimiser_that_looks_at_more_than_a_shard_is_refused(ray, tmp_path):
  clipping = optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(0.1))
  runner = cluster(tmp_path, SERVER["async_sgd"].factory(clipping))
  with pytest.raises(ValueError, match="the optimizer must be element-wise on Ray"):
    runner.run(PARAMS, EXTRA, 30, print, [])


@needs_ray
@pytest.mark.slow
def test_a_stopped_run_saves_itself_and_goes_on(ray, tmp_path):
  runner, shown = cluster(tmp_path, build("dynsgd"), shards=2), []
  events = runner.run(PARAMS, EXTRA, 10**6, lambda snapshot: runner.stop(), [30])
  done = len(events.worker)
  assert 30 <= done < 10**6 and runner.newest() == runner.label == done
  end = done + 20
  events = cluster(tmp_path, build("dynsgd"), shards=2, resume=True).run(PARAMS, EXTRA, end, shown.append, [])
  record.check(events, WORKERS)
  assert len(events.worker) == end and shown[-1].progress.visits == end


@needs_ray
@pytest.mark.slow
def test_everything_restarts_from_the_checkpoints(ray, tmp_path):
  algorithm = build("dynsgd", period=1)
  runner = cluster(tmp_path, algorithm, shards=2, checkpoint_every=20)

  def kill_a_shard(snapshot):
    os.kill(ray.get(runner.supervisor.shards[1].pid.remote()), signal.SIGKILL)

  with pytest.raises(ValueError, match="shard 1 of the master died; resume"):
    runner.run(PARAMS, EXTRA, 10**6, kill_a_shard, [50])
  at = ray_master.newest(tmp_path, 2)
  assert at and at % 20 == 0
  with pytest.raises(ValueError, match="without checkpoints of an earlier run"):
    cluster(tmp_path, algorithm, shards=2)
  shutil.copytree(tmp_path, tmp_path / "copy")
  end, shown = at + 60, []
  events = cluster(tmp_path, algorithm, shards=2, resume=True).run(PARAMS, EXTRA, end, shown.append, [50, at + 10])
  record.check(events, WORKERS)
  assert [snapshot.progress.visits for snapshot in shown] == [at + 10, end] and len(events.worker) == end
  assert events.restarted[at:].sum() >= 1
  assert ray_master.newest(tmp_path, 2) == end
  for shard in range(2):
    with np.load(tmp_path / f"shard{shard}-{end:09d}.npz") as saved:
      assert saved["leaf0001"] == end  # DynServer.version: no visit is lost and none is served twice
  with pytest.raises(ValueError, match="must be a checkpoint of this model"):
    cluster(tmp_path / "copy", build("async_msgd"), shards=2, resume=True).run(PARAMS, EXTRA, end, print, [])


@needs_ray
@pytest.mark.slow
def test_a_run_that_diverges_keeps_the_last_good_checkpoint(ray, tmp_path):
  runner = cluster(tmp_path, build("async_msgd", learning_rate=30.0), workers=1, checkpoint_every=2)
  with pytest.raises(ValueError, match=r"visit \d+: the message of worker 0's round \d+ .* not finite"):
    runner.run(PARAMS, EXTRA, 1000, lambda _: None, [])
  label = ray_master.newest(tmp_path, 1)
  with np.load(tmp_path / f"shard0-{label:09d}.npz") as saved:
    assert label and np.isfinite(saved["leaf0000"]).all()


@needs_ray
@pytest.mark.slow
def test_a_worker_that_fails_is_named(ray, tmp_path):
  def broken(worker):
    raise KeyError("no data")

  with pytest.raises(ValueError, match="worker 0 failed: KeyError: 'no data'"):
    RayCluster(build("async_msgd"), broken, workers=1, shards=1, folder=tmp_path).run(PARAMS, EXTRA, 9, print, [])


@needs_ray
def test_bad_input(ray, tmp_path):
  algorithm = build("async_msgd")
  with pytest.raises(ValueError, match="workers must be an integer >= 1, got 0"):
    cluster(tmp_path, algorithm, workers=0)
  with pytest.raises(ValueError, match="CPUs of the Ray cluster must be at least 51 "):
    cluster(tmp_path, algorithm, workers=50)
  with pytest.raises(ValueError, match="a checkpoint of all 3 shards"):
    cluster(tmp_path, algorithm, shards=3, resume=True)
  with pytest.raises(ValueError, match=r"shards must be in \[1, 4\]"):
    cluster(tmp_path, algorithm, workers=1, shards=5).run({"w": np.zeros(4, np.float32)}, EXTRA, 9, print, [])


@needs_ray
def test_ray_is_at_loopback(ray):
  assert [node["NodeManagerAddress"] for node in ray.nodes()] == ["127.0.0.1"]
  assert ray.util.get_node_ip_address() == "127.0.0.1"


@needs_ray
def test_an_address_that_does_not_answer():
  with socket.create_server(("127.0.0.1", 0)) as free:
    port = free.getsockname()[1]
  began = time.perf_counter()
  with pytest.raises(ValueError, match=r"ray_address must be .* got 127\.0\.0\.1"):
    connect(f"127.0.0.1:{port}", cpus=1)
  with pytest.raises(ValueError, match="ray_address must be HOST:PORT"):
    connect("somewhere", cpus=1)
  assert time.perf_counter() - began < 10
