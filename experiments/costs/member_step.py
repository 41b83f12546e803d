"""A step of a worker of several devices: what one of them computes, and what passes among them, as compiled here."""

import math
from typing import NamedTuple

import jax

from ddl.perf.comm import collectives
from ddl.perf.hardware import Cluster
from ddl.runtime.layout.placement import Placement
from ddl.runtime.layout.workers import on_devices
from ddl.runtime.xla import hlo
from ddl.runtime.xla.hlo import Collective
from experiments.costs.xla_cost import step_program
from experiments.train.auto_sharding import with_auto
from experiments.train.build import Components


class Members(NamedTuple):
  """The devices of a worker in a step."""

  count: int = 1
  collectives: tuple[Collective, ...] = ()  # of a step, among them
  share: float = 1.0  # what they all send of a message over the message: 1 where each sends its own piece

  def seconds(self, cluster: Cluster) -> float:
    """Seconds of the collectives of a step, one after the other, in which the worker's devices are neighbours."""
    near = cluster._replace(network=cluster.network._replace(sites=1))
    return sum((collective_seconds(each, near, self.count) for each in self.collectives), 0.0)


ALONE = Members()


def of(components: Components, members: int, sharding: str) -> Members:
  """Compile a step over the members. sharding: as in `Placement`. ValueError for too few devices in this process."""
  devices = jax.local_devices()[:members]
  if members == 1:
    return ALONE
  check_devices(members)
  workers = on_devices(1, devices, members)
  experiment = components.experiment
  text = step_program(components, experiment.batch // experiment.microbatches, members, sharding).as_text()
  shapes = jax.tree.leaves(Placement(with_auto(components.model, experiment, members), workers, sharding).params)
  held = sum(math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize for x in shapes)
  whole = sum(math.prod(x.shape) * x.dtype.itemsize for x in shapes)
  passed = tuple(hlo.collectives(text, workers.mesh)) * experiment.microbatches
  return Members(members, passed, members * held / whole)


def check_devices(members: int) -> None:
  """ValueError if a worker's devices are not all in this process, whose compiler is asked."""
  if members > len(jax.local_devices()):
    raise ValueError(
      f"--cluster: the {members} members of a worker are in several processes; predict with fewer processes, or of the "
      "finished comparison in one"
    )


def collective_seconds(each: Collective, cluster: Cluster, devices: int) -> float:
  """Seconds of a collective that has the links for itself. devices: of the whole program."""
  size, network = each.size, cluster.network
  if each.kind == "collective-permute":
    return collectives.permute(each.nbytes, devices, network)
  if each.kind == "all-reduce":
    return collectives.all_reduce(each.nbytes, size, network)
  if each.kind == "all-to-all":  # each keeps a share: as a reduce-scatter moves them
    return collectives.one_way("reduce_scatter", each.nbytes, size, network)
  return collectives.one_way(each.kind.replace("-", "_"), each.nbytes, size, network)
