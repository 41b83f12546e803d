"""A network as a table of its layers with weights: shapes, from which FLOP, parameters and activations follow."""

from typing import NamedTuple


class Layer(NamedTuple):
  """A convolution, or a dense layer as one with a 1x1 kernel on a 1x1 map (arXiv 1602.06709)."""

  name: str
  inputs: int  # feature maps (ifm)
  outputs: int  # feature maps (ofm)
  kernel: tuple[int, int] = (1, 1)  # kh, kw
  size_in: tuple[int, int] = (1, 1)  # ih, iw
  size_out: tuple[int, int] = (1, 1)  # oh, ow
  groups: int = 1
  bias: bool = True

  @property
  def dense(self) -> bool:
    """Whether it is fully connected: no map."""
    return self.size_in == self.size_out == (1, 1)

  @property
  def weights(self) -> int:
    """ifm ofm kw kh / groups, without the bias."""
    return self.inputs * self.outputs * self.kernel[0] * self.kernel[1] // self.groups

  @property
  def params(self) -> int:
    """Weights and bias."""
    return self.weights + (self.outputs if self.bias else 0)

  @property
  def macs(self) -> int:
    """Multiply-accumulates of the forward pass on one example: weights * ow * oh."""
    return self.weights * self.size_out[0] * self.size_out[1]

  @property
  def forward_flop(self) -> int:
    """2 macs, per example."""
    return 2 * self.macs

  @property
  def train_flop(self) -> int:
    """Forward, gradient of the weights, gradient of the inputs: 3 * 2 macs, per example."""
    return 6 * self.macs

  @property
  def activations(self) -> int:
    """Values of its output for one example: ofm ow oh."""
    return self.outputs * self.size_out[0] * self.size_out[1]


Table = tuple[Layer, ...]  # in the order of the forward pass
