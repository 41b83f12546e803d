"""Common parts of the data sets: sources over arrays, the validation split, and images as numbers."""

import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from ddl import files, memory
from ddl.api import Data, Source
from ddl.data import checks
from ddl.errors import OptionError


def in_memory(x: np.ndarray, y: np.ndarray, labels: np.ndarray | None = None) -> Source:
  """Return the source of x [size, ...] and y [size, ...]. ValueError where they differ in length."""
  if len(x) != len(y):
    raise ValueError(f"x and y must be equally long, got {len(x)} and {len(y)} examples.")
  # take(axis=0) is x[indices], in 45 to 85 % of its time.
  return Source(len(x), lambda indices: {"x": x.take(indices, axis=0), "y": y.take(indices, axis=0)}, labels)


def from_grain(dataset: Any, labels: np.ndarray | None = None) -> Source:
  """Return the source of a `grain.MapDataset` of {"x": ..., "y": ...}, each of one shape, read by grain's threads.

  It is read by index: its own shuffle and random maps are the same in every epoch, as ddl draws the order of the
  examples, and whatever else is random goes into `ddl.data.augmentation.with_augmentation`.

  labels: see `Source`. ValueError for a data set without end, or whose elements are something else, as those of filters
  and batches are.
  """
  import grain

  if not isinstance(dataset, grain.MapDataset) or len(dataset) >= sys.maxsize:
    raise ValueError(f"{dataset!r}; invalid: must be a grain.MapDataset of so many examples, without repeat()")

  def take(indices: np.ndarray) -> dict[str, np.ndarray]:
    wanted = grain.MapDataset.source(indices.tolist()).map(dataset.__getitem__)
    examples: list[Any] = list(wanted.to_iter_dataset())
    if len(examples) < len(indices):  # grain leaves out what a filter does
      raise ValueError(f"{dataset!r} leaves examples out; invalid: must have no filter")
    return {name: np.stack([each[name] for each in examples]) for name in ("x", "y")}

  first: Any = dataset[0]
  checks.element(first, repr(dataset))
  return Source(len(dataset), take, labels)


def subset(source: Source, indices: np.ndarray) -> Source:
  """Return the examples of `source` at `indices` [k], in that order, as a source of k examples.

  ValueError for a stream, which has no indices.
  """
  if source.stream:
    raise ValueError("a stream of training examples has no part to set apart; give the validation examples themselves")
  labels = None if source.labels is None else source.labels[indices]
  whole = source.augmented
  augmented = None if whole is None else lambda rngs, chosen: whole(rngs, indices[chosen])
  return Source(len(indices), lambda chosen: source.take(indices[chosen]), labels, augmented)


def split(train: Source, validation: float) -> tuple[Source, Source | None]:
  """Return (train, validation), with round(validation * size) of the training examples for validation.

  The shuffle is the same in every experiment: if it depended on the seed, settings tuned on one seed's validation
  examples would have seen another seed's training. ValueError where the share leaves either part empty.
  """
  if validation == 0.0:
    return train, None
  count = round(validation * train.size)
  if not 0 < count < train.size:
    condition = f"0, or from {1 / train.size:.2g} to {1 - 1 / train.size:.2g} of {train.size} training examples"
    raise OptionError("config.data.validation", condition, f"{validation:g}")
  order = np.random.default_rng(0).permutation(train.size)
  return subset(train, np.sort(order[count:])), subset(train, np.sort(order[:count]))


def sixth(everything: Source, where: str) -> tuple[Source, Source]:
  """Return (train, test), a fixed shuffled sixth for the test; ValueError, which names `where`, if that is none."""
  count = everything.size // 6
  if not count:
    raise ValueError(f"{where}: {everything.size} examples are too few to set a sixth apart for the test")
  order = np.random.default_rng(6).permutation(everything.size)
  return subset(everything, order[count:]), subset(everything, order[:count])


