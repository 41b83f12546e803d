"""Language models by name: GPT-2, Llama, BERT, and MosaicML's MPT, in which many devices were measured.

GPT-2: Radford et al. 2019, as OpenAI released it (vocabulary 50257, 1024 tokens). Llama 2: arXiv 2307.09288; Llama 3:
arXiv 2407.21783. MPT: github.com/mosaicml/llm-foundry, scripts/train/yamls. BERT: arXiv 1810.04805, for masked tokens.
"""

from ddl.perf.tables.transformer import Transformer


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
