"""Workers on devices: p workers spread over the devices of one or many processes, several per device."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from ddl import memory

AXIS = ("device", "virtual")  # the workers' axis: worker id = device index * workers per device + virtual index


class Workers(NamedTuple):
  """A mesh of devices along "device", each carrying `virtual` workers along the vmapped axis "virtual"."""

  mesh: Mesh
  virtual: int  # workers per device

  @property
  def devices(self) -> int:
    """Number of devices, over all processes."""
    return self.mesh.size

  @property
  def count(self) -> int:
    """Number of workers p."""
    return self.devices * self.virtual

  @property
  def local(self) -> list[int]:
    """Ids of this process's workers, in order."""
    mine = [i for i, d in enumerate(self.mesh.devices.flat) if d.process_index == jax.process_index()]
    return [i * self.virtual + j for i in mine for j in range(self.virtual)]

  @property
  def split(self) -> NamedSharding:
    """Sharding of arrays [workers, ...]: the leading axis over the devices."""
    return NamedSharding(self.mesh, PartitionSpec("device"))

  def put(self, tree: Any) -> Any:
    """Host arrays [local workers, ...] -> global arrays [workers, ...], each row on its worker's device."""
    if jax.process_count() == 1:
      return jax.device_put(tree, self.split)
    return jax.tree.map(lambda x: jax.make_array_from_process_local_data(self.split, np.asarray(x)), tree)

  def replicate(self, tree: Any) -> Any:
    """Host arrays, equal in all processes -> the same arrays on every device."""
    everywhere = NamedSharding(self.mesh, PartitionSpec())
    if jax.process_count() == 1:
      return jax.device_put(tree, everywhere)
    # Not device_put: over several processes it would first compare the values, with a collective for each.
    arrays = jax.tree.map(np.asarray, tree)
    return jax.tree.map(lambda x: jax.make_array_from_callback(x.shape, everywhere, x.__getitem__), arrays)

  def lift(self, fn: Callable[..., Any], in_specs: Any, out_specs: Any) -> Callable[..., Any]:
    """Map `fn` over the devices; specs: True: split along the leading axis, False: equal on all devices.

    `check_vma` is off because collectives over a vmapped axis fail with it, and because `jax.grad` of replicated
    parameters would already sum over the devices.
    """

    def spec(split: Any) -> Any:
      return jax.tree.map(lambda s: PartitionSpec("device") if s else PartitionSpec(), split)

    return jax.shard_map(fn, mesh=self.mesh, in_specs=spec(in_specs), out_specs=spec(out_specs), check_vma=False)

  def check_memory(self, carry: Any, params: Any) -> None:
    """ValueError if the devices cannot hold a carry, and the parameters on each device, of these shapes."""
    share = (nbytes(carry) + self.devices * nbytes(params)) / self.devices
    for device in self.mesh.local_devices[:1]:
      limit = (device.memory_stats() or {}).get("bytes_limit")  # None on CPUs, which share the machine's
      what = f"a model of {nbytes(params) / 1e6:,.1f} MB for {self.count} workers, with the algorithm's state"
      if limit is None:
        memory.require(share * len(self.mesh.local_devices), what)
      elif share > limit:
        raise ValueError(f"{what}: needs at least {share / 1e9:,.1f} GB of each device's {limit / 1e9:,.1f} GB")


def nbytes(tree: Any) -> int:
  """Return the bytes of all arrays, or of their shapes."""
  return sum(math.prod(x.shape) * x.dtype.itemsize for x in jax.tree.leaves(tree))  # x.size wraps at 2^63


def divisors(count: int) -> list[int]:
  """Return the divisors of a positive integer, in ascending order."""
  low = [d for d in range(1, math.isqrt(count) + 1) if count % d == 0]
  return low + [count // d for d in reversed(low) if d * d != count]


def make_workers(count: int, devices: int | None = None) -> Workers:
  """Spread `count` workers over the first `devices` devices of all processes (default: as many as fit evenly).

  Raises:
    ValueError: if there are fewer devices, or they do not divide the workers.
  """
  found = sorted(jax.devices(), key=lambda d: (d.process_index, d.id))
  if count < 1:
    raise ValueError(f"workers is {count}: invalid: must be at least 1")
  even = [d for d in divisors(count) if d % jax.process_count() == 0]
  if devices is None:
    devices = max((d for d in even if d <= len(found)), default=0)
  fits = even if jax.default_backend() == "cpu" else [d for d in even if d <= len(found)]  # a CPU gives any number
  if devices not in fits:
    where = f" of {jax.process_count()} processes" * (jax.process_count() > 1)
    raise ValueError(
      f"{count} workers do not spread evenly over {devices or 'the'} devices{where} "
      f"(found: {len(found)}); device counts that divide them: {', '.join(map(str, fits))}"
    )
  per_process = devices // jax.process_count()
  chosen = [
    d for rank in range(jax.process_count()) for d in [x for x in found if x.process_index == rank][:per_process]
  ]
  if len(chosen) < devices:
    raise ValueError(f"devices is {devices}; invalid: must be at most {len(chosen)} (a CPU: more with --devices)")
  mesh = Mesh(np.array(chosen), ("device",), axis_types=(AxisType.Auto,))
  return Workers(mesh, count // devices)
