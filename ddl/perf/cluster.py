"""A cluster: workers of one kind on a network of links, nodes and tori, with its communication library.

NCCL sends a message in one of three protocols. LL stores a flag beside every 4 bytes, LL128 one in every 128 bytes, and
Simple hands over chunks after a synchronization: fewer seconds of a step against less of the bandwidth. They and the
form call + steps * hop + bytes / bandwidth are those by which NCCL chooses (github.com/NVIDIA/nccl,
src/graph/tuning.cc). The figures are fitted on nine published curves of nccl-tests; docs/reproduction.md has the errors
on others.
"""

import math
from functools import cache
from typing import NamedTuple

from ddl.errors import OptionError
from ddl.perf import units
from ddl.perf.device import Device, Efficiency


class Torus(NamedTuple):
  """Chips with a link each way along each axis; a slice is a box of them."""

  axes: int
  ring: int  # an axis of a slice is a ring if its length is a multiple of this, and a line otherwise

  def slice(self, workers: int) -> tuple[int, ...]:
    """Return the lengths of the axes of a slice of so many chips, the nearest to a cube, ascending."""
    return _nearest_box(workers, self.axes)

  def share(self, workers: int) -> float:
    """Return the share of a chip's links that an all-reduce on all axes at once has.

    A line's ends meet on its links back: the mean over the axes of 1 on a ring, 1 / 2 on a line, 0 on one chip.
    """
    shares = (0.0 if length == 1 else 1.0 if length % self.ring == 0 else 0.5 for length in self.slice(workers))
    return sum(shares) / self.axes

  def steps(self, workers: int) -> int:
    """Return the steps from one end of all axes to the other: sum of (length - 1)."""
    return sum(length - 1 for length in self.slice(workers))


