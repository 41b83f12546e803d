"""Islands of workers that are well connected, and the algorithms that exchange seldom between them.

An island is a site, or else a node, or else a single worker. Inside, SGD is synchronous at every step (or sharded);
between islands parameters are averaged every tau steps: hierarchical SGD (Lin et al. 2018, arXiv 1808.07217), DiLoCo
(arXiv 2311.08105) and Streaming DiLoCo (arXiv 2501.18512). All workers of an island send, each its piece.
"""

from collections.abc import Callable
from typing import NamedTuple

from ddl.perf import collectives, units
from ddl.perf.hardware import Cluster
from ddl.perf.hardware.cluster import Network
from ddl.perf.planning import formats
from ddl.perf.planning.delays import round_seconds, smallest_delay

DILOCO = 500  # steps of its period, the authors' choice
STREAMING = 100  # of Streaming DiLoCo's, as ddl's default
FRAGMENTS = 4


class Islands(NamedTuple):
  """Islands of a number of workers."""

  kind: str  # "sites", "nodes" or "workers"
  count: int
  members: int  # workers of one, the last may have fewer
  inside: Cluster  # the cluster of one island
  between: Network  # of the islands as one worker each

  def message_seconds(self, nbytes: float) -> float:
    """Seconds of an all-reduce of all islands."""
    return collectives.all_reduce(nbytes, self.count, self.between)


def islands(cluster: Cluster, workers: int) -> Islands:
  """The islands of so many workers."""
  network = cluster.network
  if network.sites > 1 and workers > network.sites:
    members = -(-workers // network.sites)
    inside = network._replace(sites=1)
    return Islands("sites", network.sites, members, cluster._replace(network=inside), network.of_groups(members))
  members, count = network.together(workers), network.nodes(workers)
  if network.inside and members > 1 and count > 1:
    near = cluster._replace(network=network._replace(sites=1))  # whose one node holds them
    return Islands("nodes", count, members, near, network.of_groups(members))
  return Islands("workers", workers, 1, cluster, network)


class Inner(NamedTuple):
  """Result of an algorithm: seconds per local step, and its delay in steps."""

  seconds: float
  delay: int = 0


def averaged(step: float, message: float, period: int) -> float:
  """Seconds per local step where an average of so many seconds is waited for after every period (DiLoCo, local)."""
  return round_seconds(step=step, message=message, period=period) / period


def streaming(
  step: float, message: Callable[[float], float], nbytes: float, *, period: int, fragments: int, name: str = "int4",
  overlap: bool = True,
) -> Inner:  # fmt: skip
  """Seconds per local step of Streaming DiLoCo, P fragments each sent every H steps, and the least delay that hides it.

  T = T_step + P max(0, T_message(n / P) - d T_step) / H, d = ceil(T_message / T_step) up to H / P, where the next
  fragment leaves.

  Args:
    step: seconds of a local step.
    message: (bytes) -> seconds of an average.
    nbytes: of all parameters in float32.
    name: the format that is sent.
    overlap: whether an exchange can run beside the steps.
  """
  turn = units.count("period", period) // units.count("fragments", fragments)
  took = message(formats.message_bytes(nbytes / fragments, name))
  delay = min(smallest_delay(took, step), turn) if overlap else 0
  exposed = max(0.0, took - delay * step)
  return Inner(step + fragments * exposed / period, delay)
