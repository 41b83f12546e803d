"""Images and labels from one .npz file: Keras' mnist.npz, or what `np.savez(path, image=..., label=...)` saves."""

import math
import zipfile

import numpy as np

from ddl import files, memory
from ddl.api import Data
from ddl.data import checks, source
from ddl.data.images import preprocessing
from ddl.ranges import Fraction, checked


@checked
def npz(*, path: str = "", validation: Fraction = 0.0, augment: str = "none", normalize: str = "unit") -> Data:
  """The images of a .npz file, uint8 as float32 in [-1, 1] with a channel axis; floating point as it is.

  Its arrays are x_train, y_train, x_test, y_test, or one image (or x) and label (or y), of which a fixed shuffled
  sixth is the test set. augment, normalize: of images, see `ddl.data.images.preprocessing`.

  Raises:
    FileNotFoundError, ValueError: one line, for a file that is missing, malformed, lacks these arrays or would not fit
      into the memory, or training and test images of different types, shapes or ranges.
  """
  preprocessing.check_names(augment, normalize)
  found = files.regular(source.existing(path, "FILE.npz"))
  if not zipfile.is_zipfile(found):
    raise ValueError(f"{path}: not a .npz file (a zip archive of arrays, as np.savez writes)")
  try:
    declared = files.npz_arrays(found, KEYS)
  except Exception as error:  # a damaged or encrypted archive: zipfile and zlib raise their own
    raise _unreadable(path, error) from error
  copies = {key: 4 * math.prod(declared[key].shape) for key in IMAGES if key in declared}  # as float32
  size = sum(array.nbytes + copies.get(key, 0) for key, array in declared.items())
  memory.require(size, path)
  try:
    with np.load(found, allow_pickle=False) as file:
      arrays, known = {key: file[key] for key in declared}, ", ".join(file.files) or "nothing"
  except Exception as error:  # and pickled objects
    raise _unreadable(path, error) from error

  pixels = any(arrays[key].dtype == np.uint8 for key in ("x_train", "image", "x") if key in arrays)
  if all(key in arrays for key in ("x_train", "y_train", "x_test", "y_test")):
    types = arrays["x_train"].dtype, arrays["x_test"].dtype
    if types[0] != types[1]:
      raise ValueError(f"{path}: x_test must have the type of x_train, {types[0]}, got {types[1]}. Save both alike.")
    train = source.labelled(arrays["x_train"], arrays["y_train"], f"{path}, train")
    test = source.labelled(arrays["x_test"], arrays["y_test"], f"{path}, test")
    names = "x_train", "x_test"
    checks.same_inputs(checks.sample(train), checks.sample(test), path, names)
    checks.same_inputs(checks.rows(arrays["x_train"]), checks.rows(arrays["x_test"]), path, names)  # as they are stored
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


def _unreadable(path: str, error: Exception) -> ValueError:
  reason = next(iter(str(error).splitlines()), type(error).__name__)
  return ValueError(f"{path}: not readable as a .npz file: {reason}")


PAIRS = (("image", "x"), ("label", "y"))
IMAGES = ("image", "x", "x_train", "x_test")
KEYS = ("image", "x", "label", "y", "x_train", "y_train", "x_test", "y_test")
