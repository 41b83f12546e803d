"""A cluster: workers of one kind on a network, and the source of its data."""

from typing import NamedTuple

from ddl.perf.hardware.device import Device, Efficiency
from ddl.perf.hardware.network import Link, Network, check_link

# Of the peak, where a cluster is taken as it is. Every command puts what `ddl.perf.devices.lookup` knows in its place.
ASSUMED = Efficiency(best=0.5)


class Cluster(NamedTuple):
  """Workers of one kind on a network."""

  title: str
  device: Device  # of one worker
  efficiency: Efficiency
  network: Network
  source: str  # of the numbers
  host: Link | None = None  # between a worker and its host (PCIe), where the server or the data are there
  workers: int | None = None  # number of workers; None: no limit known
  overlap: bool = True  # whether an exchange runs while the workers compute

  def server_link(self, workers: int) -> Link:
    """A server's: to the host where one node holds all workers and the host is known, else one as a worker's."""
    alone = self.network.nodes(workers) == 1
    return self.host if self.host and alone else self.network.worker_link(workers)

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
