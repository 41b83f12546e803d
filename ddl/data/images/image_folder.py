"""A folder of images, whose class is the folder that they are in: train/CLASS/IMAGE and test/CLASS/IMAGE."""

import os
import re
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ddl import memory
from ddl.api import Data, Source
from ddl.data import source
from ddl.data.images import preprocessing
from ddl.data.images.decoding import MODES, encoded
from ddl.ranges import Fraction, NonNegativeInt, PositiveInt, checked

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".ppm", ".pgm", ".tif", ".tiff")  # in any case
SPLITS = {  # kind -> its names in lower case, with or without an s, and "set", "data" or "images" behind them
  "train": ("train", "training"),
  "test": ("test", "testing"),
  "val": ("val", "valid", "validation", "dev"),
  "eval": ("eval", "evaluation"),
}
KINDS = {name: kind for kind, names in SPLITS.items() for name in names}
SPLIT = re.compile(rf"({'|'.join(sorted(KINDS, key=len, reverse=True))})s?([-_ ]?(set|data|images))?")
WORD = re.compile(rf"(?<![a-z])({'|'.join(sorted(KINDS, key=len, reverse=True))})s?(?![a-z])")
SYSTEM = ("__macosx", "__pycache__", "@eadir", "$recycle.bin", "system volume information", "lost+found")
EXAMPLE = "FOLDER (with train/CLASS/IMAGE.jpg and test/CLASS/IMAGE.jpg, or with CLASS/IMAGE.jpg)"


