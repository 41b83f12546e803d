"""Read image folders, train/CLASS/IMAGE and test/CLASS/IMAGE, and create sources that decode image files."""

import io
import os
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ddl import memory
from ddl.api import Data, Source
from ddl.data import augmentation, checks, source
from ddl.data.augmentation import boxes, uniform
from ddl.errors import OptionError
from ddl.ranges import Fraction, NonNegativeInt, PositiveInt, checked

TESTED = 224 / 256  # share of the shorter side to crop in tests after training on random-resized crops
MODES = {1: "L", 3: "RGB"}  # Pillow's mode by number of channels
FIRST = 32  # images to read at the start, to detect different sizes before training


def encoded(
  read: Callable[[int], bytes], labels: np.ndarray, where: Callable[[int], str], size: int, channels: int, crops: bool
) -> Source:
  """Create a source that decodes images at each `take`, to float32 in [-1, 1].

  Raises ValueError, also from `take`, if an image cannot be read, or if sizes differ and no size is set.

  Args:
    read: index -> content of an image file; called from several threads.
    labels: class numbers [n] int32.
    where: index -> origin of the image, for errors.
    size: side in pixels to which an image's central square is resized; 0: no resizing, so all images must have the same
      size.
    channels: 3, or 1 for gray.
    crops: whether training uses random-resized crops of the whole image (`ddl.data.augmentation.boxes`), and tests use
      the central square whose side is 7/8 of the shorter side (He et al. 2015, arXiv 1512.03385, 3.4: 224 of 256);
      requires a size.
  """
  from PIL import Image

  memory.require(4 * channels * size**2, f"an image of {size} x {size} pixels")
  share = TESTED if crops else 1.0

  def central(_: int, height: int, width: int) -> list[int]:
    side = max(1, round(share * min(height, width)))
    return [(height - side) // 2, (width - side) // 2, side, side]

  def decoded(indices: np.ndarray, box: Callable[[int, int, int], list[int]]) -> dict[str, np.ndarray]:
    def decode(k: int) -> np.ndarray:
      """Decode an image file, crop and resize it: [height, width, channels] uint8."""
      index = int(indices[k])  # a missing or damaged file raises OSError, SyntaxError, struct.error, ...
      with checks.readable(where(index)), Image.open(io.BytesIO(read(index))) as file:
        if file.mode.startswith(("I", "F")):
          raise ValueError(f"pixels must have 8 bits, got mode {file.mode}.")
        image = file.convert(MODES[channels])
        if size:
          top, left, height, width = box(k, image.height, image.width)
          part = image.crop((left, top, left + width, top + height))
          image = part.resize((size, size), Image.Resampling.BILINEAR)
        return np.asarray(image).reshape(image.height, image.width, channels)

    with ThreadPoolExecutor(min(os.cpu_count() or 1, len(indices))) as threads:
      images = list(threads.map(decode, range(len(indices))))
    return {"x": source.stacked(images, lambda k: where(int(indices[k]))), "y": labels[indices]}

  def augmented(rngs: Sequence[np.random.Generator], indices: np.ndarray) -> dict[str, np.ndarray]:
    draws = np.concatenate([uniform(rng, indices.shape[1]) for rng in rngs])
    return decoded(indices.reshape(-1), lambda k, height, width: boxes(draws[k : k + 1], height, width)[0].tolist())

  decoded(np.arange(min(FIRST, len(labels))), central)
  return Source(len(labels), lambda indices: decoded(indices, central), labels, augmented if crops else None)


SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".ppm", ".pgm", ".tif", ".tiff")  # case-insensitive
SPLITS = {  # kind -> lower-case names, optionally with a plural s and followed by "set", "data" or "images"
  "train": ("train", "training"),
  "test": ("test", "testing"),
  "val": ("val", "valid", "validation", "dev"),
  "eval": ("eval", "evaluation"),
}
KINDS = {name: kind for kind, names in SPLITS.items() for name in names}
NAMES = "|".join(sorted(KINDS, key=len, reverse=True))
SPLIT = re.compile(rf"({NAMES})s?([-_ ]?(set|data|images))?")
WORD = re.compile(rf"(?<![a-z])({NAMES})s?(?![a-z])")
SYSTEM = ("__macosx", "__pycache__", "@eadir", "$recycle.bin", "system volume information", "lost+found")
EXAMPLE = "FOLDER (with train/CLASS/IMAGE.jpg and test/CLASS/IMAGE.jpg, or with CLASS/IMAGE.jpg)"


