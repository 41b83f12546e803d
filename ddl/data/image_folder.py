"""A folder of images, whose class is the folder that they are in: train/CLASS/IMAGE and test/CLASS/IMAGE."""

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
from ddl.data import augmentation, source
from ddl.data.augmentation import boxes, uniform
from ddl.errors import OptionError
from ddl.ranges import Fraction, NonNegativeInt, PositiveInt, checked

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
    crops: for training, random-resized crops of the whole image (`ddl.data.augmentation.boxes`), and for tests
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
        f"{where(int(indices[other]))}: is {_words(images[other])} pixels, but others are {_words(images[0])}; "
        "config.data.size resizes them, such as 224"
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
    augment, normalize: see `ddl.data.augmentation`; augment=resized_crop and a size: random parts of the whole
      images are resized for training, and for tests 7/8 of the shorter side.

  Raises:
    FileNotFoundError, ValueError: one line, for a folder that is missing, has no classes, or other classes to test;
      from `take`, too, for an image that is damaged.
  """
  augmentation.check_names(augment, normalize)
  if channels not in MODES:
    raise OptionError("image_folder.channels", "3 or 1", channels)
  memory.require(4 * channels * size**2, f"an image of {size} x {size} pixels")
  folder = source.existing(path, EXAMPLE)
  if not folder.is_dir():
    raise OptionError("config.data.path", EXAMPLE, f"the file {path}")
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
      raise OptionError("config.data.size", f"set for {path}, such as 224: training and test images differ in size")
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
  return augmentation.preprocessed(data, augment, normalize)


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
