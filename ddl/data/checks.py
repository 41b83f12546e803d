"""Checks of every data set: types, shapes and values of inputs, labels, tokens, targets and masks.

`checked` reads READ bytes of each part when a data set is loaded, and all labels of a source. Further examples are
checked in each batch, on the host.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ddl.api import Data, Source

READ = 2**25  # bytes of examples of each part that are checked before training
SAMPLE = 32  # evenly spread examples, from which a part's type and range are taken
FEWEST = 16  # examples from which on ranges of two parts are compared
SECONDS = 2.0  # limit of the reading time of a slow source
PIECE = 2**18  # bytes that are read at a time
SPECIAL = ("mask", "weight")  # in the names of arrays of loss weights
IGNORED = -100  # PyTorch's default label of positions that no loss counts

Name = Callable[[int], Any]  # position in a batch -> the example's index, for errors
Check = Callable[[Mapping[str, Any], int, Name], None]  # (batch, its examples, name)


def checked(data: Data, complete: bool = False) -> Data:
  """Check a data set; examples that are not read here are checked when they are taken.

  Args:
    data: see `Data`.
    complete: whether its factory has checked all examples, as ddl's do; then only a sample and the labels are read.

  Raises:
    ValueError: with the first bad index and value: labels or tokens that are no integers from 0 to num_outputs - 1,
      targets of another shape, values that are not finite, parts of different types or ranges.
  """
  if not isinstance(data.meta, Mapping):
    raise ValueError(f"meta of the data must be a dict, got {type(data.meta).__name__}.")
  outputs, shape = data.meta.get("num_outputs", 1), data.meta.get("shape", ())
  if isinstance(outputs, bool) or not isinstance(outputs, int | np.integer) or not 1 <= outputs <= 2**31:
    raise ValueError(f"num_outputs of the data's meta must be an integer from 1 to {2**31}, got {outputs!r}.")
  if not isinstance(shape, Sequence) or isinstance(shape, str):
    raise ValueError(f"shape of the data's meta must be the sizes of one x, such as (28, 28, 1), got {shape!r}.")
  train, inputs = _verified(data.train, data.meta, "training", complete)
  others = {"test": data.test} | ({} if data.validation is None else {"validation": data.validation})
  for name, part in others.items():
    others[name], other = _verified(part, data.meta, name, complete)
    same_inputs(inputs, other, "data", ("the training set", f"the {name} set"))
  return Data(train, others["test"], data.meta, others.get("validation"))


def batch_check(meta: Mapping[str, Any], part: str) -> Check:
  """Return a function that raises ValueError for a batch that does not fit `Data.meta`."""
  task, outputs, shape = meta.get("task"), meta.get("num_outputs"), meta.get("shape")
  where = f"of the {part} set"

  def check(batch: Mapping[str, Any], count: int, name: Name) -> None:
    arrays = {key: np.asarray(value) for key, value in batch.items()}
    if not {"x", "y"} <= arrays.keys():
      raise ValueError(f"batches {where} must have x and y, got {', '.join(map(str, arrays)) or 'nothing'}.")
    for key, array in arrays.items():
      if array.shape[:1] != (count,):
        raise ValueError(f"{key} {where} must have {count} examples, got shape {list(array.shape)}.")
    x, y = arrays.pop("x"), arrays.pop("y")
    if shape is not None and x.shape[1:] != tuple(shape):
      raise ValueError(f"x {where} must have shape {['n', *shape]}, got {['n', *x.shape[1:]]}.".replace("'", ""))
    if task == "language":
      if y.shape != x.shape:
        raise ValueError(f"y {where} must have the shape of x, {list(x.shape)}, got {list(y.shape)}.")
      class_numbers(x, outputs, f"tokens x {where}", name)
      class_numbers(y, outputs, f"tokens y {where}", name)
    else:
      _finite(x, f"x {where}", name)
    if task == "classification":
      if y.ndim == 2 and y.shape[1] == 1:
        raise ValueError(f"labels {where} must have shape [n], got [n, 1]. Use labels[:, 0].")
      one_hot(y, f"labels {where}", outputs, sequence=x.ndim > 1 and x.shape[1] == outputs)
      class_numbers(y, outputs, f"labels {where}", name)
    elif task == "regression":
      _targets(y, outputs, f"targets y {where}", name)
    elif task != "language":
      _finite(y, f"y {where}", name)
    for key, array in arrays.items():
      if any(word in key for word in SPECIAL):
        _weights(array, f"{key} {where}", name)

  return check


def class_numbers(labels: np.ndarray, classes: int | None, what: str, name: Name) -> None:
  """Raise ValueError unless labels are integers from 0 to classes - 1.

  Args:
    labels: [n, ...].
    classes: number of classes, or of tokens in a vocabulary; None: those of int32.
    what: the labels' name, for errors.
    name: of the example at a position.
  """
  most = classes or 2**31
  condition = f"integers from 0 to {most - 1}" + " (int32)" * (classes is None)
  if labels.dtype.kind not in "iu":
    if labels.dtype.kind == "f":
      _refuse(labels, labels == np.floor(labels), f"{what} must be {condition}", name)
    convert = " Convert them with .astype(np.int32)." if labels.dtype.kind in "fb" else ""
    raise ValueError(f"{what} must be {condition}, got {labels.dtype} {list(labels.shape)}.{convert}")
  if labels.size and not (labels.min() >= 0 and labels.max() < most):
    good = (labels >= 0) & (labels < most)
    _refuse(labels, good, f"{what} must be {condition}", name, lambda value: _advice(labels, value, most))
  if classes and np.iinfo(labels.dtype).max < classes - 1:
    raise ValueError(
      f"{what} must be of a type that holds {classes - 1}, got {labels.dtype}. Convert the original numbers with "
      ".astype(np.int32)."
    )


def one_hot(labels: np.ndarray, what: str, classes: int | None = None, sequence: bool = False) -> None:
  """Raise ValueError for one-hot labels [n, classes].

  sequence: whether an example is a sequence of that length, so that [n, classes] may be one class per position.
  """
  if labels.ndim != 2 or labels.shape[1] < 2 or sequence or (classes is not None and labels.shape[1] != classes):
    return
  if labels.dtype.kind in "iufb" and ((labels == 0) | (labels == 1)).all() and (labels.sum(axis=1) == 1).all():
    raise ValueError(
      f"{what} must be class numbers [n], got one-hot labels {list(labels.shape)}. Use labels.argmax(axis=1)."
    )


def element(first: Any, what: str) -> None:
  """Raise ValueError unless an element of a grain data set is a dict of x and y, without masks and weights."""
  if not isinstance(first, Mapping) or not {"x", "y"} <= {*first}:
    raise ValueError(f"{what} has elements of {type(first).__name__}; invalid: must be a dict of x and y")
  if special := [key for key in first if any(word in str(key) for word in SPECIAL)]:
    raise ValueError(f"{what} must have elements of x and y only, got {special[0]}, which no loss would read.")


def sample(source: Source) -> np.ndarray:
  """Return x of some evenly spread examples."""
  return np.asarray(source.take(_spread(source))["x"])


def rows(array: np.ndarray) -> np.ndarray:
  """Return the rows of an array that `sample` takes."""
  return array[_evenly(len(array))]


def same_inputs(one: np.ndarray, two: np.ndarray, where: str, names: tuple[str, str] = ("train", "test")) -> None:
  """Raise ValueError if `sample`s of two parts differ in shape, in type, or clearly in range.

  Ranges of images differ if the mean of one part's values is above four times the largest of the other, as with 0..255
  and 0..1; or if a quarter of one part's values and none of the other's is negative, all within -1..1. Parts of one
  set of images do not do that by chance. Ranges of other floating-point numbers, and of uint8, differ if one part's
  values are all within 0..1, and the other's mean is above 4 with a twentieth of its values above 1.
  """
  condition = f"{where}: x of {names[1]} must have the {{}} of {names[0]}"
  if one.shape[1:] != two.shape[1:]:
    shapes = f"{list(one.shape[1:])} and {list(two.shape[1:])}"
    raise ValueError(f"{where}: {names[0]} and {names[1]} have examples of different shapes, {shapes}.")
  if (one.dtype.kind == "f") != (two.dtype.kind == "f"):
    raise ValueError(f"{condition.format('type')}, {one.dtype}, got {two.dtype}.")
  if min(len(one), len(two)) < FEWEST or not one.size:
    return
  images = one.ndim == 4 and one.dtype.kind == "f"
  numbers = one.dtype.kind == "f" or one.dtype == two.dtype == np.uint8
  if (images and _ranges_differ(one, two)) or (numbers and (_only_one_scaled(one, two) or _only_one_scaled(two, one))):
    ranges = [f"{x.min():.3g} to {x.max():.3g}" for x in (one, two)]
    raise ValueError(f"{condition.format('range')}, {ranges[0]}, got {ranges[1]}. Scale both alike.")


def _ranges_differ(one: np.ndarray, two: np.ndarray) -> bool:
  size = [np.abs(x) for x in (one, two)]
  most, mean = [x.max() for x in size], [x.mean() for x in size]
  if any(0 < 4 * most[k] < mean[1 - k] for k in (0, 1)):
    return True
  negative = [(x < 0).mean() for x in (one, two)]
  return max(most) <= 1 and min(negative) == 0 and max(negative) >= 0.25


def _only_one_scaled(one: np.ndarray, two: np.ndarray) -> bool:
  unit = one.min() >= 0 and 0 < one.max() <= 1
  return bool(unit and two.min() >= 0 and two.mean() > 4 and (two > 1).mean() > 0.05)


def _verified(source: Any, meta: Mapping[str, Any], part: str, complete: bool) -> tuple[Source, np.ndarray]:
  """Check a part; return its source, which checks the remaining examples in `take`, and x of `sample`."""
  if not isinstance(source, Source):
    raise ValueError(f"the {part} set must be a ddl.Source, got {type(source).__name__}.")
  labels, size = None if source.labels is None else np.asarray(source.labels), source.size
  if not isinstance(size, int | np.integer) or size < 1:
    raise ValueError(f"size of the {part} set must be an integer of at least 1, got {size!r}.")
  if labels is not None and np.shape(labels) != (size,):
    shape = list(np.shape(labels))
    raise ValueError(f"labels of the {part} set must have shape [{size}], one for each example, got {shape}.")
  fits, outputs = batch_check(meta, part), meta.get("num_outputs", 1)
  classes = labels if labels is not None and meta.get("task") == "classification" else None
  if classes is not None and not (classes.dtype.kind in "iu" and ((classes >= 0) & (classes < outputs)).all()):
    classes = None  # other numbers group the examples for partitions

  def check(batch: Mapping[str, Any], indices: np.ndarray) -> None:
    fits(batch, indices.size, indices.__getitem__)
    y = np.asarray(batch["y"])
    if classes is not None and y.ndim == 1 and (wrong := np.flatnonzero(classes[indices] != y)).size:
      index, value = indices[wrong[0]], y[wrong[0]]
      raise ValueError(
        f"labels of the {part} set must be those of its y, {value} at index {index}, got {classes[index]}. "
        f"Number other groups, for partitions, from {outputs} on."
      )

  def read(indices: np.ndarray) -> Mapping[str, Any]:
    try:
      batch = source.take(indices)
    except ValueError:
      raise
    except Exception as error:  # the function may be the user's, and so are its errors
      reason = next(iter(str(error).splitlines()), "")
      what = f"{indices[0]} to {indices[-1]} of the {part} set"
      raise ValueError(f"taking examples {what} fails ({type(error).__name__}: {reason})") from error
    if not isinstance(batch, Mapping):
      raise ValueError(f"take of the {part} set must return a dict of x and y, got {type(batch).__name__}.")
    return batch

  def take(indices: np.ndarray) -> dict[str, Any]:
    batch = source.take(indices)
    check(batch, np.asarray(indices))
    return batch

  spread = _spread(source)
  batch = read(spread)
  nbytes = max(1, sum(np.asarray(x).nbytes for x in batch.values()) // len(spread))  # of an example
  count, piece = 0 if source.stream or complete else min(size, READ // nbytes), max(1, PIECE // nbytes)
  if labels is not None and meta.get("task") == "classification" and np.array_equal(labels[spread], batch["y"]):
    class_numbers(labels, meta.get("num_outputs"), f"labels of the {part} set", int)
  finished, until = 0, time.monotonic() + SECONDS
  while finished < count and time.monotonic() < until:  # in order, so that errors name the first bad one
    indices = np.arange(finished, min(finished + piece, count))
    check(read(indices), indices)
    finished += len(indices)
  check(batch, spread)
  inputs = np.asarray(batch["x"])
  if source.stream or complete:
    return source, inputs
  before = source.augmented
  if before is None:
    return source if finished == size else source._replace(take=take), inputs

  def augmented(rngs: Sequence[np.random.Generator], indices: np.ndarray) -> dict[str, np.ndarray]:
    batch = before(rngs, indices)
    check(batch, indices.reshape(-1))
    return batch

  return source._replace(take=take, augmented=augmented), inputs


def _spread(source: Source) -> np.ndarray:
  return _evenly(source.size, 1 if source.stream else SAMPLE)


def _evenly(size: int, count: int = SAMPLE) -> np.ndarray:
  return np.unique(np.linspace(0, size - 1, min(size, count)).astype(np.int64))


def _targets(y: np.ndarray, outputs: int | None, what: str, name: Name) -> None:
  expected = ["n", outputs] if outputs != 1 else ["n, 1] or [n"]
  if outputs is not None and (y.shape[-1] != outputs if y.ndim > 1 else outputs != 1):
    shapes = f"{expected}, got {['n', *y.shape[1:]]}".replace("'", "")
    raise ValueError(f"{what} must have shape {shapes}.")
  if y.dtype.kind not in "iuf":
    raise ValueError(f"{what} must be numbers, got {y.dtype}.")
  _finite(y, what, name)


def _finite(x: np.ndarray, what: str, name: Name) -> None:
  """Raise ValueError for types that are no numbers, or values that are not finite."""
  if x.dtype.kind not in "biuf" and not x.dtype.name.startswith(("bfloat16", "float8")):
    raise ValueError(f"{what} must be real numbers, got {x.dtype}.")
  if x.dtype.kind == "f" and not (good := np.isfinite(x)).all():
    _refuse(x, good, f"{what} must be finite", name)


def _weights(array: np.ndarray, what: str, name: Name) -> None:
  _finite(array, what, name)
  most = 1 if "mask" in what else np.inf
  _refuse(array, (array >= 0) & (array <= most), f"{what} must be {'0 or 1' if most == 1 else 'at least 0'}", name)


def _refuse(
  array: np.ndarray, good: np.ndarray, what: str, name: Name,
  advice: Callable[[Any], str] = lambda value: "",
) -> None:  # fmt: skip
  """Raise ValueError with the first element that is not good, if there is one."""
  rows = good.reshape(len(good), -1)
  bad = np.flatnonzero(~rows.all(axis=1))
  if bad.size:
    value = array.reshape(rows.shape)[bad[0]][~rows[bad[0]]][0].item()
    raise ValueError(f"{what}, got {value} at index {name(bad[0])}.{advice(value)}")


def _advice(labels: np.ndarray, value: int, most: int) -> str:
  if value == IGNORED:
    return " Ignored labels are not supported: leave these examples out."
  if value == most and labels.min() == 1:
    return " Labels start at 0: subtract 1 from all of them."
  return " They start at 0, and negative ones are not supported." if value < 0 else ""
