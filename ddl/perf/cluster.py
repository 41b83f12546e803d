"""Clusters of identical workers: devices, links, nodes, tori, and the communication library.

NCCL has three protocols, which trade latency for bandwidth: LL stores a flag with every 4 bytes, LL128 one in every 128
bytes, and Simple transfers chunks after a synchronization. The formula call + steps * hop + bytes / bandwidth is that
of NCCL's own tuner (github.com/NVIDIA/nccl, src/graph/tuning.cc). libraries.toml has the constants of all libraries.
"""

import math
import tomllib
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from ddl.perf import units
from ddl.perf.device import Device, Efficiency


class Torus(NamedTuple):
  """A torus of chips with links in both directions along each axis; a slice is a box of chips."""

  axes: int
  ring: int  # an axis of a slice is a ring if its length is a multiple of this, and a line otherwise

  def slice(self, workers: int) -> tuple[int, ...]:
    """Return the axis lengths, ascending, of the slice with `workers` chips that is nearest to a cube."""
    return _nearest_box(workers, self.axes)

  def share(self, workers: int) -> float:
    """Return the share of a chip's link bandwidth that is used by an all-reduce along all axes at once.

    It is the mean over the axes of 1 for a ring, 1 / 2 for a line (whose links also carry the data back), and 0 for an
    axis of length 1.
    """
    shares = (0.0 if length == 1 else 1.0 if length % self.ring == 0 else 0.5 for length in self.slice(workers))
    return sum(shares) / self.axes

  def steps(self, workers: int) -> int:
    """Return the number of hops from one corner of the slice to the opposite one: sum of (length - 1)."""
    return sum(length - 1 for length in self.slice(workers))


