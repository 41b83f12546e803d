"""Transformer tables: published numbers of parameters, FLOP per token, and memory against published runs."""

import pytest

from ddl.errors import OptionError
from ddl.perf import neural_networks
from ddl.perf.cluster_file import named
from ddl.perf.device import chips
from ddl.perf.layers import (
  MIXED,
  SINGLE,
  Attention,
  FusedAttention,
  params,
  params_bytes,
  parts,
  train_flop,
  training_memory,
)  # fmt: skip
from ddl.perf.neural_networks import SequenceSizes, transformer
from ddl.perf.placement import table_job
from experiments.papers import published_steps
from experiments.papers.published_steps import network

TINY = SequenceSizes(layers=2, width=8, heads=2, tokens=4, vocabulary=10)


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
    "llama3_70b": 70_553_706_496,  # Hugging Face's counts of safetensors, as the next two
    "llama_405b": 405_853_388_800,
    "mixtral_8x7b": 46_702_792_704,
    "bert_base": 110_106_428,  # BertForPreTraining of Hugging Face
    "bert_large": 336_226_108,
    "t5_base": 222_903_552,  # Hugging Face's t5-base and t5-large
    "t5_large": 737_668_096,
    "vit_b16": 86_567_656,  # torchvision
    "vit_l16": 304_326_632,
  }
  assert {name: params(neural_networks.table(name)) for name in expected} == expected
  mpt = {  # MosaicML's table
    "mpt_125m 2048": 125_311_488,
    "mpt_1b 512": 1_312_804_864,
    "mpt_7b 2048": 6_658_859_008,
    "mpt_70b 2048": 64_862_437_376,
  }
  assert {name: params(network(name)) for name in mpt} == mpt


def test_gpt3_has_its_published_size():
  """Table D.1 of arXiv 2005.14165 has 174,600 million parameters."""
  assert params(neural_networks.table("gpt3_175b")) == pytest.approx(174_600e6, rel=1e-4)


def test_a_mixture_of_experts_computes_only_its_active_experts():
  """Mixtral 8x7B sends 46.7 billion parameters and uses 12.9 billion per token (arXiv 2401.04088)."""
  table, tokens = neural_networks.table("mixtral_8x7b"), 32768
  dense = sum(layer.macs for layer in table if not isinstance(layer, Attention)) / tokens
  embedding = 32000 * 4096
  assert dense == 12_879_925_248 - embedding and (dense + embedding) / 1e9 == pytest.approx(12.9, abs=0.05)
  one = SequenceSizes(1, 8, 2, 4, 10, bias=False, experts=4, active=1)
  layers = {layer.name: layer for layer in transformer(one)}
  assert layers["0/in"].params == 4 * 8 * 32 and layers["0/router"].params == 8 * 4
  plain = {layer.name: layer for layer in transformer(one._replace(experts=1))}
  assert layers["0/in"].macs == plain["0/in"].macs and layers["0/in"].moved == plain["0/in"].moved
  two = {layer.name: layer for layer in transformer(one._replace(active=2))}
  for name in ("in", "activation", "out"):
    assert two[f"0/{name}"].activations == 2 * plain[f"0/{name}"].activations
    assert two[f"0/{name}"].input_values == 2 * plain[f"0/{name}"].input_values


def test_values_moved_by_fused_kernels_by_hand():
  """A block of GPT-2 moves 36 width values per token outside of products and attention, instead of 54 width."""
  table = transformer(TINY)
  block = {layer.name[2:]: layer for layer in table if layer.name.startswith("0/")}
  elementwise, values = ("norm1", "add1", "norm2", "activation", "add2"), 8 * 4
  assert sum(block[name].fused_moved for name in elementwise) == 36 * values
  assert sum(block[name].moved for name in elementwise) == 54 * values
  assert all(block[name].fused_moved == block[name].moved for name in ("qkv", "attention", "projection", "in", "out"))
  loss = table[-1]
  assert (loss.fused_moved, loss.moved) == (3 * 10 * 4, 6 * 10 * 4)
  gated = next(x for x in transformer(TINY._replace(gated=True)) if x.name == "0/activation")
  assert gated.fused_moved == (3 * 2 + 2) * 32 * 4
  unfused = next(x for x in transformer(TINY._replace(fused=False)) if isinstance(x, Attention))
  assert unfused.fused_moved == unfused.moved > block["attention"].moved


