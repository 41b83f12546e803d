"""Server algorithms over sockets and on Ray: replay of the record, barriers, killed processes, resume and errors."""

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
from ddl.asynchronous import flat_params, ray_cluster, ray_master, ray_transport
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
COMPILATIONS = []  # names of JAX's events
jax.monitoring.register_event_duration_secs_listener(
  lambda name, *_, **__: COMPILATIONS.append(name) if "backend_compile" in name else None
)


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
  """Return the center after executing the recorded events one at a time."""
  schedule = operations(algorithm, events, workers=WORKERS, barrier=barriers.asp(), seed=0)
  runner = Sequential(algorithm, make(0)[0], events, schedule, WORKERS)
  runner.start(jax.tree.map(jnp.asarray, PARAMS), jax.tree.map(jnp.asarray, EXTRA))
  runner.run(0, len(schedule.kind), take)
  return algorithm.evaluate(runner.server)


def center_of(shards):
  return np.concatenate([shard.snapshot(None).params for shard in shards])


def assert_close(vector, params):
  """Compare a flat vector with a tree in float32, in which XLA may fuse sums of vectors and matrices differently."""
  expected = np.concatenate([np.ravel(params["b"]), np.ravel(params["w"])])
  np.testing.assert_allclose(vector, expected, rtol=2e-6, atol=1e-6)


def run_in_threads(
  algorithm, folder, *, workers, shards, visits, barrier=NO_BARRIER, seconds=0.0, params=PARAMS, marks=(), early=()
):
  """Run workers as threads of this process, without Ray; return the shards. Nothing may be compiled during the run."""
  flat, _ = ravel(params)
  common = {"workers": WORKERS, "barrier": barrier, "seed": 0, "token": b"secret"}
  parts = [flat[part] for part in ray_transport.cut(flat.size, shards)]
  settings = common | {"visits": visits, "folder": str(folder), "every": 0, "marks": marks}
  masters = [Shard(k, algorithm, part, EXTRA, **settings) for k, part in enumerate(parts)]
  for mark in early:  # before these visits, as for a shard that lags
    masters[-1].snapshot(mark)
  addresses = [master.open(None, "127.0.0.1") for master in masters]

  def take_slowly(worker, step):
    time.sleep(seconds * worker)
    return take(worker, step)

  def make_slow(worker):
    return make(worker)[0], take_slowly

  staff = [RayWorker(w, algorithm, make_slow, params, EXTRA, addresses=addresses, **common) for w in range(workers)]
  for worker in staff:
    worker.prepare()
  starts = [[master.begin(w) for master in masters] for w in range(workers)]
  compiled = len(COMPILATIONS)
  threads = [threading.Thread(target=staff[w].work, args=starts[w], daemon=True) for w in range(workers)]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join(60)
    assert not thread.is_alive()
  assert len(COMPILATIONS) == compiled > 0
  return masters


def test_a_shard_that_lags_stores_no_snapshot_that_was_already_taken(tmp_path):
  algorithm = build("async_sgd")
  first, last = run_in_threads(algorithm, tmp_path, workers=1, shards=2, visits=30, marks=(10, 20), early=(10,))
  assert [*first.snapshots] == [10, 20] and [*last.snapshots] == [20]


def largest_lead(events, workers=WORKERS):
  """Return the largest number of rounds by which a worker was ahead of the slowest one when it began a round."""
  clocks = [[np.sum((events.worker == w) & (events.served <= t)) for w in range(workers)] for t in events.start]
  return int(np.max(events.round - np.min(clocks, axis=1)))


