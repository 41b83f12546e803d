"""Images from arrays: scikit-learn's digits, idx files like MNIST's, and .npz files."""

import gzip
import math
import zipfile
from pathlib import Path

import numpy as np

from ddl import files, memory
from ddl.api import Data
from ddl.data import augmentation, checks, source
from ddl.errors import OptionError
from ddl.ranges import Fraction, checked


@checked
def digits(*, validation: Fraction = 0.0) -> Data:
  """Load scikit-learn's 1,797 handwritten digits: x [8, 8, 1] float32 in [0, 1].

  Alpaydin and Kaynak 1998, "Optical Recognition of Handwritten Digits", UCI machine learning repository. A fixed
  random split, stratified by class, has 1,437 training and 360 test images.
  """
  # Each row has the 64 pixels (0 to 16) and the label of an image, in the order of scikit-learn's train_test_split with
  # random_state=0: training images first. Importing scikit-learn would take longer than many runs on this data.
  rows = np.loadtxt(Path(__file__).with_name("digits.csv.gz"), np.uint8, delimiter=",")
  x, y = (rows[:, :-1] / 16).astype(np.float32).reshape(-1, 8, 8, 1), rows[:, -1].astype(np.int32)
  parts = [source.in_memory(x[part], y[part], y[part]) for part in (slice(1437), slice(1437, None))]
  description = "1,797 handwritten digits of 8 x 8 pixels (UCI, Alpaydin and Kaynak 1998), from scikit-learn"
  return source.classification(*parts, num_outputs=10, description=description, validation=validation)


@checked
def idx(*, path: str = "", validation: Fraction = 0.0, augment: str = "none", normalize: str = "unit") -> Data:
  """Read the four idx files of MNIST, Fashion-MNIST, KMNIST, ...: x [height, width, 1] float32 in [-1, 1].

  The folder contains {train,t10k}-images-idx3-ubyte and {train,t10k}-labels-idx1-ubyte, with or without .gz. For
  augment and normalize see `ddl.data.augmentation`.
  """
  augmentation.check_names(augment, normalize)
  folder = source.existing(path, "FOLDER (with train-images-idx3-ubyte or .gz)")
  train, test = (
    source.labelled(_read(folder, f"{name}-images", 3), _read(folder, f"{name}-labels", 1), f"{folder}, {name}")
    for name in ("train", "t10k")
  )
  checks.same_inputs(checks.sample(train), checks.sample(test), path, ("train", "t10k"))
  description = f"{train.size:,} + {test.size:,} images from the idx files in {path}"
  data = source.classification(train, test, description=description, validation=validation)
  return augmentation.preprocessed(data, augment, normalize)


def _read(folder: Path, name: str, ndim: int) -> np.ndarray:
  """Read an idx file: bytes 0, 0, 8 (uint8) and `ndim`, the sizes of the dimensions as big-endian uint32, and the data.

  A compressed file is not unpacked beyond the size that its header declares.
  """
  names = [f"{name}{dot}idx{ndim}-ubyte{suffix}" for dot in "-." for suffix in ("", ".gz")]
  file = next((folder / name for name in names if (folder / name).is_file()), None)
  if file is None:
    raise FileNotFoundError(f"{folder} must contain one of {', '.join(names)}.")
  magic, header = bytes([0, 0, 8, ndim]), 4 + 4 * ndim
  with checks.readable(str(file)), (gzip.open if file.suffix == ".gz" else open)(file, "rb") as opened:
    head = opened.read(header)
    if head[:4] != magic or len(head) < header:
      condition = (
        f"an idx file of uint8 with {ndim} dimensions: a header of {header} bytes that begins with {magic.hex()}"
      )
      raise OptionError(str(file), condition, f"a header of {len(head)} bytes that begins with {head[:4].hex()}")
    shape = np.frombuffer(head, ">u4", offset=4).tolist()
    expected = math.prod(shape)
    memory.require(expected * (5 if ndim > 1 else 1), str(file))  # images are also stored as float32
    content = opened.read(expected + 1)
  if len(content) != expected:
    value = f"{header + len(content)} bytes" + " or more" * (len(content) > expected)
    raise OptionError(
      f"content of {file}", f"{header + expected} bytes long for the shape {shape} in its header", value
    )
  return np.frombuffer(content, np.uint8).reshape(shape)


@checked
def npz(*, path: str = "", validation: Fraction = 0.0, augment: str = "none", normalize: str = "unit") -> Data:
  """Read images from a .npz file as float32: uint8 is scaled to [-1, 1], floating point is not scaled.

  The file contains x_train, y_train, x_test and y_test; or image (or x) and label (or y), of which a fixed random sixth
  becomes the test set. Arrays [n, height, width] get a channel axis. For augment and normalize see
  `ddl.data.augmentation`.
  """
  augmentation.check_names(augment, normalize)
  file = files.regular(source.existing(path, "FILE.npz"))
  if not zipfile.is_zipfile(file):
    raise OptionError(path, "a .npz file, as written by np.savez", "a file of another format")
  with checks.readable(path):
    declared = files.npz_arrays(file, {*IMAGES, *LABELS})
  copies = sum(4 * math.prod(declared[key].shape) for key in IMAGES if key in declared)  # as float32
  memory.require(copies + sum(array.nbytes for array in declared.values()), path)
  with checks.readable(path), np.load(file, allow_pickle=False) as npz_file:
    arrays, names = {key: npz_file[key] for key in declared}, ", ".join(npz_file.files) or "nothing"

  pixels = any(arrays[key].dtype == np.uint8 for key in IMAGES[:3] if key in arrays)
  if all(key in arrays for key in ("x_train", "y_train", "x_test", "y_test")):
    keys = "x_train", "x_test"
    stored = [arrays[key] for key in keys]
    if stored[0].dtype != stored[1].dtype:
      condition = f"of the same type as x_train ({stored[0].dtype})"
      raise OptionError(f"{path}: x_test", condition, stored[1].dtype, "Save both with the same type.")
    train, test = (
      source.labelled(arrays[f"x_{part}"], arrays[f"y_{part}"], f"{path}, {part}") for part in ("train", "test")
    )
    for one, two in ((train, test), stored):
      checks.same_inputs(checks.sample(one), checks.sample(two), path, keys)
  else:
    image = next((arrays[key] for key in IMAGES[:2] if key in arrays), None)
    label = next((arrays[key] for key in LABELS[:2] if key in arrays), None)
    if image is None or label is None:
      condition = "image and label (or x and y; or x_train, y_train, x_test and y_test)"
      raise OptionError(f"arrays of {path}", condition, names)
    train, test = source.sixth(source.labelled(image, label, path), path)

  description = f"{train.size:,} + {test.size:,} examples from {path}"
  data = source.classification(train, test, description=description, validation=validation)
  return augmentation.preprocessed(data, augment, normalize, pixels)


IMAGES = ("image", "x", "x_train", "x_test")
LABELS = ("label", "y", "y_train", "y_test")
