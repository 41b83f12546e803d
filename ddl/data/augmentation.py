"""Random changes and normalization of training images: on the host, in NumPy, batch by batch.

A change is a function (generator, batch) -> batch, `Augment`; what a batch becomes depends on its generator alone,
which `ddl.data.order` keys by (seed, worker, step).
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from ddl.api import Data, Source, channels_first
from ddl.errors import OptionError

Augment = Callable[[np.random.Generator, Mapping[str, np.ndarray]], dict[str, np.ndarray]]

TRIES = 10  # of a random-resized crop to lie within the image


def with_augmentation(source: Source, *changes: Augment) -> Source:
  """The source whose training batches go through these changes, after those that it has; `take` stays as it is."""
  before = source.augmented

  def augmented(rngs: Sequence[np.random.Generator], indices: np.ndarray) -> dict[str, np.ndarray]:
    taken = before(rngs, indices) if before else source.take(indices.reshape(-1))
    batches = []
    for k, rng in enumerate(rngs):
      batch = {name: array[k * indices.shape[1] : (k + 1) * indices.shape[1]] for name, array in taken.items()}
      for change in changes:
        batch = change(rng, batch)
      batches.append(batch)
    return {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}

  return source._replace(augmented=augmented)


def crop(padding: int = 4, fill: float = 0.0) -> Augment:
  """A window of the image's own size at random in the image with `padding` pixels of `fill` around it."""

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
  """Mirror each image, left for right, with probability 1/2."""
  x = batch["x"]
  mirrored = rng.random(len(x)) < 0.5
  return {**batch, "x": np.where(mirrored[:, None, None, None], x[:, :, ::-1], x)}


