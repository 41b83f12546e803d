"""Exchanges per second of one worker and the master, without gradients: python -m experiments.bench.server_exchange.

Beside a bare TCP echo, and the same shard reached by Ray's own calls, on the same machine. Each exchange carries so
many bytes both ways; the algorithm is Async SGD, whose server adds what it is sent. It is a report, not a test.
"""

import multiprocessing
import shutil
import socket
import tempfile
import time
from typing import Any

import numpy as np
import optax

from ddl.algorithms import SERVER
from ddl.asynchronous import ray_cluster as ray_connection
from ddl.asynchronous import ray_transport, ray_worker
from ddl.asynchronous.ray_cluster import RayCluster
from ddl.asynchronous.ray_master import Shard

MEGABYTES = (1, 4, 16, 64)
SECONDS = 3.0  # about, per figure


def echo(listener: socket.socket, nbytes: int) -> None:
  """Sends back what it gets, until the other side is gone."""
  connection, _ = listener.accept()
  connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
  data = memoryview(bytearray(nbytes))
  while fill(connection, data):
    connection.sendall(data)


def fill(connection: socket.socket, data: memoryview) -> bool:
  """Whether so many bytes came."""
  while data:
    count = connection.recv_into(data)
    if not count:
      return False
    data = data[count:]
  return True


def bare_tcp(nbytes: int) -> float:
  """Exchanges per second of two processes and a socket."""
  with socket.create_server(("127.0.0.1", 0)) as listener:
    other = multiprocessing.get_context("fork").Process(target=echo, args=(listener, nbytes), daemon=True)
    other.start()
    with socket.create_connection(listener.getsockname()) as connection:
      connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
      data = memoryview(bytearray(nbytes))

      def exchange() -> None:
        connection.sendall(data)
        fill(connection, data)

      rate = measure(exchange)
    other.join()
  return rate


def measure(exchange: Any) -> float:
  """Calls per second, after some that do not count."""
  for _ in range(5):
    exchange()
  count, began = 0, time.perf_counter()
  while time.perf_counter() - began < SECONDS:
    exchange()
    count += 1
  return count / (time.perf_counter() - began)


class CalledShard(Shard):
  """The shard of a run, reached by Ray's own calls instead of its socket: arrays are arguments and results."""

  def exchange(self, header: np.ndarray, losses: np.ndarray, message: list[np.ndarray]) -> list[np.ndarray]:
    """The reply to a message."""
    with self.changed:
      return self.visited(header[0], 0.0, losses, [], message, np.zeros(1, ray_transport.REPLY))


class Caller:
  """A worker of which only the exchange is left, over Ray's calls."""

  def rate(self, shard: Any, size: int) -> float:
    """Exchanges per second."""
    import ray

    header, losses, message = np.zeros(1, ray_transport.REQUEST), np.zeros(1, np.float32), [np.zeros(size, np.float32)]
    return measure(lambda: ray.get(shard.exchange.remote(header, losses, message)))


class Sender:
  """A worker of which only the exchange is left, over the sockets."""

  def __init__(self, algorithm: Any, size: int, addresses: list[tuple[str, int]], token: bytes):
    """size: float32 numbers."""
    self.exchange = ray_worker.ShardConnections(algorithm, size, np.dtype(np.float32), addresses, token)
    self.message = [np.zeros(size, np.float32)]

  def rate(self) -> float:
    """Exchanges per second."""
    header, losses = np.zeros(1, ray_transport.REQUEST), np.zeros(1, np.float32)
    return measure(lambda: self.exchange.visit(header, losses, [], self.message))


def no_model(worker: int) -> Any:
  """Stand-in for the model, which an exchange alone does not need."""
  raise NotImplementedError(worker)


def cluster(nbytes: int, shards: int, kind: type[Shard]) -> float:
  """Exchanges per second with the shards of a run, each message served: over sockets, or by calls of a CalledShard."""
  folder, ray, size = tempfile.mkdtemp(), ray_connection.require(), nbytes // 4
  algorithm = SERVER["async_sgd"].factory(optax.sgd(0.0))
  runner = RayCluster(algorithm, no_model, workers=1, shards=shards, folder=folder)
  parts = [np.zeros(part.stop - part.start, np.float32) for part in ray_transport.cut(size, shards)]
  actors = runner.shard_actors(parts, {}, 10**9, b"token", [], kind)
  process = ray_connection.process_environment(np.dtype(np.float32), 0, local=True)
  addresses = ray.get([actor.open.remote(None) for actor in actors])
  if kind is CalledShard:
    actors.append(ray.remote(num_cpus=1, runtime_env=process)(Caller).remote())
    rate = ray.get(actors[-1].rate.remote(actors[0], size))
  else:
    sender = ray.remote(num_cpus=1, runtime_env=process)(Sender)
    actors.append(sender.remote(algorithm, size, addresses, b"token"))
    rate = ray.get(actors[-1].rate.remote())
  for actor in actors:
    ray.kill(actor)
  shutil.rmtree(folder)
  return rate


def main() -> None:
  """Prints the table."""
  print("exchanges per second of one worker on this machine: a message and its answer, each of so many MB", flush=True)
  rows = [["MB", "bare TCP", "Ray calls", "1 shard", "2 shards"]]
  tcp = [bare_tcp(megabytes * 10**6) for megabytes in MEGABYTES]
  ray_connection.connect(None, cpus=4)
  for megabytes, rate in zip(MEGABYTES, tcp, strict=True):
    nbytes = megabytes * 10**6
    rates = [rate, cluster(nbytes, 1, CalledShard), *(cluster(nbytes, shards, Shard) for shards in (1, 2))]
    rows.append([str(megabytes), *(f"{r:.0f}" for r in rates)])
  ray_connection.require().shutdown()
  for row in rows:
    print("  ".join(f"{cell:>{max(len(rows[0][i]), 6)}}" for i, cell in enumerate(row)))


if __name__ == "__main__":
  main()
