"""Parameters in pieces: fully sharded (FSDP, ZeRO-3) over all workers, or hybrid: inside nodes, with copies between.

Rajbhandari et al. 2019, arXiv 1910.02054; Zhao et al. 2023, arXiv 2304.11277. Parameters are gathered before the
forward and again before the backward pass of each unit of layers, in the format in which the device computes, and
gradients are reduce-scattered: 1.5 times the bytes of an all-reduce in one format. The next unit is gathered meanwhile:
T = gather_1 + max(T_fwd, G) + max(T_bwd, G + R) + reduce_last,
T_fwd a third of the step, G and R the gathers and the reduce-scatters of all units. Hybrid: G and R inside a node; the
gradients' all-reduce between nodes is beside both, on its own link, each worker with its piece.
"""

from typing import NamedTuple

from ddl.perf import collectives
from ddl.perf.hardware import Cluster
from ddl.perf.hardware.cluster import Network
from ddl.perf.planning import formats, scenario
from ddl.perf.planning.batch import Job
from ddl.perf.step.memory import StepMemory
from ddl.perf.tables.totals import FLOAT

UNIT = 25e6  # bytes of float32 parameters that are gathered together, at least
AHEAD = 2  # units that are whole at once: the one in use, and the next


class Unit(NamedTuple):
  """Seconds of one unit's collectives."""

  gather: float
  scatter: float
  between: float  # the all-reduce between nodes, of the hybrid kind


def seconds(job: Job, cluster: Cluster, workers: int, step: float, shards: int, name: str = "float32") -> float:
  """Seconds of a step whose parameters are in as many pieces as `shards`, on neighbouring workers.

  Args:
    step: seconds of the step without any exchange.
    shards: number of pieces, which divides the workers; each set of pieces has a copy in other workers.
    name: the format of the gradients.

  Raises:
    ValueError: if the shards do not divide the workers, or for an unknown format.
  """
  if shards < 1 or workers % shards:
    raise ValueError(f"{shards} shards do not divide {workers} workers")
  if workers == 1:
    return step
  inner, outer = _inner(cluster.network, shards, workers), cluster.network.of_groups(shards)
  found = []
  for nbytes in units(job):
    parameters, gradients = nbytes * cluster.device.width / FLOAT, formats.message_bytes(nbytes, name)
    found.append(
      Unit(
        collectives.one_way("all_gather", parameters, shards, inner),
        collectives.one_way("reduce_scatter", gradients, shards, inner),
        collectives.all_reduce(gradients, workers // shards, outer),
      )
    )
  gather, scatter, between = (sum(each) for each in zip(*found, strict=True))
  encode = formats.encode_seconds(job.params_bytes, name, cluster.device)
  if not cluster.overlap:
    return step + 2 * gather + scatter + between + encode
  first, last = found[0].gather, found[0].scatter + found[0].between  # the first unit's gradients come last
  forward, backward = max(step / 3, gather), max(2 * step / 3, gather + scatter, between)
  return first + forward + backward + last + encode


def units(job: Job) -> list[float]:
  """Bytes in float32 of the units, in the order of the forward pass: neighbouring layers up to UNIT or more."""
  found, gathered = [], 0.0
  for nbytes in scenario.work_of(job.step, job.params_bytes).nbytes:
    gathered += nbytes
    if gathered >= UNIT:
      found.append(gathered)
      gathered = 0.0
  return [*found, gathered] if gathered or not found else found


def memory(job: Job, shards: int, width: int = FLOAT) -> StepMemory:
  """Memory of a step in so many pieces: 1 / shards of all copies, and AHEAD units whole, in values of `width` bytes."""
  if shards == 1:
    return job.memory
  fixed, whole = job.memory.fixed * job.split / shards, AHEAD * max(units(job)) / FLOAT * width
  return StepMemory(job.memory.per_example, fixed + whole)


def _inner(network: Network, shards: int, workers: int) -> Network:
  """The network of one set of pieces: in one node where it fits there."""
  return network._replace(sites=1) if shards <= network.together(workers) else network