@pytest.mark.parametrize(
  ("name", "hyper"),
  [
    ("gosgd", {"probability": 0.5}),
    ("original_easgd", {}),
    pytest.param("async_msgd", {}, marks=pytest.mark.slow),
    pytest.param("async_measgd", {"period": 3}, marks=pytest.mark.slow),
    pytest.param("dynsgd", {"period": 2}, marks=pytest.mark.slow),
  ],
)
def test_replay_of_a_shards_record_gives_its_center(name, hyper, tmp_path):
  algorithm = build(name, **hyper)
  (master,) = run_in_threads(algorithm, tmp_path, workers=2, shards=1, visits=25)
  events = master.events()
  record.check(events, WORKERS)
  assert len(events.worker) == master.served == 25
  known = record.known(events.worker, events.start, events.served, events.answered, events.restarted)
  np.testing.assert_array_equal(events.staleness, np.arange(25) - known)
  if algorithm.arrivals.round_robin:
    np.testing.assert_array_equal(events.worker, np.arange(25) % WORKERS)
  assert_close(center_of([master]), replay(algorithm, events))


@pytest.mark.parametrize(
  ("name", "shards"),
  [
    ("async_measgd", 3),
    pytest.param("dc_asgd", 2, marks=pytest.mark.slow),
    pytest.param("downpour", 12, marks=pytest.mark.slow),
  ],
)
def test_several_shards_equal_one_server(name, shards, tmp_path):
  algorithm = build(name)
  masters = run_in_threads(algorithm, tmp_path, workers=1, shards=shards, visits=12)
  assert [master.served for master in masters] == [12] * shards
  assert_close(center_of(masters), replay(algorithm, masters[0].events()))


def test_parameters_of_several_types_are_served_in_their_common_type(tmp_path):
  params = {"b": PARAMS["b"], "w": PARAMS["w"].astype(jnp.bfloat16)}
  algorithm = build("async_measgd")
  assert flat_params.is_elementwise(algorithm, params)
  masters = run_in_threads(algorithm, tmp_path, workers=2, shards=2, visits=12, params=params)
  _, unravel = ravel(params)
  center = center_of(masters)
  result = unravel(center)
  assert center.dtype == np.float32
  assert jax.tree.map(lambda x: x.dtype, result) == jax.tree.map(lambda x: x.dtype, params)
  assert np.abs(np.float32(result["w"]) - PARAMS["w"]).max() > 0.01


@pytest.mark.parametrize(
  "name, barrier",
  [
    ("dynsgd", barriers.bsp()),
    ("async_measgd", barriers.ssp(bound=1)),
    pytest.param("dc_asgd", barriers.psp(sample=1, bound=1, redraw=True), marks=pytest.mark.slow),
  ],
)
def test_a_barrier_bounds_the_lead_and_updates_replies(name, barrier, tmp_path):
  algorithm = build(name)
  (master,) = run_in_threads(algorithm, tmp_path, workers=2, shards=1, visits=25, barrier=barrier, seconds=0.003)
  events = master.record.events()
  record.check(events, WORKERS)
  assert largest_lead(events) <= barrier.bound
  waited = events.answered > np.arange(25) + 1
  assert waited.any() == (not algorithm.delay)  # worker 0 is the faster one; with a delay it waits after the reply
  assert_close(center_of([master]), replay(algorithm, events))


def test_every_shard_updates_its_reply_after_a_barrier(tmp_path, monkeypatch):
  reads, read = [], Shard.read

  def recorded_read(shard, request):
    reads.append((shard.index, int(request["worker"]), int(request["round"]), shard.served))
    return read(shard, request)

  monkeypatch.setattr(Shard, "read", recorded_read)
  run_in_threads(build("async_sgd"), tmp_path, workers=2, shards=2, visits=12, barrier=barriers.bsp(), seconds=0.001)
  assert {(k, w, t) for k, w, t, _ in reads} == set(itertools.product(range(2), range(2), range(1, 6)))
  assert all(served >= WORKERS * round_ for _, _, round_, served in reads)


def test_shards_have_equal_sizes():
  assert [part.stop - part.start for part in ray_transport.cut(12, 5)] == [2, 2, 3, 2, 3]
  with pytest.raises(ValueError, match="shards must be from 1 to 12"):
    ray_transport.cut(12, 13)


