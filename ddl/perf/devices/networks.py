"""The networks in which devices were measured, by the names of `points`."""

from functools import cache

from ddl.perf.step.layers import Table
from ddl.perf.tables import TABLES, language, sequential
from ddl.perf.tables.transformer import Transformer, transformer

OTHERS = {
  "llama3_70b": Transformer(80, 8192, 64, 8192, 128_256, 8, 28_672, gated=True, bias=False, tied=False),
  "nanogpt": Transformer(12, 768, 12, 1024, 50_304, positions=1024, bias=False),
}


@cache
def network(name: str) -> Table:
  """The table of a point's network."""
  if name == "alexnet_groups":
    return sequential.alexnet_groups
  model, _, tokens = name.partition(" ")
  if not tokens:
    return TABLES[model]
  if model.startswith("mpt_"):
    return transformer(language.mpt(model.removeprefix("mpt_"), int(tokens)))
  if model == "bert_large":
    return transformer(language.bert_large(int(tokens)))
  net = OTHERS[model] if model in OTHERS else language.MODELS[model]
  return transformer(net.with_tokens(int(tokens)))