@cache
def _nearest_box(workers: int, axes: int) -> tuple[int, ...]:
  if axes == 1:
    return (workers,)
  lengths = (length for length in range(1, workers + 1) if workers % length == 0)
  boxes = (tuple(sorted((length, *_nearest_box(workers // length, axes - 1)))) for length in lengths)
  return min(boxes, key=lambda box: (sum(box), box))


class Protocol(NamedTuple):
  """A protocol of a library: seconds of a call and of each of its steps, beside the latency of the link."""

  name: str
  call: float  # seconds of a call, whatever its bytes and workers
  inside: float  # seconds of a step inside a node, beside one latency of its link
  between: float  # seconds of a step between nodes, beside `trips` latencies of their link
  trips: float  # latencies of a step between nodes: hand-shakes, and chunks that wait for one another
  share: float  # of what the library reaches of a link


class Library(NamedTuple):
  """The costs of a library's collectives on devices in nodes."""

  name: str
  launch: float  # seconds of each device that one process drives, one after the other
  inside: float  # share of the links in a node that it reaches at best
  between: float  # share of the links between nodes
  protocols: tuple[Protocol, ...]  # on rings and trees
  switch: Protocol  # where a node's switch adds up; its share is that of the links in the node

  def without(self, protocol: str) -> "Library":
    """Return the library without a protocol, such as LL128 on a fabric that may reorder 128 bytes."""
    return self._replace(protocols=tuple(each for each in self.protocols if each.name != protocol))

  def instant(self) -> "Library":
    """Return the library with the same shares of the bandwidth, whose calls and steps take no time."""
    no_time = {"call": 0.0, "inside": 0.0, "between": 0.0}
    protocols = tuple(protocol._replace(**no_time) for protocol in self.protocols)
    return self._replace(launch=0.0, protocols=protocols, switch=self.switch._replace(**no_time))


NVLINK_LATENCY = 1e-6  # seconds; assumed: only its sum with a protocol's step is fitted
INFINIBAND_LATENCY = 2.7e-6  # of ib_write_lat on 400 Gb/s, in the report with the curves of eight B200; likewise
NCCL = Library(
  "NCCL", 4.8e-6, 0.72, 0.89,
  (
    Protocol("LL", 5.5e-6, 0.8e-6, 0.5e-6, 1.0, 0.12),
    Protocol("LL128", 21e-6, 0.9e-6, 5.2e-6, 1.0, 0.56),
    Protocol("Simple", 22e-6, 4e-6, 76e-6, 5.8, 1.0),
  ),
  Protocol("Simple", 42e-6, 0.0, 23e-6, 5.8, 0.59),
)  # fmt: skip


class LinkModel(NamedTuple):
  """One connection: a message of n bytes takes latency + n / bandwidth seconds (alpha + n beta of the papers)."""

  latency: float  # seconds per message
  bandwidth: float  # bytes per second, one way
  duplex: float = 1.0  # share of receiving that overlaps sending (ov of arXiv 1602.06709): 1 full, 0 half duplex

  def seconds(self, nbytes: float) -> float:
    """Return the seconds of one message, one way."""
    return self.latency + nbytes / self.bandwidth

  def busy_seconds(self, out: float, back: float) -> float:
    """Return the seconds for which `out` bytes one way and `back` bytes the other way occupy the link."""
    return (max(out, back) + (1 - self.duplex) * min(out, back)) / self.bandwidth

  def at_most(self, bandwidth: float) -> "LinkModel":
    """Return the link with no more than so many bytes per second."""
    return self._replace(bandwidth=min(self.bandwidth, bandwidth))


def check_link(name: str, link: LinkModel) -> LinkModel:
  """Return the link; ValueError for a latency below 0, a bandwidth not above 0, or a duplex outside [0, 1]."""
  units.amount(f"{name}: latency (s)", link.latency)
  units.share(f"{name}: duplex", link.duplex)
  if not link.bandwidth > 0:
    raise OptionError(f"{name}: bandwidth (bytes/s)", "above 0", f"{link.bandwidth:g}")
  return link


class Uplink(NamedTuple):
  """Switches with so many nodes under each, whose links to the others have a share of these nodes' bandwidth."""

  nodes: int
  share: float  # 1 / 3 of a network that is oversubscribed 3 to 1


class NetworkModel(NamedTuple):
  """Workers in nodes of up to `per_node`; the workers of a node share its link to the other nodes."""

  between: LinkModel  # nodes: all the network cards of a node together
  inside: LinkModel | None = None  # a node; None: as between nodes
  per_node: int = 1  # workers
  sites: int = 1  # least number of nodes over which workers are spread, as far as there are so many workers
  card: float | None = None  # bytes per second of the one network card of a worker, or of a server; None: all of a node
  uplink: Uplink | None = None  # where the switches above the nodes are oversubscribed
  torus: Torus | None = None  # where workers are wired only to neighbours; `between` is all links of one worker
  reduces: tuple[str, ...] = ()  # of "inside" and "between": whose switches add up what they are sent
  library: Library | None = None  # costs of collectives beside the links; None: those of the textbook

  def nodes(self, workers: int) -> int:
    """Return the number of nodes of so many workers; the last one may be partly filled."""
    return max(math.ceil(workers / self.per_node), min(self.sites, workers))

  def together(self, workers: int) -> int:
    """Return the number of workers in a full node, of so many in all."""
    return min(self.per_node, math.ceil(workers / self.sites))

  def of_groups(self, members: int) -> "NetworkModel":
    """Return the network of groups of so many neighbours, each of which sends its piece of a group's message."""
    near = min(members, self.per_node)  # in a node
    inside = (self.inside or self.between) if self.per_node > members else None
    return self._replace(
      between=self.between._replace(bandwidth=self.between.bandwidth * math.ceil(members / self.per_node)),
      inside=inside and inside._replace(bandwidth=inside.bandwidth * near),
      per_node=max(1, self.per_node // members),
      card=self.card and self.card * members,
    )

  def main_link(self, workers: int) -> LinkModel:
    """Return the link that limits so many workers: between nodes, or inside where one node holds them all."""
    return self.inside if self.inside and self.nodes(workers) == 1 else self.between

  def worker_link(self, workers: int) -> LinkModel:
    """Return the link that one of so many workers has while the others are silent: one card between nodes."""
    one_node = self.nodes(workers) == 1 and self.inside is not None
    return self.main_link(workers) if one_node or not self.card else self.between.at_most(self.card)

  def way_out(self, workers: int, everyone: bool = False) -> LinkModel:
    """Return a full node's link to the others, with the cards of its workers, under the switches that they need.

    everyone: all nodes under a switch send to nodes under others at once, as with partners at a distance; otherwise one
    does, as on a ring or a tree whose neighbours are near.
    """
    link = self.between.at_most(self.together(workers) * self.card) if self.card else self.between
    if not self.uplink or self.nodes(workers) <= self.uplink.nodes:
      return link
    at_once = self.uplink.share * (1 if everyone else self.uplink.nodes)
    return link._replace(bandwidth=link.bandwidth * min(1.0, at_once))


class Cluster(NamedTuple):
  """Workers of one kind on a network."""

  title: str
  device: Device  # of one worker
  efficiency: Efficiency
  network: NetworkModel
  source: str  # of the numbers
  host: LinkModel | None = None  # between a worker and its host (PCIe), where the server or the data are there
  workers: int | None = None  # number of workers; None: no limit known
  overlap: bool = True  # whether an exchange runs while the workers compute

  def server_link(self, workers: int) -> LinkModel:
    """Return a server's link: to the host where one node holds all workers and the host is known, else a worker's."""
    one_node = self.network.nodes(workers) == 1
    return self.host if self.host and one_node else self.network.worker_link(workers)

  def with_bandwidth(self, workers: int, bandwidth: float) -> "Cluster":
    """Return the cluster with another bandwidth, bytes/s above 0, of the main link.

    A host's, and the cards' where they make up that link, change in proportion.
    """
    old = self.network.main_link(workers)
    link = check_link("the main link", old._replace(bandwidth=bandwidth))
    inside = self.network.inside is not None and self.network.nodes(workers) == 1
    network, change = self.network._replace(**{"inside" if inside else "between": link}), bandwidth / old.bandwidth
    if network.card and not inside:
      network = network._replace(card=network.card * change)
    host = self.host and self.host._replace(bandwidth=self.host.bandwidth * change)
    return self._replace(network=network, host=host)
