"""Transformer tables: published numbers of parameters, FLOP per token, and memory against published runs."""

import pytest

from ddl.perf import neural_networks
from ddl.perf.cluster_file import named
from ddl.perf.device import chips
from ddl.perf.layers import Attention, FusedAttention, params, params_bytes, train_flop
from ddl.perf.memory import MIXED, SINGLE, training_memory
from ddl.perf.neural_networks import TransformerSizes, transformer
from ddl.perf.placement import fitting
from experiments.papers import published_steps
from experiments.papers.published_steps import network

TINY = TransformerSizes(layers=2, width=8, heads=2, tokens=4, vocabulary=10)


def forward_flop(table):
  return sum(layer.forward_flop for layer in table)


def test_numbers_of_parameters_are_the_published_ones():
  expected = {
    "gpt2_124m": 124_439_808,  # llm.c's README
    "gpt2_1558m": 1_557_611_200,
    "llama_1b": 1_235_814_400,
    "llama_7b": 6_738_415_616,
    "llama_8b": 8_030_261_248,
    "llama_13b": 13_015_864_320,
    "llama_70b": 68_976_648_192,
  }
  assert {name: params(neural_networks.table(name)) for name in expected} == expected
  mpt = {  # MosaicML's table
    "mpt_125m 2048": 125_311_488,
    "mpt_1b 512": 1_312_804_864,
    "mpt_7b 2048": 6_658_859_008,
    "mpt_70b 2048": 64_862_437_376,
  }
  assert {name: params(network(name)) for name in mpt} == mpt


def test_flop_per_token_follow_the_scaling_laws():
  """6 per parameter of the products, and 12 layers width tokens for the scores, or half of it without masked pairs."""
  net = neural_networks.transformer_sizes("gpt2_124m")._replace(fused=False)
  dense = [layer for layer in transformer(net) if not isinstance(layer, Attention) and "norm" not in layer.name]
  products = 12 * 12 * 768**2 + 768 * 50257
  assert train_flop(dense) == 6 * 1024 * products
  scores = [layer for layer in transformer(net) if isinstance(layer, Attention)]
  assert train_flop(scores) == 12 * 12 * 768 * 1024**2
  fused = [layer for layer in transformer(net._replace(fused=True)) if isinstance(layer, FusedAttention)]
  assert forward_flop(fused) == forward_flop(scores) / 2 and 12 * train_flop(fused) == 7 * train_flop(scores)


def test_grouped_queries_and_gates_by_hand():
  net = TransformerSizes(1, 8, 4, 4, 10, kv_heads=2, hidden=12, gated=True, bias=False, tied=False)
  layers = {layer.name: layer for layer in transformer(net)}
  assert layers["0/qkv"].params == 8 * (8 + 2 * 4) and layers["0/in"].params == 8 * 24 and layers["0/out"].params == 96
  assert layers["0/attention"].inputs == 16 and layers["0/attention"].outputs == 8
  assert params(transformer(net)) == 2 * 80 + 128 + 64 + 192 + 96 + 3 * 8  # embedding and output; norms have no shift


def test_only_unfused_attention_saves_its_scores():
  plain, fused = (transformer(TINY._replace(fused=fused)) for fused in (False, True))
  one, other = (next(x for x in table if isinstance(x, Attention)) for table in (plain, fused))
  assert one.saved - one.activations == 5 * 2 * 16 // 2 and other.saved - other.activations == 2 * 4
  assert one.moved - other.moved == 16 * 2 * 16


def test_activations_of_a_block_equal_the_published_formula():
  """arXiv 2205.05198: s b h (34 + 5 a s / h) bytes; 2 of the 34 are dropout masks, which the table omits."""
  for fused in (False, True):
    net = TransformerSizes(2, 1024, 16, 512, 1000, fused=fused)
    one, two = (training_memory(transformer(net._replace(layers=n)), MIXED).per_example for n in (1, 2))
    small = 16 * 512 * 2 if fused else 5 * 16 * 512**2  # sums of the softmax, or scores
    assert two - one == 32 * 512 * 1024 + small


def test_recomputation_saves_only_the_inputs_of_blocks():
  net = TransformerSizes(2, 1024, 16, 512, 1000)
  tables = [transformer(net._replace(layers=n)) for n in (1, 2, 3)]
  one, two, three = (training_memory(table, MIXED, recomputed=True).per_example for table in tables)
  assert two - one == three - two == 2 * 512 * 1024
  assert one < training_memory(tables[0], MIXED).per_example + 2 * 512 * 1024 + 1


def test_states_take_16_bytes_per_parameter():
  """ZeRO, arXiv 1910.02054: 1.5 billion parameters need 24 GB of states, 7.5 billion 120 GB."""
  assert MIXED.states == SINGLE.states == 16
  assert training_memory(neural_networks.table("gpt2_1558m"), MIXED).fixed == pytest.approx(24.9e9, rel=1e-2)
  whole = training_memory(neural_networks.table("llama_7b"), MIXED)
  assert (
    whole.fixed == 16 * params(neural_networks.table("llama_7b")) == 4 * params_bytes(neural_networks.table("llama_7b"))
  )
  assert training_memory(neural_networks.table("llama_7b"), MIXED, split=8).fixed == whole.fixed / 8
  with pytest.raises(ValueError, match=r"split must be .*got 0"):
    training_memory(neural_networks.table("llama_7b"), MIXED, split=0)


def test_states_are_sharded_only_if_they_do_not_fit():
  """States of 1.5 billion parameters fit in 40 GB, those of 7 billion do not fit in 80 GB."""
  h100, a100 = named("h100_ib400"), named("cloud_100g")
  assert fitting(neural_networks.table("gpt2_1558m"), a100)[1:3] == (1, False)
  assert fitting(neural_networks.table("llama_7b"), h100)[1:3] == (8, False)
  assert fitting(neural_networks.table("llama_7b"), h100, workers=4)[1:3] == (4, False)
  assert fitting(neural_networks.table("llama_7b"), h100, workers=1)[1:3] == (2, False)  # fewer than needed
  large = fitting(neural_networks.table("llama_70b"), h100)
  assert (large.split, large.recomputed) == (64, True) and large.memory.total(7) < 80e9
  with pytest.raises(ValueError, match="activations of a sequence must be at most"):
    fitting(neural_networks.table("llama_70b"), h100._replace(device=h100.device._replace(memory=1e9)))


def test_published_runs_fit_in_memory_but_twice_their_examples_do_not():
  """MosaicML's runs have about the largest microbatch that fits; some were smaller for other reasons."""
  smaller = ("mpt_30b 1024", "mpt_30b 2048", "mpt_30b 4096", "mpt_70b 2048", "mpt_1b 1024")
  for point in (p for p in published_steps.points() if p.source == "mosaic"):
    table, limit = network(point.network), chips()[point.device].memory
    memory = training_memory(table, MIXED, recomputed=bool(point.recomputed), split=point.devices)
    assert memory.total(point.examples) < 1.1 * limit, point
    assert memory.total(2 * point.examples) > limit or point.network in smaller, point
