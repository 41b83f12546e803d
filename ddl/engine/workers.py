"""Workers on devices: p workers spread over the devices of one or more processes, and their packed collectives.

Either a device runs one or more workers, or several devices, called members, run one worker and shard its parameters.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from ddl import memory
from ddl.api import AxisName, Tree
from ddl.errors import OptionError
from ddl.group import Group
from ddl.sharding import MEMBER

SMALL = 2**22  # bytes; larger arrays are sent separately over sockets, as packing them takes longer than a message
AXIS = ("worker", "virtual")  # the workers' axis: worker id = row of the mesh * workers per row + virtual index


class Workers(NamedTuple):
  """A mesh [rows, members] of devices; each row runs `virtual` workers along the vmapped axis "virtual"."""

  mesh: Mesh  # axes "worker" and "member"
  virtual: int  # workers per row

  @property
  def devices(self) -> int:
    """Return the number of devices, over all processes."""
    return self.mesh.size

  @property
  def device(self) -> Any:
    """Return one of the devices, possibly of another machine; all are of the same kind."""
    return self.mesh.devices.flat[0]

  @property
  def platform(self) -> str:
    """Return the platform: "cpu", "tpu", or "gpu" for CUDA."""
    return self.device.platform

  @property
  def processes(self) -> int:
    """Return the number of processes that own these devices."""
    return len({device.process_index for device in self.mesh.devices.flat})

  @property
  def members(self) -> int:
    """Return the number of devices per worker."""
    return self.mesh.shape[MEMBER]

  @property
  def rows(self) -> int:
    """Return the number of mesh rows, which run different workers."""
    return self.mesh.shape[AXIS[0]]

  @property
  def count(self) -> int:
    """Return the number of workers p."""
    return self.rows * self.virtual

  @property
  def group(self) -> Group:
    """Return the group of all workers, for functions of one worker under `lift` and a vmap over axis "virtual"."""
    # XLA's partitioner fails on a collective over a manual axis of size 1.
    axis = AXIS[1] if self.rows == 1 < self.members else AXIS
    return PackedGroup(axis, SMALL) if self.platform == "cpu" and self.processes > 1 == self.members else Group(axis)

  @property
  def packs(self) -> bool:
    """Return whether messages in flight are packed into vectors: on TPUs, unless members shard the parameters."""
    return self.platform == "tpu" and self.members == 1

  @property
  def overlapped_group(self) -> Group:
    """Return the group for messages in flight; its collectives may overlap with steps."""
    return PackedGroup(self.group.axes) if self.packs else self.group

  @property
  def local(self) -> list[int]:
    """Return the IDs of the workers with a device in this process, in order."""
    return [i * self.virtual + j for i in self.local_rows for j in range(self.virtual)]

  @property
  def local_rows(self) -> list[int]:
    """Return the rows with a device in this process; a row may span several processes."""
    rank = jax.process_index()
    return [i for i, row in enumerate(self.mesh.devices) if any(d.process_index == rank for d in row)]

  def split(self, spec: Sequence[str | None] = ()) -> NamedSharding:
    """Return the sharding of arrays [workers, ...]: the leading axis over the rows, the other axes by `spec`."""
    return NamedSharding(self.mesh, PartitionSpec(AXIS[0], *spec))

  @property
  def everywhere(self) -> NamedSharding:
    """Return the sharding of arrays replicated on every device."""
    return NamedSharding(self.mesh, PartitionSpec())

  def put(self, tree: Any, spec: Sequence[str | None] = ()) -> Any:
    """Assemble host arrays [local rows * n, ...] into global arrays [rows * n, ...], sharded over the mesh rows."""
    sharding = self.split(spec)
    if jax.process_count() == 1:
      return jax.device_put(tree, sharding)
    mine = self.local_rows

    def one(x: np.ndarray) -> jax.Array:
      per_row = len(x) // len(mine)
      shape, first = (self.rows * per_row, *x.shape[1:]), mine[0] * per_row

      def part(index: Any) -> np.ndarray:
        start, stop, _ = index[0].indices(shape[0])
        return x[(slice(start - first, stop - first), *index[1:])]

      return jax.make_array_from_callback(shape, sharding, part)

    return jax.tree.map(lambda x: one(np.asarray(x)), tree)

  def replicate(self, tree: Any) -> Any:
    """Replicate host arrays, equal in all processes, on every device."""
    if jax.process_count() == 1:
      return jax.device_put(tree, self.everywhere)
    # With several processes, device_put would first compare the values, with a collective per array.
    arrays = jax.tree.map(np.asarray, tree)
    return jax.tree.map(lambda x: jax.make_array_from_callback(x.shape, self.everywhere, x.__getitem__), arrays)

  def lift(self, fn: Callable[..., Any], in_specs: Any, out_specs: Any) -> Callable[..., Any]:
    """Map `fn` over the rows of the mesh. Specs: True: split along the leading axis; False: equal on all rows.

    XLA partitions a row's computation over its members. `check_vma` is off because, with it, collectives over a vmapped
    axis fail, and `jax.grad` with respect to replicated parameters sums the gradients over the devices.
    """

    def spec(split: Any) -> Any:
      return jax.tree.map(lambda s: PartitionSpec(AXIS[0]) if s else PartitionSpec(), split)

    manual = {AXIS[0]} if self.members > 1 else {*self.mesh.axis_names}
    return jax.shard_map(
      fn, mesh=self.mesh, in_specs=spec(in_specs), out_specs=spec(out_specs), axis_names=manual, check_vma=False
    )

  def check_memory(self, carry: Any, params: Any) -> None:
    """Raise ValueError if the devices cannot hold a carry and initial parameters, given as shapes with shardings."""
    share = sum(math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize for x in jax.tree.leaves((carry, params)))
    for device in self.mesh.local_devices[:1]:
      limit = (device.memory_stats() or {}).get("bytes_limit")  # None on CPUs, which share the machine's memory
      what = f"a model of {nbytes(params) / 1e6:,.1f} MB for {self.count} workers (with the algorithm's state)"
      if limit is None:
        memory.require(share * len(self.mesh.local_devices), what)
      elif share > limit:
        more = " Use more members to shard it further." if self.members > 1 else ""
        raise ValueError(
          f"{what} must fit into the {limit / 1e9:,.1f} GB of each device, got {share / 1e9:,.1f} GB per device.{more}"
        )


def nbytes(tree: Any) -> int:
  """Return the total bytes of a tree of arrays or of shapes."""
  return sum(math.prod(x.shape) * x.dtype.itemsize for x in jax.tree.leaves(tree))  # x.size wraps at 2^63


def placed(tree: Any, sharding: Any) -> Any:
  """Return the arrays' shapes and types with one sharding for all arrays, or with a tree of shardings."""
  where = jax.tree.broadcast(sharding, tree)
  return jax.tree.map(lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), tree, where)


