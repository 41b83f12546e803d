"""Images and labels from one .npz file: Keras' mnist.npz, or what `np.savez(path, image=..., label=...)` saves."""

import zipfile
from typing import Any

import numpy as np

from ddl import files, memory
from ddl.api import Data
from ddl.data import checks, source
from ddl.data.images import preprocessing


def npz(*, path: str = "", validation: float = 0.0, augment: str = "none", normalize: str = "unit") -> Data:
  """The images of a .npz file, uint8 as float32 in [-1, 1] with a channel axis; floating point as it is.

  Its arrays are x_train, y_train, x_test, y_test, or one image (or x) and label (or y), of which a fixed shuffled
  sixth is the test set. augment, normalize: of images, see `ddl.data.images.preprocessing`.

  Raises:
    FileNotFoundError, ValueError: one line, for a file that is missing, malformed or lacks these arrays.
  """
  preprocessing.check_names(augment, normalize)
  found = files.regular(source.existing(path, "FILE.npz"))
  if not zipfile.is_zipfile(found):
    raise ValueError(f"{path}: not a .npz file (a zip archive of arrays, as np.savez writes)")
  try:
    with np.load(found, allow_pickle=False) as file:
      arrays = {key: _array(file, key) for key in file.files if key in KEYS}
      known = ", ".join(file.files) or "nothing"
  except Exception as error:  # a damaged or encrypted archive, pickled objects: NumPy, zipfile and zlib raise their own
    reason = next(iter(str(error).splitlines()), type(error).__name__)
    raise ValueError(f"{path}: not readable as a .npz file: {reason}") from error

  pixels = any(arrays[key].dtype == np.uint8 for key in ("x_train", "image", "x") if key in arrays)
  if all(key in arrays for key in ("x_train", "y_train", "x_test", "y_test")):
    train = source.labelled(arrays["x_train"], arrays["y_train"], f"{path}, train")
    test = source.labelled(arrays["x_test"], arrays["y_test"], f"{path}, test")
    checks.same_inputs(checks.sample(train), checks.sample(test), path, ("x_train", "x_test"))
  else:
    image, label = (next((arrays[key] for key in pair if key in arrays), None) for pair in PAIRS)
    if image is None or label is None:
      raise ValueError(
        f"{path}: holds {known}, but needs image and label, or x and y, or x_train, y_train, x_test and y_test"
      )
    train, test = source.sixth(source.labelled(image, label, path), path)

  assert train.labels is not None and test.labels is not None
  data = source.classification(
    train,
    test,
    num_outputs=1 + int(max(train.labels.max(), test.labels.max())),
    description=f"{train.size:,} + {test.size:,} examples from {path}",
    validation=validation,
  )
  return preprocessing.preprocessed(data, augment, normalize, pixels)


def _array(file: Any, key: str) -> np.ndarray:
  """Return a member of the archive, which NumPy reads as bytes if it is no .npy file."""
  names = {name.removesuffix(".npy"): name for name in file.zip.namelist()}
  memory.require(file.zip.getinfo(names[key]).file_size, key)
  if not isinstance(array := file[key], np.ndarray):
    raise ValueError(f"{key} is not an array")
  return array


PAIRS = (("image", "x"), ("label", "y"))
KEYS = ("image", "x", "label", "y", "x_train", "y_train", "x_test", "y_test")
