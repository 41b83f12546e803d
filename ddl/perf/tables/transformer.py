"""Transformers by formula: blocks of attention and a feed-forward network on `tokens` tokens; an example is a sequence.

Kaplan et al. 2020, arXiv 2001.08361: a token costs 6 FLOP per parameter and 12 layers * width * tokens in the scores.
"""

from typing import NamedTuple

from ddl.perf.step.layers import Attention, Embedding, FusedAttention, Layer, Loss, Pointwise, Residual, Table, Tied


class Transformer(NamedTuple):
  """Sizes of a transformer that predicts the next token, or some masked ones."""

  layers: int
  width: int
  heads: int
  tokens: int  # of a sequence
  vocabulary: int
  kv_heads: int = 0  # grouped queries (arXiv 2305.13245); 0: one per head
  hidden: int = 0  # of the feed-forward network; 0: 4 width
  gated: bool = False  # SwiGLU (arXiv 2002.05202): two products in, a product of both
  positions: int = 0  # learned ones, as parameters; 0: rotary or ALiBi
  bias: bool = True  # in dense layers and normalizations (LayerNorm); False: RMSNorm
  tied: bool = True  # the output layer has the weights of the embedding
  fused: bool = True  # attention in one kernel
  predicted: int = 0  # tokens of a sequence that the output layer sees; 0: all

  def with_tokens(self, tokens: int) -> "Transformer":
    """The same on other sequences; learned positions follow."""
    return self._replace(tokens=tokens, positions=tokens if self.positions else 0)


def transformer(net: Transformer) -> Table:
  """Layers in the order of the forward pass; those of block i are named i/..."""
  width, tokens = net.width, net.tokens

  def dense(name: str, inputs: int, outputs: int) -> Layer:
    return Layer(name, inputs, outputs, size_in=(1, tokens), size_out=(1, tokens), bias=net.bias)

  def norm(name: str) -> Layer:
    return Layer(name, width, width, size_in=(1, tokens), size_out=(1, tokens), groups=width, bias=net.bias)

  def pointwise(kind: type[Pointwise], name: str, inputs: int, outputs: int) -> Layer:
    return kind(name, inputs, outputs, size_in=(1, tokens), size_out=(1, tokens), bias=False)

  head = width // net.heads
  queries, values = net.heads * head, (net.kv_heads or net.heads) * head
  hidden = net.hidden or 4 * width
  attention = FusedAttention if net.fused else Attention
  layers: list[Layer] = [_embedding("embedding", net.vocabulary, width, tokens)]
  if net.positions:
    layers.append(_embedding("positions", net.positions, width, tokens))
  for i in range(net.layers):
    layers += [
      norm(f"{i}/norm1"),
      dense(f"{i}/qkv", width, queries + 2 * values),
      attention(f"{i}/attention", queries + 2 * values, queries, (1, 1), (1, tokens), (1, tokens), net.heads, False),
      dense(f"{i}/projection", queries, width),
      pointwise(Residual, f"{i}/add1", 2 * width, width),
      norm(f"{i}/norm2"),
      dense(f"{i}/in", width, 2 * hidden if net.gated else hidden),
      pointwise(Pointwise, f"{i}/activation", 2 * hidden if net.gated else hidden, hidden),
      dense(f"{i}/out", hidden, width),
      pointwise(Residual, f"{i}/add2", 2 * width, width),
    ]
  output, loss = Tied if net.tied else Layer, (1, net.predicted or tokens)
  layers += [
    norm("norm"),
    output("output", width, net.vocabulary, size_in=loss, size_out=loss, bias=False),
    Loss("loss", net.vocabulary, net.vocabulary, size_in=loss, size_out=loss, bias=False),
  ]
  return tuple(layers)


def _embedding(name: str, rows: int, width: int, tokens: int) -> Embedding:
  return Embedding(name, rows, width, size_in=(1, tokens), size_out=(1, tokens), bias=False)