def divisors(count: int) -> list[int]:
  """Return the divisors of a positive integer, in ascending order."""
  low = [d for d in range(1, math.isqrt(count) + 1) if count % d == 0]
  return low + [count // d for d in reversed(low) if d * d != count]


def make_workers(count: int, devices: int | None = None, members: int = 1) -> Workers:
  """Spread `count` workers evenly over devices, of which each process contributes an equal number.

  Args:
    count: number of workers.
    devices: total number of devices; by default the largest available number over which the workers spread evenly.
    members: devices per worker.

  Raises:
    ValueError: if `count` or `members` is below 1, too few devices are available, or the workers do not spread evenly
      over `devices` or over the processes.
  """
  available = sorted(jax.devices(), key=lambda d: (d.process_index, d.id))
  if count < 1:
    raise OptionError("workers", "at least 1", count)
  if members < 1:
    raise OptionError("members", "at least 1", members)
  even = [d * members for d in divisors(count) if d * members % jax.process_count() == 0]
  if not even:
    raise OptionError(
      "workers x members", f"a multiple of the number of processes ({jax.process_count()})", f"{count} x {members}"
    )
  if devices is None:
    devices = max((d for d in even if d <= len(available)), default=0)
  fits = even if jax.default_backend() == "cpu" else [d for d in even if d <= len(available)]  # any number of CPUs
  if devices not in fits:
    where = f" in {jax.process_count()} processes" * (jax.process_count() > 1)
    what = f"{count} workers" + f" of {members} members (devices) each" * (members > 1)
    condition = f"one of {', '.join(map(str, fits or even))} for {what}{where}"
    raise OptionError("devices", condition, f"{devices or len(available)} ({len(available)} available)")
  per_process = devices // jax.process_count()
  used = [
    d for rank in range(jax.process_count()) for d in [x for x in available if x.process_index == rank][:per_process]
  ]
  if len(used) < devices:
    raise OptionError(
      "devices", f"at most {len(used)}", devices, "The number of CPU devices is fixed when JAX is first used."
    )
  return on_devices(count, used, members)


def on_devices(count: int, devices: Sequence[Any], members: int) -> Workers:
  """Spread `count` workers evenly over all these devices, in this order. members: devices per worker."""
  mesh = Mesh(np.array(devices).reshape(-1, members), (AXIS[0], MEMBER), axis_types=(AxisType.Auto,) * 2)
  return Workers(mesh, count * members // len(devices))


class PackedGroup(Group):
  """A group that packs small leaves into one vector per dtype for means and sums; the results are those of `Group`."""

  def __init__(self, axis: AxisName, below: float = math.inf):
    """Bind to an axis as `Group` does. below: leaves of at least this many bytes are sent unpacked, to avoid a copy."""
    super().__init__(axis)
    self.below = below

  def sum(self, tree: Tree) -> Tree:
    """Return sum_i x_i."""
    return self._packed(super().sum, tree)

  def mean(self, tree: Tree) -> Tree:
    """Return (1/p) sum_i x_i."""
    return self._packed(super().mean, tree)

  def _packed(self, reduce: Callable[[Tree], Tree], tree: Tree) -> Tree:
    leaves, structure = jax.tree.flatten(tree)
    leaves = [jnp.asarray(x) for x in leaves]
    together: dict[object, list[int]] = {}
    for place, x in enumerate(leaves):
      together.setdefault(x.dtype if x.nbytes < self.below else place, []).append(place)
    vectors = reduce([jnp.concatenate([leaves[place].reshape(-1) for place in places]) for places in together.values()])
    for vector, places in zip(vectors, together.values(), strict=True):
      first = 0
      for place in places:
        shape, size = leaves[place].shape, leaves[place].size
        leaves[place] = vector[first : first + size].reshape(shape)
        first += size
    return jax.tree.unflatten(structure, leaves)
