"""Data sets from arrays in memory."""

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from ddl.api import Data, Source
from ddl.data import checks, source
from ddl.errors import OptionError
from ddl.ranges import Fraction, checked

FORMS = "(x, y), (x, y, x_test, y_test) or ((x, y), (x_test, y_test))"


@checked
def from_arrays(x: Any, y: Any, x_test: Any = None, y_test: Any = None, *, validation: Fraction = 0.0) -> Data:
  """Create a data set from arrays; by default, a fixed random sixth is the test set.

  The types and shapes determine the task:

  - classification: y [n] are integers; x [n, ...] is floating point, or uint8 images, which are scaled to [-1, 1]; x
    with three axes gets a fourth, for channels;
  - regression: y [n] or [n, outputs] is floating point, and x [n, ...] too;
  - language: x [n, length] and y [n, length] are integers; y are the next tokens.

  Floating-point x are converted to float32.

  Args:
    x, y: training examples, as NumPy or JAX arrays or anything else that `numpy.asarray` converts.
    x_test, y_test: test examples.
    validation: share of the training examples to use for validation.

  Raises:
    OptionError: for arrays of other types and shapes, and for values that are not finite.
  """
  if (x_test is None) != (y_test is None):
    raise OptionError("x_test and y_test", "both set or both None", "only one of them")
  parts = [(np.asarray(x), np.asarray(y))]
  parts += [] if x_test is None else [(np.asarray(x_test), np.asarray(y_test))]
  language = all(array.ndim == 2 and array.dtype.kind in "iu" for array in parts[0])
  regression = parts[0][1].dtype.kind == "f"
  if language or regression:
    sources = [_checked(images, labels, "i" if language else "f") for images, labels in parts]
  else:
    names = ("training set", "test set")[: len(parts)]
    sources = [source.labelled(*pair, name) for pair, name in zip(parts, names, strict=True)]
  train, test = sources if len(sources) == 2 else source.sixth(sources[0], "data")
  description = f"{train.size:,} + {test.size:,} examples from arrays"
  if not language and not regression:
    return source.classification(train, test, description=description, validation=validation)
  train, validation_set = source.split(train, validation)
  x, y = parts[0]
  outputs = 1 + max(int(array.max()) for pair in parts for array in pair) if language else int(np.prod(y.shape[1:]))
  task = "language" if language else "regression"
  meta = {"task": task, "shape": x.shape[1:], "num_outputs": outputs, "description": description}
  return Data(train, test, meta, validation_set)


def flat(values: Sequence[Any]) -> list[Any]:
  """Convert arrays in one of the FORMS to the arguments of `from_arrays`. Raises OptionError for another form."""
  nested = len(values) == 2 and all(isinstance(pair, tuple | list) and len(pair) == 2 for pair in values)
  values = [array for pair in values for array in pair] if nested else [*values]
  if len(values) not in (2, 4):
    raise OptionError("data", f"arrays in the form {FORMS}", f"{len(values)} values")
  return values


def _checked(x: np.ndarray, y: np.ndarray, kind: str) -> Source:
  """Check the arrays of a regression ("f") or language ("i") set and return their source."""
  if kind == "f":
    if x.dtype.kind != "f" or y.dtype.kind != "f":
      raise OptionError("x and y of a regression set", "floating point", f"{x.dtype} and {y.dtype}")
    checks.one_hot(y, "y")
    if y.size and y.ndim == 1 and (y == np.floor(y)).all():
      text = "y are whole numbers of a floating-point type, so the task is regression; convert classes to integers"
      warnings.warn(text, stacklevel=3)
    x, y = x.astype(np.float32), y.astype(np.float32)
    checks.finite(x, "x", int)
    checks.finite(y, "y", int)
  else:
    x, y = x.astype(np.int32), y.astype(np.int32)
  if not len(x):
    raise OptionError("x", "a nonempty array", "0 examples")
  return source.in_memory(x, y)
