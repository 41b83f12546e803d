"""Encoded images (JPEG, PNG, ...) as a source: decoded by Pillow when they are taken, in threads."""

import io
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from ddl.api import Source
from ddl.data import source
from ddl.data.images.augmentation import boxes, uniform

Box = tuple[int, int, int, int]  # top, left, height, width

TESTED = 224 / 256  # of the shorter side: what is tested of a net that is trained on random-resized crops
MODES = {1: "L", 3: "RGB"}  # Pillow's, by channels
WIDE = ("I", "F")  # modes of more than eight bits begin so
FIRST = 32  # images that are read at the start, as sizes that differ are best found before any training


def encoded(
  read: Callable[[int], bytes], labels: np.ndarray, where: Callable[[int], str], size: int, channels: int, crops: bool
) -> Source:
  """The source of images as `ddl.data.source.pixels` has them, read at each `take`.

  Args:
    read: index -> an image file's content; called from several threads.
    labels: class numbers [n] int32.
    where: index -> where the image is from, for errors.
    size: of the central square part that is resized to [size, size]; 0: images of one size as they are.
    channels: 3, or 1 for grey.
    crops: for training, random-resized crops of the whole image (`ddl.data.images.augmentation.boxes`), and for tests
      7/8 of its shorter side (He et al. 2015, arXiv 1512.03385, 3.4: 224 of 256 pixels); needs a size.

  Raises:
    ValueError: one line, for an image that cannot be read, or sizes that differ where no size is set; also by `take`.
  """
  share = TESTED if crops else 1.0

  def take(indices: np.ndarray) -> dict[str, np.ndarray]:
    return decoded(indices, lambda _, height, width: _central(height, width, share))

  def augmented(rngs: Sequence[np.random.Generator], indices: np.ndarray) -> dict[str, np.ndarray]:
    draws = np.concatenate([uniform(rng, indices.shape[1]) for rng in rngs])
    return decoded(indices.reshape(-1), lambda k, height, width: _box(boxes(draws[k : k + 1], height, width)[0]))

  def decoded(indices: np.ndarray, box: Callable[[int, int, int], Box]) -> dict[str, np.ndarray]:
    def one(k: int) -> np.ndarray:
      index = int(indices[k])
      try:
        return _decode(read(index), size, channels, lambda height, width: box(k, height, width))
      except Exception as error:  # a missing or damaged file: OSError, SyntaxError, struct.error, ...
        reason = next((line for line in str(error).splitlines() if line), type(error).__name__)
        raise ValueError(f"{where(index)}: not readable as an image: {reason}") from error

    with ThreadPoolExecutor(min(os.cpu_count() or 1, len(indices))) as threads:
      images = list(threads.map(one, range(len(indices))))
    other = next((k for k, image in enumerate(images) if image.shape != images[0].shape), None)
    if other is not None:
      raise ValueError(
        f"{where(int(indices[other]))}: is {_words(images[other])} pixels, but others are {_words(images[0])}: set a "
        "size to resize them, such as --config.data.size=224"
      )
    return {"x": source.pixels(np.stack(images)), "y": labels[indices]}

  take(np.arange(min(FIRST, len(labels))))
  return Source(len(labels), take, labels, augmented if crops else None)


def _decode(content: bytes, size: int, channels: int, box: Callable[[int, int], Box]) -> np.ndarray:
  """[height, width, channels] uint8."""
  from PIL import Image

  with Image.open(io.BytesIO(content)) as file:
    if file.mode.startswith(WIDE):
      raise ValueError(f"its pixels have more than 8 bits (mode {file.mode}); convert it to 8 bits")
    image = file.convert(MODES[channels])
  if size:
    top, left, height, width = box(image.height, image.width)
    part = image.crop((left, top, left + width, top + height))
    image = part.resize((size, size), Image.Resampling.BILINEAR)
  return np.asarray(image).reshape(image.height, image.width, channels)


def _central(height: int, width: int, share: float) -> Box:
  side = max(1, round(share * min(height, width)))
  return (height - side) // 2, (width - side) // 2, side, side


def _box(found: np.ndarray) -> Box:
  top, left, height, width = found.tolist()
  return top, left, height, width


def _words(image: np.ndarray) -> str:
  return f"{image.shape[0]} x {image.shape[1]}"
