"""Networks without branches: convolutions and poolings, then dense layers, with relu between all."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
from flax import linen as nn

from ddl import memory
from ddl.api import Model
from ddl.models.flax_model import from_flax, require
from ddl.sharding import columns, named


class Conv(NamedTuple):
  """A convolution with a square kernel."""

  outputs: int
  kernel: int
  stride: int = 1
  same: bool = True  # padded so that a stride of 1 keeps the size; False: not padded

  @property
  def padding(self) -> int:
    """Zeros on each side."""
    return self.kernel // 2 if self.same else 0


class Pool(NamedTuple):
  """A maximum over squares, not padded."""

  kernel: int
  stride: int


def pads(before: int, after: int | None = None) -> Any:
  """Zeros before and after both axes of a map, as Flax takes them."""
  return ((before, before if after is None else after),) * 2


class _Sequential(nn.Module):
  operations: tuple[Conv | Pool, ...]
  widths: tuple[int, ...]
  dropout: float

  @nn.compact
  def __call__(self, x: jax.Array, train: bool) -> jax.Array:
    he, count = nn.initializers.he_normal(), 0
    for operation in self.operations:
      if isinstance(operation, Pool):
        x = nn.max_pool(x, (operation.kernel,) * 2, (operation.stride,) * 2)
        continue
      count, size, padding = count + 1, (operation.kernel,) * 2, pads(operation.padding)
      conv = nn.Conv(operation.outputs, size, operation.stride, padding, kernel_init=he, name=f"conv{count}")
      x = nn.relu(conv(x))
    x = x.reshape(x.shape[0], -1)
    for name, width in zip(_names(self.widths), self.widths, strict=True):
      last = name == f"fc{len(self.widths)}"
      x = named(nn.Dense(width, kernel_init=he, name=name)(named(x, f"{name}/in")), f"{name}/out")
      x = x if last else nn.Dropout(self.dropout, deterministic=not train)(nn.relu(x))
    return x


def sequential(
  title: str,
  meta: Mapping[str, Any],
  operations: Sequence[Conv | Pool],
  hidden: Sequence[int],
  dropout: float,
) -> Model:
  """Return the network of these operations and dense layers of the widths `hidden` and num_outputs, He-initialised.

  Dropout is behind each hidden dense layer. `hybrid` splits the dense layers of a worker over its members.

  Raises:
    ValueError: if the data is not images, they are too small for the operations, or it exceeds the memory.
  """
  require(title, meta, image=True)
  side = next(n for n in range(1, 10_000) if _size(n, operations) > 0)
  require(title, meta, image=True, side=side)
  height, width, channels = meta["shape"]
  count, maps = 0, channels
  for operation in operations:
    if isinstance(operation, Conv):
      count, maps = count + operation.kernel**2 * maps * operation.outputs, operation.outputs
  flat = _size(height, operations) * _size(width, operations) * maps
  widths = (*hidden, meta["num_outputs"])
  count += sum(a * b for a, b in zip((flat, *hidden), widths, strict=True))
  memory.require(4 * count, f"{title} of {count:,} weights")
  rules = {"hybrid": columns(_names(widths))}
  return from_flax(_Sequential(tuple(operations), widths, dropout), meta)._replace(rules=rules)


def _names(widths: Sequence[int]) -> list[str]:
  return [f"fc{i}" for i in range(1, len(widths) + 1)]


def _size(size: int, operations: Sequence[Conv | Pool]) -> int:
  """Return the side of the last maps for images of this side; 0 if nothing is left."""
  for operation in operations:
    padding = operation.padding if isinstance(operation, Conv) else 0
    size = (size + 2 * padding - operation.kernel) // operation.stride + 1
    if size < 1:
      return 0
  return size
