"""Clusters by name, each with its source. A new one is an entry here."""

from typing import NamedTuple

from ddl.perf.compute import Device, Efficiency
from ddl.perf.network import Link, Network


class Cluster(NamedTuple):
  """Workers of one kind on a network."""

  title: str
  device: Device  # of one worker
  efficiency: Efficiency
  network: Network
  source: str  # where the figures come from
  host: Link | None = None  # between a worker and its host (PCIe), where the server or the data are there
  workers: int | None = None  # as many as there are; None: no limit known


CLUSTERS: dict[str, Cluster] = {}
