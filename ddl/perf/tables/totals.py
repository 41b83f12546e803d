"""Totals of a table: parameters, FLOP, and the bytes that a layer moves."""

from ddl.perf.hardware.device import Part
from ddl.perf.step.layers import Layer, Table

FLOAT = 4  # bytes per value


def params(table: Table) -> int:
  """Weights and biases."""
  return sum(layer.params for layer in table)


def params_bytes(table: Table, width: int = FLOAT) -> int:
  """Bytes of the parameters, or of their gradients; width: bytes per value."""
  return width * params(table)


def forward_flop(table: Table) -> int:
  """FLOP of the forward pass per example: 2 per multiply-accumulate."""
  return sum(layer.forward_flop for layer in table)


def train_flop(table: Table) -> int:
  """FLOP of training per example: 6 per multiply-accumulate.

  The first layer counts in full, as in arXiv 1602.06709, though no step computes the gradient of the network's input:
  that is 2 of its multiply-accumulates too many, 0.4 % in VGG-A.
  """
  return sum(layer.train_flop for layer in table)


def input_values(layer: Layer) -> int:
  """Values of a layer's input for one example."""
  return layer.input_values


def pass_bytes(layer: Layer, examples: float, width: int = FLOAT) -> float:
  """Memory traffic of one pass: each operand and the result once, width (b (ifm ih iw + ofm oh ow) + parameters).

  The three passes of a training step (forward, gradient of the weights, gradient of the inputs) move the same bytes:
  each reads two of (inputs, outputs, weights) or of their gradients, and writes the third.
  """
  return width * (examples * (input_values(layer) + layer.activations) + layer.params)


def part(layer: Layer) -> Part:
  """Work of a training step in a layer: 6 macs FLOP and three times `pass_bytes`; in an attention see there."""
  return Part(layer.train_flop, layer.moved, 3 * layer.params)


def parts(table: Table) -> tuple[Part, ...]:
  """Work of a training step, layer by layer."""
  return tuple(map(part, table))
