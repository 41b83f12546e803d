"""Random examples of any shape: for dry runs and speed, where the data are not at hand."""

import math
from typing import Annotated, Any

import numpy as np

from ddl import memory
from ddl.api import Data, Source
from ddl.data import source
from ddl.ranges import Fraction, PositiveInt, checked, integers

KEPT = 2**26  # bytes of different examples, at most; further ones are these again
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
  """Inputs and targets drawn independently, so that there is nothing to learn.

  classification: x ~ N(0, 1) [shape], y a class. regression: y ~ N(0, 1) [num_outputs]. language: x tokens [length]
  for shape (length,), y those that follow. The test set has a quarter as many examples.

  Args:
    task: "classification", "language" or "regression".
    shape: of one example's x.
    num_outputs: number of classes, outputs, or tokens of the vocabulary.
    examples: training examples, those set apart for validation included.
    validation: share of the examples to set apart.

  Raises:
    ValueError: one line, for another task, or numbers that cannot be.
  """
  if task not in TASKS:
    raise ValueError(f"synthetic.task must be one of {', '.join(TASKS)}, got {task!r}.")
  if not shape or (task == "language" and len(shape) != 1):
    raise ValueError(f"synthetic.shape must have one length or more, of language exactly one, got {shape}.")
  one = 4 * (math.prod(shape) + num_outputs * (task == "regression"))
  kept = min(examples, max(KEPT // one, 4))
  memory.require(3 * one * kept, f"synthetic examples of shape {shape}")
  rng = np.random.default_rng(0)
  x, y = _draw(rng, task, shape, num_outputs, kept)

  def part(size: int) -> Source:
    return Source(size, take, y[np.arange(size) % kept] if task == "classification" else None)

  def take(indices: np.ndarray) -> dict[str, Any]:
    return {"x": x.take(indices % kept, axis=0), "y": y.take(indices % kept, axis=0)}

  train, held_out = source.split(part(examples), validation)
  description = f"synthetic {task}, {examples:,} random examples of {' x '.join(map(str, shape))}"
  meta = {"task": task, "shape": tuple(shape), "num_outputs": num_outputs, "description": description}
  return Data(train, part(examples // 4), meta, held_out)


def _draw(rng: Any, task: str, shape: tuple[int, ...], outputs: int, count: int) -> tuple[np.ndarray, np.ndarray]:
  if task == "language":
    tokens = rng.integers(0, outputs, (count, shape[0] + 1), dtype=np.int32)
    return tokens[:, :-1], tokens[:, 1:]
  x = rng.standard_normal((count, *shape), dtype=np.float32)
  if task == "classification":
    return x, rng.integers(0, outputs, count, dtype=np.int32)
  return x, rng.standard_normal((count, outputs), dtype=np.float32)
