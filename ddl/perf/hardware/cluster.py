"""What a cluster is: workers of one kind on a network, and where the figures come from."""

from typing import NamedTuple

from ddl.perf.hardware.device import Device, Efficiency
from ddl.perf.hardware.network import Link, Network, check_link


class Cluster(NamedTuple):
  """Workers of one kind on a network."""

  title: str
  device: Device  # of one worker
  efficiency: Efficiency
  network: Network
  source: str  # where the figures come from
  host: Link | None = None  # between a worker and its host (PCIe), where the server or the data are there
  workers: int | None = None  # as many as there are; None: no limit known
  overlap: bool = True  # whether an exchange runs while the workers compute


ASSUMED = Efficiency(
  best=0.5
)  # of the peak, by every entry that knows no measurement; its source says "efficiency 0.5"


def main_link(cluster: Cluster, workers: int) -> Link:
  """The link that the bandwidth of so many workers is about: between nodes, or inside where one node holds them all."""
  network = cluster.network
  return network.inside if network.inside and network.nodes(workers) == 1 else network.between


def server_link(cluster: Cluster, workers: int) -> Link:
  """A server's: to the host where one node holds all workers and the host is known, else the main link."""
  alone = cluster.network.nodes(workers) == 1
  return cluster.host if cluster.host and alone else main_link(cluster, workers)


def with_bandwidth(cluster: Cluster, workers: int, bandwidth: float) -> Cluster:
  """The cluster with another bandwidth, bytes per second, of the main link; a host's changes in proportion.

  Raises:
    ValueError: for a bandwidth that is not above 0.
  """
  link = main_link(cluster, workers)._replace(bandwidth=bandwidth)
  check_link("the main link", link)
  network = cluster.network
  if network.nodes(workers) > 1 or not network.inside:
    network = network._replace(between=link)
  else:
    network = network._replace(inside=link)
  factor = bandwidth / main_link(cluster, workers).bandwidth
  host = cluster.host and cluster.host._replace(bandwidth=cluster.host.bandwidth * factor)
  return cluster._replace(network=network, host=host)
