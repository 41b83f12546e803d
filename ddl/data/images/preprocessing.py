"""What the settings `augment` and `normalize` of a set of images do to its parts."""

import numpy as np

from ddl.api import Data, Source, channels_first
from ddl.data.images.augmentation import crop, flip, random_resized_crop, with_augmentation

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
      raise ValueError(
        f"config.data.{key} is {value}; invalid: must be {known[0]}, as examples of shape "
        f"{list(data.meta['shape'])} are no images [height, width, channels]"
      )
  if (augment, normalize) != (AUGMENTATIONS[0], NORMALIZATIONS[0]) and channels_first(data.meta["shape"]):
    raise ValueError(
      f"images must be [height, width, channels] with config.data.augment={augment} and config.data.normalize="
      f"{normalize}, got {list(data.meta['shape'])}. Move the channels to the end with np.moveaxis(x, 1, -1)."
    )
  if normalize == "imagenet" and not (pixels and data.meta["shape"][2] == 3):
    raise ValueError(
      "config.data.normalize is imagenet; invalid: must be channels or unit for images that are not uint8 of 3 channels"
    )
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
      raise ValueError(f"config.data.{key} is {value!r}; invalid: must be one of {', '.join(known)}")


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
