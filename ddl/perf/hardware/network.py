"""What connects workers: links of a latency and a bandwidth, and nodes with faster links inside."""

import math
from typing import NamedTuple


class Link(NamedTuple):
  """One connection: a message of n bytes takes latency + n / bandwidth seconds (alpha + n beta of the papers)."""

  latency: float  # seconds per message
  bandwidth: float  # bytes per second, one way
  duplex: float = 1.0  # share of receiving that overlaps sending (ov of arXiv 1602.06709): 1 full, 0 half duplex

  def seconds(self, nbytes: float) -> float:
    """Of one message, one way."""
    return self.latency + nbytes / self.bandwidth


class Network(NamedTuple):
  """Workers in nodes of up to `per_node`; the workers of a node share its link to the others."""

  between: Link  # nodes
  inside: Link | None = None  # a node; None: its workers talk as nodes do
  per_node: int = 1  # workers
  sites: int = 1  # nodes over which workers are spread in any case, as far as there are so many workers

  def nodes(self, workers: int) -> int:
    """Of so many workers, the last node perhaps not full."""
    return max(math.ceil(workers / self.per_node), min(self.sites, workers))

  def together(self, workers: int) -> int:
    """Workers of a full node, of so many in all."""
    return min(self.per_node, math.ceil(workers / self.sites))


def check_link(name: str, link: Link) -> Link:
  """The link, if it can be.

  Raises:
    ValueError: one line for a latency below 0, a bandwidth that is not above 0, or a duplex outside [0, 1].
  """
  if not (math.isfinite(link.latency) and link.latency >= 0):
    raise ValueError(f"{name}: a latency of {link.latency:g} s is invalid: must be a finite one of 0 or more")
  if not link.bandwidth > 0:
    raise ValueError(f"{name}: a bandwidth of {link.bandwidth:g} bytes per second is invalid: must be one above 0")
  if not 0 <= link.duplex <= 1:
    raise ValueError(f"{name}: duplex is {link.duplex:g}; it is a share from 0 (half duplex) to 1 (full)")
  return link
