"""What a whole table comes to: parameters, FLOP and activations, and the bytes that a layer moves."""

from ddl.perf.hardware.device import Part
from ddl.perf.step.layers import Layer, Table

FLOAT = 4  # bytes per value


def params(table: Table) -> int:
  """Weights and biases."""
  return sum(layer.params for layer in table)


def params_bytes(table: Table, width: int = FLOAT) -> int:
  """Of the parameters, or of their gradients; width: bytes per value."""
  return width * params(table)


def gradients(table: Table, width: int = FLOAT) -> list[tuple[str, int]]:
  """(layer, bytes of its gradient) in the order in which the backward pass gives them: the last layer first."""
  return [(layer.name, width * layer.params) for layer in reversed(table)]


def forward_flop(table: Table) -> int:
  """Per example: 2 per multiply-accumulate."""
  return sum(layer.forward_flop for layer in table)


def train_flop(table: Table) -> int:
  """Per example: 6 per multiply-accumulate.

  The first layer counts in full, as in arXiv 1602.06709, though no step computes the gradient of the network's input:
  that is 2 of its multiply-accumulates too many, 0.4 % in VGG-A.
  """
  return sum(layer.train_flop for layer in table)


def activations_bytes(table: Table, width: int = FLOAT) -> int:
  """Of one example's outputs of all layers, which the backward pass needs."""
  return width * sum(layer.activations for layer in table)


def input_values(layer: Layer) -> int:
  """Values of its input for one example: ifm ih iw."""
  return layer.inputs * layer.size_in[0] * layer.size_in[1]


def pass_bytes(layer: Layer, examples: float, width: int = FLOAT) -> float:
  """Memory traffic of one pass: each operand and the result once, width (b (ifm ih iw + ofm oh ow) + parameters).

  The three passes of a training step (forward, gradient of the weights, gradient of the inputs) move the same bytes:
  each reads two of (inputs, outputs, weights) or of their gradients, and writes the third.
  """
  return width * (examples * (input_values(layer) + layer.activations) + layer.params)


def part(layer: Layer) -> Part:
  """Of a training step: 6 macs FLOP and three times `pass_bytes`."""
  return Part(layer.train_flop, 3 * (input_values(layer) + layer.activations), 3 * layer.params)


def parts(table: Table) -> tuple[Part, ...]:
  """A training step's, layer by layer."""
  return tuple(map(part, table))