def test_a_connection_without_the_token_is_closed(tmp_path):
  settings = {"visits": 9, "workers": 2, "barrier": NO_BARRIER, "seed": 0, "marks": (), "folder": tmp_path, "every": 0}
  master = Shard(0, build("async_msgd"), np.zeros(12, np.float32), EXTRA, token=b"secret", **settings)
  with socket.create_connection(master.open(None, "127.0.0.1"), timeout=5) as connection:
    connection.sendall(b"sesame" + bytes(1000))
    with suppress(ConnectionResetError):
      assert connection.recv(1) == b""
  assert master.served == 0


def test_incomplete_checkpoints_are_ignored(tmp_path):
  events = record.Events(*(np.zeros(0, kind) for kind in record.TYPES.values()))
  for shard, label in ((0, 10), (0, 20), (1, 10)):
    ray_master.save(tmp_path, shard, label, {"a": np.full(3, label)}, events, keep=0)
  (tmp_path / "shard1-000000020.half").write_bytes(b"PK")
  assert ray_master.newest(tmp_path, 2) == 10
  assert ray_master.load(tmp_path, 1, 10, {"a": np.zeros(3)})[0]["a"].tolist() == [10, 10, 10]
  with pytest.raises(ValueError, match="must be a checkpoint of this model"):
    ray_master.load(tmp_path, 1, 10, {"a": np.zeros(4)})


def test_a_missing_ray_is_an_error(monkeypatch, tmp_path):
  monkeypatch.setitem(sys.modules, "ray", None)
  with pytest.raises(ValueError, match=r"pip install -r requirements-ray\.txt"):
    RayCluster(build("async_msgd"), make, workers=1, shards=1, folder=tmp_path)


def cluster(folder, algorithm, **settings):
  return RayCluster(algorithm, make, **{"workers": WORKERS, "shards": 1, "folder": folder} | settings)


def test_invalid_settings_are_errors_before_processes_start(tmp_path, monkeypatch):
  running = types.SimpleNamespace(is_initialized=lambda: True, cluster_resources=lambda: {"CPU": 8.0})
  monkeypatch.setattr(ray_cluster, "require", lambda local: running)
  algorithm = build("async_msgd")
  with pytest.raises(ValueError, match="workers must be an integer >= 1, got 0"):
    cluster(tmp_path, algorithm, workers=0)
  with pytest.raises(ValueError, match=r"CPUs of the Ray cluster must be at least 51 [^\n]*, got 8"):
    cluster(tmp_path, algorithm, workers=50)
  with pytest.raises(ValueError, match="a checkpoint of all 3 shards"):
    cluster(tmp_path, algorithm, shards=3, resume=True)
  with pytest.raises(ValueError, match="shards must be from 1 to 4"):
    cluster(tmp_path, algorithm, workers=1, shards=5).run({"w": np.zeros(4, np.float32)}, EXTRA, 9, print, [])
  clipping = optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(0.1))
  with pytest.raises(ValueError, match="the optimizer and the server's functions must be element-wise on Ray"):
    cluster(tmp_path, SERVER["async_sgd"].factory(clipping)).run(PARAMS, EXTRA, 30, print, [])


@needs_ray
def test_an_address_that_does_not_answer_is_an_error():
  with socket.create_server(("127.0.0.1", 0)) as free:
    port = free.getsockname()[1]
  with pytest.raises(ValueError, match=r"ray_address must be [^\n]*, got 127\.0\.0\.1"):
    connect(f"127.0.0.1:{port}", cpus=1)
  with pytest.raises(ValueError, match=r"ray_address must be [^\n]*, got a\.\.b:6379 \("):
    connect("a..b:6379", cpus=1)  # no valid name of a host
  for address in ("somewhere", "somewhere:port", "somewhere:70000"):
    with pytest.raises(ValueError, match=f"ray_address must be HOST:PORT .* got '{address}'"):
      connect(address, cpus=1)