def test_attention_without_a_mask_computes_all_pairs():
  masked, full = (
    next(x for x in transformer(TINY._replace(causal=causal)) if isinstance(x, Attention)) for causal in (True, False)
  )
  assert full.macs == 2 * masked.macs and full.moved == masked.moved and full.saved == masked.saved
  layers = {layer.name: layer for layer in transformer(TINY._replace(targets=3))}
  assert layers["decoder_1/cross_attention"].macs == 2 * 8 * 3 * 4  # 3 targets attend to 4 tokens, twice
  assert layers["decoder_1/attention"].macs == 8 * 3 * 3 and layers["1/attention"].macs == 2 * 8 * 4 * 4
  assert layers["decoder_1/cross_kv"].activations == 16 * 4 and layers["output"].activations == 10 * 3


def test_the_products_of_vit_are_the_published_ones():
  """torchvision: 17.56 billion multiply-accumulates for ViT-B/16 and 61.55 for ViT-L/16."""
  for name, billions in (("vit_b16", 17.56), ("vit_l16", 61.55)):
    products = [layer for layer in neural_networks.table(name) if "norm" not in layer.name]
    assert sum(layer.macs for layer in products) == pytest.approx(billions * 1e9, rel=2e-3)


def test_sizes_in_a_name():
  net = neural_networks.sizes
  base = net("gpt2_124m")
  large = net("transformer:layers=24,width=2048,length=4096")
  assert large == base._replace(layers=24, width=2048, heads=32, tokens=4096, positions=4096)
  assert params(neural_networks.table("transformer:layers=12")) == params(neural_networks.table("gpt2_124m"))
  assert net("transformer:heads=8,length=512") == base._replace(heads=8, tokens=512)  # GPT-2's 1,024 positions
  assert net("llama_8b:length=4096") == net("llama_8b")._replace(tokens=4096)
  assert net("bert_base:length=128").predicted == 20 and net("vit_b16:layers=2").predicted == 1
  assert net("t5_base:targets=64") == net("t5_base")._replace(targets=64)
  assert neural_networks.sizes("lstm_large:length=70") == neural_networks.sizes("lstm_large")._replace(tokens=70)
  placed = table_job("transformer:layers=2,width=128", named("h100_ib400"))
  assert placed.job.table == neural_networks.table("transformer:layers=2,width=128") and placed.job.language


@pytest.mark.parametrize(
  ("name", "option", "value"),
  [
    ("transformer:layer=3", "model's sizes", "'layer=3'"),
    ("transformer:", "model's sizes", "''"),
    ("transformer:layers=2,layers=3", "model's sizes", "'layers=3'"),
    ("transformer:layers=0", "model's layers", "0"),
    ("transformer:layers=1e3", "model's layers", "'1e3'"),
    ("transformer:layers=2000", "model's layers", "2000"),
    ("transformer:width=2048,heads=30", "model's heads", "30"),
    ("llama_8b:kv_heads=5", "model's kv_heads", "5"),
    ("mixtral_8x7b:active=9", "model's active", "9"),
    ("vit_b16:length=100", "model's sizes", "'length=100'"),
    ("lstm_large:heads=3", "model's sizes", "'heads=3'"),
    ("vgg16:layers=3", "model with sizes", "'vgg16'"),
    ("llama_9b:layers=3", "model", "'llama_9b:layers=3'"),
  ],
)
def test_wrong_sizes_are_named_in_one_line(name, option, value):
  with pytest.raises(OptionError) as error:
    neural_networks.table(name)
  assert (error.value.option, str(error.value.value)) == (option, value) and "\n" not in str(error.value)


def test_an_unknown_key_lists_all_keys_with_their_defaults():
  with pytest.raises(OptionError) as error:
    neural_networks.table("transformer:depth=3")
  for default in ("layers=12", "width=768", "heads=width/64", "hidden=4*width", "length=1024", "vocabulary=50257"):
    assert default in error.value.condition


