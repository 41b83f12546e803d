"""Partitions of the training set, and the examples of each worker and step as a pure function of the seed.

A partition is a list of shards, one per worker, as indices into the training source.
"""

from collections.abc import Callable, Sequence

import numpy as np

from ddl.api import Source
from ddl.errors import OptionError
from ddl.ranges import PositiveFloat, PositiveInt, checked

AUGMENTATION = 1  # last element of the seeds of augmentations, which separates them from the seeds of permutations


@checked
def iid(size: int, labels: np.ndarray | None, *, workers: PositiveInt, seed: int) -> list[np.ndarray]:
  """Give each worker the whole training set; `ExampleSampler` shuffles it differently for each worker."""
  return [np.arange(size, dtype=np.int64)] * workers


@checked
def sharded(
  size: int, labels: np.ndarray | None, *, workers: PositiveInt, seed: int, repeat: bool = False
) -> list[np.ndarray]:
  """Split the training set randomly into disjoint shards whose sizes differ by at most one.

  repeat: see `dirichlet`. Raises ValueError if there are more workers than examples.
  """
  _require_examples(size, workers)
  return [np.sort(shard) for shard in np.array_split(_generator(seed).permutation(size), workers)]


@checked
def dirichlet(
  size: int,
  labels: np.ndarray | None,
  *,
  workers: PositiveInt,
  seed: int,
  concentration: PositiveFloat,
  repeat: bool = False,
) -> list[np.ndarray]:
  """Split each class among the workers in random Dirichlet proportions: the shards are disjoint and label-skewed.

  Hsu, Qi, Brown 2019, arXiv 1909.06335, but with the workers' proportions drawn for each class, as in Yurochkin et al.
  2019, arXiv 1905.12022. With concentration -> 0 each class goes to one worker; with concentration -> infinity the
  shards are iid. A worker that draws no examples gets one from the largest shard.

  concentration: parameter of the symmetric Dirichlet distribution. repeat: whether a batch larger than a shard repeats
  the shard's examples.
  Raises ValueError without labels, or with more workers than examples.
  """
  if labels is None:
    raise OptionError("config.partition.name", "sharded or iid for data without class labels", "dirichlet")
  _require_examples(size, workers)
  rng = _generator(seed)
  parts: list[list[np.ndarray]] = [[] for _ in range(workers)]
  for label in np.unique(labels):
    members = rng.permutation(np.flatnonzero(labels == label))
    proportions = rng.dirichlet(np.full(workers, concentration))
    cuts = np.rint(np.cumsum(proportions)[:-1] * len(members)).astype(np.int64)
    for part, piece in zip(parts, np.split(members, cuts), strict=True):
      part.append(piece)
  shards = [np.concatenate(part) for part in parts]
  for worker in range(workers):
    if not len(shards[worker]):
      largest = max(range(workers), key=lambda w: len(shards[w]))
      shards[worker], shards[largest] = shards[largest][-1:], shards[largest][:-1]
  return [np.sort(shard) for shard in shards]


PARTITIONS: dict[str, Callable[..., list[np.ndarray]]] = {"iid": iid, "sharded": sharded, "dirichlet": dirichlet}


def _generator(seed: int) -> np.random.Generator:
  # The spawn key separates this stream from those of the permutations, which have none.
  return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(0,)))


def _require_examples(size: int, workers: int) -> None:
  if workers > size:
    raise OptionError("config.workers", f"at most {size} (the number of training examples)", workers)


class ExampleSampler:
  """Sampler of each worker's batches, from an infinite stream of random permutations of its shard.

  A batch may span two epochs, so that each epoch contains each example of the shard exactly once. The sampler is
  thread-safe.
  """

  def __init__(self, shards: Sequence[np.ndarray], *, batch: int, seed: int, repeat: bool = False):
    """Set up the streams. shards: each worker's example indices [size]; batch: examples per worker and step.

    repeat: whether a batch larger than a shard repeats examples; otherwise such a batch raises OptionError.
    """
    worker = min(range(len(shards)), key=lambda w: len(shards[w]))
    if batch < 1 or (batch > len(shards[worker]) and not repeat):
      least, uneven = len(shards[worker]), len(shards[worker]) < max(map(len, shards))
      condition = f"from 1 to {least} (the size of worker {worker}'s shard, the smallest)"
      advice = "Use a more even partition, or set config.partition.repeat=True to repeat examples." * uneven
      raise OptionError("config.batch", condition, batch, advice)
    self.shards, self.batch, self.seed = shards, batch, seed
    self._latest: list[tuple[int, np.ndarray] | None] = [None] * len(shards)  # per worker: (epoch, permutation)

  def indices(self, worker: int, first_step: int, num_steps: int) -> np.ndarray:
    """Return a worker's example indices [num_steps, batch] int64 for the `num_steps` steps from `first_step`."""
    size = len(self.shards[worker])
    start, stop = first_step * self.batch, (first_step + num_steps) * self.batch  # positions in the stream
    parts = [
      self._epoch(worker, epoch)[max(start - epoch * size, 0) : stop - epoch * size]
      for epoch in range(start // size, max(start, stop - 1) // size + 1)
    ]
    return np.concatenate(parts).reshape(num_steps, self.batch)

  def _epoch(self, worker: int, epoch: int) -> np.ndarray:
    latest = self._latest[worker]  # reads and writes of the tuple are atomic, hence thread-safe
    if latest is None or latest[0] != epoch:
      rng = np.random.default_rng(np.random.SeedSequence((self.seed, worker, epoch)))
      latest = (epoch, rng.permutation(self.shards[worker]))
      self._latest[worker] = latest
    return latest[1]


def batches(
  source: Source, sampler: ExampleSampler, workers: Sequence[int], first_step: int, num_steps: int
) -> dict[str, np.ndarray]:
  """Read the workers' batches of `num_steps` steps from `first_step` on: [len(workers), num_steps, batch, ...]."""
  return round_batches(source, sampler, [(worker, first_step) for worker in workers], num_steps)


def round_batches(
  source: Source, sampler: ExampleSampler, rounds: Sequence[tuple[int, int]], num_steps: int
) -> dict[str, np.ndarray]:
  """Read the batches of several worker rounds in one `take`: arrays [len(rounds), num_steps, batch, ...].

  rounds: (worker, first step) of each round, which consists of `num_steps` consecutive steps of the worker.

  If the source has `augmented`, it is called instead of `take`, with one random generator per worker and step.
  """
  indices = np.stack([sampler.indices(worker, first, num_steps) for worker, first in rounds])
  if source.augmented is None:
    examples = source.take(indices.reshape(-1))
  else:
    steps = [(worker, step) for worker, first in rounds for step in range(first, first + num_steps)]
    keys = [np.random.SeedSequence((sampler.seed, worker, step, AUGMENTATION)) for worker, step in steps]
    examples = source.augmented([*map(np.random.default_rng, keys)], indices.reshape(-1, sampler.batch))
  return {name: array.reshape(indices.shape + array.shape[1:]) for name, array in examples.items()}