@cache
def _nearest_box(workers: int, axes: int) -> tuple[int, ...]:
  if axes == 1:
    return (workers,)
  lengths = (length for length in range(1, workers + 1) if workers % length == 0)
  boxes = (tuple(sorted((length, *_nearest_box(workers // length, axes - 1)))) for length in lengths)
  return min(boxes, key=lambda box: (sum(box), box))


class Protocol(NamedTuple):
  """A library protocol: seconds per call and per step, in addition to the latency of the link."""

  name: str
  call: float  # fixed seconds per call
  inside: float  # seconds per step inside a node, plus one latency of its link
  between: float  # seconds per step between nodes, plus `trips` latencies of their link
  trips: float  # latencies per step between nodes, for handshakes and chunks that wait for each other
  share: float  # share of the library's best bandwidth that the protocol reaches


class Library(NamedTuple):
  """The costs of a communication library's collectives, and the range of the measurements they were compared with."""

  name: str
  launch: float  # seconds to launch a call on one device; a process launches on its devices one after the other
  inside: float  # largest share of the bandwidth inside a node that it reaches
  between: float  # largest share of the bandwidth between nodes that it reaches
  protocols: tuple[Protocol, ...]  # of rings and trees
  switch: Protocol  # of reductions in a node's switch; its share is relative to the links inside the node
  latency: float = 0.0  # seconds that it adds to the latency of the link between nodes
  fastest: float = math.inf  # largest bandwidth of a node, in bytes per second
  cards: int = 8  # largest number of a node's network cards that it uses at once
  tree: float = 1.0  # bandwidth of a tree on each network card, relative to that of a worker's link inside a node
  devices: int = 0  # largest number of devices in a comparison with measurements
  nodes: int = 0  # largest number of nodes in such a comparison
  sizes: tuple[int, int] = (0, 0)  # bytes of the smallest and the largest message in such a comparison
  error: float = math.nan  # median relative error on held-out curves; nan: no curve was held out

  @property
  def tested(self) -> str:
    """The largest numbers of devices and nodes in a comparison with measurements, and the error, as text."""
    error = "no held-out curve" if math.isnan(self.error) else f"median error {units.percent(self.error)}"
    return f"{self.devices:,} devices and {self.nodes} nodes ({error})"

  def instant(self) -> "Library":
    """Return the library with zero latency and the same bandwidth."""
    no_time = {"call": 0.0, "inside": 0.0, "between": 0.0}
    protocols = tuple(protocol._replace(**no_time) for protocol in self.protocols)
    return self._replace(launch=0.0, latency=0.0, protocols=protocols, switch=self.switch._replace(**no_time))


def _libraries() -> dict[str, Library]:
  """Read libraries.toml."""
  tables: dict[str, dict[str, Any]] = {}
  for name, table in tomllib.loads(Path(__file__).with_name("libraries.toml").read_text(encoding="utf-8")).items():
    values = tables.get(table.pop("like", ""), {}) | table
    without = values.pop("without", ())
    tables[name] = values | {"protocols": [row for row in values["protocols"] if row[0] not in without]}
  return {name: _library(name, **values) for name, values in tables.items()}


def _library(name: str, protocols: list[list[Any]], switch: list[Any], sizes: list[int], **values: Any) -> Library:
  rows = tuple(Protocol(*row) for row in protocols)
  return Library(name, protocols=rows, switch=Protocol(*switch), sizes=(sizes[0], sizes[1]), **values)


LIBRARIES = _libraries()
NCCL = LIBRARIES["nccl"]
TESTED = 64  # largest number of devices for which all-reduces without a library were compared with measurements
NVLINK_LATENCY = 1e-6  # seconds; assumed, as only its sum with a protocol's seconds per step is fitted
INFINIBAND_LATENCY = 2.7e-6  # seconds; ib_write_lat on 400 Gb/s, from the report with the curves of eight B200


class LinkModel(NamedTuple):
  """A link on which a message of n bytes takes latency + n / bandwidth seconds (alpha + n beta in the papers)."""

  latency: float  # seconds per message
  bandwidth: float  # bytes per second, one way
  duplex: float = 1.0  # share of receiving that overlaps sending (ov of arXiv 1602.06709): 1 full, 0 half duplex

  def seconds(self, nbytes: float) -> float:
    """Return the seconds of one message in one direction."""
    return self.latency + nbytes / self.bandwidth

  def busy_seconds(self, out: float, back: float) -> float:
    """Return the seconds for which `out` bytes in one direction and `back` bytes in the other occupy the link."""
    return (max(out, back) + (1 - self.duplex) * min(out, back)) / self.bandwidth

  def at_most(self, bandwidth: float) -> "LinkModel":
    """Return the link with its bandwidth limited to `bandwidth` bytes per second."""
    return self._replace(bandwidth=min(self.bandwidth, bandwidth))


class Uplink(NamedTuple):
  """Oversubscribed switches: the uplinks of a switch have only a share of the bandwidth of the nodes below it."""

  nodes: int  # per switch
  share: float  # 1 / 3 for a network that is oversubscribed 3 to 1


class NetworkModel(NamedTuple):
  """Nodes of up to `per_node` workers, which share their node's link to other nodes."""

  between: LinkModel  # between nodes: all network cards of a node together
  inside: LinkModel | None = None  # inside a node; None: as between nodes
  per_node: int = 1  # workers per node
  sites: int = 1  # number of sites; the workers are spread over at least this many nodes
  card: float | None = None  # bytes per second of a worker's own network card; None: it can use all cards of the node
  uplink: Uplink | None = None  # None: the switches above the nodes are not oversubscribed
  torus: Torus | None = None  # if workers are wired only to neighbors; `between` is then all links of one worker
  reduces: tuple[str, ...] = ()  # levels ("inside", "between") where the library reduces in switches (NVLink SHARP)
  library: Library | None = None  # costs of collectives in addition to the links; None: textbook algorithms

  def nodes(self, workers: int) -> int:
    """Return the number of nodes for `workers` workers; the last node may be partly filled."""
    return max(math.ceil(workers / self.per_node), min(self.sites, workers))

  def workers_per_node(self, workers: int) -> int:
    """Return the number of workers in a full node, given the total number of workers."""
    return min(self.per_node, math.ceil(workers / self.sites))

  def grouped(self, members: int) -> "NetworkModel":
    """Return the network between groups of `members` neighboring workers; each member sends a part of a message."""
    near = min(members, self.per_node)  # members of a group in the same node
    inside = (self.inside or self.between) if self.per_node > members else None
    return self._replace(
      between=self.between._replace(bandwidth=self.between.bandwidth * math.ceil(members / self.per_node)),
      inside=inside and inside._replace(bandwidth=inside.bandwidth * near),
      per_node=max(1, self.per_node // members),
      card=self.card and self.card * members,
    )

  def untested(self, workers: int) -> str:
    """Return a warning if no all-reduce of that many workers was compared with measurements, else ""."""
    library = self.library
    if workers <= (library.devices if library else TESTED) and (not library or self.nodes(workers) <= library.nodes):
      return ""
    what, tested = (
      (f"all-reduces of {library.name}", library.tested) if library else ("textbook all-reduces", f"{TESTED} devices")
    )
    return f"Warning: {what} were compared with measurements only up to {tested}."

  def main_link(self, workers: int) -> LinkModel:
    """Return the slowest link that the workers use: inside a node if one node holds all of them, else between nodes."""
    return self.inside if self.inside and self.nodes(workers) == 1 else self.between

  def worker_link(self, workers: int) -> LinkModel:
    """Return the link of a worker while no other worker sends; between nodes, its network card limits the link."""
    one_node = self.nodes(workers) == 1 and self.inside is not None
    return self.main_link(workers) if one_node or not self.card else self.between.at_most(self.card)

  def outgoing_link(self, workers: int, all_nodes: bool = False) -> LinkModel:
    """Return the link from a full node to other nodes, limited by network cards and oversubscribed switches.

    all_nodes: whether all nodes under a switch send to other switches at once, as with distant partners; if not, only
      one node does, as in a ring or a tree of neighbors.
    """
    link = self.between.at_most(self.workers_per_node(workers) * self.card) if self.card else self.between
    if not self.uplink or self.nodes(workers) <= self.uplink.nodes:
      return link
    share = self.uplink.share * (1 if all_nodes else self.uplink.nodes)
    return link._replace(bandwidth=link.bandwidth * min(1.0, share))


class Cluster(NamedTuple):
  """Identical workers on a network."""

  title: str
  device: Device  # of one worker
  efficiency: Efficiency
  network: NetworkModel
  source: str  # where the figures are from
  host: LinkModel | None = None  # between a worker and its host (PCIe), if the host runs the server or holds the data
  workers: int | None = None  # number of workers; None: no limit known
  overlap: bool = True  # whether exchanges overlap computation
  price: float = 0.0  # of a device hour, in any currency; 0: unknown

  def server_link(self, workers: int) -> LinkModel:
    """Return a server's link: the host link if it is known and one node holds all workers, else a worker's link."""
    one_node = self.network.nodes(workers) == 1
    return self.host if self.host and one_node else self.network.worker_link(workers)

  def with_bandwidth(self, workers: int, bandwidth: float) -> "Cluster":
    """Return the cluster with another bandwidth (bytes/s, above 0) of its main link.

    The bandwidth of the host link, and that of the network cards if they limit the main link, change in proportion.
    """
    old = self.network.main_link(workers)
    link = old._replace(bandwidth=bandwidth)
    inside = self.network.inside is not None and self.network.nodes(workers) == 1
    network, change = self.network._replace(**{"inside" if inside else "between": link}), bandwidth / old.bandwidth
    if network.card and not inside:
      network = network._replace(card=network.card * change)
    host = self.host and self.host._replace(bandwidth=self.host.bandwidth * change)
    return self._replace(network=network, host=host)
