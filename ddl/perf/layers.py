"""Layer tables: the shapes of a network's layers, and their FLOP, parameters, memory traffic and memory.

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

from ddl.perf.device import LayerWork
from ddl.perf.units import bytes_text

FLOAT = 4  # bytes of a float32
LOSS = 2 * FLOAT  # bytes per logit in the loss: the logit and its gradient


class Layer(NamedTuple):
  """A convolution; a dense layer is one with a 1x1 kernel on a 1x1 map (arXiv 1602.06709).

  The tokens of a sequence are a map with one row; a dense layer on each token has a 1x1 kernel on this map.
  """

  name: str
  inputs: int  # feature maps (ifm)
  outputs: int  # feature maps (ofm)
  kernel: tuple[int, int] = (1, 1)  # kh, kw
  size_in: tuple[int, int] = (1, 1)  # ih, iw
  size_out: tuple[int, int] = (1, 1)  # oh, ow
  groups: int = 1
  bias: bool = True
  normalized: bool = False  # batch normalization follows, and its shift counts as the bias
  experts: int = 1  # copies of the weights, of which `active` process each token (mixture of experts)
  active: int = 1

  @property
  def dense(self) -> bool:
    """Whether the layer is fully connected (on a 1x1 map)."""
    return self.size_in == self.size_out == (1, 1)

  @property
  def weights(self) -> int:
    """Number of weights without the bias: ifm ofm kw kh / groups, times the number of experts."""
    return self.inputs * self.outputs * self.kernel[0] * self.kernel[1] // self.groups * self.experts

  @property
  def params(self) -> int:
    """Number of weights and biases."""
    return self.weights + (self.outputs if self.bias else 0)

  @property
  def macs(self) -> int:
    """Multiply-accumulates of the forward pass on one example: weights * ow * oh, of the active experts."""
    return self.weights // self.experts * self.active * self.size_out[0] * self.size_out[1]

  @property
  def forward_flop(self) -> int:
    """FLOP of the forward pass per example: 2 * macs."""
    return 2 * self.macs

  @property
  def train_flop(self) -> int:
    """FLOP of training per example: forward, weight gradient and input gradient, 3 * 2 macs."""
    return 6 * self.macs

  @property
  def input_values(self) -> int:
    """Number of input values per example: ifm ih iw, once per active expert."""
    return self.inputs * self.size_in[0] * self.size_in[1] * self.active

  @property
  def activations(self) -> int:
    """Number of output values per example: ofm ow oh, once per active expert."""
    return self.outputs * self.size_out[0] * self.size_out[1] * self.active

  @property
  def saved(self) -> int:
    """Number of values saved for the backward pass per example: the output."""
    return self.activations

  @property
  def moved(self) -> int:
    """Number of values that the three passes of training read or write per example, without the parameters."""
    return 3 * (self.input_values + self.activations)

  @property
  def fused_moved(self) -> int:
    """Number of values moved if element-wise operations are fused, as XLA, torch.compile and llm.c do.

    One kernel adds the residual and normalizes. Per output, it reads two values and writes two; its backward pass reads
    the gradients of both results and the sum, and writes one gradient: 8 in total. Products move as many values as
    without fusion.
    """
    return 8 * self.activations if self.groups == self.inputs == self.outputs else self.moved

  @property
  def held(self) -> int:
    """Number of parameters and gradients that the three passes of training read or write per step."""
    return 3 * self.params


NOTHING = property(lambda layer: 0)


class Embedding(Layer):
  """An embedding: a look-up in a matrix [inputs, outputs], which has parameters but takes no FLOP."""

  __slots__ = ()
  macs = NOTHING

  @property
  def input_values(self) -> int:
    return self.size_in[0] * self.size_in[1]


class Tied(Layer):
  """A dense layer on each token with another layer's weights: it takes FLOP, but only its bias adds parameters."""

  __slots__ = ()

  @property
  def params(self) -> int:
    return self.outputs if self.bias else 0


class Recurrent(Layer):
  """A dense layer on the state of a recurrent network, one token after the other.

  The forward pass and the gradient of the state read the weights again for each token; the gradients of the weights are
  computed for all tokens at once (Appleyard et al. 2016, arXiv 1604.01946).
  """

  __slots__ = ()

  @property
  def held(self) -> int:
    return (2 * self.size_out[1] + 1) * self.params


class Pointwise(Layer):
  """A function without parameters on each token, such as an activation function, a residual sum or a loss."""

  __slots__ = ()
  weights = params = NOTHING

  @property
  def fused_moved(self) -> int:
    """Number of values moved: inputs and outputs forward; inputs again, and both gradients, backward."""
    return 3 * self.input_values + 2 * self.activations


class Residual(Pointwise):
  """A residual sum; its output replaces the branch's output, so nothing additional is saved for the backward pass."""

  __slots__ = ()
  saved = NOTHING
  fused_moved = NOTHING  # part of the kernel of the following normalization


class Loss(Pointwise):
  """Softmax and cross entropy on each token, always in float32."""

  __slots__ = ()

  @property
  def fused_moved(self) -> int:
    """Number of values moved: the inputs are read in both passes, and their gradients are written."""
    return 3 * self.input_values