def random_resized_crop(
  scale: tuple[float, float] = (0.08, 1.0), ratio: tuple[float, float] = (3 / 4, 4 / 3)
) -> Augment:
  """A random part of the image, enlarged to its size: see `boxes`; bilinear."""

  def change(rng: np.random.Generator, batch: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    x = batch["x"]
    count, height, width, _ = x.shape
    top, left, tall, wide = boxes(uniform(rng, count), height, width, scale, ratio).T
    rows, columns = _resampling(top, tall, height, x.dtype), _resampling(left, wide, width, x.dtype)
    out = rows @ x.reshape(count, height, -1)  # [count, height, width * channels]
    out = columns[:, None] @ out.reshape(x.shape)
    return {**batch, "x": out}

  return change


def uniform(rng: np.random.Generator, count: int) -> np.ndarray:
  """The numbers in 0..1 that `boxes` takes: [count, 2 TRIES + 2]."""
  return rng.random((count, 2 * TRIES + 2))


def boxes(
  draws: np.ndarray, height: int, width: int,
  scale: tuple[float, float] = (0.08, 1.0), ratio: tuple[float, float] = (3 / 4, 4 / 3),
) -> np.ndarray:  # fmt: skip
  """Random parts of an image: (top, left, height, width) in pixels [count, 4] int.

  The share of the area is uniform in `scale`, the logarithm of width / height uniform in that of `ratio`; drawn up to
  ten times until it lies within the image, else the largest centered part of an allowed ratio (as torchvision's).

  Args:
    draws: see `uniform`: [count, 2 TRIES + 2].
    height, width: of the image.
    scale, ratio: the bounds.
  """
  area = (scale[0] + (scale[1] - scale[0]) * draws[:, :TRIES]) * height * width
  aspect = np.exp(np.log(ratio[0]) + (np.log(ratio[1]) - np.log(ratio[0])) * draws[:, TRIES : 2 * TRIES])
  wide, tall = np.rint(np.sqrt(area * aspect)).astype(int), np.rint(np.sqrt(area / aspect)).astype(int)
  fits = (wide >= 1) & (wide <= width) & (tall >= 1) & (tall <= height)
  found, first = fits.any(axis=1), fits.argmax(axis=1)[:, None]
  whole = min(width, round(height * ratio[1])), min(height, round(width / ratio[0]))
  wide = np.where(found, np.take_along_axis(wide, first, 1)[:, 0], whole[0])
  tall = np.where(found, np.take_along_axis(tall, first, 1)[:, 0], whole[1])
  free = np.stack([height - tall, width - wide], axis=1)
  corner = np.where(found[:, None], np.floor(draws[:, -2:] * (free + 1)).astype(int), free // 2)
  return np.concatenate([corner, tall[:, None], wide[:, None]], axis=1)


def _resampling(start: np.ndarray, length: np.ndarray, size: int, dtype: np.dtype) -> np.ndarray:
  """Weights [count, size, size] of the `size` old pixels in as many new ones, of the parts from `start` on."""
  step = length[:, None, None] / size  # old pixels per new one
  center = start[:, None, None] + (np.arange(size)[:, None] + 0.5) * step - 0.5
  old = np.arange(size)
  weights = np.maximum(0.0, 1 - np.abs(old - center))
  inside = (old >= start[:, None, None]) & (old < (start + length)[:, None, None])
  weights = weights * inside
  return (weights / weights.sum(axis=2, keepdims=True)).astype(dtype)


AUGMENTATIONS = ("none", "crop_flip", "resized_crop")
NORMALIZATIONS = ("unit", "channels", "imagenet")
IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # mean and standard deviation of red, green, blue in 0..1
BLACK = -1.0  # of `ddl.data.source.pixels`
SAMPLE = 10_000  # images that tell the means and deviations of the channels


def preprocessed(data: Data, augment: str, normalize: str, pixels: bool = True) -> Data:
  """The set as its settings say: `augment` for training, then `normalize` for all of its parts.

  Args:
    data: x are images [height, width, channels]; with "resized_crop", a training source that has `augmented` crops
      images itself, as it decodes them.
    augment: "crop_flip" (He et al. 2015, arXiv 1512.03385, 4.2: a crop after padding with 4 pixels, a flip),
      "resized_crop" (Szegedy et al. 2014, arXiv 1409.4842: 8 to 100 % of the area, a flip) or "none".
    normalize: "unit" leaves pixels in [-1, 1]; "channels" makes each channel's mean 0 and deviation 1 over the training
      set (over 10,000 of its images, if it has more); "imagenet" does so with ImageNet's figures.
    pixels: x are those of `ddl.data.source.pixels`, whose black is -1; else numbers of any meaning, padded with 0.

  Raises:
    ValueError: one line, for another name, or for examples that are no such images.
  """
  check_names(augment, normalize)
  for key, value, known in (("augment", augment, AUGMENTATIONS), ("normalize", normalize, NORMALIZATIONS)):
    if value != known[0] and len(data.meta["shape"]) != 3:
      condition = f"{known[0]} for examples of shape {list(data.meta['shape'])}"
      raise OptionError(f"config.data.{key}", condition, value, "Others need images [height, width, channels].")
  if (augment, normalize) != (AUGMENTATIONS[0], NORMALIZATIONS[0]) and channels_first(data.meta["shape"]):
    raise ValueError(
      f"images must be [height, width, channels] with config.data.augment={augment} and config.data.normalize="
      f"{normalize}, got {list(data.meta['shape'])}. Move the channels to the end with np.moveaxis(x, 1, -1)."
    )
  if normalize == "imagenet" and not (pixels and data.meta["shape"][2] == 3):
    condition = "channels or unit for images that are not uint8 of 3 channels"
    raise OptionError("config.data.normalize", condition, normalize)
  train, meta = data.train, dict(data.meta)
  if augment == "crop_flip":
    train = with_augmentation(train, crop(4, BLACK if pixels else 0.0), flip)
  elif augment == "resized_crop":
    train = with_augmentation(train, *(() if train.augmented else (random_resized_crop(),)), flip)
  parts = [train, data.test, data.validation]
  if normalize != "unit":
    meta["mean"], meta["deviation"] = _figures(data, normalize)
    parts = [part and normalized(part, meta["mean"], meta["deviation"]) for part in parts]
  train, test, validation = parts
  assert train and test
  return Data(train, test, meta, validation)


def check_names(augment: str, normalize: str) -> None:
  """ValueError, one line, for a name that there is not: at once, before a set is read."""
  for key, value, known in (("augment", augment, AUGMENTATIONS), ("normalize", normalize, NORMALIZATIONS)):
    if value not in known:
      raise OptionError(f"config.data.{key}", f"one of {', '.join(known)}", repr(value))


def normalized(source: Source, mean: np.ndarray, deviation: np.ndarray) -> Source:
  """The source whose x is (x - mean) / deviation, mean and deviation by channel [channels]."""
  scale = (1 / deviation).astype(np.float32)
  shift = (-mean / deviation).astype(np.float32)

  def changed(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    x = batch["x"] * scale
    x += shift
    return {**batch, "x": x}

  before = source.augmented
  return source._replace(
    take=lambda indices: changed(source.take(indices)),
    augmented=None if before is None else lambda rngs, indices: changed(before(rngs, indices)),
  )


def _figures(data: Data, normalize: str) -> tuple[np.ndarray, np.ndarray]:
  """Mean and standard deviation of each channel, of x as it is read."""
  if normalize == "imagenet":
    mean, deviation = map(np.array, IMAGENET)
    return mean * 2 - 1, deviation * 2
  train = data.train
  chosen = np.unique(np.linspace(0, train.size - 1, min(train.size, SAMPLE)).astype(np.int64))
  channels = data.meta["shape"][2]
  count, total, squares = 0, np.zeros(channels), np.zeros(channels)
  for piece in np.array_split(chosen, -(-len(chosen) // 512)):
    x = train.take(piece)["x"].astype(np.float64)
    count += x[..., 0].size
    total += x.sum(axis=(0, 1, 2))
    squares += (x**2).sum(axis=(0, 1, 2))
  mean = total / count
  deviation = np.sqrt(np.maximum(squares / count - mean**2, 0))
  return mean, np.where(deviation > 1e-6, deviation, 1.0)  # a channel of one value has none
