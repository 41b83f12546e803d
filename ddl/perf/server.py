"""A parameter server: closed forms of its visits, and its queue in time, first come, first served.

S servers hold n / S bytes each; a worker's visit is a message up to and one down from each of them. L is the latency,
G = 1 / bandwidth. In asynchronous visits a link is occupied by the bytes alone: a message in flight occupies nothing,
and a worker sends its messages to the servers one after the other, without waiting for the one before to arrive.

Locks cost nothing: messages share the link without one too (the hogwild algorithms), and an update of n bytes moves 3 n
through the server's memory, which takes at most as long as n over the link (arXiv 1708.02983, arXiv 1709.06622).

A message is spread evenly over the servers and its parts leave together, so that all servers see the same: the queue is
that of one, with its line in, its processor, its line out.
"""

import heapq
from itertools import count
from typing import NamedTuple

import numpy as np

from ddl.errors import OptionError
from ddl.perf import units
from ddl.perf.cluster import LinkModel, NetworkModel, check_link
from ddl.perf.layers import FLOAT

SHARE, ROUND = -1, -2  # events before the stages of a visit


def visit_seconds(up: float, down: float, link: LinkModel, servers: int = 1) -> float:
  """Return the seconds of a visit to idle servers: L + up G, then L + down G where there is a reply.

  up, down: bytes. The servers' messages share the worker's link and are in flight concurrently.
  """
  check_servers(servers, max(up, down))
  units.amount("bytes of a message", min(up, down))
  check_link("a server's link", link)
  return link.seconds(up) + (link.seconds(down) if down else 0.0)


def node_seconds(up: float, down: float, workers: int, network: NetworkModel, peers: bool = False) -> float:
  """Return the seconds for which a full node's link is busy while each of its m workers makes a visit.

  m (bytes out and in) / B, where bytes that go both ways overlap as far as the link's duplex allows. Servers stand
  outside of the nodes; of peers, drawn evenly, (p - m) / (p - 1) are elsewhere. 0 where one node holds all.
  """
  if network.nodes(workers) == 1:
    return 0.0
  m = network.together(workers)
  out, back = (up + down, up + down) if peers else (up, down)  # a peer's message is another one's, too
  outside = (workers - m) / (workers - 1) if peers else 1.0
  return m * outside * network.way_out(workers, everyone=True).busy_seconds(out, back)


def served_seconds(nbytes: float, workers: int, link: LinkModel, network: NetworkModel, servers: int = 1) -> float:
  """Return the seconds for which the servers' links, p (n G / S) (2 - duplex), or a full node's are busy with p visits.

  That is a visit of every worker: no worker round is shorter.
  """
  check_servers(servers, nbytes)
  busy = check_link("a server's link", link).busy_seconds(nbytes, nbytes)
  return max(workers * busy / servers, node_seconds(nbytes, nbytes, workers, network))


def check_servers(servers: int, nbytes: float) -> int:
  """Return the number of servers; ValueError for more of them than float32 parameters in so many bytes."""
  units.count("number of servers", servers)
  most = max(1, int(units.amount("bytes of a message", nbytes)) // FLOAT)
  if servers > most:
    raise OptionError("servers", f"at most {most}, the number of parameters", servers)
  return servers


class QueueMeans(NamedTuple):
  """Means over the workers in the steady state."""

  round_seconds: float  # a worker round: compute, send, be served, receive
  wait_seconds: float  # of it without computing


def simulate(
  *, workers: int, servers: int, nbytes: float, bandwidth: float, compute_seconds: float | np.ndarray,
  service_seconds: float = 0.0, latency: float = 0.0, full_duplex: bool = False, overlap: float = 0.0, rounds: int = 40,
) -> QueueMeans:  # fmt: skip
  """Simulate `workers` at `servers` until the slowest has made `rounds`; the second half is measured.

  Args:
    nbytes: up and as many down, per worker round (S_p); each server's share is nbytes / servers.
    bandwidth: of one server's line, bytes per second (B_ps); the workers' own lines do not limit.
    compute_seconds: of a worker round (T_C), or [rounds, workers] of each, over and over.
    service_seconds: of a server's processor per message, before the reply.
    latency: seconds of a message in flight, while the line is free for others.
    full_duplex: requests and replies have a line each; otherwise they share one.
    overlap: share of a round, 0..1, that a worker computes from when its message leaves until it waits for the reply.
    rounds: at least 4.
  """
  units.count("number of workers", workers)
  units.count("number of servers", servers)
  units.count("rounds", rounds, 4)
  if not bandwidth > 0:
    raise OptionError("bandwidth of a server", "above 0", f"{bandwidth:g}")
  units.amount("service_seconds", service_seconds)
  units.amount("latency", latency)
  units.share("overlap", overlap)
  if servers > units.positive("nbytes", nbytes):
    raise OptionError("servers", f"at most one server per byte of {nbytes:g}", servers)
  computing = np.asarray(compute_seconds, np.float64)
  computing = computing if computing.ndim else np.full((1, workers), computing)
  if computing.ndim != 2 or computing.shape[1] != workers or not (np.isfinite(computing) & (computing > 0)).all():
    raise OptionError("compute_seconds", f"a number or [rounds, {workers}], all above 0", list(computing.shape))
  line = nbytes / servers / bandwidth
  stages = (("in", line), ("processor", service_seconds), ("out" if full_duplex else "in", line))
  free = {part: 0.0 for part, _ in stages}
  begun: list[list[float]] = [[] for _ in range(workers)]  # when the message of each round of each worker left
  missing = [0] * workers  # of two: the reply, and the share of the round that does not need it
  order, heap = count(), []  # (time, arrival order, worker, stage); before the stages SHARE and ROUND are computed

  def at(time: float, worker: int, stage: int) -> None:
    heapq.heappush(heap, (time, next(order), worker, stage))

  for worker in range(workers):
    at(0.0, worker, ROUND)
  while min(map(len, begun)) <= rounds:
    now, _, worker, stage = heapq.heappop(heap)
    if stage == ROUND:
      begun[worker].append(now)
      missing[worker] = 2
    seconds = computing[(len(begun[worker]) - 1) % len(computing), worker]
    if stage == ROUND:
      at(now + latency, worker, 0)
      at(now + overlap * seconds, worker, SHARE)
    elif stage == SHARE or stage == len(stages):
      missing[worker] -= 1
      if not missing[worker]:
        at(now + (1 - overlap) * seconds, worker, ROUND)
    else:
      part, takes = stages[stage]
      free[part] = max(now, free[part]) + takes
      at(free[part] + (latency if stage == len(stages) - 1 else 0.0), worker, stage + 1)
  return _measured(begun, computing, rounds // 2)


def _measured(begun: list[list[float]], seconds: np.ndarray, first: int) -> QueueMeans:
  since, rounds, computing = max(times[first] for times in begun), [], []
  for worker, times in enumerate(begun):
    steady = [i for i, time in enumerate(times) if time >= since]
    rounds.append((times[steady[-1]] - times[steady[0]]) / (len(steady) - 1))
    computing.append(np.mean([seconds[i % len(seconds), worker] for i in steady[:-1]]))
  return QueueMeans(float(np.mean(rounds)), float(np.mean(rounds) - np.mean(computing)))
