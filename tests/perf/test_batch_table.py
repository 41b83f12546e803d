"""The examples per worker that a plan chooses, and the algorithm that it recommends."""

import functools

import pytest

from ddl.perf import batch_size, collectives, families, neural_networks, placement
from ddl.perf.batch_size import tried_sizes
from ddl.perf.cluster import Cluster, LinkModel, NetworkModel
from ddl.perf.cluster_file import named
from ddl.perf.device import USABLE, Device, Efficiency, LayerWork
from ddl.perf.layers import MOMENTUM, StepMemory, params_bytes, parts, training_memory
from ddl.perf.placement import USUAL, Job, UsualBatch, table_job
from ddl.perf.plan import PlanRequest, pick, plan

PLAIN = Job("plain", 4e8, 1e9, StepMemory(1e6, 1.2e9), usual=USUAL["images"])
SLOW = Cluster("a test", Device(1e13, 1e12, 16e9), Efficiency(0.5), NetworkModel(LinkModel(0.0, 1e9)), "none")


def job(name):
  table = neural_networks.table(name)
  return Job(name, params_bytes(table), parts(table), training_memory(table, MOMENTUM), table, usual=USUAL["images"])


def speed(algorithm, rate, steps=0, setting="float32 gradients"):
  return families.Speed(algorithm, setting, 1.0, 1.0, rate, steps)


def test_alexnet_on_16_v100_needs_many_examples_to_hide_its_exchange():
  """Two nodes exchange 250 MB at 10 Gbit/s; the step has the cluster's efficiency, not the fitted one."""
  advice = plan(job("alexnet"), named("dasgd_v100_10g"), PlanRequest(workers=16))
  by_size = {row.size.examples: row for row in advice.table}
  enough, few = advice.enough.examples, by_size[32]
  assert few.efficiency < 0.2 and few.best.setting != "float32 gradients"
  assert 512 <= enough <= 1024 and by_size[enough].efficiency >= 0.95
  assert [row.efficiency for row in by_size.values()] == pytest.approx(
    sorted(row.efficiency for row in by_size.values())
  )
  assert advice.best.algorithm == "sync_sgd" and advice.settings.examples == min(enough, 512)
  assert advice.best.batch == 8192 and not advice.single