@pytest.fixture(scope="module")
def ray():
  connect(None, cpus=8)
  import ray

  ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import the tests
  yield ray
  ray.shutdown()


def loss_of(params):
  return float(loss(params, EXTRA, take(7, 7)[0], None)[0])


@needs_ray
@pytest.mark.slow
def test_ray_listens_only_at_loopback(ray):
  assert [node["NodeManagerAddress"] for node in ray.nodes()] == ["127.0.0.1"]
  assert ray.util.get_node_ip_address() == "127.0.0.1"


@needs_ray
@pytest.mark.slow
def test_killed_workers_lose_only_their_current_round(ray, tmp_path):
  algorithm, rng, snapshots, killed = build("async_measgd", period=2), random.Random(5), [], []
  runner = cluster(tmp_path, algorithm)

  def watch(snapshot):
    snapshots.append(snapshot)
    busy = sorted(set(runner.supervisor.working.values()))
    if snapshot.progress.visits < 600 and busy and len(killed) < 3:
      time.sleep(rng.random() / 50)
      for worker in busy if killed else [rng.choice(busy)]:
        with suppress(ray.exceptions.RayActorError):  # the worker is already dead and not yet replaced
          os.kill(ray.get(runner.supervisor.actors[worker].pid.remote()), signal.SIGKILL)
          killed.append(worker)

  events = runner.run(PARAMS, EXTRA, 600, watch, range(50, 600, 50))
  record.check(events, WORKERS)
  assert len(killed) >= 2 and events.restarted.sum() >= 1
  assert [snapshot.progress.visits for snapshot in snapshots] == list(range(50, 650, 50)) and len(events.worker) == 600
  assert [snapshot.progress.seconds for snapshot in snapshots] == [events.served[at - 1] for at in range(50, 650, 50)]
  with np.load(tmp_path / "shard0-000000600.npz") as saved:
    assert len(saved["worker"]) == 600
  assert_close(ravel(snapshots[-1].params)[0], replay(algorithm, events))
  assert loss_of(snapshots[-1].params) < 0.01 * loss_of(PARAMS)
  assert all(np.isfinite(snapshot.extra["seen"]).all() for snapshot in snapshots)
  assert [sum(map(len, snapshot.losses)) for snapshot in snapshots] == 12 * [2 * 50]


@needs_ray
@pytest.mark.slow
def test_workers_do_not_wait_for_a_killed_worker_at_a_barrier(ray, tmp_path):
  seen, runner = {}, cluster(tmp_path, build("async_sgd"), barrier=barriers.bsp())

  def watch(snapshot):
    first = "killed" not in seen
    if first:
      os.kill(ray.get(runner.supervisor.actors[1].pid.remote()), signal.SIGKILL)
    _, rounds, _, _ = ray.get(runner.supervisor.shards[0].progress.remote(0))
    if first:
      seen["killed"] = rounds[1]
    elif rounds[1] > seen["killed"] + 20:  # its replacement has run some rounds
      runner.stop()
    seen["params"] = snapshot.params

  events = runner.run(PARAMS, EXTRA, 10**6, watch, range(50, 10**6, 50))
  record.check(events, WORKERS)
  (back,) = np.flatnonzero(events.restarted)
  last = np.flatnonzero(events.worker[:back] == 1)[-1]
  assert back - last > 20  # rounds of worker 0, which did not wait for the dead worker
  after = events.worker[back:-1]
  # Then they wait for each other again: they differ by one round, and by one that was not finished at the restart.
  assert abs((after == 0).sum() - (after == 1).sum()) <= 2 and len(after) > 20
  assert_close(ravel(seen["params"])[0], replay(runner.algorithm, events))


