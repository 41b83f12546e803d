"""Partitions of the training examples: a shard per worker, as indices into the training source."""

from collections.abc import Callable

import numpy as np

from ddl.errors import OptionError
from ddl.ranges import PositiveFloat, PositiveInt, checked


@checked
def iid(size: int, labels: np.ndarray | None, *, workers: PositiveInt, seed: int) -> list[np.ndarray]:
  """Each worker draws from the whole set, in an order of its own."""
  del labels, seed
  return [np.arange(size, dtype=np.int64)] * workers


@checked
def sharded(
  size: int, labels: np.ndarray | None, *, workers: PositiveInt, seed: int, repeat: bool = False
) -> list[np.ndarray]:
  """Disjoint random parts of the set, whose sizes differ by at most one; repeat: see `dirichlet`.

  ValueError where workers > size.
  """
  del labels, repeat
  _enough(size, workers)
  return [np.sort(shard) for shard in np.array_split(_rng(seed).permutation(size), workers)]


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
  """Disjoint parts with skewed labels: each class is shared out by proportions ~ Dirichlet(concentration).

  Hsu, Qi, Brown 2019, arXiv 1909.06335, with the proportions drawn per class, as Yurochkin et al. 2019, arXiv
  1905.12022, do: concentration -> 0 gives each class to one worker, concentration -> infinity gives iid parts.
  Every example has one owner; a worker without any after the draw gets one of the largest shard.

  Args:
    size: examples in the training set.
    labels: their classes [size].
    workers: number of shards.
    seed: of the draw.
    concentration: of the symmetric Dirichlet distribution, > 0.
    repeat: for the `Order` of the parts: whether a batch larger than one of them is filled by its examples anew.

  Returns:
    Index arrays, one for each worker. ValueError for missing labels, concentration <= 0, or workers > size.
  """
  del repeat
  if labels is None:
    raise OptionError("config.partition.name", "sharded or iid for data without class labels", "dirichlet")
  _enough(size, workers)
  rng = _rng(seed)
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


def _rng(seed: int) -> np.random.Generator:
  # The spawn key separates this stream from those of the epochs' orders, which have none.
  return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(0,)))


def _enough(size: int, workers: int) -> None:
  if workers > size:
    raise OptionError("config.workers", f"at most {size}, the number of disjoint examples", workers)
