"""Images from arrays: scikit-learn's digits, idx files as MNIST's, and .npz files."""

import gzip
import math
import zipfile
import zlib
from pathlib import Path

import numpy as np

from ddl import files, memory
from ddl.api import Data, Source
from ddl.data import augmentation, checks, source
from ddl.ranges import Fraction, checked


@checked
def digits(*, validation: Fraction = 0.0) -> Data:
  """Load scikit-learn's 1,797 handwritten digits: x [8, 8, 1] float32 in [0, 1].

  Alpaydin and Kaynak 1998, "Optical Recognition of Handwritten Digits", UCI machine learning repository. A fixed
  shuffled stratified split has 1,437 training and 360 test images.
  """
  from sklearn.datasets import load_digits
  from sklearn.model_selection import train_test_split

  images, labels = load_digits(return_X_y=True)
  x = np.asarray(images / 16, np.float32).reshape(-1, 8, 8, 1)
  y = np.asarray(labels, np.int32)
  train, test = train_test_split(np.arange(len(x)), test_size=360, stratify=y, random_state=0)
  everything = source.in_memory(x, y, y)
  return source.classification(
    source.subset(everything, np.asarray(train)),
    source.subset(everything, np.asarray(test)),
    num_outputs=10,
    description="1,797 handwritten digits of 8 x 8 pixels (UCI, Alpaydin and Kaynak 1998), from scikit-learn",
    validation=validation,
  )


@checked
def idx(*, path: str = "", validation: Fraction = 0.0, augment: str = "none", normalize: str = "unit") -> Data:
  """Read the four idx files of MNIST, Fashion-MNIST, KMNIST, ...: x [height, width, 1] float32 in [-1, 1].

  The folder has {train,t10k}-images-idx3-ubyte and {train,t10k}-labels-idx1-ubyte, with or without .gz. augment and
  normalize: see `ddl.data.augmentation`.

  Raises:
    FileNotFoundError, ValueError: for a file that is missing or malformed.
  """
  augmentation.check_names(augment, normalize)
  folder = source.existing(path, "FOLDER (the one with train-images-idx3-ubyte or .gz)")
  train, test = (_part(folder, name) for name in ("train", "t10k"))
  checks.same_inputs(checks.sample(train), checks.sample(test), path, ("train", "t10k"))
  data = source.classification(
    train,
    test,
    description=f"{train.size:,} + {test.size:,} images from the idx files in {path}",
    validation=validation,
  )
  return augmentation.preprocessed(data, augment, normalize)


def _part(folder: Path, name: str) -> Source:
  images = _read(_find(folder, f"{name}-images-idx3-ubyte"), 3)
  labels = _read(_find(folder, f"{name}-labels-idx1-ubyte"), 1)
  return source.labelled(images, labels, f"{folder}, {name}")


def _find(folder: Path, name: str) -> Path:
  names = (name, f"{name}.gz", name.replace("-idx", ".idx"), f"{name.replace('-idx', '.idx')}.gz")
  if file := next((folder / each for each in names if (folder / each).is_file()), None):
    return file
  raise FileNotFoundError(f"{folder}: has no {name} (nor {name}.gz, nor {name.replace('-idx', '.idx')})")


def _read(file: Path, ndim: int) -> np.ndarray:
  """Read an idx file: 0, 0, 8 (uint8), the number of dimensions, each as a big-endian uint32, and the bytes.

  No more is unpacked than the header declares.
  """
  magic, header = bytes([0, 0, 8, ndim]), 4 + 4 * ndim
  try:
    with (gzip.open if file.suffix == ".gz" else open)(file, "rb") as opened:
      head = opened.read(header)
      if head[:4] != magic:
        raise ValueError(
          f"{file}: not an idx file of {ndim} dimensions of bytes: starts with {head[:4].hex()}, not {magic.hex()}"
        )
      if len(head) < header:
        raise ValueError(f"{file}: truncated: {len(head)} bytes, where the header has {header}")
      shape = [int(size) for size in np.frombuffer(head, ">u4", ndim, offset=4)]
      expected = math.prod(shape)
      memory.require(expected * (5 if ndim > 1 else 1), str(file))  # images also as float32
      content = opened.read(expected + 1)
  except (OSError, EOFError, zlib.error) as error:
    raise ValueError(f"{file}: not readable: {error}") from error
  if len(content) != expected:
    got = f"{header + len(content)} bytes" + " or more" * (len(content) > expected)
    raise ValueError(f"{file}: {got}, where the header says {shape}, so {header + expected}: truncated or not one file")
  return np.frombuffer(content, np.uint8).reshape(shape)