@checked
def image_folder(
  *, path: str = "", size: NonNegativeInt = 0, channels: PositiveInt = 3, validation: Fraction = 0.0,
  augment: str = "none", normalize: str = "unit",
) -> Data:  # fmt: skip
  """x: [size, size, channels] float32 in [-1, 1], or as `normalize` says; decoded from disk at each `take`.

  The classes are the folders in train/ in the order of their names; images may be in folders of these. The test set is
  test/, val/ or eval/, the first that has such folders. Without train/ the classes are the folders in `path`, and
  a fixed shuffled sixth of all images is the test set. SPLITS are other names of train/, test/, val/ and eval/, in any
  case. Links are followed; hidden files and folders, pipes and other files are skipped, which a warning counts.

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
  if channels not in MODES:
    raise ValueError(f"image_folder.channels must be 3 or 1, got {channels}.")
  memory.require(4 * channels * size**2, f"an image of {size} x {size} pixels")
  folder = source.existing(path, EXAMPLE)
  if not folder.is_dir():
    raise ValueError(f"{path} is a file; set --config.data.path={EXAMPLE}")
  crops = augment == "resized_crop" and size > 0

  skipped = Counter[str]()

  def part(folder: Path, images: _Images) -> Source:
    return encoded(
      lambda index: (folder / images.files[index]).read_bytes(), images.labels,
      lambda index: str(folder / images.files[index]), size, channels, crops,
    )  # fmt: skip

  training, testing = _splits(folder)
  classes = _classes(training or folder, skipped)
  if training:
    images = _images(training, classes, True, skipped)
    tests = _tests(folder, training, testing, classes)
    test_images = _images(tests, classes, False, skipped)
    if both := images.folders & test_images.folders:
      warnings.warn(f"{path}: the images in {min(both)} are in both training and test, by links", stacklevel=2)
    train, test = part(training, images), part(tests, test_images)
    if train.take(np.arange(1))["x"].shape != test.take(np.arange(1))["x"].shape:
      raise ValueError(f"{path}: training and test images differ in size: set one, such as --config.data.size=224")
  else:
    train, test = source.sixth(part(folder, _images(folder, classes, True, skipped)), path)
  if what := ", ".join(f"{count} {name}" for name, count in sorted(skipped.items()) if count):
    warnings.warn(f"{path}: skipped {what}", stacklevel=2)
  data = source.classification(
    train,
    test,
    num_outputs=len(classes),
    description=f"{train.size:,} + {test.size:,} images of {len(classes)} classes from {path}",
    validation=validation,
  )
  data = data._replace(meta={**data.meta, "classes": tuple(classes)})
  return preprocessing.preprocessed(data, augment, normalize)


def _splits(folder: Path) -> tuple[Path | None, dict[str, Path]]:
  """Return the folder of training images, None where the folders are classes, and those of the others by kind."""
  splits, others = dict[str, Path](), list[str]()
  for name in _folders(folder):
    match, inner = SPLIT.fullmatch(name.lower()), folder / name
    if not match and not WORD.search(name.lower()):
      continue
    kind = KINDS[match[1]] if match else ""
    if not _folders(inner) and (kind != "train" or any(map(_is_image, os.listdir(inner)))):
      continue  # a class of that name, or images without classes
    if not match:
      others.append(name)
    elif kind in splits:
      raise ValueError(f"{folder} must have one folder of {kind} images, got {splits[kind].name} and {name}.")
    else:
      splits[kind] = inner
  training = splits.pop("train", None)
  if not training and (named := sorted([*others, *(split.name for split in splits.values())])):
    raise ValueError(f"{folder} must have a folder train, got {', '.join(named)}. Rename these to train and test.")
  return training, splits


def _classes(folder: Path, skipped: Counter[str]) -> list[str]:
  """The names of the folders in a folder: two or more, each with images."""
  found = _folders(folder)
  if len(found) < 2:
    has = f"only the folder {found[0]}" if found else "no folders"
    raise ValueError(f"{folder} has {has}, but needs one for each of two or more classes: {folder}/CLASS/IMAGE.jpg")
  names = os.listdir(folder)
  skipped["hidden files or folders"] += sum(map(_hidden, names))
  skipped["images outside of class folders"] += sum(_is_image(name) and name not in found for name in names)
  return found


def _tests(folder: Path, training: Path, testing: Mapping[str, Path], classes: list[str]) -> Path:
  """The folder of the test set, whose classes have to be known."""
  if not testing:
    place = f"{folder}/test/CLASS/IMAGE.jpg (or val, validation)"
    raise ValueError(f"{folder} has {training.name}, but no test images: put them into {place}")
  tests = next(testing[kind] for kind in SPLITS if kind in testing)
  if unknown := sorted({*_folders(tests)} - {*classes}):
    raise ValueError(f"{tests} has the class {unknown[0]}, which {training} has not")
  return tests


class _Images(NamedTuple):
  """The images of a split."""

  files: list[str]  # paths from its folder, by class and folder
  labels: np.ndarray  # [n] int32
  folders: set[str]  # real paths of the folders with images


def _images(folder: Path, classes: list[str], complete: bool, skipped: Counter[str]) -> _Images:
  """Every image in order. complete: whether each class must have one."""
  files, counts, folders = list[str](), list[int](), set[str]()
  here = _folders(folder)
  for name in classes:
    before = len(files)
    for within, real, names in sorted(_walk(folder, name, skipped)) if name in here else ():
      files += [f"{within}/{each}" for each in names]
      folders |= {real} if names else set()
    counts.append(len(files) - before)
    if complete and not counts[-1]:
      raise ValueError(f"{folder / name} has no images; invalid: must have some of {', '.join(SUFFIXES)}")
  if not files:
    raise ValueError(f"{folder} has no images; invalid: must have some of {', '.join(SUFFIXES)}")
  return _Images(files, np.repeat(np.arange(len(classes), dtype=np.int32), counts), folders)


def _walk(folder: Path, name: str, skipped: Counter[str]) -> Iterator[tuple[str, str, list[str]]]:
  """Yield each folder in a class once, links followed: its path from `folder`, its real path, its images in order."""
  real = Path(os.path.realpath(folder / name))
  visited = {str(each) for each in (*real.parents, *Path(os.path.realpath(folder)).parents)}
  left = [name]
  while left:
    within = left.pop()
    path = os.path.realpath(folder / within)
    if path in visited:
      skipped["links to a folder that is read already"] += 1
      continue
    visited.add(path)
    images, inner = [], []
    for entry in os.scandir(folder / within):
      if _hidden(entry.name):
        skipped["hidden files or folders"] += 1
      elif _is_folder(entry):
        inner.append(f"{within}/{entry.name}")
      elif not (os.path.isfile(entry.path) if entry.is_symlink() else entry.is_file()):
        skipped["broken links" if not os.path.exists(entry.path) else "pipes or devices"] += 1
      elif _is_image(entry.name):
        images.append(entry.name)
      else:
        skipped["files that are no images"] += 1
    left += sorted(inner, reverse=True)
    yield within, path, sorted(images)


def _folders(folder: Path) -> list[str]:
  """The names of the folders in a folder, but for hidden ones, in order."""
  return sorted(entry.name for entry in os.scandir(folder) if not _hidden(entry.name) and _is_folder(entry))


def _is_folder(entry: os.DirEntry[str]) -> bool:
  return os.path.isdir(entry.path) if entry.is_symlink() else entry.is_dir()  # of a loop of links, is_dir is an error


def _hidden(name: str) -> bool:
  return name.startswith(".") or name.lower() in SYSTEM


def _is_image(name: str) -> bool:
  return name.lower().endswith(SUFFIXES) and not _hidden(name)
