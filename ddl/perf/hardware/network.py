"""Links of a latency and a bandwidth, nodes of workers with faster links inside, and what lies between the nodes."""

import math
from typing import NamedTuple

from ddl.perf import checks
from ddl.perf.hardware.library import Library
from ddl.perf.hardware.torus import Torus


class Link(NamedTuple):
  """One connection: a message of n bytes takes latency + n / bandwidth seconds (alpha + n beta of the papers)."""

  latency: float  # seconds per message
  bandwidth: float  # bytes per second, one way
  duplex: float = 1.0  # share of receiving that overlaps sending (ov of arXiv 1602.06709): 1 full, 0 half duplex

  def seconds(self, nbytes: float) -> float:
    """Seconds of one message, one way."""
    return self.latency + nbytes / self.bandwidth

  def busy_seconds(self, out: float, back: float) -> float:
    """Seconds for which `out` bytes one way and `back` bytes the other way occupy the link, without the latency."""
    return (max(out, back) + (1 - self.duplex) * min(out, back)) / self.bandwidth

  def at_most(self, bandwidth: float) -> "Link":
    """The link with no more than so many bytes per second."""
    return self._replace(bandwidth=min(self.bandwidth, bandwidth))


class Uplink(NamedTuple):
  """Switches with so many nodes under each, whose links to the others have a share of these nodes' bandwidth."""

  nodes: int
  share: float  # 1 / 3 of a network that is oversubscribed 3 to 1


class Network(NamedTuple):
  """Workers in nodes of up to `per_node`; the workers of a node share its link to the other nodes."""

  between: Link  # nodes: all the network cards of a node together
  inside: Link | None = None  # a node; None: as between nodes
  per_node: int = 1  # workers
  sites: int = 1  # least number of nodes over which workers are spread, as far as there are so many workers
  card: float | None = None  # bytes per second of the one network card of a worker, or of a server; None: all of a node
  uplink: Uplink | None = None  # where the switches above the nodes are oversubscribed
  torus: Torus | None = None  # where workers are wired to neighbours alone; `between` is all links of one worker
  reduces: tuple[str, ...] = ()  # of "inside" and "between": whose switches add up what they are sent
  library: Library | None = None  # costs of collectives beside the links; None: those of the textbook

  def nodes(self, workers: int) -> int:
    """Number of nodes of so many workers; the last one may be partly filled."""
    return max(math.ceil(workers / self.per_node), min(self.sites, workers))

  def together(self, workers: int) -> int:
    """Number of workers in a full node, of so many in all."""
    return min(self.per_node, math.ceil(workers / self.sites))

  def of_groups(self, members: int) -> "Network":
    """The network of workers that are so many neighbours each, of which each sends its piece of a worker's message."""
    near = min(members, self.per_node)  # in a node
    inside = (self.inside or self.between) if self.per_node > members else None
    return self._replace(
      between=self.between._replace(bandwidth=self.between.bandwidth * math.ceil(members / self.per_node)),
      inside=inside and inside._replace(bandwidth=inside.bandwidth * near),
      per_node=max(1, self.per_node // members),
      card=self.card and self.card * members,
    )

  def main_link(self, workers: int) -> Link:
    """The link that limits so many workers: between nodes, or inside where one node holds them all."""
    return self.inside if self.inside and self.nodes(workers) == 1 else self.between

  def worker_link(self, workers: int) -> Link:
    """The link that one of so many workers has for itself, the others silent: with its one card between nodes."""
    alone = self.nodes(workers) == 1 and self.inside is not None
    return self.main_link(workers) if alone or not self.card else self.between.at_most(self.card)

  def way_out(self, workers: int, everyone: bool = False) -> Link:
    """A full node's link to the others, with the cards of its workers, under the switches that so many nodes need.

    everyone: all nodes under a switch send to nodes under others at once, as with partners at a distance; otherwise one
    does, as on a ring or a tree whose neighbours are near.
    """
    found = self.between.at_most(self.together(workers) * self.card) if self.card else self.between
    if not self.uplink or self.nodes(workers) <= self.uplink.nodes:
      return found
    at_once = self.uplink.share * (1 if everyone else self.uplink.nodes)
    return found._replace(bandwidth=found.bandwidth * min(1.0, at_once))


def check_link(name: str, link: Link) -> Link:
  """Return the link; ValueError for a latency below 0, a bandwidth not above 0, or a duplex outside [0, 1]."""
  checks.amount(f"{name}: latency (s)", link.latency)
  checks.share(f"{name}: duplex", link.duplex)
  if not link.bandwidth > 0:
    raise ValueError(f"{name}: bandwidth (bytes/s) is {link.bandwidth:g}; invalid: must be above 0")
  return link
