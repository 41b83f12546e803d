"""Create sources from arrays and grain data sets, split them, and build classification data sets."""

import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ddl import files, memory
from ddl.api import Data, Source
from ddl.data import checks
from ddl.errors import OptionError


def in_memory(x: np.ndarray, y: np.ndarray, labels: np.ndarray | None = None) -> Source:
  """Create a source from x [size, ...] and y [size, ...]; raise OptionError if their lengths differ."""
  if len(x) != len(y):
    raise OptionError("x and y", "equally long", f"{len(x)} and {len(y)} examples")
  # x.take(indices, axis=0) returns the same as x[indices], in 45 to 85 % of the time.
  return Source(len(x), lambda indices: {"x": x.take(indices, axis=0), "y": y.take(indices, axis=0)}, labels)


def from_grain(dataset: Any, labels: np.ndarray | None = None) -> Source:
  """Create a source from a `grain.MapDataset` of {"x": ..., "y": ...} with fixed shapes; grain's threads read it.

  ddl draws the order of examples and reads them by index. The data set's own shuffle and random maps are the same in
  every epoch; use `ddl.data.augmentation.with_augmentation` for augmentation.

  dataset: must not be batched; an infinite `repeat()` or a filter raises OptionError. labels: see `Source`.
  """
  import grain

  if not isinstance(dataset, grain.MapDataset) or len(dataset) >= sys.maxsize:
    raise OptionError("dataset", "a grain.MapDataset without an infinite repeat()", repr(dataset))

  def take(indices: np.ndarray) -> dict[str, np.ndarray]:
    examples: list[Any] = [*grain.MapDataset.source(indices.tolist()).map(dataset.__getitem__).to_iter_dataset()]
    if len(examples) < len(indices):
      raise OptionError("dataset", "a grain.MapDataset without filters", repr(dataset))
    return {name: np.stack([example[name] for example in examples]) for name in ("x", "y")}

  checks.element(dataset[0], repr(dataset))
  return Source(len(dataset), take, labels)


def subset(source: Source, indices: np.ndarray) -> Source:
  """Return a source of the examples at `indices` [k], in that order. Raises OptionError for a stream."""
  if source.stream:
    raise OptionError("validation", "0 for a stream of training examples", advice="Pass validation examples instead.")
  labels = None if source.labels is None else source.labels[indices]
  before = source.augmented
  augmented = None if before is None else lambda rngs, rows: before(rngs, indices[rows])
  return Source(len(indices), lambda rows: source.take(indices[rows]), labels, augmented)


def split(train: Source, validation: float) -> tuple[Source, Source | None]:
  """Split off round(validation * size) training examples for validation; return (train, validation).

  The split is the same in every experiment: if it depended on the seed, one seed would train on another seed's
  validation examples. Raises OptionError if either part is empty.
  """
  if validation == 0.0:
    return train, None
  count = round(validation * train.size)
  if not 0 < count < train.size:
    condition = f"0 or a share that leaves at least one of the {train.size} training examples in each part"
    raise OptionError("config.data.validation", condition, f"{validation:g}")
  order = np.random.default_rng(0).permutation(train.size)
  return subset(train, np.sort(order[count:])), subset(train, np.sort(order[:count]))


def sixth(everything: Source, where: str) -> tuple[Source, Source]:
  """Split off a fixed random sixth for tests; return (train, test). Raises OptionError if the test set is empty."""
  count = everything.size // 6
  if not count:
    raise OptionError(
      f"number of examples in {where}", "at least 6 (a sixth of the examples is the test set)", everything.size
    )
  order = np.random.default_rng(6).permutation(everything.size)
  return subset(everything, order[count:]), subset(everything, order[:count])


