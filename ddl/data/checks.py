"""Checks of every data set: types, shapes and values of inputs, labels, tokens, targets and masks.

When a data set is loaded, `checked` reads up to READ bytes of examples and all labels of each part (training, test,
validation). The remaining examples are checked on the host, batch by batch, when they are read.
"""

import contextlib
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ddl.api import Data, Source
from ddl.errors import OptionError, first_line
from ddl.ranges import integers

READ = 2**25  # bytes of examples per part to check before training
SAMPLE = 32  # evenly spaced examples that determine a part's type and range
FEWEST = 16  # minimum number of examples for comparing the ranges of two parts
SECONDS = 2.0  # maximum time for reading a slow source
PIECE = 2**18  # bytes to read at a time
SPECIAL = ("mask", "weight")  # substrings of the names of arrays that mask or weight losses
IGNORED = -100  # PyTorch's default label for ignored positions

Name = Callable[[int], Any]  # position in a batch -> the example's index, for errors
Check = Callable[[Mapping[str, Any], int, Name], None]  # (batch, number of examples, name)


def checked(data: Data, complete: bool = False) -> Data:
  """Check a data set now and return it with a check of its remaining examples, which runs when they are read.

  Args:
    complete: whether the data set's factory has already checked all examples, as ddl's factories do; then only a
      sample and the labels are read.

  Raises:
    OptionError: if labels or tokens are not integers from 0 to num_outputs - 1, or values are not finite (it names the
      first bad index and value); if targets have the wrong shape; or if parts differ in type or range.
  """
  if not isinstance(data.meta, Mapping):
    raise OptionError("the data set's meta", "a dict", type(data.meta).__name__)
  outputs, shape = data.meta.get("num_outputs", 1), data.meta.get("shape", ())
  if not isinstance(outputs, int | np.integer) or outputs not in integers(1, 2**31):
    raise OptionError("num_outputs in the data set's meta", f"an integer from 1 to {2**31}", repr(outputs))
  if not isinstance(shape, Sequence) or isinstance(shape, str):
    condition = "the shape of one example's x (for example, (28, 28, 1))"
    raise OptionError("shape in the data set's meta", condition, repr(shape))
  for name in data.tests:
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or f"{name}_".startswith("ema_"):
      raise OptionError(
        "names of further test sets", "lower-case identifiers that are not ema and do not begin with ema_", repr(name)
      )
  parts = {"training": data.train, "test": data.test, "validation": data.validation}
  parts |= {f"{name} test": part for name, part in data.tests.items()}
  if data.validation is None:
    del parts["validation"]
  verified = {name: _verified(part, data.meta, name, complete) for name, part in parts.items()}
  sources = {name: source for name, (source, _) in verified.items()}
  inputs = {name: x for name, (_, x) in verified.items()}
  for name in [*parts][1:]:
    same_inputs(inputs["training"], inputs[name], "data", ("the training set", f"the {name} set"))
  tests = {name: sources[f"{name} test"] for name in data.tests}
  return Data(sources["training"], sources["test"], data.meta, sources.get("validation"), tests)


