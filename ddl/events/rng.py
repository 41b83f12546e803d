"""Random numbers by (seed, worker, index), independent of the order of the calls."""

from collections.abc import Callable

import numpy as np

BLOCK = 1024  # draws per generator, whose creation costs as much as a thousand draws


class Stream:
  """Each worker's endless sequence of independent draws."""

  def __init__(self, draw: Callable[[np.random.Generator, int], np.ndarray], *, seed: int, purpose: int):
    """draw: (generator, count) -> [count, ...]; purpose: streams of one seed that differ in it are independent."""
    if seed < 0:
      raise ValueError(f"seed is {seed}; invalid: must be at least 0")
    self._draw, self._seed, self._purpose = draw, seed, purpose
    self._blocks: dict[tuple[int, int], np.ndarray] = {}

  def take(self, worker: int, first: int, count: int) -> np.ndarray:
    """Draws first, ..., first + count - 1 of this worker: [count, ...]."""
    block, position = divmod(first, BLOCK)
    if position + count <= BLOCK:
      return self._block(worker, block)[position : position + count]
    last = (first + count - 1) // BLOCK
    blocks = [self._block(worker, index) for index in range(block, last + 1)]
    return np.concatenate(blocks)[position : position + count]

  def _block(self, worker: int, block: int) -> np.ndarray:
    found = self._blocks.get((worker, block))
    if found is None:
      rng = np.random.default_rng(np.random.SeedSequence((self._seed, self._purpose, worker, block)))
      found = self._blocks[worker, block] = self._draw(rng, BLOCK)
    return found