@checked
def image_folder(
  *, path: str = "", size: NonNegativeInt = 0, channels: PositiveInt = 3, validation: Fraction = 0.0,
  augment: str = "none", normalize: str = "unit",
) -> Data:  # fmt: skip
  """Read images from a folder: x [size, size, channels] float32 in [-1, 1], decoded at each `take`.

  The classes are the folders in train/, sorted by name; they may contain images at any depth. The test set is the first
  of test/, val/ and eval/ that has class folders. Without train/ the classes are the folders in `path`, and a fixed
  random sixth of all images is the test set. SPLITS lists alternatives to the names train, test, val and eval; case is
  ignored. Links are followed; hidden files and folders, pipes and files that are not images are skipped, and a warning
  counts them.

  Args:
    size: side in pixels to which an image's central square is resized; 0: no resizing, so all images must have the same
      size.
    channels: 3, or 1 for gray.
    validation: share of the training images to use for validation.
    augment: see `ddl.data.augmentation`; with resized_crop and a size, training uses random crops of the whole images,
      and tests use the central square whose side is 7/8 of the image's shorter side.
    normalize: see `ddl.data.augmentation`.
  """
  augmentation.check_names(augment, normalize)
  if channels not in MODES:
    raise OptionError("config.data.channels", "3 or 1", channels)
  folder = source.existing(path, EXAMPLE)
  if not folder.is_dir():
    raise OptionError("config.data.path", f"a {EXAMPLE}", f"the file {path}")
  skipped = Counter[str]()

  def part(images: _Images) -> Source:
    crops = augment == "resized_crop" and size > 0
    files, labels = images.files, np.repeat(np.arange(len(images.counts), dtype=np.int32), images.counts)
    return encoded(lambda k: Path(files[k]).read_bytes(), labels, files.__getitem__, size, channels, crops)

  training, testing = _splits(folder)
  classes = _classes(training or folder, skipped)
  images = _images(training or folder, classes, True, skipped)
  if training:
    test_images = _images(_tests(folder, training, testing, classes), classes, False, skipped)
    if both := images.folders & test_images.folders:
      warnings.warn(f"{path}: links add the images in {min(both)} to both the training and the test set", stacklevel=2)
    train, test = part(images), part(test_images)
    if train.take(np.arange(1))["x"].shape != test.take(np.arange(1))["x"].shape:
      raise OptionError(
        "config.data.size", f"set (for example, to 224), because training and test images in {path} differ in size"
      )
  else:
    train, test = source.sixth(part(images), path)
  if counts := ", ".join(f"{count} {name}" for name, count in sorted(skipped.items()) if count):
    warnings.warn(f"{path}: skipped {counts}", stacklevel=2)
  count, description = len(classes), f"{train.size:,} + {test.size:,} images of {len(classes)} classes from {path}"
  data = source.classification(train, test, num_outputs=count, description=description, validation=validation)
  data = data._replace(meta={**data.meta, "classes": tuple(classes)})
  return augmentation.preprocessed(data, augment, normalize)


