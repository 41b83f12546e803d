"""One message or many: all layers packed into one buffer, one message per layer, and buckets between the two.

You, Buluc, Demmel 2017, arXiv 1708.02983: packing saves (layers - 1) latencies per exchange. Buckets as in Li et al.
2020, arXiv 2006.15704. `cost` is any function from bytes to seconds: `Link.seconds`, or a collective on a network.
"""

from collections.abc import Callable, Sequence

from ddl.perf.comm.collectives import check_bytes

Cost = Callable[[float], float]  # bytes -> seconds


def packed_seconds(layers: Sequence[float], cost: Cost) -> float:
  """cost(sum of n_l): one message. layers: bytes of each."""
  return cost(sum(_check(layers)))


def unpacked_seconds(layers: Sequence[float], cost: Cost) -> float:
  """Sum of cost(n_l): a message per layer, one after the other."""
  return sum(cost(nbytes) for nbytes in _check(layers))


def buckets(layers: Sequence[float], size: float) -> list[list[int]]:
  """The layers' indices, in their order, in buckets of at most `size` bytes; a larger layer is alone in its bucket.

  Give the layers in the order in which their gradients appear: the last layer first.

  Raises:
    ValueError: for a size that isn't above 0, no layers, or bytes below 0.
  """
  if not size > 0:
    raise ValueError(f"buckets of {size:g} bytes is invalid: must be a size above 0")
  found: list[list[int]] = []
  room = 0.0
  for index, nbytes in enumerate(_check(layers)):
    if not found or nbytes > room:
      found.append([])
      room = size
    found[-1].append(index)
    room -= nbytes
  return found


def bucketed_seconds(layers: Sequence[float], size: float, cost: Cost) -> float:
  """Sum of cost(bucket): a message per bucket, one after the other."""
  return sum(cost(sum(layers[index] for index in bucket)) for bucket in buckets(layers, size))


def _check(layers: Sequence[float]) -> Sequence[float]:
  if not len(layers):
    raise ValueError("there are no layers to send; give the bytes of at least one")
  for nbytes in layers:
    check_bytes(nbytes)
  return layers