@checked
def npz(*, path: str = "", validation: Fraction = 0.0, augment: str = "none", normalize: str = "unit") -> Data:
  """Read images from a .npz file: uint8 as float32 in [-1, 1] with a channel axis, floating point unchanged.

  Its arrays are x_train, y_train, x_test, y_test, or image (or x) and label (or y), of which a fixed shuffled sixth is
  the test set. augment and normalize: see `ddl.data.augmentation`.

  Raises:
    FileNotFoundError, ValueError: for a file that is missing, malformed, lacks these arrays or would not fit into the
      memory, or training and test images of different types, shapes or ranges.
  """
  augmentation.check_names(augment, normalize)
  file = files.regular(source.existing(path, "FILE.npz"))
  if not zipfile.is_zipfile(file):
    raise ValueError(f"{path}: not a .npz file (a zip archive of arrays, as np.savez writes)")
  try:
    declared = files.npz_arrays(file, KEYS)
  except Exception as error:  # a damaged or encrypted archive: zipfile and zlib raise their own
    raise _unreadable(path, error) from error
  copies = {key: 4 * math.prod(declared[key].shape) for key in IMAGES if key in declared}  # as float32
  size = sum(array.nbytes + copies.get(key, 0) for key, array in declared.items())
  memory.require(size, path)
  try:
    with np.load(file, allow_pickle=False) as npz_file:
      arrays, names = {key: npz_file[key] for key in declared}, ", ".join(npz_file.files) or "nothing"
  except Exception as error:  # and pickled objects
    raise _unreadable(path, error) from error

  pixels = any(arrays[key].dtype == np.uint8 for key in ("x_train", "image", "x") if key in arrays)
  if all(key in arrays for key in ("x_train", "y_train", "x_test", "y_test")):
    types = arrays["x_train"].dtype, arrays["x_test"].dtype
    if types[0] != types[1]:
      raise ValueError(f"{path}: x_test must have the type of x_train, {types[0]}, got {types[1]}. Save both alike.")
    train = source.labelled(arrays["x_train"], arrays["y_train"], f"{path}, train")
    test = source.labelled(arrays["x_test"], arrays["y_test"], f"{path}, test")
    keys = "x_train", "x_test"
    checks.same_inputs(checks.sample(train), checks.sample(test), path, keys)
    checks.same_inputs(checks.rows(arrays["x_train"]), checks.rows(arrays["x_test"]), path, keys)  # as stored
  else:
    image, label = (next((arrays[key] for key in pair if key in arrays), None) for pair in PAIRS)
    if image is None or label is None:
      raise ValueError(
        f"{path}: holds {names}, but needs image and label, or x and y, or x_train, y_train, x_test and y_test"
      )
    train, test = source.sixth(source.labelled(image, label, path), path)

  data = source.classification(
    train,
    test,
    description=f"{train.size:,} + {test.size:,} examples from {path}",
    validation=validation,
  )
  return augmentation.preprocessed(data, augment, normalize, pixels)


def _unreadable(path: str, error: Exception) -> ValueError:
  reason = next(iter(str(error).splitlines()), type(error).__name__)
  return ValueError(f"{path}: not readable as a .npz file: {reason}")


PAIRS = (("image", "x"), ("label", "y"))
IMAGES = ("image", "x", "x_train", "x_test")
KEYS = ("image", "x", "label", "y", "x_train", "y_train", "x_test", "y_test")
