"""What a training step holds in memory, counted from a table of layers, and the largest mini-batch that fits.

Zou et al. 2017, arXiv 1709.06622: feature maps grow with the mini-batch X, parameters are held three times (weights,
gradients, aggregated gradients), the classifier (the dense layers) is counted apart from the convolutions. Only what a
table holds is counted: the maps of pooling, normalisation and separate activation functions come on top.
"""

import math
from typing import NamedTuple

from ddl.perf.step.layers import Table
from ddl.perf.tables.totals import FLOAT
from ddl.perf.units import bytes_text

COPIES = 3  # of all parameters: weights, gradients, aggregated gradients


class StepMemory(NamedTuple):
  """Bytes of a training step on X examples: fixed + per_example X."""

  maps: float  # of convolutions and the input, per example (M_FM / X)
  weights: float  # of convolutions, all copies (M_MP)
  classifier_maps: float  # of dense layers, per example
  classifier: float  # weights of dense layers, all copies (M_C, with the line above)

  @property
  def fixed(self) -> float:
    """Bytes whatever the mini-batch."""
    return self.weights + self.classifier

  @property
  def per_example(self) -> float:
    """Bytes of the feature maps of one example."""
    return self.maps + self.classifier_maps

  def total(self, examples: float) -> float:
    """M_FM + M_MP + M_C of a mini-batch."""
    return self.fixed + examples * self.per_example


def step_memory(table: Table, *, extra_copies: int = 0, width: int = FLOAT) -> StepMemory:
  """M_FM = sum_{i=0..L} B_i H_i D_i, M_MP and M_C = sum of parameters * copies, in bytes; i = 0 is the input.

  Args:
    table: the layers with weights.
    extra_copies: of the parameters, beside the paper's three: 1 for momentum, 2 for Adam, 1 for a center.
    width: bytes of a value of the feature maps; copies of the parameters stay in float32.

  Raises:
    ValueError: for an empty table or a negative number of copies.
  """
  if not table:
    raise ValueError("a table without layers has no memory to count")
  if extra_copies < 0:
    raise ValueError(f"{extra_copies} extra copies of the parameters are invalid: must be 0 or more")
  first, copies = table[0], (COPIES + extra_copies) * FLOAT
  dense, convolutions = [x for x in table if x.dense], [x for x in table if not x.dense]
  given = first.inputs * first.size_in[0] * first.size_in[1]
  return StepMemory(
    maps=(given + sum(x.activations for x in convolutions)) * width,
    weights=sum(x.params for x in convolutions) * copies,
    classifier_maps=sum(x.activations for x in dense) * width,
    classifier=sum(x.params for x in dense) * copies,
  )


def largest_batch(memory: StepMemory, limit: float) -> int:
  """The largest X with fixed + per_example X <= limit (bytes).

  Raises:
    ValueError: if not even one example fits; it says how many bytes one needs.
  """
  if not memory.total(1) <= limit:
    raise ValueError(
      f"not even one example fits in {bytes_text(limit)}: a step on one needs {bytes_text(memory.total(1))} "
      f"({memory.total(1):.0f} bytes), "
      f"of which {bytes_text(memory.fixed)} are copies of the parameters"
    )
  if math.isinf(limit):
    raise ValueError("memory without a limit fits any mini-batch; give a finite number of bytes")
  return math.floor((limit - memory.fixed) / memory.per_example)
