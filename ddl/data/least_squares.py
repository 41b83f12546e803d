"""A noisy linear least-squares problem whose optimum is known: for questions of optimization alone."""

from typing import Annotated

import numpy as np

from ddl import memory
from ddl.api import Data, Source
from ddl.data import source
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
  """y = x w* + noise * N(0, 1), x ~ N(0, C), where C has eigenvalues from 1 down to 1 / condition.

  x: [features], y: [1]. The test set has a quarter as many fresh examples. meta has "optimum", the exact minimiser
  w [features, 1] of the training loss f(w) = mean 0.5 (x w - y)^2 (float64), and "optimal_loss" = f(optimum).

  Args:
    examples: training examples, those set apart for validation included.
    features: length of x.
    noise: standard deviation of y about x w*.
    condition: ratio of the extreme eigenvalues of C, at least 1.
    validation: share of the examples to set apart; the optimum is that of the rest.
  """
  size = 8 * features * (examples + features)  # float64
  memory.require(size, f"least_squares of {examples} examples and {features} features")
  rng = np.random.default_rng(0)
  rotation, _ = np.linalg.qr(rng.standard_normal((features, features)))
  scales = np.sqrt(np.geomspace(1, 1 / condition, features))
  weights = rng.standard_normal((features, 1))

  def draw(count: int) -> Source:
    x = (rng.standard_normal((count, features)) * scales) @ rotation.T  # C = rotation diag(scales^2) rotation^T
    y = x @ weights + noise * rng.standard_normal((count, 1))
    return source.in_memory(x.astype(np.float32), y.astype(np.float32))

  train, held_out = source.split(draw(examples), validation)
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
  return Data(train, test, meta, held_out)
