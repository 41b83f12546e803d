"""Tori of chips that are wired to neighbours alone, and slices of them, whose axes may be lines instead of rings."""

import math
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple


class Torus(NamedTuple):
  """Chips with a link each way along each axis; a slice is a box of them."""

  axes: int
  ring: int  # an axis of a slice is a ring if its length is a multiple of this, and a line otherwise

  def slice(self, workers: int) -> tuple[int, ...]:
    """Lengths of the axes of a slice of so many chips, the nearest to a cube, ascending."""
    return _nearest(workers, self.axes)

  def share(self, workers: int) -> float:
    """Share of a chip's links that an all-reduce on all axes at once has: a line's ends meet on its links back.

    That is the mean over the axes of 1 on a ring, 1 / 2 on a line, and 0 on an axis of one chip.
    """
    shares = (0.0 if length == 1 else 1.0 if length % self.ring == 0 else 0.5 for length in self.slice(workers))
    return sum(shares) / self.axes

  def steps(self, workers: int) -> int:
    """Steps from one end of all axes to the other: sum of (length - 1)."""
    return sum(length - 1 for length in self.slice(workers))


@cache
def _nearest(workers: int, axes: int) -> tuple[int, ...]:
  return min(_boxes(workers, axes), key=lambda box: (sum(box), box))


def _boxes(workers: int, axes: int) -> Iterator[tuple[int, ...]]:
  """All boxes of so many chips, their lengths ascending."""
  if axes == 1:
    yield (workers,)
    return
  for length in range(1, math.isqrt(workers) + 1):
    if workers % length == 0:
      for rest in _boxes(workers // length, axes - 1):
        if rest[0] >= length:
          yield (length, *rest)
