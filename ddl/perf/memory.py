"""Count the memory of a training step from a layer table, and find the largest mini-batch that fits.

Zou et al. 2017, arXiv 1709.06622: feature maps M_FM grow with the mini-batch X; the parameters of convolutions (M_MP)
and of the classifier (M_C) are stored three times (weights, gradients, aggregated gradients). Only the layers of the
table are counted, without the maps of pooling, normalization and separate activation functions.
Transformers store parameter states (arXiv 1910.02054) and activations; with recomputation, they store only the
activations that are inputs of blocks (arXiv 1604.06174). In 16-bit formats, a block stores (34 + 5 heads * tokens /
width) bytes per value of its input, as in arXiv 2205.05198.
"""

import math
from itertools import groupby
from typing import NamedTuple

from ddl.perf import units
from ddl.perf.layers import FLOAT, Loss, Table, params
from ddl.perf.units import bytes_text

COPIES = 3  # copies of all parameters: weights, gradients, aggregated gradients
LOSS = 2 * FLOAT  # bytes per logit in the loss: the logit and its gradient


class StepMemory(NamedTuple):
  """Bytes of a training step on X examples: fixed + per_example X."""

  per_example: float  # feature maps and the input (M_FM / X)
  fixed: float  # all copies of the parameters (M_MP + M_C)

  def total(self, examples: float) -> float:
    """Return the bytes of a step on `examples` examples: M_FM + M_MP + M_C."""
    return self.fixed + examples * self.per_example


class StateFormat(NamedTuple):
  """The bytes per parameter of weights, gradients and optimizer states, and the bytes per activation value."""

  title: str
  weights: int
  gradients: int
  optimizer: int  # moments, and a float32 copy of 16-bit weights
  value: int  # bytes per activation value

  @property
  def states(self) -> int:
    """Total bytes per parameter: weights, gradients and optimizer states."""
    return self.weights + self.gradients + self.optimizer


MIXED = StateFormat("mixed precision with Adam", 2, 2, 12, 2)
SINGLE = StateFormat("float32 with Adam", 4, 4, 8, 4)


def step_memory(table: Table, *, extra_copies: int = 0, width: int = FLOAT) -> StepMemory:
  """Count the memory of a step: M_FM = sum_{i=0..L} B_i H_i D_i (i = 0: input), M_MP + M_C = parameters * copies.

  Args:
    extra_copies: copies of the parameters in addition to COPIES: 1 for momentum, 2 for Adam, 1 for EASGD's center.
    width: bytes per value of the feature maps; all copies of the parameters are in float32.
  """
  if not table:
    raise ValueError("table must have at least one layer, got none.")
  copies = COPIES + units.count("extra_copies", extra_copies, 0)
  maps = table[0].input_values + sum(layer.saved for layer in table)
  return StepMemory(maps * width, params(table) * copies * FLOAT)


def training_memory(table: Table, form: StateFormat, *, recomputed: bool = False, split: int = 1) -> StepMemory:
  """Count the memory of parameter states and activations, without communication buffers.

  Args:
    form: bytes of states and activations.
    recomputed: whether each block saves only its input and is recomputed in the backward pass, one block at a time. A
      block is all layers whose names have the same part before the last /.
    split: number of devices over which the states are sharded.
  """
  saved, largest = float(table[0].input_values * form.value), 0.0
  for block, layers in groupby(table, key=lambda layer: layer.name.rpartition("/")[0]):
    inside = list(layers)
    nbytes = sum(LOSS * x.activations if isinstance(x, Loss) else form.value * x.saved for x in inside)
    if block and recomputed:
      saved, largest = saved + form.value * inside[0].input_values, max(largest, nbytes)
    else:
      saved += nbytes
  return StepMemory(saved + largest, params(table) * form.states / units.count("split", split))


def largest_batch(memory: StepMemory, limit: float) -> int:
  """Return the largest X with fixed + per_example X <= limit (bytes). Raises ValueError if even X = 1 does not fit."""
  if not memory.total(1) <= limit:
    raise ValueError(
      f"not even one example fits in {bytes_text(limit)}: a step on one example needs "
      f"{bytes_text(memory.total(1))} ({memory.total(1):.0f} bytes), of which "
      f"{bytes_text(memory.fixed)} are copies of the parameters."
    )
  return math.floor((units.positive("memory (bytes)", limit) - memory.fixed) / memory.per_example)
