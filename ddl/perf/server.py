"""Model parameter servers: closed forms for visits, and the mean round with the queue of `ddl.events.schedule`.

Each of S servers stores n / S bytes of a model. In a visit, a worker sends a message to each server and receives a
reply from each. L is the latency, G = 1 / bandwidth. In asynchronous visits only the bytes occupy a link, not the
latency: a worker sends its messages to the servers one after the other, without waiting for the previous message to
arrive.

Locks cost no time: messages also share the link in lock-free algorithms (Hogwild), and an update of n bytes moves
3 n bytes through the server's memory, which takes no longer than n bytes over the link (arXiv 1708.02983, arXiv
1709.06622).

A message is split evenly over the servers and its parts are sent together, so that all servers have the same load: it
is enough to simulate one of them.
"""

import math
from typing import NamedTuple

import numpy as np

from ddl.errors import OptionError
from ddl.events.barriers import Bounded
from ddl.events.cluster import VirtualCluster
from ddl.events.schedule import first_come
from ddl.events.times import Times
from ddl.perf.cluster import LinkModel, NetworkModel
from ddl.perf.layers import FLOAT


def visit_seconds(up: float, down: float, link: LinkModel, servers: int = 1) -> float:
  """Return the seconds of a visit to idle servers: L + up G, plus L + down G if there is a reply.

  up, down: bytes of the request and the reply. The messages to several servers share the worker's link and are in
  flight concurrently.
  """
  check_servers(servers, max(up, down))
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


def check_servers(servers: int, nbytes: float) -> None:
  """Raise OptionError if there are more servers than float32 values in `nbytes`."""
  most = max(1, int(nbytes) // FLOAT)
  if servers > most:
    raise OptionError("servers", f"at most {most} (the number of parameters)", servers)


class VisitSeconds(NamedTuple):
  """The parts of a visit as in `ddl.events.schedule`."""

  message: float  # one way, without occupying the server's link
  service: float  # for which the visit occupies the server's link


def visit_parts(
  up: float, down: float, workers: int, link: LinkModel, network: NetworkModel, servers: int = 1
) -> VisitSeconds:
  """Return the parts of a visit: the time of its bytes on the server's link is its service, the rest is message time.

  If the full nodes' links are slower than the servers' links, they determine the service: the visits of p workers then
  take `node_seconds` in total.
  """
  service = max(link.busy_seconds(up, down) / servers, node_seconds(up, down, workers, network) / workers)
  return VisitSeconds(max(0.0, visit_seconds(up, down, link, servers) - service) / 2, service)


def mean_round(hidden: np.ndarray, exposed: np.ndarray, visit: VisitSeconds, rounds: int = 40) -> float:
  """Return the mean seconds of a worker round in the steady state of a server's queue, simulated as in virtual time.

  Args:
    hidden: seconds of computation that overlap the visit, [rounds, workers]; all 0 without overlap.
    exposed: seconds of the other computation of each round, [rounds, workers]. The rows of both arrays are repeated for
      further rounds.
    visit: the parts of a visit.
    rounds: number of simulated rounds per worker, an even number; the mean is over the second half.
  """
  parts = [x for x in (hidden, exposed) if x.any()]
  steps = np.stack(parts, axis=1).reshape(-1, hidden.shape[1])
  count, workers = steps.shape
  times = Times(
    lambda worker, first, number: steps[(first + np.arange(number)) % count, worker], workers=workers, seed=0
  )
  cluster = VirtualCluster(
    times, period=len(parts), delay=int(hidden.any()), message_seconds=visit.message, service_seconds=visit.service
  )
  served = [
    row.served for row in first_come(cluster, Bounded(math.inf), num_visits=rounds * workers, seed=0, lock_free=False)
  ]
  half = rounds * workers // 2
  return (served[-1] - served[half - 1]) * workers / half