def batch_check(meta: Mapping[str, Any], part: str) -> Check:
  """Return a function that raises OptionError for a batch that does not match `Data.meta`."""
  task, outputs, shape = meta.get("task"), meta.get("num_outputs"), meta.get("shape")
  where = f"of the {part} set"

  def check(batch: Mapping[str, Any], count: int, name: Name) -> None:
    arrays = {key: np.asarray(value) for key, value in batch.items()}
    if not {"x", "y"} <= arrays.keys():
      raise OptionError(f"batches {where}", "dicts with the keys 'x' and 'y'", f"the keys {[*arrays]}")
    for key, array in arrays.items():
      if array.shape[:1] != (count,):
        raise OptionError(f"{key} {where}", f"an array of {count} examples", f"shape {list(array.shape)}")
    x, y = arrays.pop("x"), arrays.pop("y")
    if shape is not None and x.shape[1:] != tuple(shape):
      raise OptionError(f"x {where}", f"of shape {_shape(*shape)}", _shape(*x.shape[1:]))
    if task == "language":
      if y.shape != x.shape:
        raise OptionError(f"y {where}", f"of the same shape as x ({list(x.shape)})", list(y.shape))
      class_numbers(x, outputs, f"tokens x {where}", name)
      class_numbers(y, outputs, f"tokens y {where}", name)
    else:
      finite(x, f"x {where}", name)
    if task == "classification":
      if y.ndim == 2 and y.shape[1] == 1:
        raise OptionError(f"labels {where}", "of shape [n]", "[n, 1]", "Use labels[:, 0].")
      one_hot(y, f"labels {where}", outputs, sequence=x.ndim > 1 and x.shape[1] == outputs)
      class_numbers(y, outputs, f"labels {where}", name)
    elif task != "language":
      targets = f"targets y {where}" if task == "regression" else f"y {where}"
      if task == "regression" and outputs and (y.shape[-1] != outputs if y.ndim > 1 else outputs != 1):
        shapes = "[n, 1] or [n]" if outputs == 1 else _shape(outputs)
        raise OptionError(targets, f"of shape {shapes}", _shape(*y.shape[1:]))
      finite(y, targets, name, "biuf" if task != "regression" else "iuf")
    for key, array in arrays.items():
      if any(word in key for word in SPECIAL):
        finite(array, f"{key} {where}", name)
        most, condition = (1, "in [0, 1]") if "mask" in key else (np.inf, "at least 0")
        _check_elements(array, (array >= 0) & (array <= most), f"{key} {where}", condition, name)

  return check


@contextlib.contextmanager
def readable(what: str) -> Iterator[None]:
  """Convert the errors that a library raises while it reads `what` to a one-line OptionError."""
  try:
    yield
  except OptionError:
    raise
  except Exception as error:
    raise OptionError(what, "readable", f"{type(error).__name__}: {first_line(error)}") from error


def class_numbers(labels: np.ndarray, classes: int | None, what: str, name: Name) -> None:
  """Raise OptionError unless labels are integers from 0 to classes - 1.

  labels: [n, ...]; classes: number of classes, or of tokens in the vocabulary; None: any int32 >= 0.
  """
  most, kind = (classes or 2**31) - 1, labels.dtype.kind
  condition = f"integers from 0 to {most}" + " (int32)" * (classes is None)
  if kind == "f":
    _check_elements(labels, labels == np.floor(labels), what, condition, name)
  if kind not in "iu":
    convert = "Convert them with .astype(np.int32)." if kind in "fb" else ""
    raise OptionError(what, condition, f"{labels.dtype} {list(labels.shape)}", convert)
  if labels.size and not (labels.min() >= 0 and labels.max() <= most):

    def advice(value: int) -> str:
      if value == IGNORED:
        return "Ignored labels are not supported: omit these examples."
      if value == most + 1 and labels.min() == 1:
        return "Labels start at 0: subtract 1 from all of them."
      return "Labels start at 0; negative labels are not supported." if value < 0 else ""

    _check_elements(labels, (labels >= 0) & (labels <= most), what, condition, name, advice)
  if classes and np.iinfo(labels.dtype).max < most:
    convert = "Convert the original numbers with .astype(np.int32)."
    raise OptionError(what, f"of a type that can represent {most}", labels.dtype, convert)


def one_hot(labels: np.ndarray, what: str, classes: int | None = None, sequence: bool = False) -> None:
  """Raise OptionError for one-hot labels [n, classes].

  sequence: whether an example has `classes` positions; then [n, classes] may be one class per position instead.
  """
  if labels.ndim != 2 or labels.shape[1] < 2 or sequence or (classes is not None and labels.shape[1] != classes):
    return
  if labels.dtype.kind in "iufb" and ((labels == 0) | (labels == 1)).all() and (labels.sum(axis=1) == 1).all():
    value = f"one-hot labels {list(labels.shape)}"
    raise OptionError(what, "class numbers [n]", value, "Use labels.argmax(axis=1).")


