"""Which examples a worker consumes at a step: a pure function of (seed, worker, step), on any devices."""

from collections.abc import Sequence

import numpy as np

from ddl.api import Source
from ddl.errors import OptionError


class Order:
  """Each worker's endless stream of random permutations of its shard, cut into batches.

  A batch may straddle two epochs, so that each epoch visits each example of the shard exactly once.
  Safe to call from several threads.
  """

  def __init__(self, shards: Sequence[np.ndarray], *, batch: int, seed: int, repeat: bool = False):
    """shards: each worker's indices [size]; batch: examples per worker and step.

    repeat: whether a batch above the size of a shard is filled by further epochs of it, in which each example comes
    again. ValueError for such a batch otherwise.
    """
    worker = min(range(len(shards)), key=lambda w: len(shards[w]))
    if batch < 1 or (batch > len(shards[worker]) and not repeat):
      least, uneven = len(shards[worker]), len(shards[worker]) < max(map(len, shards))
      condition = f"in [1, {least}], the examples of worker {worker}'s shard, the smallest of {len(shards)}"
      advice = "A more even partition has a larger one, repeat=True fills batches from it." * uneven
      raise OptionError("config.batch", condition, batch, advice)
    self.shards, self.batch, self.seed = shards, batch, seed
    self._latest: list[tuple[int, np.ndarray] | None] = [None] * len(shards)  # per worker: (epoch, its order)

  def indices(self, worker: int, first_step: int, num_steps: int) -> np.ndarray:
    """Return the examples of steps first_step, ..., first_step + num_steps - 1: [num_steps, batch] int64."""
    size = len(self.shards[worker])
    start, stop = first_step * self.batch, (first_step + num_steps) * self.batch  # positions in the stream
    parts = [
      self._epoch(worker, epoch)[max(start - epoch * size, 0) : stop - epoch * size]
      for epoch in range(start // size, max(start, stop - 1) // size + 1)
    ]
    return np.concatenate(parts).reshape(num_steps, self.batch)

  def _epoch(self, worker: int, epoch: int) -> np.ndarray:
    latest = self._latest[worker]  # one read and one write of a tuple: safe for several threads
    if latest is None or latest[0] != epoch:
      rng = np.random.default_rng(np.random.SeedSequence((self.seed, worker, epoch)))
      latest = (epoch, rng.permutation(self.shards[worker]))
      self._latest[worker] = latest
    return latest[1]


def batches(
  source: Source, order: Order, workers: Sequence[int], first_step: int, num_steps: int
) -> dict[str, np.ndarray]:
  """Return the batches of these workers and steps in one `take`: each array [len(workers), num_steps, batch, ...]."""
  return round_batches(source, order, [(worker, first_step) for worker in workers], num_steps)


def round_batches(
  source: Source, order: Order, rounds: Sequence[tuple[int, int]], num_steps: int
) -> dict[str, np.ndarray]:
  """Return the batches of worker rounds (worker, first step) in one `take`: [len(rounds), num_steps, batch, ...].

  They are augmented where the source is, from a generator for each worker and step.
  """
  chosen = np.stack([order.indices(worker, first, num_steps) for worker, first in rounds])
  if source.augmented is None:
    taken = source.take(chosen.reshape(-1))
  else:
    keys = [
      (order.seed, worker, step, AUGMENTATION) for worker, first in rounds for step in range(first, first + num_steps)
    ]
    rngs = [np.random.default_rng(np.random.SeedSequence(key)) for key in keys]
    taken = source.augmented(rngs, chosen.reshape(-1, order.batch))
  return {name: array.reshape(chosen.shape + array.shape[1:]) for name, array in taken.items()}


AUGMENTATION = 1  # tells these generators from those of the order, whose key is as if it ended in a 0