def classification(
  train: Source, test: Source, *, num_outputs: int | None = None, description: str, validation: float
) -> Data:
  """Build the `Data` of a classification set; all examples must have the shape of the first.

  num_outputs: number of classes; None: the largest label + 1. validation: share of the training examples for
  validation. Raises OptionError if examples are empty, or if there are more than a million classes and fewer examples
  than classes; warns of other unlikely labels.
  """
  num_outputs = num_outputs or 1 + max(int(part.labels.max()) for part in (train, test) if part.labels is not None)
  count = train.size + test.size
  if num_outputs > max(10**6, count):
    advice = "Number the classes from 0."
    raise OptionError(f"{description}: labels", f"below {max(10**6, count):,}", f"{num_outputs - 1:,}", advice)
  if num_outputs > count:
    labels = f"labels up to {num_outputs - 1:,} for {count:,} examples"
    warnings.warn(f"{description}: {labels} leave classes without examples; number the classes from 0", stacklevel=2)
  elif all(part.labels is not None and part.labels.min() > 0 for part in (train, test)):
    warnings.warn(f"{description}: no example has label 0, though labels start at 0", stacklevel=2)
  shape = train.take(np.zeros(1, np.int64))["x"].shape[1:]
  if 0 in shape:
    raise OptionError(f"{description}: examples", "nonempty arrays", f"shape {list(shape)}")
  train, validation_set = split(train, validation)
  meta = {"task": "classification", "shape": shape, "num_outputs": num_outputs, "description": description}
  return Data(train, test, meta, validation_set)


def pixels(images: np.ndarray) -> np.ndarray:
  """Convert uint8 images [n, height, width(, channels)] to float32 [n, height, width, channels] in [-1, 1]."""
  images = images[..., None] if images.ndim == 3 else images
  out = images.astype(np.float32)
  out /= np.float32(127.5)  # in place, as the data may occupy half the memory
  out -= np.float32(1)  # 0 -> -1, 255 -> 1
  return out


def stacked(images: Sequence[np.ndarray], name: Callable[[int], str]) -> np.ndarray:
  """Stack uint8 images and scale them by `pixels`. Raises OptionError if shapes differ. name: index -> image name."""
  other = next((k for k, image in enumerate(images) if image.shape != images[0].shape), None)
  if other is not None:
    sizes = [f"{image.shape[0]} x {image.shape[1]}" for image in (images[0], images[other])]
    condition = (
      f"set (for example, to 224), because images differ in size ({sizes[0]}, but {sizes[1]} in {name(other)})"
    )
    raise OptionError("config.data.size", condition)
  return pixels(np.stack(images))


def labelled(images: np.ndarray, labels: np.ndarray, where: str) -> Source:
  """Create a source from images and class numbers; uint8 images are scaled by `pixels`, floating point is not.

  images: uint8 [n, height, width(, channels)], or floating point [n, ...]; labels: [n] or [n, 1]; where: their origin,
  for errors. Raises OptionError for other types and shapes, and for empty arrays.
  """
  labels = labels[:, 0] if labels.ndim == 2 and labels.shape[1] == 1 else labels  # as in Keras's CIFAR
  checks.one_hot(labels, f"{where}: labels")
  if labels.ndim != 1:
    raise OptionError(f"{where}: labels", "class numbers [n]", f"{labels.dtype} {list(labels.shape)}")
  if images.shape[:1] != labels.shape or not len(labels):
    value = f"images {list(images.shape)} and {len(labels)} labels" if len(labels) else "no examples"
    raise OptionError(f"{where}: images and labels", "equal in number and nonempty", value)
  checks.class_numbers(labels, None, f"{where}: labels", int)
  if images.dtype == np.uint8 and images.ndim in (3, 4):
    images = pixels(images)
  elif np.issubdtype(images.dtype, np.floating) and images.ndim > 1:
    images = images.astype(np.float32)[..., None] if images.ndim == 3 else images.astype(np.float32)
    checks.finite(images, f"{where}: images", int)
  else:
    condition = "uint8 [n, height, width(, channels)] or floating point [n, ...]"
    raise OptionError(f"{where}: images", condition, f"{images.dtype} {list(images.shape)}")
  labels = labels.astype(np.int32)
  return in_memory(images, labels, labels)


def existing(path: str, example: str) -> Path:
  """Expand ~ in a path; raise an error if it is empty or does not exist. example: a valid value, for the error."""
  if not path:
    raise OptionError("config.data.path", f"set to {example}")
  local = files.local(path)
  if not local.exists():
    raise FileNotFoundError(f"config.data.path must be an existing {example}, got {path}.")
  return local


def content(file: Path) -> bytes:
  """Read a regular file that fits into memory; raise ValueError for other files."""
  memory.require(files.regular(file).stat().st_size, str(file))
  return file.read_bytes()
