"""Memory of a training step, counted from a table of layers, and the largest mini-batch that fits.

Zou et al. 2017, arXiv 1709.06622: feature maps M_FM grow with the mini-batch X; the parameters of convolutions (M_MP)
and of the classifier (M_C) are held three times (weights, gradients, aggregated gradients). Only what a table holds is
counted: the maps of pooling, normalization and separate activation functions come on top.
"""

import math
from typing import NamedTuple

from ddl.perf import checks
from ddl.perf.step.layers import Table
from ddl.perf.tables.totals import FLOAT, input_values, params
from ddl.perf.units import bytes_text

COPIES = 3  # of all parameters: weights, gradients, aggregated gradients


class StepMemory(NamedTuple):
  """Bytes of a training step on X examples: fixed + per_example X."""

  per_example: float  # feature maps and the input (M_FM / X)
  fixed: float  # all copies of the parameters (M_MP + M_C)

  def total(self, examples: float) -> float:
    """M_FM + M_MP + M_C of a mini-batch."""
    return self.fixed + examples * self.per_example


def step_memory(table: Table, *, extra_copies: int = 0, width: int = FLOAT) -> StepMemory:
  """M_FM = sum_{i=0..L} B_i H_i D_i, M_MP + M_C = sum of parameters * copies, in bytes; i = 0 is the input.

  Args:
    table: the layers with weights.
    extra_copies: of the parameters, beside the paper's three: 1 for momentum, 2 for Adam, 1 for a center.
    width: bytes of a value of the feature maps; copies of the parameters stay in float32.

  Raises:
    ValueError: for an empty table or a negative number of copies.
  """
  if not table:
    raise ValueError("invalid table: must have at least one layer")
  copies = COPIES + checks.count("extra_copies", extra_copies, 0)
  maps = input_values(table[0]) + sum(layer.activations for layer in table)
  return StepMemory(maps * width, params(table) * copies * FLOAT)


def largest_batch(memory: StepMemory, limit: float) -> int:
  """Return the largest X with fixed + per_example X <= limit (bytes, finite); ValueError if X = 1 does not fit."""
  if not memory.total(1) <= limit:
    raise ValueError(
      f"not even one example fits in {bytes_text(limit)}: a step on one needs {bytes_text(memory.total(1))} "
      f"({memory.total(1):.0f} bytes), of which {bytes_text(memory.fixed)} are copies of the parameters"
    )
  return math.floor((checks.positive("memory (bytes)", limit) - memory.fixed) / memory.per_example)
