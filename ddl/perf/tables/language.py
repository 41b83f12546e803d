"""Transformers by formula, and language models by name: GPT-2, Llama, BERT, MPT.

Transformers by formula: blocks of attention and a feed-forward network on `tokens` tokens; an example is a sequence.
Kaplan et al. 2020, arXiv 2001.08361: a token costs 6 FLOP per parameter and 12 layers * width * tokens in the scores.

Language models by name: GPT-2, Llama, BERT, and MosaicML's MPT, in which many devices were measured.
GPT-2: Radford et al. 2019, as OpenAI released it (vocabulary 50257, 1024 tokens). Llama 2: arXiv 2307.09288; Llama 3:
arXiv 2407.21783. MPT: github.com/mosaicml/llm-foundry, scripts/train/yamls. BERT: arXiv 1810.04805, for masked tokens.
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


def _gpt2(layers: int, width: int, heads: int) -> Transformer:
  return Transformer(layers, width, heads, tokens=1024, vocabulary=50257, positions=1024)


def _llama(
  layers: int, width: int, heads: int, kv_heads: int, hidden: int, vocabulary: int = 32_000, tokens: int = 4096,
  tied: bool = False,
) -> Transformer:  # fmt: skip
  return Transformer(
    layers, width, heads, tokens, vocabulary, kv_heads, hidden, gated=True, bias=False, tied=tied
  )  # fmt: skip


def mpt(name: str, tokens: int) -> Transformer:
  """MPT of that size on sequences of so many tokens; positions are learned, as the reported parameters count them."""
  layers, width, heads = MPT[name]
  return Transformer(layers, width, heads, tokens, 50_368, positions=tokens)


def bert_large(tokens: int) -> Transformer:
  """BERT large in the reference code: attention not fused, 15 % of the tokens predicted (20 of 128, 80 of 512)."""
  return Transformer(24, 1024, 16, tokens, 30_522, positions=512, fused=False, predicted=tokens * 20 // 128)


MPT = {  # layers, width, heads
  "125m": (12, 768, 12),
  "350m": (24, 1024, 16),
  "760m": (24, 1536, 16),
  "1b": (24, 2048, 16),
  "3b": (32, 2560, 20),
  "7b": (32, 4096, 32),
  "13b": (40, 5120, 40),
  "30b": (48, 7168, 56),
  "70b": (80, 8192, 64),
}

MODELS: dict[str, Transformer] = {
  "gpt2_124m": _gpt2(12, 768, 12),
  "gpt2_355m": _gpt2(24, 1024, 16),
  "gpt2_774m": _gpt2(36, 1280, 20),
  "gpt2_1558m": _gpt2(48, 1600, 25),
  "llama_1b": _llama(16, 2048, 32, 8, 8192, 128_256, 8192, tied=True),
  "llama_7b": _llama(32, 4096, 32, 32, 11_008),
  "llama_8b": _llama(32, 4096, 32, 8, 14_336, 128_256, 8192),
  "llama_13b": _llama(40, 5120, 40, 40, 13_824),
  "llama_70b": _llama(80, 8192, 64, 8, 28_672),
}

MODELS |= {f"{name}_unfused": net._replace(fused=False) for name, net in MODELS.items() if name.startswith("gpt2")}
TITLES = {
  "gpt2_124m": "GPT-2, smallest",
  "gpt2_355m": "GPT-2, medium",
  "gpt2_774m": "GPT-2, large",
  "gpt2_1558m": "GPT-2, largest",
  "llama_1b": "Llama 3.2 1B",
  "llama_7b": "Llama 2 7B",
  "llama_8b": "Llama 3 8B, grouped queries",
  "llama_13b": "Llama 2 13B",
  "llama_70b": "Llama 2 70B, grouped queries",
}
TITLES |= {
  name: f"{TITLES[name.removesuffix('_unfused')]}, attention in parts" for name in MODELS if "_unfused" in name
}