def _splits(folder: Path) -> tuple[Path | None, dict[str, Path]]:
  """Return the training folder (None without one), and the folders of the splits "test", "val" and "eval" by name."""
  splits, others = dict[str, Path](), list[str]()
  for name in _folders(folder):
    match, inner = SPLIT.fullmatch(name.lower()), folder / name
    if not match and not WORD.search(name.lower()):
      continue
    kind = KINDS[match[1]] if match else ""
    if not _folders(inner) and (kind != "train" or any(map(_is_image, os.listdir(inner)))):
      continue  # a class with that name, or images without classes
    if not match:
      others.append(name)
    elif kind in splits:
      raise OptionError(f"folder of {kind} images in {folder}", "unique", f"{splits[kind].name} and {name}")
    else:
      splits[kind] = inner
  training = splits.pop("train", None)
  if not training and (named := sorted([*others, *(split.name for split in splits.values())])):
    advice = "Rename them, or add the missing one."
    raise OptionError(f"folders in {folder}", "named train and test", ", ".join(named), advice)
  return training, splits


def _classes(folder: Path, skipped: Counter[str]) -> list[str]:
  """Return the names of the class folders, at least two; count skipped files in `skipped`."""
  classes = _folders(folder)
  if len(classes) < 2:
    value = f"only the folder {classes[0]}" if classes else "no folders"
    raise OptionError(f"classes in {folder}", "two or more folders of images (CLASS/IMAGE.jpg)", value)
  names = os.listdir(folder)
  skipped["hidden files or folders"] += sum(map(_hidden, names))
  skipped["images outside of class folders"] += sum(_is_image(name) and name not in classes for name in names)
  return classes


def _tests(folder: Path, training: Path, testing: Mapping[str, Path], classes: list[str]) -> Path:
  """Return the folder of the test set. Raises OptionError for a class that is not in the training set."""
  if not testing:
    raise OptionError(f"test images of {folder}", "in test/CLASS, val/CLASS or eval/CLASS", f"only {training.name}")
  tests = next(testing[kind] for kind in SPLITS if kind in testing)
  if unknown := sorted({*_folders(tests)} - {*classes}):
    raise OptionError(f"every class in {tests}", f"a class in {training} too", unknown[0])
  return tests


class _Images(NamedTuple):
  """The images of a split."""

  files: list[str]  # paths, sorted by class and folder
  counts: list[int]  # images per class
  folders: set[str]  # real paths of the folders with images


def _images(folder: Path, classes: list[str], complete: bool, skipped: Counter[str]) -> _Images:
  """List the images of a split, sorted. complete: whether each class must have at least one image."""
  files, counts, folders, present = list[str](), list[int](), set[str](), _folders(folder)
  for name in classes:
    before = len(files)
    for within, real, images in sorted(_walk(folder, name, skipped)) if name in present else ():
      files += [f"{folder}/{within}/{image}" for image in images]
      folders |= {real} if images else set()
    counts.append(len(files) - before)
  if not files or (complete and not all(counts)):
    empty = folder / classes[counts.index(0)] if complete else folder
    raise OptionError(str(empty), f"a folder with images ({', '.join(SUFFIXES)})", "a folder without images")
  return _Images(files, counts, folders)


def _walk(folder: Path, name: str, skipped: Counter[str]) -> Iterator[tuple[str, str, list[str]]]:
  """Yield (path within `folder`, real path, sorted images) of each folder of class `name` once, following links."""
  real = Path(os.path.realpath(folder / name))
  visited = {str(parent) for parent in (*real.parents, *Path(os.path.realpath(folder)).parents)}
  pending = [name]
  while pending:
    within = pending.pop()
    path = os.path.realpath(folder / within)
    if path in visited:
      skipped["links to folders already read"] += 1
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
        skipped["files that are not images"] += 1
    pending += sorted(inner, reverse=True)
    yield within, path, sorted(images)


def _folders(folder: Path) -> list[str]:
  """Return the sorted names of the visible folders in a folder."""
  return sorted(entry.name for entry in os.scandir(folder) if not _hidden(entry.name) and _is_folder(entry))


def _is_folder(entry: os.DirEntry[str]) -> bool:
  return os.path.isdir(entry.path) if entry.is_symlink() else entry.is_dir()  # is_dir raises for a loop of links


def _hidden(name: str) -> bool:
  return name.startswith(".") or name.lower() in SYSTEM


def _is_image(name: str) -> bool:
  return name.lower().endswith(SUFFIXES) and not _hidden(name)