def element(example: Any, what: str) -> None:
  """Raise OptionError unless an element of a grain data set is a dict of x and y, without masks or weights."""
  if not isinstance(example, Mapping) or not {"x", "y"} <= {*example}:
    value = f"the keys {[*example]}" if isinstance(example, Mapping) else type(example).__name__
    raise OptionError(f"elements of {what}", "dicts with the keys 'x' and 'y'", value)
  if special := [key for key in example if any(word in str(key) for word in SPECIAL)]:
    raise OptionError(
      f"elements of {what}", "dicts without masks and weights", f"the key '{special[0]}', which losses do not use"
    )


def sample(part: Source | np.ndarray) -> np.ndarray:
  """Return x of evenly spaced examples of a source, or evenly spaced rows of an array."""
  return np.asarray(part.take(spread(part))["x"]) if isinstance(part, Source) else part[_evenly(len(part))]


def same_inputs(one: np.ndarray, two: np.ndarray, where: str, names: tuple[str, str] = ("train", "test")) -> None:
  """Raise OptionError if samples of two parts (see `sample`) differ in shape, in kind of type, or clearly in range.

  There are two kinds of types: floating point and all others. Ranges differ clearly in these cases, which do not occur
  by chance in one data set:

  - Images: the mean |x| of one part exceeds four times the largest |x| of the other, as with 0..255 and 0..1.
  - Images: all values are within -1..1; at least a quarter of one part's values are negative, but none of the other's.
  - Floating-point numbers or uint8: neither part has negative values; one is within 0..1, and the other has a mean
    above 4 and more than a twentieth of its values above 1.
  """
  option = f"{where}: x of {names[1]}"
  if one.shape[1:] != two.shape[1:]:
    raise OptionError(option, f"of the same shape as in {names[0]} ({list(one.shape[1:])})", list(two.shape[1:]))
  if (one.dtype.kind == "f") != (two.dtype.kind == "f"):
    raise OptionError(option, f"of the same type as in {names[0]} ({one.dtype})", two.dtype)
  if min(len(one), len(two)) < FEWEST or not one.size:
    return
  images = one.ndim == 4 and one.dtype.kind == "f"
  numbers = one.dtype.kind == "f" or one.dtype == two.dtype == np.uint8
  if (images and _ranges_differ(one, two)) or (numbers and (_only_one_scaled(one, two) or _only_one_scaled(two, one))):
    ranges = [f"{x.min():.3g} to {x.max():.3g}" for x in (one, two)]
    raise OptionError(
      option, f"in the same range as in {names[0]} ({ranges[0]})", ranges[1], "Scale both parts equally."
    )


def _ranges_differ(one: np.ndarray, two: np.ndarray) -> bool:
  size = [np.abs(x) for x in (one, two)]
  most, mean = [x.max() for x in size], [x.mean() for x in size]
  if any(0 < 4 * most[k] < mean[1 - k] for k in (0, 1)):
    return True
  negative = [(x < 0).mean() for x in (one, two)]
  return bool(max(most) <= 1 and min(negative) == 0 and max(negative) >= 0.25)


def _only_one_scaled(one: np.ndarray, two: np.ndarray) -> bool:
  unit = one.min() >= 0 and 0 < one.max() <= 1
  return bool(unit and two.min() >= 0 and two.mean() > 4 and (two > 1).mean() > 0.05)


