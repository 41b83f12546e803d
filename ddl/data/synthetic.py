"""Synthetic data: a noisy least-squares problem with a known optimum, and random examples of any shape."""

import math
from typing import Annotated

import numpy as np

from ddl import memory
from ddl.api import Data, Source
from ddl.data import source
from ddl.errors import OptionError
from ddl.ranges import LARGEST_FLOAT, Fraction, NonNegativeFloat, PositiveInt, Range, checked, integers


@checked
def least_squares(
  *,
  examples: Annotated[int, integers(4)] = 2048,
  features: PositiveInt = 32,
  noise: NonNegativeFloat = 0.1,
  condition: Annotated[float, Range(1, LARGEST_FLOAT)] = 10.0,
  validation: Fraction = 0.0,
) -> Data:
  """Draw a least-squares problem: y = x w* + noise * N(0, 1), x ~ N(0, C), eigenvalues of C from 1 to 1 / condition.

  x: [features], y: [1]. The test set has examples / 4 further draws. meta["optimum"] is the exact minimizer
  w [features, 1] of the training loss f(w) = mean 0.5 (x w - y)^2 (float64), and meta["optimal_loss"] is f(optimum).

  Args:
    examples: number of training examples, including those for validation.
    features: length of x.
    noise: standard deviation of y around x w*.
    condition: condition number of C, at least 1.
    validation: share of the examples to use for validation; the optimum is for the rest.
  """
  nbytes = 8 * features * (examples + features)  # float64
  memory.require(nbytes, f"least_squares of {examples} examples and {features} features")
  rng = np.random.default_rng(0)
  rotation, _ = np.linalg.qr(rng.standard_normal((features, features)))
  scales = np.sqrt(np.geomspace(1, 1 / condition, features))
  weights = rng.standard_normal((features, 1))

  def draw(count: int) -> Source:
    x = (rng.standard_normal((count, features)) * scales) @ rotation.T  # C = rotation diag(scales^2) rotation^T
    y = x @ weights + noise * rng.standard_normal((count, 1))
    return source.in_memory(x.astype(np.float32), y.astype(np.float32))

  train, validation_set = source.split(draw(examples), validation)
  test = draw(examples // 4)
  batch = train.take(np.arange(train.size))
  x, y = batch["x"].astype(np.float64), batch["y"].astype(np.float64)
  optimum, *_ = np.linalg.lstsq(x, y)
  meta = {
    "task": "regression",
    "shape": (features,),
    "num_outputs": 1,
    "description": f"least squares, {features} features, noise {noise:g}, condition number {condition:g}",
    "optimum": optimum,
    "optimal_loss": float(np.mean(0.5 * (x @ optimum - y) ** 2)),
  }
  return Data(train, test, meta, validation_set)


DIFFERENT = 2**26  # maximum bytes of different examples; more examples repeat them
TASKS = ("classification", "language", "regression")


@checked
def synthetic(
  *,
  task: str = "classification",
  shape: tuple[PositiveInt, ...] = (28, 28, 1),
  num_outputs: PositiveInt = 10,
  examples: Annotated[int, integers(4)] = 8192,
  validation: Fraction = 0.0,
) -> Data:
  """Draw random inputs and independent targets, so that nothing can be learned.

  classification: x ~ N(0, 1) [shape], y a class. regression: y ~ N(0, 1) [num_outputs]. language: x tokens [length]
  for shape (length,), y the next tokens. The test set has a quarter as many examples.

  Args:
    task: "classification", "language" or "regression".
    shape: shape of one x.
    num_outputs: number of classes, outputs, or tokens of the vocabulary.
    examples: number of training examples, including those for validation.
    validation: share of the examples to use for validation.
  """
  if task not in TASKS:
    raise OptionError("config.data.task", f"one of {', '.join(TASKS)}", repr(task))
  if not shape or (task == "language" and len(shape) != 1):
    raise OptionError("config.data.shape", "one or more dimensions (exactly one for task=language)", shape)
  nbytes = 4 * (math.prod(shape) + num_outputs * (task == "regression"))  # per example
  count = min(examples, max(DIFFERENT // nbytes, 4))
  memory.require(3 * nbytes * count, f"synthetic examples of shape {shape}")
  rng = np.random.default_rng(0)
  if task == "language":
    tokens = rng.integers(0, num_outputs, (count, shape[0] + 1), dtype=np.int32)
    x, y = tokens[:, :-1], tokens[:, 1:]
  elif task == "classification":
    x = rng.standard_normal((count, *shape), dtype=np.float32)
    y = rng.integers(0, num_outputs, count, dtype=np.int32)
  else:
    x, y = (rng.standard_normal((count, *sizes), dtype=np.float32) for sizes in (shape, (num_outputs,)))

  arrays = {"x": x, "y": y}

  def part(size: int) -> Source:
    def take(indices: np.ndarray) -> dict[str, np.ndarray]:
      return {name: array.take(indices % count, axis=0) for name, array in arrays.items()}

    return Source(size, take, y[np.arange(size) % count] if task == "classification" else None)

  train, validation_set = source.split(part(examples), validation)
  description = f"synthetic {task}, {examples:,} random examples of {' x '.join(map(str, shape))}"
  meta = {"task": task, "shape": tuple(shape), "num_outputs": num_outputs, "description": description}
  return Data(train, part(examples // 4), meta, validation_set)
