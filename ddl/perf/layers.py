"""A network as a table of its layers: shapes, from which FLOP, parameters, activations and memory traffic follow."""

from typing import NamedTuple

from ddl.perf.device import LayerWork

FLOAT = 4  # bytes of a float32


class Layer(NamedTuple):
  """A convolution, or a dense layer as one with a 1x1 kernel on a 1x1 map (arXiv 1602.06709).

  Tokens of a sequence are the columns of a map of one row: a dense layer on each token has a 1x1 kernel there.
  """

  name: str
  inputs: int  # feature maps (ifm)
  outputs: int  # feature maps (ofm)
  kernel: tuple[int, int] = (1, 1)  # kh, kw
  size_in: tuple[int, int] = (1, 1)  # ih, iw
  size_out: tuple[int, int] = (1, 1)  # oh, ow
  groups: int = 1
  bias: bool = True
  normalized: bool = False  # the bias is the shift of a batch normalization that follows

  @property
  def dense(self) -> bool:
    """Whether the layer is fully connected, without a map."""
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
  def input_values(self) -> int:
    """Values of the input for one example: ifm ih iw."""
    return self.inputs * self.size_in[0] * self.size_in[1]

  @property
  def activations(self) -> int:
    """Values of the output for one example: ofm ow oh."""
    return self.outputs * self.size_out[0] * self.size_out[1]

  @property
  def saved(self) -> int:
    """Values per example that are saved for the backward pass: the output."""
    return self.activations

  @property
  def moved(self) -> int:
    """Values per example that the three passes of a training step read or write, without the parameters."""
    return 3 * (self.input_values + self.activations)


NOTHING = property(lambda layer: 0)


class Embedding(Layer):
  """Rows of a matrix [inputs, outputs], one for each token: parameters and a look-up, no products."""

  __slots__ = ()
  macs = NOTHING

  @property
  def input_values(self) -> int:
    return self.size_in[0] * self.size_in[1]


class Tied(Layer):
  """A dense layer on each token that shares the weights of another layer: products without parameters."""

  __slots__ = ()
  params = NOTHING


class Pointwise(Layer):
  """A function of each token without parameters: activation function, residual sum, loss."""

  __slots__ = ()
  weights = params = NOTHING


class Residual(Pointwise):
  """A residual sum, whose output replaces that of the branch, so that nothing more is saved."""

  __slots__ = ()
  saved = NOTHING


class Loss(Pointwise):
  """Softmax and cross entropy of each token, always in float32."""

  __slots__ = ()


class Attention(Pointwise):
  """Causal attention, not fused: scores of queries and keys, softmax, weighted sums of the values; groups are heads.

  Inputs are queries, keys and values, (heads + 2 kv heads) * width of a head; outputs heads * width of a head. The
  scores, heads * tokens^2, are written and read.
  """

  __slots__ = ()

  @property
  def scores(self) -> int:
    """Pairs of a query and a key in all heads, masked ones too: heads * tokens^2."""
    return self.groups * self.size_out[1] ** 2

  @property
  def macs(self) -> int:
    """Q K^T and P V over all pairs: 2 outputs tokens^2."""
    return 2 * self.outputs * self.size_out[1] ** 2

  @property
  def saved(self) -> int:
    """The output and the probabilities (before and after dropout): arXiv 2205.05198, 5 a s^2 b bytes of two."""
    return self.activations + 5 * self.scores // 2

  @property
  def moved(self) -> int:
    """As other layers, and the scores 8 times each way: product, scale and mask, softmax, dropout, product."""
    return super().moved + 16 * self.scores


class FusedAttention(Attention):
  """Attention in one kernel (FlashAttention, arXiv 2205.14135), which skips masked pairs and recomputes the scores."""

  __slots__ = ()

  @property
  def macs(self) -> int:
    """Over the causal half of the pairs."""
    return super().macs // 2

  @property
  def train_flop(self) -> int:
    """Two products forward, five backward (the scores again, dV, dP, dQ, dK): 7 macs."""
    return 7 * self.macs

  @property
  def saved(self) -> int:
    """The output and one number for each query and head."""
    return self.activations + self.groups * self.size_out[1]

  @property
  def moved(self) -> int:
    """Inputs, output and their gradients."""
    return 3 * (self.input_values + self.activations)


Table = tuple[Layer, ...]  # in the order of the forward pass


def has_attention(table: Table) -> bool:
  """Return whether a table is that of a transformer."""
  return any(isinstance(layer, Attention) for layer in table)


def is_map_scale(layer: Layer) -> bool:
  """Return whether the layer scales each map of several rows separately, as batch normalization does."""
  return layer.size_in[0] > 1 and layer.kernel == (1, 1) and layer.groups == layer.inputs == layer.outputs


def is_convolution(layer: Layer) -> bool:
  """Return whether the layer's kernel slides over a map: neither dense, on tokens, nor a scale per map."""
  return layer.size_in[0] > 1 and not is_map_scale(layer)


def params(table: Table) -> int:
  """Return the number of weights and biases."""
  return sum(layer.params for layer in table)


def params_bytes(table: Table) -> int:
  """Return the bytes of the parameters, or of their gradients, in float32."""
  return FLOAT * params(table)


def train_flop(table: Table) -> int:
  """Return the FLOP of training per example: 6 per multiply-accumulate.

  The first layer counts in full, as in arXiv 1602.06709, though no step computes the gradient of the network's input:
  that is 2 of its multiply-accumulates too many, 0.4 % in VGG-A.
  """
  return sum(layer.train_flop for layer in table)


def pass_bytes(layer: Layer, examples: float, width: int = FLOAT) -> float:
  """Return the memory traffic of one pass: width (b (ifm ih iw + ofm oh ow) + parameters).

  The three passes of a training step (forward, gradient of the weights, gradient of the inputs) move the same bytes:
  each reads two of (inputs, outputs, weights) or of their gradients, and writes the third.
  """
  return width * (examples * (layer.input_values + layer.activations) + layer.params)


def part(layer: Layer) -> LayerWork:
  """Return the work of a training step in a layer: 6 macs FLOP and three times `pass_bytes`."""
  return LayerWork(layer.train_flop, layer.moved, 3 * layer.params)


def parts(table: Table) -> tuple[LayerWork, ...]:
  """Return the work of a training step, layer by layer."""
  return tuple(map(part, table))
