"""Links of a latency and a bandwidth, and nodes of workers with faster links inside."""

import math
from typing import NamedTuple

from ddl.perf import checks


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


class Network(NamedTuple):
  """Workers in nodes of up to `per_node`; the workers of a node share its link to the other nodes."""

  between: Link  # nodes
  inside: Link | None = None  # a node; None: as between nodes
  per_node: int = 1  # workers
  sites: int = 1  # least number of nodes over which workers are spread, as far as there are so many workers

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
    )

  def main_link(self, workers: int) -> Link:
    """The link that limits so many workers: between nodes, or inside where one node holds them all."""
    return self.inside if self.inside and self.nodes(workers) == 1 else self.between


def check_link(name: str, link: Link) -> Link:
  """Return the link; ValueError for a latency below 0, a bandwidth not above 0, or a duplex outside [0, 1]."""
  checks.amount(f"{name}: latency (s)", link.latency)
  checks.share(f"{name}: duplex", link.duplex)
  if not link.bandwidth > 0:
    raise ValueError(f"{name}: bandwidth (bytes/s) is {link.bandwidth:g}; invalid: must be above 0")
  return link
