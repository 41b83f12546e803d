"""Augmentation and normalization of images on the host, in NumPy, batch by batch.

An augmentation, `Augment`, is a function (generator, batch) -> batch. All its randomness comes from the generator,
which `ddl.data.sampling` seeds with (seed, worker, step).
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from ddl.api import Data, Source, channels_first
from ddl.data.checks import with_batches
from ddl.errors import OptionError

Augment = Callable[[np.random.Generator, Mapping[str, np.ndarray]], dict[str, np.ndarray]]

TRIES = 10  # maximum draws of a random-resized crop until one is inside the image


def with_augmentation(source: Source, *changes: Augment) -> Source:
  """Return a source that applies augmentations to its training batches, after existing ones; `take` is unchanged."""
  before = source.augmented

  def augmented(rngs: Sequence[np.random.Generator], indices: np.ndarray) -> dict[str, np.ndarray]:
    examples = before(rngs, indices) if before else source.take(indices.reshape(-1))
    batches = []
    for k, rng in enumerate(rngs):
      batch = {name: array[k * indices.shape[1] : (k + 1) * indices.shape[1]] for name, array in examples.items()}
      for change in changes:
        batch = change(rng, batch)
      batches.append(batch)
    return {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}

  return source._replace(augmented=augmented)


def crop(padding: int = 4, fill: float = 0.0) -> Augment:
  """Return an augmentation that pads images and crops a random window of the original size.

  Each side is padded with `padding` pixels of the value `fill`.
  """

  def change(rng: np.random.Generator, batch: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    x = batch["x"]
    count, height, width, _ = x.shape
    around = (padding, padding)
    padded = np.pad(x, ((0, 0), around, around, (0, 0)), constant_values=fill)
    top, left = rng.integers(0, 2 * padding + 1, (2, count))
    rows, columns = top[:, None] + np.arange(height), left[:, None] + np.arange(width)
    return {**batch, "x": padded[np.arange(count)[:, None, None], rows[:, :, None], columns[:, None, :]]}

  return change


def flip(rng: np.random.Generator, batch: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
  """Flip each image horizontally with probability 1/2."""
  x = batch["x"]
  mirrored = rng.random(len(x)) < 0.5
  return {**batch, "x": np.where(mirrored[:, None, None, None], x[:, :, ::-1], x)}


def random_resized_crop(
  scale: tuple[float, float] = (0.08, 1.0), ratio: tuple[float, float] = (3 / 4, 4 / 3)
) -> Augment:
  """Return an augmentation that resizes a random crop (see `boxes`) to the image's size, bilinearly."""

  def change(rng: np.random.Generator, batch: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    x = batch["x"]
    count, height, width, _ = x.shape
    top, left, tall, wide = boxes(uniform(rng, count), height, width, scale, ratio).T
    rows, columns = _resampling(top, tall, height, x.dtype), _resampling(left, wide, width, x.dtype)
    resized = (rows @ x.reshape(count, height, -1)).reshape(x.shape)
    return {**batch, "x": columns[:, None] @ resized}

  return change


def uniform(rng: np.random.Generator, count: int) -> np.ndarray:
  """Draw the random numbers for `boxes`: [count, 2 TRIES + 2], uniform in [0, 1)."""
  return rng.random((count, 2 * TRIES + 2))


def boxes(
  draws: np.ndarray, height: int, width: int,
  scale: tuple[float, float] = (0.08, 1.0), ratio: tuple[float, float] = (3 / 4, 4 / 3),
) -> np.ndarray:  # fmt: skip
  """Return random crops of an image: (top, left, height, width) in pixels [count, 4] int.

  A crop's share of the image area is uniform in `scale`, and log(width / height) is uniform between the logarithms of
  `ratio`. As in torchvision, the first of ten drawn crops that fits into the image is used; if none fits, the largest
  centered crop with an allowed ratio.

  Args:
    draws: [count, 2 TRIES + 2] from `uniform`.
    scale: bounds of the crop's share of the image area.
    ratio: bounds of width / height.
  """
  area = (scale[0] + (scale[1] - scale[0]) * draws[:, :TRIES]) * height * width
  aspect = np.exp(np.log(ratio[0]) + (np.log(ratio[1]) - np.log(ratio[0])) * draws[:, TRIES : 2 * TRIES])
  wide, tall = np.rint(np.sqrt(area * aspect)).astype(int), np.rint(np.sqrt(area / aspect)).astype(int)
  fits = (wide >= 1) & (wide <= width) & (tall >= 1) & (tall <= height)
  valid, first = fits.any(axis=1), fits.argmax(axis=1)[:, None]
  whole = min(width, round(height * ratio[1])), min(height, round(width / ratio[0]))
  wide = np.where(valid, np.take_along_axis(wide, first, 1)[:, 0], whole[0])
  tall = np.where(valid, np.take_along_axis(tall, first, 1)[:, 0], whole[1])
  free = np.stack([height - tall, width - wide], axis=1)
  corner = np.where(valid[:, None], np.floor(draws[:, -2:] * (free + 1)).astype(int), free // 2)
  return np.concatenate([corner, tall[:, None], wide[:, None]], axis=1)


def _resampling(start: np.ndarray, length: np.ndarray, size: int, dtype: np.dtype) -> np.ndarray:
  """Return linear interpolation weights [count, target pixel, source pixel] along one axis.

  They resample the `length` pixels that begin at `start` to `size` pixels.
  """
  step = length[:, None, None] / size  # source pixels per target pixel
  center = start[:, None, None] + (np.arange(size)[:, None] + 0.5) * step - 0.5
  old = np.arange(size)
  weights = np.maximum(0.0, 1 - np.abs(old - center))
  weights *= (old >= start[:, None, None]) & (old < (start + length)[:, None, None])
  return (weights / weights.sum(axis=2, keepdims=True)).astype(dtype)


AUGMENTATIONS = ("none", "crop_flip", "resized_crop")
NORMALIZATIONS = ("unit", "channels", "imagenet")
IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # mean and standard deviation of red, green, blue in 0..1
BLACK = -1.0  # black in `ddl.data.source.pixels`
SAMPLE = 10_000  # images used to compute the means and deviations of channels


def preprocessed(data: Data, augment: str, normalize: str, pixels: bool = True) -> Data:
  """Augment the training images and normalize all parts of a data set.

  Args:
    data: a data set of images [height, width, channels]. With "resized_crop", a training source that has `augmented`
      must already draw the random crops, as `image_folder.encoded` does.
    augment: "crop_flip" (He et al. 2015, arXiv 1512.03385, 4.2: a crop after padding with 4 pixels, a flip),
      "resized_crop" (Szegedy et al. 2014, arXiv 1409.4842: 8 to 100 % of the area, a flip) or "none".
    normalize: "unit" leaves pixels in [-1, 1]; "channels" normalizes each channel to mean 0 and standard deviation 1
      over the training set (or 10,000 of its images); "imagenet" uses ImageNet's means and standard deviations.
    pixels: whether x is in [-1, 1], as from `ddl.data.source.pixels`; if so, images are padded with -1 (black), else
      with 0.
  """
  check_names(augment, normalize)
  shape = data.meta["shape"]
  for key, value, default in (("augment", augment, "none"), ("normalize", normalize, "unit")):
    if value != default and (len(shape) != 3 or channels_first(shape)):
      move = ": move the channels to the end with np.moveaxis(x, 1, -1)" if channels_first(shape) else ""
      advice = f"Other values need images [height, width, channels]{move}."
      raise OptionError(f"config.data.{key}", f"'{default}' for examples of shape {list(shape)}", repr(value), advice)
  if normalize == "imagenet" and not (pixels and shape[2] == 3):
    condition = "'channels' or 'unit' unless images are uint8 with 3 channels"
    raise OptionError("config.data.normalize", condition, repr(normalize))
  train, meta = data.train, dict(data.meta)
  if augment == "crop_flip":
    train = with_augmentation(train, crop(4, BLACK if pixels else 0.0), flip)
  elif augment == "resized_crop":
    train = with_augmentation(train, *(() if train.augmented else (random_resized_crop(),)), flip)
  if normalize == "unit":
    return data._replace(train=train)
  mean, deviation = meta["mean"], meta["deviation"] = _figures(data, normalize)
  test, validation = (part and normalized(part, mean, deviation) for part in (data.test, data.validation))
  assert test
  return Data(normalized(train, mean, deviation), test, meta, validation)


def check_names(augment: str, normalize: str) -> None:
  """Raise OptionError for an unknown augmentation or normalization, before the data set is read."""
  for key, value, known in (("augment", augment, AUGMENTATIONS), ("normalize", normalize, NORMALIZATIONS)):
    if value not in known:
      raise OptionError(f"config.data.{key}", f"one of {', '.join(known)}", repr(value))


def normalized(source: Source, mean: np.ndarray, deviation: np.ndarray) -> Source:
  """Return a source that normalizes x to (x - mean) / deviation; mean and deviation are per channel: [channels]."""
  scale, shift = (1 / deviation).astype(np.float32), (-mean / deviation).astype(np.float32)

  def change(batch: dict[str, np.ndarray], _: np.ndarray) -> dict[str, np.ndarray]:
    x = batch["x"] * scale
    x += shift
    return {**batch, "x": x}

  return with_batches(source, change)


def _figures(data: Data, normalize: str) -> tuple[np.ndarray, np.ndarray]:
  """Return the mean and standard deviation with which to normalize each channel of x: two arrays [channels]."""
  if normalize == "imagenet":
    mean, deviation = map(np.array, IMAGENET)
    return mean * 2 - 1, deviation * 2
  train = data.train
  indices = np.unique(np.linspace(0, train.size - 1, min(train.size, SAMPLE)).astype(np.int64))
  channels = data.meta["shape"][2]
  count, total, squares = 0, np.zeros(channels), np.zeros(channels)
  for piece in np.array_split(indices, -(-len(indices) // 512)):
    x = train.take(piece)["x"].astype(np.float64)
    count += x[..., 0].size
    total += x.sum(axis=(0, 1, 2))
    squares += (x**2).sum(axis=(0, 1, 2))
  mean = total / count
  deviation = np.sqrt(np.maximum(squares / count - mean**2, 0))
  return mean, np.where(deviation > 1e-6, deviation, 1.0)  # leave constant channels unscaled
