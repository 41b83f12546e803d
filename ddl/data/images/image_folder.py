"""A folder of images, whose class is the folder that they are in: train/CLASS/IMAGE and test/CLASS/IMAGE."""

import os
from pathlib import Path

import numpy as np

from ddl import memory
from ddl.api import Data, Source
from ddl.data import source
from ddl.data.images import preprocessing
from ddl.data.images.decoding import MODES, encoded

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".ppm", ".pgm", ".tif", ".tiff")  # in any case
TESTS = ("test", "val", "validation")
EXAMPLE = "FOLDER (with train/CLASS/IMAGE.jpg and test/CLASS/IMAGE.jpg, or with CLASS/IMAGE.jpg)"


def image_folder(
  *, path: str = "", size: int = 0, channels: int = 3, validation: float = 0.0, augment: str = "none",
  normalize: str = "unit",
) -> Data:  # fmt: skip
  """x: [size, size, channels] float32 in [-1, 1], or as `normalize` says; decoded from disk at each `take`.

  The classes are the folders in train/ in the order of their names; images may be in folders of these. The test set is
  test/, val/ or validation/, the first that has such folders. Without train/ the classes are the folders in `path`, and
  a fixed shuffled sixth of all images is the test set.

  Args:
    path: the folder.
    size: the side of the squares to which images are resized, of their central part; 0: all have one size already.
    channels: 3, or 1 for grey.
    validation: share of the training images to set apart.
    augment, normalize: see `ddl.data.images.preprocessing`; augment=resized_crop and a size: random parts of the whole
      images are resized for training, and for tests 7/8 of the shorter side.

  Raises:
    FileNotFoundError, ValueError: one line, for a folder that is missing, has no classes, or other classes to test;
      from `take`, too, for an image that is damaged.
  """
  preprocessing.check_names(augment, normalize)
  if size < 0 or channels not in MODES:
    raise ValueError(f"size={size}, channels={channels}; invalid: must be a size of at least 0, and 3 or 1 channels")
  memory.require(4 * channels * size**2, f"an image of {size} x {size} pixels")
  folder = source.existing(path, EXAMPLE)
  if not folder.is_dir():
    raise ValueError(f"{path} is a file; set --config.data.path={EXAMPLE}")
  crops = augment == "resized_crop" and size > 0

  def part(folder: Path, classes: list[str]) -> Source:
    files, labels = _files(folder, classes)
    return encoded(
      lambda index: (folder / files[index]).read_bytes(), labels, lambda index: str(folder / files[index]), size,
      channels, crops,
    )  # fmt: skip

  inner = (folder / "train").is_dir()
  classes = _classes(folder / "train" if inner else folder)
  if inner:
    train, test = part(folder / "train", classes), part(_tests(folder, classes), classes)
    if train.take(np.arange(1))["x"].shape != test.take(np.arange(1))["x"].shape:
      raise ValueError(f"{path}: training and test images differ in size: set one, such as --config.data.size=224")
  else:
    train, test = source.sixth(part(folder, classes), path)
  data = source.classification(
    train,
    test,
    num_outputs=len(classes),
    description=f"{train.size:,} + {test.size:,} images of {len(classes)} classes from {path}",
    validation=validation,
  )
  data = data._replace(meta={**data.meta, "classes": tuple(classes)})
  return preprocessing.preprocessed(data, augment, normalize)


def _classes(folder: Path) -> list[str]:
  """The names of the folders in a folder: two or more, each with images."""
  found = sorted(each.name for each in os.scandir(folder) if each.is_dir() and not each.name.startswith("."))
  if len(found) < 2:
    has = f"only the folder {found[0]}" if found else "no folders"
    raise ValueError(f"{folder} has {has}, but needs one for each of two or more classes: {folder}/CLASS/IMAGE.jpg")
  return found


def _tests(folder: Path, classes: list[str]) -> Path:
  """The folder of the test set, whose classes have to be known."""
  for name in TESTS:
    if (folder / name).is_dir() and (names := [each.name for each in os.scandir(folder / name) if each.is_dir()]):
      if unknown := sorted({*names} - {*classes}):
        raise ValueError(f"{folder / name} has the class {unknown[0]}, which {folder / 'train'} has not")
      return folder / name
  raise ValueError(
    f"{folder} has train, but no test images: put them into {folder}/test/CLASS/IMAGE.jpg (or val, validation)"
  )


def _files(folder: Path, classes: list[str]) -> tuple[list[str], np.ndarray]:
  """Every image in order, as a path from the folder, and its class [n] int32."""
  files, counts = list[str](), list[int]()
  for name in classes:
    before = len(files)
    for inner, _, names in sorted(os.walk(folder / name)):
      within = os.path.relpath(inner, folder)
      files += [f"{within}/{each}" for each in sorted(names) if each.lower().endswith(SUFFIXES)]
    counts.append(len(files) - before)
    if folder.name not in TESTS and not counts[-1]:
      raise ValueError(f"{folder / name} has no images; invalid: must have some of {', '.join(SUFFIXES)}")
  if not files:
    raise ValueError(f"{folder} has no images; invalid: must have some of {', '.join(SUFFIXES)}")
  return files, np.repeat(np.arange(len(classes), dtype=np.int32), counts)