def classification(train: Source, test: Source, *, num_outputs: int, description: str, validation: float) -> Data:
  """The `Data` of a classification set whose examples all have one shape, read off the first.

  ValueError for labels that are no class numbers: over a million classes, and more than examples. A warning where
  there are fewer examples than classes, for examples without any values.
  """
  if num_outputs > max(10**6, train.size + test.size):
    raise ValueError(
      f"{description}: labels up to {num_outputs - 1:,} would make {num_outputs:,} classes; number the classes from 0"
    )
  if num_outputs > train.size + test.size:
    warning = f"labels up to {num_outputs - 1:,} for {train.size + test.size:,} examples"
    warnings.warn(f"{description}: {warning} leave most classes without any; number them from 0", stacklevel=2)
  elif all(part.labels is not None and part.labels.min() > 0 for part in (train, test)):
    warnings.warn(f"{description}: no example has label 0, though labels start at 0", stacklevel=2)
  shape = train.take(np.zeros(1, np.int64))["x"].shape[1:]
  if 0 in shape:
    raise ValueError(f"{description}: examples of shape {list(shape)} have no values; invalid: must have at least one")
  train, held_out = split(train, validation)
  meta = {"task": "classification", "shape": shape, "num_outputs": num_outputs, "description": description}
  return Data(train, test, meta, held_out)


def pixels(images: np.ndarray) -> np.ndarray:
  """uint8 images [n, height, width(, channels)] as float32 [n, height, width, channels] in [-1, 1]."""
  images = images[..., None] if images.ndim == 3 else images
  out = images.astype(np.float32)
  out /= np.float32(127.5)  # in place, as a set may fill half the memory
  out -= np.float32(1)  # 0 -> -1, 255 -> 1
  return out


def labelled(images: np.ndarray, labels: np.ndarray, where: str) -> Source:
  """The source of images (uint8, see `pixels`; or floating point, taken as they are) and class numbers.

  ValueError, which names `where` they are from, for other types, no examples, values that are not finite, labels that
  are no int32 class numbers, or counts that differ.
  """
  labels = labels[:, 0] if labels.ndim == 2 and labels.shape[1] == 1 else labels  # as Keras keeps CIFAR
  checks.one_hot(labels, f"{where}: labels")
  if labels.ndim != 1:
    raise ValueError(f"{where}: labels must be class numbers [n], got {labels.dtype} {list(labels.shape)}.")
  if images.shape[:1] != labels.shape:
    raise ValueError(f"{where}: images {list(images.shape)} but {len(labels)} labels; they must be equally many")
  if not len(labels):
    raise ValueError(f"{where}: no examples")
  checks.class_numbers(labels, None, f"{where}: labels", int)
  if images.dtype == np.uint8 and images.ndim in (3, 4):
    images = pixels(images)
  elif np.issubdtype(images.dtype, np.floating) and images.ndim > 1:
    images = images.astype(np.float32)[..., None] if images.ndim == 3 else images.astype(np.float32)
    bad = np.flatnonzero(~np.isfinite(images).reshape(len(images), -1).all(axis=1))
    if bad.size:
      raise ValueError(
        f"{where}: {bad.size} of {len(images)} examples have values that are not finite, the first is {bad[0]}"
      )
  else:
    raise ValueError(
      f"{where}: images must be uint8 [n, height, width(, channels)] or floating point [n, ...], "
      f"not {images.dtype} {list(images.shape)}"
    )
  labels = labels.astype(np.int32)
  return in_memory(images, labels, labels)


def existing(path: str, example: str) -> Path:
  """Return the path given by the user, which must exist; example: of a value, for the error."""
  if not path:
    raise OptionError("config.data.path", f"set, such as {example}")
  found = files.local(path)
  if not found.exists():
    raise FileNotFoundError(f"config.data.path must be an existing {example}, got {path}.")
  return found


def content(file: Path) -> bytes:
  """Return the bytes of a regular file. ValueError, one line, for another kind, or one larger than the memory."""
  memory.require(files.regular(file).stat().st_size, str(file))
  return file.read_bytes()