def _verified(source: Any, meta: Mapping[str, Any], part: str, complete: bool) -> tuple[Source, np.ndarray]:
  """Check one part of a data set; return (source that checks the remaining examples when read, x of a `sample`)."""
  if not isinstance(source, Source):
    raise OptionError(f"the {part} set", "a ddl.Source", type(source).__name__)
  labels, size = None if source.labels is None else np.asarray(source.labels), source.size
  if not isinstance(size, int | np.integer) or size < 1:
    raise OptionError(f"size of the {part} set", "an integer >= 1", repr(size))
  if labels is not None and labels.shape != (size,):
    raise OptionError(f"labels of the {part} set", f"of shape [{size}] (one per example)", list(labels.shape))
  fits, outputs = batch_check(meta, part), meta.get("num_outputs", 1)
  classes = labels if meta.get("task") == "classification" else None
  if classes is not None and not (classes.dtype.kind in "iu" and ((classes >= 0) & (classes < outputs)).all()):
    classes = None  # larger numbers only group examples for partitions

  def check(batch: Mapping[str, Any], indices: np.ndarray) -> None:
    fits(batch, indices.size, indices.__getitem__)
    y = np.asarray(batch["y"])
    if classes is not None and y.ndim == 1 and (wrong := np.flatnonzero(classes[indices] != y)).size:
      index, value = indices[wrong[0]], y[wrong[0]]
      advice = f"To partition by groups other than classes, start their numbers at {outputs}."
      condition = f"equal to y ({value} at index {index})"
      raise OptionError(f"labels of the {part} set", condition, classes[index], advice)

  def read(indices: np.ndarray) -> Mapping[str, Any]:
    with readable(f"examples {indices[0]} to {indices[-1]} of the {part} set"):  # the function may be user-defined
      batch = source.take(indices)
    if not isinstance(batch, Mapping):
      raise OptionError(f"the result of take() of the {part} set", "a dict of x and y", type(batch).__name__)
    return batch

  sampled = spread(source)
  batch = read(sampled)
  nbytes = max(1, sum(np.asarray(x).nbytes for x in batch.values()) // len(sampled))  # per example
  count, piece = 0 if source.stream or complete else min(size, READ // nbytes), max(1, PIECE // nbytes)
  if labels is not None and meta.get("task") == "classification" and np.array_equal(labels[sampled], batch["y"]):
    class_numbers(labels, meta.get("num_outputs"), f"labels of the {part} set", int)
  finished, until = 0, time.monotonic() + SECONDS
  while finished < count and time.monotonic() < until:  # in order, so that errors name the first bad example
    indices = np.arange(finished, min(finished + piece, count))
    check(read(indices), indices)
    finished += len(indices)
  check(batch, sampled)
  if source.stream or complete or (source.augmented is None and finished == size):
    return source, np.asarray(batch["x"])

  def checked_batch(batch: dict[str, np.ndarray], indices: np.ndarray) -> dict[str, np.ndarray]:
    check(batch, indices)
    return batch

  return with_batches(source, checked_batch), np.asarray(batch["x"])


def with_batches(source: Source, change: Callable[[dict[str, Any], np.ndarray], dict[str, Any]]) -> Source:
  """Return a source that applies change(batch, indices) to its batches, with and without augmentation."""
  before = source.augmented
  return source._replace(
    take=lambda indices: change(source.take(indices), np.asarray(indices)),
    augmented=before and (lambda rngs, indices: change(before(rngs, indices), indices.reshape(-1))),
  )


def spread(source: Source) -> np.ndarray:
  """Return the indices of evenly spaced examples of a source; of a stream, one index."""
  return _evenly(source.size, 1 if source.stream else SAMPLE)


def _evenly(size: int, count: int = SAMPLE) -> np.ndarray:
  return np.unique(np.linspace(0, size - 1, min(size, count)).astype(np.int64))


def _shape(*sizes: Any) -> str:
  return f"[{', '.join(map(str, ('n', *sizes)))}]"


def finite(x: np.ndarray, what: str, name: Name, kinds: str = "biuf") -> None:
  """Raise OptionError unless x has a numeric type and finite values."""
  if x.dtype.kind not in kinds and not x.dtype.name.startswith(("bfloat16", "float8")):
    raise OptionError(what, "real numbers", x.dtype)
  if x.dtype.kind == "f":
    _check_elements(x, np.isfinite(x), what, "finite", name)


def _check_elements(
  array: np.ndarray, good: np.ndarray, what: str, condition: str, name: Name,
  advice: Callable[[Any], str] = lambda value: "",
) -> None:  # fmt: skip
  """Raise OptionError for the first element whose entry in the mask `good` is False, if any."""
  if not good.all():
    first = np.unravel_index(good.argmin(), good.shape)
    value = array[first].item()
    raise OptionError(what, condition, f"{value} at index {name(int(first[0]))}", advice(value))
