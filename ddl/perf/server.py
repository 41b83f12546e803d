"""Model parameter servers: closed forms for visits, and a simulation of the first-in, first-out queue.

Each of S servers stores n / S bytes of a model. In a visit, a worker sends a message to each server and receives a
reply from each. L is the latency, G = 1 / bandwidth. In asynchronous visits only the bytes occupy a link, not the
latency: a worker sends its messages to the servers one after the other, without waiting for the previous message to
arrive.

Locks are free: messages also share the link in lock-free algorithms (Hogwild), and an update of n bytes moves 3 n bytes
through the server's memory, which takes no longer than n bytes over the link (arXiv 1708.02983, arXiv 1709.06622).

A message is split evenly over the servers and its parts are sent together, so that all servers have the same load: it
is enough to simulate one server, with its incoming line, processor and outgoing line.
"""

import heapq
from itertools import count
from typing import NamedTuple

import numpy as np

from ddl.errors import OptionError
from ddl.perf import units
from ddl.perf.cluster import LinkModel, NetworkModel, check_link
from ddl.perf.layers import FLOAT

SHARE, ROUND = -1, -2  # events: a worker has computed the overlapping share, or the whole round; others: visit stages


def visit_seconds(up: float, down: float, link: LinkModel, servers: int = 1) -> float:
  """Return the seconds of a visit to idle servers: L + up G, plus L + down G if there is a reply.

  up, down: bytes of the request and the reply. The messages to several servers share the worker's link and are in
  flight concurrently.
  """
  check_servers(servers, max(up, down))
  units.amount("bytes of a message", min(up, down))
  check_link("a server's link", link)
  return link.seconds(up) + (link.seconds(down) if down else 0.0)


def node_seconds(up: float, down: float, workers: int, network: NetworkModel, peers: bool = False) -> float:
  """Return the seconds for which a full node's link is busy while each of its m workers makes one visit.

  It is m * (bytes out and in) / bandwidth, where the directions overlap by the link's duplex; 0 if one node holds all p
  workers. Servers are outside the nodes; of uniformly drawn peers, a share (p - m) / (p - 1) is outside.
  """
  if network.nodes(workers) == 1:
    return 0.0
  m = network.workers_per_node(workers)
  out, back = (up + down, up + down) if peers else (up, down)  # a worker is also the peer of another worker
  outside = (workers - m) / (workers - 1) if peers else 1.0
  return m * outside * network.outgoing_link(workers, all_nodes=True).busy_seconds(out, back)


def served_seconds(nbytes: float, workers: int, link: LinkModel, network: NetworkModel, servers: int = 1) -> float:
  """Return the seconds for which links are busy with one visit of every worker: a lower bound for a worker round.

  It is the larger of two times: p (n G / S) (2 - duplex) on the servers' links, or `node_seconds` on a node's link.
  """
  check_servers(servers, nbytes)
  busy = check_link("a server's link", link).busy_seconds(nbytes, nbytes)
  return max(workers * busy / servers, node_seconds(nbytes, nbytes, workers, network))


def check_servers(servers: int, nbytes: float) -> int:
  """Return the number of servers. Raises OptionError if there are more servers than float32 parameters in `nbytes`."""
  units.count("number of servers", servers)
  most = max(1, int(units.amount("bytes of a message", nbytes)) // FLOAT)
  if servers > most:
    raise OptionError("servers", f"at most {most} (the number of parameters)", servers)
  return servers


class QueueMeans(NamedTuple):
  """Mean times over the workers in the steady state."""

  round_seconds: float  # of a worker round: computation, request, queue, service, reply
  wait_seconds: float  # part of the round in which the worker does not compute


def simulate(
  *, workers: int, servers: int, nbytes: float, bandwidth: float, compute_seconds: float | np.ndarray,
  service_seconds: float = 0.0, latency: float = 0.0, full_duplex: bool = False, overlap: float = 0.0, rounds: int = 40,
) -> QueueMeans:  # fmt: skip
  """Simulate the servers' queue until the slowest worker has finished `rounds` rounds; return means of the second half.

  Args:
    workers: the number of workers.
    servers: the number of servers.
    nbytes: bytes of a worker round's request, and of its reply (S_p), spread evenly over the servers.
    bandwidth: bytes per second of one server's line (B_ps); the workers' lines are not a limit.
    compute_seconds: compute time of a worker round (T_C): a number, or an array [rounds, workers] that repeats.
    service_seconds: processing time of a server per message, before the reply.
    latency: seconds of a message in flight, during which the line is free for other messages.
    full_duplex: whether requests and replies have separate lines.
    overlap: share of a round's computation, in [0, 1], between a worker's request and its wait for the reply.
    rounds: number of rounds to simulate, at least 4.
  """
  units.count("number of workers", workers)
  units.count("number of servers", servers)
  units.count("rounds", rounds, 4)
  if not bandwidth > 0:
    raise OptionError("bandwidth of a server", "> 0", f"{bandwidth:g}")
  units.amount("service_seconds", service_seconds)
  units.amount("latency", latency)
  units.share("overlap", overlap)
  if servers > units.positive("nbytes", nbytes):
    raise OptionError("servers", f"at most {nbytes:g} (one per byte of a message)", servers)
  computing = np.asarray(compute_seconds, np.float64)
  computing = computing if computing.ndim else np.full((1, workers), computing)
  if computing.ndim != 2 or computing.shape[1] != workers or not (np.isfinite(computing) & (computing > 0)).all():
    raise OptionError(
      "compute_seconds", f"a number > 0 or a [rounds, {workers}] array of them", f"shape {list(computing.shape)}"
    )
  line = nbytes / servers / bandwidth
  stages = (("in", line), ("processor", service_seconds), ("out" if full_duplex else "in", line))
  free = {part: 0.0 for part, _ in stages}
  begun: list[list[float]] = [[] for _ in range(workers)]  # when each worker sent the request of each round
  missing = [0] * workers  # unmet conditions of each worker, of two: the reply, and the computation that overlaps it
  order, heap = count(), []  # (time, order of creation, worker, stage, SHARE or ROUND)

  def schedule(time: float, worker: int, stage: int) -> None:
    heapq.heappush(heap, (time, next(order), worker, stage))

  for worker in range(workers):
    schedule(0.0, worker, ROUND)
  while min(map(len, begun)) <= rounds:
    now, _, worker, stage = heapq.heappop(heap)
    if stage == ROUND:
      begun[worker].append(now)
      missing[worker] = 2
    seconds = computing[(len(begun[worker]) - 1) % len(computing), worker]
    if stage == ROUND:
      schedule(now + latency, worker, 0)
      schedule(now + overlap * seconds, worker, SHARE)
    elif stage == SHARE or stage == len(stages):
      missing[worker] -= 1
      if not missing[worker]:
        schedule(now + (1 - overlap) * seconds, worker, ROUND)
    else:
      part, takes = stages[stage]
      free[part] = max(now, free[part]) + takes
      schedule(free[part] + (latency if stage == len(stages) - 1 else 0.0), worker, stage + 1)
  return _measured(begun, computing, rounds // 2)


def _measured(begun: list[list[float]], seconds: np.ndarray, first: int) -> QueueMeans:
  since, rounds, computing = max(times[first] for times in begun), [], []
  for worker, times in enumerate(begun):
    steady = [i for i, time in enumerate(times) if time >= since]
    rounds.append((times[steady[-1]] - times[steady[0]]) / (len(steady) - 1))
    computing.append(np.mean([seconds[i % len(seconds), worker] for i in steady[:-1]]))
  return QueueMeans(float(np.mean(rounds)), float(np.mean(rounds) - np.mean(computing)))