@needs_ray
@pytest.mark.slow
def test_a_worker_that_cannot_start_reports_the_reason(ray, tmp_path, monkeypatch):
  missing_module = types.ModuleType("missing_module")
  exec("def make(worker): ...", missing_module.__dict__)
  monkeypatch.setitem(sys.modules, "missing_module", missing_module)
  runner = RayCluster(build("async_sgd"), missing_module.make, workers=1, shards=1, folder=tmp_path)
  with pytest.raises(
    ValueError, match=r"^worker 0 cannot start: ModuleNotFoundError: No module named 'missing_module'$"
  ):
    runner.run(PARAMS, EXTRA, 30, print, [])


@needs_ray
@pytest.mark.slow
def test_a_stopped_run_is_saved_and_resumed(ray, tmp_path):
  runner, snapshots = cluster(tmp_path, build("dynsgd"), shards=2), []
  events = runner.run(PARAMS, EXTRA, 10**6, lambda snapshot: runner.stop(), [30])
  done = len(events.worker)
  assert 30 <= done < 10**6 and runner.newest() == runner.label == done
  end = done + 20
  events = cluster(tmp_path, build("dynsgd"), shards=2, resume=True).run(PARAMS, EXTRA, end, snapshots.append, [])
  record.check(events, WORKERS)
  assert len(events.worker) == end and snapshots[-1].progress.visits == end


@needs_ray
@pytest.mark.slow
def test_a_run_with_a_killed_shard_resumes_from_the_checkpoints(ray, tmp_path):
  algorithm = build("dynsgd", period=1)
  runner = cluster(tmp_path, algorithm, shards=2, checkpoint_every=20)

  def kill_a_shard(snapshot):
    os.kill(ray.get(runner.supervisor.shards[1].pid.remote()), signal.SIGKILL)

  with pytest.raises(ValueError, match=r"shard 1 of the master died\. Resume"):
    runner.run(PARAMS, EXTRA, 10**6, kill_a_shard, [50])
  at = ray_master.newest(tmp_path, 2)
  assert at and at % 20 == 0
  with pytest.raises(ValueError, match="without checkpoints of an earlier run"):
    cluster(tmp_path, algorithm, shards=2)
  shutil.copytree(tmp_path, tmp_path / "copy")
  end, snapshots = at + 60, []
  events = cluster(tmp_path, algorithm, shards=2, resume=True).run(PARAMS, EXTRA, end, snapshots.append, [50, at + 10])
  record.check(events, WORKERS)
  assert [snapshot.progress.visits for snapshot in snapshots] == [at + 10, end] and len(events.worker) == end
  assert events.restarted[at:].sum() >= 1
  assert ray_master.newest(tmp_path, 2) == end
  for shard in range(2):
    with np.load(tmp_path / f"shard{shard}-{end:09d}.npz") as saved:
      assert saved["leaf0001"] == end  # DynServer.version: each visit was served once
  with pytest.raises(ValueError, match="must be a checkpoint of this model"):
    cluster(tmp_path / "copy", build("async_msgd"), shards=2, resume=True).run(PARAMS, EXTRA, end, print, [])


@needs_ray
@pytest.mark.slow
def test_the_last_checkpoint_of_a_diverged_run_is_finite(ray, tmp_path):
  runner = cluster(tmp_path, build("async_msgd", learning_rate=30.0), workers=1, checkpoint_every=2)
  with pytest.raises(ValueError, match=r"visit \d+: in round \d+ of worker 0 .* the message .* not finite"):
    runner.run(PARAMS, EXTRA, 1000, lambda _: None, [])
  label = ray_master.newest(tmp_path, 1)
  with np.load(tmp_path / f"shard0-{label:09d}.npz") as saved:
    assert label and np.isfinite(saved["leaf0000"]).all()


@needs_ray
@pytest.mark.slow
def test_an_error_of_a_worker_is_raised_with_its_rank(ray, tmp_path):
  def broken(worker):
    raise KeyError("no data")

  with pytest.raises(ValueError, match="worker 0 failed: KeyError: 'no data'"):
    RayCluster(build("async_msgd"), broken, workers=1, shards=1, folder=tmp_path).run(PARAMS, EXTRA, 9, print, [])