def test_images_and_recurrent_networks_have_their_own_usual_batch():
  jobs = {name: table_job(name, named("h100_ib400")).job for name in ("vit_b16", "lstm_large", "bert_base", "vgg16")}
  assert {name: job.language for name, job in jobs.items()} == {
    "vit_b16": False, "lstm_large": True, "bert_base": True, "vgg16": False,
  }  # fmt: skip
  assert [jobs[name].usual.examples for name in ("vit_b16", "lstm_large", "vgg16")] == [4096, 20, 8192]
  assert [jobs[name].tokens for name in jobs] == [0, 35, 512, 0]


def test_a_recurrent_layer_reads_its_weights_for_each_token():
  layers = {layer.name: layer for layer in neural_networks.table("lstm_large")}
  assert params(tuple(layers.values())) == 66_022_000  # arXiv 1409.2329: 66 million
  state = layers["0/state"]
  assert state.params == 4 * 1500**2 and state.held == (2 * 35 + 1) * state.params
  assert layers["0/input"].held == 3 * layers["0/input"].params and layers["0/input"].params == 4 * 1500 * 1501
  assert parts((state,))[0].held == state.held
  assert neural_networks.title("lstm_large").endswith("35 tokens")


def test_flop_per_token_follow_the_scaling_laws():
  """6 per parameter of the products, and 12 layers width tokens for the scores, or half of it without masked pairs."""
  net = neural_networks.sizes("gpt2_124m")._replace(fused=False)
  dense = [layer for layer in transformer(net) if not isinstance(layer, Attention) and "norm" not in layer.name]
  products = 12 * 12 * 768**2 + 768 * 50257
  assert train_flop(dense) == 6 * 1024 * products
  scores = [layer for layer in transformer(net) if isinstance(layer, Attention)]
  assert train_flop(scores) == 12 * 12 * 768 * 1024**2
  fused = [layer for layer in transformer(net._replace(fused=True)) if isinstance(layer, FusedAttention)]
  assert forward_flop(fused) == forward_flop(scores) / 2 and 12 * train_flop(fused) == 7 * train_flop(scores)


def test_grouped_queries_and_gates_by_hand():
  net = SequenceSizes(1, 8, 4, 4, 10, kv_heads=2, hidden=12, gated=True, bias=False, tied=False)
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
    net = SequenceSizes(2, 1024, 16, 512, 1000, fused=fused)
    one, two = (training_memory(transformer(net._replace(layers=n)), MIXED).per_example for n in (1, 2))
    small = 16 * 512 * 2 if fused else 5 * 16 * 512**2  # sums of the softmax, or scores
    assert two - one == 32 * 512 * 1024 + small


def test_recomputation_saves_only_the_inputs_of_blocks():
  net = SequenceSizes(2, 1024, 16, 512, 1000)
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


def test_states_are_sharded_only_if_they_do_not_fit():
  """States of 1.5 billion parameters fit in 40 GB, those of 7 billion do not fit in 80 GB."""
  h100, a100 = named("h100_ib400"), named("cloud_100g")

  def states(name, cluster, workers=0):
    job = table_job(name, cluster, workers).job
    return job.split, job.recomputed

  assert states("gpt2_1558m", a100) == (1, False)
  assert states("llama_7b", h100) == (8, False)
  assert states("llama_7b", h100, workers=4) == (4, False)
  assert states("llama_7b", h100, workers=1) == (2, True)  # fewer than needed
  large = table_job("llama_70b", h100).job
  assert (large.split, large.recomputed) == (64, True) and large.memory.total(6) < 0.9 * 80e9 < large.memory.total(7)
  with pytest.raises(ValueError, match=r"memory of a step on one sequence .* must be at most 900 MB .*, got .* GB"):
    table_job("llama_70b", h100._replace(device=h100.device._replace(memory=1e9)))


def test_published_runs_fit_in_memory_but_twice_their_examples_do_not():
  """MosaicML's runs have about the largest microbatch that fits; some were smaller for other reasons."""
  smaller = ("mpt_30b 1024", "mpt_30b 2048", "mpt_30b 4096", "mpt_70b 2048", "mpt_1b 1024")
  for point in (p for p in published_steps.points() if p.source == "mosaic"):
    table, limit = network(point.network), chips()[point.device].memory
    memory = training_memory(table, MIXED, recomputed=bool(point.recomputed), split=point.devices)
    assert memory.total(point.examples) < 1.1 * limit, point
    assert memory.total(2 * point.examples) > limit or point.network in smaller, point
