"""Measure the exchanges per second between a worker and the server on Ray.

python -m experiments.bench.server_exchange

No gradients are computed. ddl's sockets are compared with Ray actor calls, which pass arrays as arguments and results.
The algorithm is Async SGD: the server checks and adds each message and returns the center. The transports alternate;
figures are medians over the turns.
"""

import tempfile
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np
import optax

from ddl.algorithms import SERVER
from ddl.asynchronous import ray_transport
from ddl.asynchronous.ray_cluster import RayCluster, connect, process_environment, require
from ddl.asynchronous.ray_master import Shard

MEGABYTES = (0.1, 1, 16, 100)  # size of a message, and of its reply
TURNS, SECONDS = 5, 3.0  # turns of each transport, and approximate seconds of a turn


def rate(exchange: Callable[[], Any]) -> float:
  """Return the calls per second, after three calls of warm-up."""
  for _ in range(3):
    exchange()
  count, began = 0, time.perf_counter()
  while time.perf_counter() - began < SECONDS:
    exchange()
    count += 1
  return count / (time.perf_counter() - began)


def no_model(worker: int) -> Any:
  """Stand in for the function that builds model and data, which an exchange does not call."""
  raise NotImplementedError(worker)


class CalledShard(Shard):
  """A shard that also serves Ray actor calls with arrays as arguments and results."""

  def exchange(self, header: np.ndarray, losses: np.ndarray, message: list[np.ndarray]) -> list[np.ndarray]:
    """Serve a message; return the reply."""
    with self.changed:
      return self.visited(header[0], 0.0, losses, [], message)[1]


class Exchanger:
  """A worker that only exchanges parameters and computes no gradients."""

  def __init__(self, algorithm: Any, size: int, shards: list[Any], addresses: list[tuple[str, int]]):
    """Connect to the shards. size: number of float32 parameters."""
    self.shards, self.message = shards, [np.zeros(size, np.float32)]
    self.sockets = ray_transport.ShardConnections(algorithm, size, np.dtype(np.float32), addresses, b"token")
    self.header, self.losses = np.zeros(1, ray_transport.REQUEST), np.zeros(1, np.float32)

  def over_sockets(self) -> float:
    """Return the exchanges per second over sockets; one exchange involves all shards."""
    return rate(lambda: self.sockets.visit(self.header, self.losses, [], self.message))

  def over_calls(self) -> float:
    """Return the exchanges per second by Ray actor calls; there must be a single shard."""
    import ray

    (shard,) = self.shards
    return rate(lambda: ray.get(shard.exchange.remote(self.header, self.losses, self.message)))


def exchanger(size: int, shards: int) -> tuple[Any, list[Any]]:
  """Start a worker and the server's shards as Ray actors; return the worker and a list of all these actors."""
  ray, algorithm = require(), SERVER["async_sgd"].factory(optax.sgd(0.0))
  folder = tempfile.mkdtemp()  # required, but no checkpoint is written
  runner = RayCluster(algorithm, no_model, workers=1, shards=shards, folder=folder)
  parts = [np.zeros(part.stop - part.start, np.float32) for part in ray_transport.cut(size, shards)]
  masters = runner.shard_actors(parts, {}, 10**9, b"token", [], CalledShard)
  addresses = ray.get([master.open.remote(None) for master in masters])
  environment = process_environment(np.dtype(np.float32), 0, local=True)
  worker = ray.remote(num_cpus=1, runtime_env=environment)(Exchanger).remote(algorithm, size, masters, addresses)
  return worker, [*masters, worker]


def main() -> None:
  """Measure each message size and print the table."""
  connect(None, cpus=6)
  ray = require()
  print(f"exchanges per second: medians of {TURNS} alternating turns of {SECONDS:g} s", flush=True)
  print(f"{'MB':>6}{'sockets':>10}{'Ray calls':>11}{'ratio':>7}{'sockets, 2 shards':>19}", flush=True)
  for megabytes in MEGABYTES:
    size = round(megabytes * 250_000)
    (one, actors), (two, more) = exchanger(size, 1), exchanger(size, 2)
    kinds = (one.over_sockets, one.over_calls, two.over_sockets)
    turns = [[ray.get(kind.remote()) for kind in kinds] for _ in range(TURNS)]
    sockets, calls, several = map(median, zip(*turns, strict=True))
    print(f"{megabytes:6g}{sockets:10.1f}{calls:11.1f}{sockets / calls:7.2f}{several:19.1f}", flush=True)
    for actor in (*actors, *more):
      ray.kill(actor)
  ray.shutdown()


if __name__ == "__main__":
  main()
