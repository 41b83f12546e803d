"""A network as a table of its layers: shapes, from which FLOP, parameters, activations and memory traffic follow."""

from typing import NamedTuple


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
  def input_values(self) -> int:
    """Values of its input for one example: ifm ih iw."""
    return self.inputs * self.size_in[0] * self.size_in[1]

  @property
  def activations(self) -> int:
    """Values of its output for one example: ofm ow oh."""
    return self.outputs * self.size_out[0] * self.size_out[1]

  @property
  def kept(self) -> int:
    """Values for one example that the backward pass needs of it: its output."""
    return self.activations

  @property
  def moved(self) -> int:
    """Values for one example that the three passes of a training step read or write, beside the parameters."""
    return 3 * (self.input_values + self.activations)


class Embedding(Layer):
  """Rows of a matrix [inputs, outputs], one for each token: parameters and a look-up, no products."""

  __slots__ = ()

  @property
  def macs(self) -> int:
    """None."""
    return 0

  @property
  def input_values(self) -> int:
    """The tokens' numbers."""
    return self.size_in[0] * self.size_in[1]


class Tied(Layer):
  """A dense layer on each token with the weights of another one: its products, no parameters of its own."""

  __slots__ = ()

  @property
  def params(self) -> int:
    """None of its own."""
    return 0


class Pointwise(Layer):
  """A function of each token without parameters: activation function, residual sum, loss."""

  __slots__ = ()

  @property
  def weights(self) -> int:
    """None."""
    return 0

  @property
  def params(self) -> int:
    """None."""
    return 0


class Residual(Pointwise):
  """A sum with what a branch started from. Its output takes the place of the branch's, so that nothing more is kept."""

  __slots__ = ()

  @property
  def kept(self) -> int:
    """Nothing more."""
    return 0


class Loss(Pointwise):
  """Softmax and cross entropy of each token, in float32 whatever the format of the rest."""

  __slots__ = ()


class Attention(Pointwise):
  """Scores of queries and keys, softmax, weighted sums of the values, causal: `heads` of them are the groups.

  Inputs are queries, keys and values, (heads + 2 kv heads) * width of a head; outputs heads * width of a head. Without
  fusion the scores, heads * tokens^2, are written and read.
  """

  __slots__ = ()

  @property
  def scores(self) -> int:
    """Pairs of a query and a key in all heads, half of which a causal mask leaves out: heads * tokens^2."""
    return self.groups * self.size_out[1] ** 2

  @property
  def macs(self) -> int:
    """Q K^T and P V over all pairs: 2 outputs tokens^2, as frameworks count it and compute it without fusion."""
    return 2 * self.outputs * self.size_out[1] ** 2

  @property
  def kept(self) -> int:
    """Its output and the probabilities (twice, before and after dropout): arXiv 2205.05198, 5 a s^2 b bytes of two."""
    return self.activations + 5 * self.scores // 2

  @property
  def moved(self) -> int:
    """As others, and the scores 8 times each way: product, scale and mask, softmax, dropout, product."""
    return super().moved + 16 * self.scores


class FusedAttention(Attention):
  """The same in one kernel (FlashAttention, arXiv 2205.14135): scores stay on the chip, are computed twice, half of
  the pairs skipped."""

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
  def kept(self) -> int:
    """Its output and a number for each query and head."""
    return self.activations + self.groups * self.size_out[1]

  @property
  def moved(self) -> int:
    """Inputs, output and their gradients."""
    return 3 * (self.input_values + self.activations)


Table = tuple[Layer, ...]  # in the order of the forward pass