class Attention(Pointwise):
  """Unfused causal attention; `groups` is the number of heads.

  Inputs are queries, keys and values, (heads + 2 kv_heads) * head width; outputs are heads * head width. The scores,
  heads * tokens^2, are written to and read from memory.
  """

  __slots__ = ()

  @property
  def scores(self) -> int:
    """Number of (query, key) pairs in all heads, including masked pairs: heads * tokens^2."""
    return self.groups * self.size_out[1] ** 2

  @property
  def macs(self) -> int:
    """Multiply-accumulates of Q K^T and P V over all pairs: 2 outputs tokens^2."""
    return 2 * self.outputs * self.size_out[1] ** 2

  @property
  def saved(self) -> int:
    """Number of saved values: the output, and 5 / 2 per score (5 a s^2 b bytes in 16 bits, arXiv 2205.05198)."""
    return self.activations + 5 * self.scores // 2

  @property
  def moved(self) -> int:
    """Number of values moved: as in other layers, plus the scores, each read 8 times and written 8 times.

    The operations on the scores are: product, scale and mask, softmax, dropout, product.
    """
    return super().moved + 16 * self.scores

  @property
  def fused_moved(self) -> int:
    """Number of values moved: as without fusion, because only attention in one kernel avoids moving the scores."""
    return self.moved


class FusedAttention(Attention):
  """Attention in one kernel (FlashAttention, arXiv 2205.14135) that skips masked pairs and recomputes the scores."""

  __slots__ = ()
  moved = Layer.moved  # inputs and output once per pass (forward and backward), and their gradients once

  @property
  def macs(self) -> int:
    """Multiply-accumulates over the causal half of the pairs."""
    return super().macs // 2

  @property
  def train_flop(self) -> int:
    """FLOP of training: two products forward, five backward (scores again, dV, dP, dQ, dK), 7 * macs in total."""
    return 7 * self.macs

  @property
  def saved(self) -> int:
    """Number of saved values: the output, and one number per query and head."""
    return self.activations + self.groups * self.size_out[1]


class FullAttention(FusedAttention):
  """Attention in one kernel without a mask: to the same tokens, or from a decoder to its encoder's tokens (`size_in`).

  If a decoder attends to its encoder, the inputs are keys and values only, because the queries belong to other tokens.
  """

  __slots__ = ()

  @property
  def macs(self) -> int:
    """Multiply-accumulates over all pairs of tokens."""
    return 2 * self.outputs * self.size_out[1] * self.size_in[1]


Table = tuple[Layer, ...]  # in the order of the forward pass


def has_attention(table: Table) -> bool:
  """Return whether a layer table contains attention."""
  return any(isinstance(layer, Attention) for layer in table)


def is_map_scale(layer: Layer) -> bool:
  """Return whether the layer scales each map of an image separately, as batch normalization does."""
  return layer.size_in[0] > 1 and layer.kernel == (1, 1) and layer.groups == layer.inputs == layer.outputs


def is_convolution(layer: Layer) -> bool:
  """Return whether the layer is a convolution: not dense, not on tokens, and not a scale per map."""
  return layer.size_in[0] > 1 and not is_map_scale(layer)


def params(table: Table) -> int:
  """Return the number of parameters."""
  return sum(layer.params for layer in table)


def params_bytes(table: Table) -> int:
  """Return the bytes of the parameters, or of their gradients, in float32."""
  return FLOAT * params(table)


def train_flop(table: Table) -> int:
  """Return the FLOP of training per example: 6 per multiply-accumulate, and 7 in attention in one kernel.

  As in arXiv 1602.06709, this includes the input gradient of the first layer, although a step does not compute it. For
  VGG-A, the result is therefore 0.4 % too large.
  """
  return sum(layer.train_flop for layer in table)


def parts(table: Table) -> tuple[LayerWork, ...]:
  """Return the work of each layer in training: its FLOP, and the traffic of the three passes."""
  return tuple(LayerWork(layer.train_flop, layer.moved, layer.held) for layer in table)


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
MOMENTUM = StateFormat("float32 with momentum", 4, 8, 4, 4)  # both gradients and aggregated gradients


def training_memory(table: Table, form: StateFormat, *, recomputed: bool = False, split: int = 1) -> StepMemory:
  """Count the memory of parameter states and activations, without communication buffers.

  Without recomputation, the feature maps are M_FM = sum_{i=0..L} B_i H_i D_i (i = 0: input).

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
  return StepMemory(saved + largest, params(table) * form.states / split)


def largest_batch(memory: StepMemory, limit: float) -> int:
  """Return the largest X with fixed + per_example X <= limit (bytes). Raises ValueError if even X = 1 does not fit."""
  if not memory.total(1) <= limit:
    raise ValueError(
      f"not even one example fits in {bytes_text(limit)}: a step on one example needs "
      f"{bytes_text(memory.total(1))} ({memory.total(1):.0f} bytes), of which "
      f"{bytes_text(memory.fixed)} are copies of the parameters."
    )
  return math.floor((limit - memory.fixed) / memory.per_example)
