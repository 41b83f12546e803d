"""Exchanges per second of one worker and the master, without gradients: python -m experiments.bench.server_exchange.

Beside a bare TCP echo and a plain call of a Ray actor on the same machine. Each exchange carries so many bytes both
ways; the algorithm is Async SGD, whose server adds what it is sent. It is a report, not a test.
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
from ddl.runtime.ray_ps import cluster as ray_cluster
from ddl.runtime.ray_ps import transport
from ddl.runtime.ray_ps import worker as ray_worker

MEGABYTES = (1, 16)
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


class Center:
  """What a Ray tutorial makes of a parameter server."""

  def __init__(self, size: int):
    """size: float32 numbers."""
    self.center = np.zeros(size, np.float32)

  def serve(self, message: np.ndarray) -> np.ndarray:
    """Adds, and answers."""
    self.center += message
    return self.center


class Caller:
  """A worker that calls it."""

  def rate(self, center: Any, size: int) -> float:
    """Exchanges per second."""
    import ray

    message = np.ones(size, np.float32)
    return measure(lambda: ray.get(center.serve.remote(message)))


def plain_ray(nbytes: int) -> float:
  """Exchanges per second of two Ray actors, arrays as arguments and results."""
  import ray

  kind = ray.remote(num_cpus=1)
  center: Any = None
  caller: Any = None
  center, caller = kind(Center).remote(nbytes // 4), kind(Caller).remote()
  rate: Any = ray.get(caller.rate.remote(center, nbytes // 4))
  for actor in (center, caller):
    ray.kill(actor)
  return rate


class Sender:
  """A worker of which only the exchange is left."""

  def __init__(self, algorithm: Any, size: int, addresses: list[tuple[str, int]], token: bytes):
    """size: float32 numbers."""
    self.exchange = ray_worker.Exchange(algorithm, size, np.dtype(np.float32), addresses, token)
    self.message = [np.zeros(size, np.float32)]

  def rate(self) -> float:
    """Exchanges per second."""
    header, losses = np.zeros(1, transport.REQUEST), np.zeros(1, np.float32)
    return measure(lambda: self.exchange.visit(header, losses, [], self.message))


def no_model(worker: int) -> Any:
  """What a worker would train, which nobody asks for here."""
  raise NotImplementedError(worker)


def cluster(nbytes: int, shards: int) -> float:
  """Exchanges per second through the sockets and shards of a run, each message served."""
  folder, ray, size = tempfile.mkdtemp(), ray_cluster.require(), nbytes // 4
  algorithm = SERVER["async_sgd"].factory(optax.sgd(0.0), workers=1)
  runner = ray_cluster.RayCluster(algorithm, no_model, workers=1, shards=shards, folder=folder)
  parts = [np.zeros(part.stop - part.start, np.float32) for part in transport.cut(size, shards)]
  actors = runner.shard_actors(parts, {}, 10**9, b"token", [])
  process = runner.process(np.dtype(np.float32), 0)
  sender = ray.remote(num_cpus=1, runtime_env=process)(Sender)
  addresses = ray.get([actor.open.remote(None) for actor in actors])
  actors.append(sender.remote(algorithm, size, addresses, b"token"))
  rate = ray.get(actors[-1].rate.remote())
  for actor in actors:
    ray.kill(actor)
  shutil.rmtree(folder)
  return rate


def main() -> None:
  """Prints the table."""
  print("exchanges per second of one worker on this machine: a message and its answer, each of so many MB", flush=True)
  rows = [["MB", "bare TCP", "plain Ray", "1 shard", "2 shards"]]
  tcp = [bare_tcp(megabytes * 10**6) for megabytes in MEGABYTES]
  ray_cluster.connect(None, cpus=4)
  for megabytes, rate in zip(MEGABYTES, tcp, strict=True):
    nbytes = megabytes * 10**6
    rates = [rate, plain_ray(nbytes), *(cluster(nbytes, shards) for shards in (1, 2))]
    rows.append([str(megabytes), *(f"{r:.0f}" for r in rates)])
  ray_cluster.require().shutdown()
  for row in rows:
    print("  ".join(f"{cell:>{max(len(rows[0][i]), 6)}}" for i, cell in enumerate(row)))


if __name__ == "__main__":
  main()