def test_the_threshold_is_the_fewest_examples_with_the_requested_efficiency():
  advice = plan(PLAIN, SLOW, PlanRequest(workers=8))
  enough = advice.enough

  def efficiency(examples):
    return plan(PLAIN, SLOW, PlanRequest(batch=examples, workers=8)).speeds[0].efficiency

  assert enough.micro == 1 and efficiency(enough.examples) >= 0.95 > efficiency(enough.examples // 2)
  assert plan(PLAIN, SLOW, PlanRequest(workers=8, exposed=0.3)).enough.examples < enough.examples


def test_gradients_are_accumulated_if_memory_is_too_small():
  small = SLOW._replace(device=SLOW.device._replace(memory=PLAIN.memory.total(100) / USABLE))
  advice = plan(PLAIN, small, PlanRequest(workers=8))
  part, micro = advice.enough.examples // advice.enough.micro, advice.enough.micro
  assert part == 64 and micro > 1
  step, row = 64 * 1e9 / 5e12, advice.table[-1]
  waited = row.step / row.efficiency - micro * step
  assert row.size == advice.enough
  assert micro * step / (micro * step + waited) >= 0.95 > (micro - 1) * step / ((micro - 1) * step + waited)
  assert advice.best.batch == USUAL["images"].examples < 8 * advice.enough.examples and advice.settings.micro > 1
  large = plan(PLAIN._replace(usual=UsualBatch(10**9, "any", start=8)), small, PlanRequest(workers=8))
  assert large.settings.examples == pytest.approx(advice.enough.examples, rel=0.05) and large.settings.micro > 1
  assert large.settings.step == pytest.approx(large.settings.examples * 1e9 / 5e12)
  assert large.speeds[0].efficiency >= 0.94
  assert plan(PLAIN._replace(most=64, usual=None), small, PlanRequest(workers=8)).enough is None  # too few data


def test_a_batch_is_split_evenly_if_possible():
  sizes = {(30, 7): (30, 5), (1024, 93): (1024, 16), (13, 12): (12, 2), (7, 7): (7, 1), (97, 10): (90, 10)}
  assert {case: batch_size.accumulated(*case) for case in sizes} == sizes


def test_the_global_batch_is_at_most_the_usual_one():
  cluster = named("two_sites_1g")
  advice = plan(job("resnet50"), cluster, PlanRequest(workers=16))
  assert advice.settings.examples * 16 == USUAL["images"].examples < advice.enough.examples * 16
  assert plan(job("resnet50")._replace(usual=None), cluster, PlanRequest(workers=16)).settings.examples == 32
  automatic = plan(job("vgg_a"), named("cori_fdr"), PlanRequest()).settings
  assert automatic.workers * automatic.examples <= USUAL["images"].examples and automatic.workers == 256


def test_with_a_critical_batch_the_examples_minimize_the_seconds_to_a_loss():
  """(1 / B + 1 / B_c) T is the least of all candidates."""
  alexnet, target = job("alexnet"), named("dasgd_v100_10g")
  for critical in (500.0, 3000.0, 1e6):
    advice = plan(alexnet, target, PlanRequest(workers=16, critical=critical))

    def seconds(examples, critical=critical):
      step = families.exact_seconds(alexnet, target, 16, examples)
      return step * (1 / (16 * examples) + 1 / critical)

    tried = tried_sizes(alexnet, target).steps
    assert advice.settings.examples == min(tried, key=seconds)
    assert min(row.relative for row in advice.table) == 1
  assert batch_size.examples_factor(300, 100) == 4
  assert batch_size.seconds_factor(300, 100, 3.0) == pytest.approx(3 * (1 / 300 + 1 / 100))


def test_the_usual_batch_of_a_language_model_counts_tokens():
  assert placement.usual_language_batch(124e6, 1024).examples == 480
  assert placement.usual_language_batch(7e9, 4096).examples == 976
  assert "2307.09288" in placement.usual_language_batch(7e9, 4096).source


def test_overlap_increases_the_recommended_number_of_workers():
  target = SLOW._replace(network=NetworkModel(LinkModel(0.0, 5e9)))
  sequential = target._replace(overlap=False)
  step = 1024 * 1e9 / 5e12
  request = PlanRequest(batch=1024, efficiency=0.7)
  assert 2 * 4e8 / 5e9 * 7 / 8 / 3 < step < 2 * 4e8 / 5e9 / 0.3  # an exchange takes more than a third of a step
  assert plan(PLAIN, target, request).settings.workers > plan(PLAIN, sequential, request).settings.workers


def test_all_workers_are_used_if_even_two_are_inefficient():
  assert plan(job("resnet50"), named("two_sites_1g"), PlanRequest()).settings.workers == 16


def test_parameters_too_large_for_one_worker_are_sharded():
  layers = [LayerWork(1e12, held=1e7)] * 100
  large = PLAIN._replace(step=layers, params_bytes=2e10, memory=StepMemory(1e8, 8e10))
  cluster = named("h100_ib400")
  advice = plan(large, cluster._replace(device=cluster.device._replace(memory=3e10)), PlanRequest(workers=32))
  assert advice.settings.shards == 4 and advice.best.algorithm in ("fsdp", "hybrid_fsdp")
  assert advice.rows[-1].quantity == "all-reduce"
  with pytest.raises(ValueError, match="not even one example fits"):
    plan(large, cluster._replace(device=cluster.device._replace(memory=1e9)), PlanRequest(workers=32))
  with pytest.raises(ValueError, match="not even one example fits"):
    plan(large, cluster._replace(device=cluster.device._replace(memory=3e10)), PlanRequest(workers=2))


def test_the_simplest_of_the_nearly_fastest_algorithms_is_recommended():
  one, other = speed("sync_sgd", 95.0), speed("sync_sgd", 99.0, setting="bfloat16 gradients")
  images = functools.partial(pick, language=False)
  assert images([one, other, speed("dasgd", 100.0, 1)]) == one
  assert images([one._replace(rate=50.0), other, speed("dasgd", 100.0, 1)]) == other
  assert images([one._replace(rate=50.0), speed("dasgd", 100.0, 1)]).algorithm == "sync_sgd"
  assert images([one._replace(rate=49.0), speed("dasgd", 100.0, 1)]).algorithm == "dasgd"
  coarse = speed("sync_sgd", 100.0, setting="PowerSGD, rank 4")
  assert images([one._replace(rate=50.0), coarse]).rate == 50 and images([one._replace(rate=49.0), coarse]) == coarse
  text = [one._replace(rate=48.0), coarse, speed("dasgd", 100.0, 1), speed("streaming_diloco", 95.0, 100)]
  assert pick(text).algorithm == "sync_sgd"  # PowerSGD and DaSGD are no yardsticks for language models
  assert pick([text[0]._replace(rate=47.0), *text[1:]]).algorithm == "streaming_diloco"
  late = [one._replace(rate=45.0), speed("dasgd", 100.0, 9), speed("local_sgd", 95.0, 17), speed("diloco", 92.0, 500)]
  assert pick(late).algorithm == "diloco"  # the others have no published results with such delays and periods
  slow = speed("sync_sgd", 60.0, setting="PowerSGD, rank 4")
  assert pick([slow, speed("diloco", 100.0, 500)], language=False) == slow
  assert pick([slow, speed("diloco", 100.0, 500)], language=True).algorithm == "diloco"
  assert pick([slow, speed("diloco", 130.0, 500)], language=False).algorithm == "diloco"
  assert pick([one._replace(rate=1.0), speed("easgd", 100.0, 1)]).algorithm == "sync_sgd"
  few, many = one._replace(rate=10.0, batch=8), one._replace(batch=80)
  assert pick([few, many], most=8) == few and pick([few, many]) == pick([many], most=8) == many


def test_one_worker_is_recommended_if_several_are_no_faster():
  """A step mostly consists of its start of 100 us, so one worker is as fast as 8."""
  small = Job("small", 4e4, 1e5, StepMemory(1e3, 1e5))
  cluster = named("h100_ib400")
  single = plan(small, cluster, PlanRequest(batch=16, workers=8)).advised
  assert single.batch == 128 and single.seconds == pytest.approx(1e-4, rel=0.01)
  assert plan(job("alexnet"), cluster, PlanRequest(workers=8)).single is None


def test_one_worker_is_recommended_for_very_short_steps():
  tiny = Job("tiny", 4e3, 1e6, StepMemory(1e3, 1e4))
  advice = plan(tiny, named("cori_fdr"), PlanRequest(batch=1, workers=4))
  assert (advice.workers, advice.advised.batch, advice.settings.workers) == (1, 4, 4)


def test_the_table_is_short_and_includes_the_recommended_sizes():
  for network, name in (("alexnet", "dasgd_v100_10g"), ("resnet50", "two_sites_1g"), ("nin", "tpu_v5e")):
    advice = plan(job(network), named(name), PlanRequest())
    sizes = [row.size for row in advice.table]
    assert len(sizes) <= batch_size.MOST_ROWS + 1 and sizes == sorted(sizes)
    assert advice.settings.examples in [size.examples for size in sizes] and advice.enough in sizes


# ---- the usual batch


def test_the_usual_batch_follows_the_kind_of_network():
  kinds = {"bert_base": USUAL["encoder"], "vit_b16": USUAL["vision"], "alexnet_v2": USUAL["alexnet"],
           "resnet50": USUAL["images"]}  # fmt: skip
  assert {name: table_job(name, named("h100_ib400")).job.usual for name in kinds} == kinds
  assert table_job("t5_base", named("h100_ib400")).job.usual.examples == 960  # a decoder: 480 x 1,024 tokens


@pytest.mark.parametrize(
  ("model", "name", "workers", "batch", "micro"),
  [
    ("gpt2_124m", "h100_ib400", 8, 480, 1),
    ("gpt2_124m", "h100_ib400", 1, 480, 6),
    ("llama_7b", "h100_ib400", 64, 960, 5),  # 976 sequences of 4,096 tokens are usual
  ],
)
def test_the_batch_of_a_language_model_is_the_usual_one(model, name, workers, batch, micro):
  placed = table_job(model, named(name), workers)
  best = plan(placed.job, placed.cluster, PlanRequest(workers=workers)).advised
  assert (best.batch, best.micro) == (batch, micro) and best.efficiency > 0.95
  assert best.algorithm in ("sync_sgd", "fsdp")


def test_gpt2_on_rtx_4090_accumulates_to_the_usual_batch():
  """Four hosts with four devices each on 10 Gbit/s; `plan` advised PowerSGD with 64 sequences."""
  placed = table_job("gpt2_774m", named("configs/clusters/rtx4090_16_10g.toml"), 16)
  advice = plan(placed.job, placed.cluster, PlanRequest(workers=16))
  assert (advice.best.algorithm, advice.best.setting, advice.best.batch) == ("sync_sgd", "bfloat16 gradients", 480)
  few = plan(placed.job, placed.cluster, PlanRequest())  # with at least 80 % efficiency
  assert (few.best.setting, few.best.batch) == ("float32 gradients", 480) and few.settings.workers == 4


def test_more_workers_than_usual_examples_split_layers():
  placed = table_job("llama_70b", named("h100_ib400"), 4096)
  job, target = placed.job, placed.cluster
  advice = plan(job, target, PlanRequest(workers=4096))
  assert advice.best.algorithm == "tensor_zero1" and not job.usual.exceeded(advice.best.batch)
  by_name = {x.algorithm: x for x in advice.speeds}
  assert by_name["hybrid_fsdp"].rate > by_name["fsdp"].rate and job.usual.exceeded(by_name["fsdp"].batch)
  assert 0.5 < advice.best.efficiency < 1
  assert advice.best.rate == pytest.approx(advice.best.batch / advice.best.seconds)
  requested = plan(job, target, PlanRequest(batch=2, workers=4096))  # a batch that the user accepts
  assert requested.best.algorithm == "hybrid_fsdp" and requested.best.batch == 8192


def test_the_messages_of_tensor_parallelism_by_hand():
  """Each of 80 blocks all-reduces its activations twice in the forward and twice in the backward pass."""
  placed = table_job("llama_70b", named("h100_ib400"), 4096)
  settings = plan(placed.job, placed.cluster, PlanRequest(workers=4096)).settings
  took, messages = [], []
  for bandwidth in (1e10, 1e12):
    network = placed.cluster.network._replace(library=None)
    network = network._replace(inside=network.inside._replace(bandwidth=bandwidth))
    target = placed.cluster._replace(network=network, overlap=False)
    took.append(families.tensor_speed(placed.job, target, settings, 8))
    examples = took[-1].batch // (4096 // 8)
    messages.append(collectives.all_reduce(2 * 4096 * 8192 * examples, 8, network))  # bytes: 2 * tokens * width
  assert [x.micro for x in took] == [1, 1]
  assert took[0].seconds - took[1].seconds == pytest.approx(4 * 80 * (messages[0] - messages[1]), rel=1e-9)


def test_the_fastest_hybrid_sharding_is_predicted():
  placed = table_job("llama_7b", named("h100_ib400"), 64)
  settings = plan(placed.job, placed.cluster, PlanRequest(workers=64)).settings
  predicted = next(x for x in families.sharded(*placed[:2], settings) if x.algorithm == "hybrid_fsdp")
  sizes = [n for name, n in families.shardings(placed.cluster.network, 64, settings.shards) if name == "hybrid_fsdp"]
  every = [
    families.sharded_seconds(*placed[:2], 64, settings.step, n, settings.gradients, settings.micro) for n in sizes
  ]
  assert len({*every}) > 1 and predicted.seconds == min(every)
