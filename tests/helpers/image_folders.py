"""Folders of small images for the tests."""

import numpy as np
from PIL import Image


def picture(shape, *seed):
  """Create an image [height, width] of random colors."""
  return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (*shape, 3), dtype=np.uint8))


def write_folder(folder, classes, count, shape, seed=0):
  """Write folder/CLASS/0.png, folder/CLASS/1.png, ..."""
  for number, name in enumerate(classes):
    (folder / name).mkdir(parents=True, exist_ok=True)
    for k in range(count):
      picture(shape, seed, number, k).save(folder / name / f"{k}.png")
