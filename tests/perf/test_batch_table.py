"""The examples per worker that a plan chooses, and the algorithm that it recommends."""

import pytest

from ddl.perf import batch_size, families, neural_networks, placement
from ddl.perf.batch_size import tried_sizes
from ddl.perf.cluster import Cluster, LinkModel, NetworkModel
from ddl.perf.cluster_file import named
from ddl.perf.device import Device, Efficiency, LayerWork
from ddl.perf.layers import params_bytes, parts
from ddl.perf.memory import StepMemory, step_memory
from ddl.perf.placement import IMAGES, Job, UsualBatch
from ddl.perf.plan import PlanRequest, pick, plan

PLAIN = Job("plain", 4e8, 1e9, StepMemory(1e6, 1.2e9), usual=IMAGES)
SLOW = Cluster("a test", Device(1e13, 1e12, 16e9), Efficiency(0.5), NetworkModel(LinkModel(0.0, 1e9)), "none")


def job(name):
  table = neural_networks.table(name)
  return Job(name, params_bytes(table), parts(table), step_memory(table, extra_copies=1), table, usual=IMAGES)


def speed(algorithm, rate, steps=0, setting="float32 gradients"):
  return families.Speed(algorithm, setting, 1.0, 1.0, rate, steps)


def test_alexnet_on_16_v100_needs_many_examples_to_hide_its_exchange():
  """Two nodes exchange 250 MB at 10 Gbit/s; the step has the cluster's efficiency, not the fitted one."""
  advice = plan(job("alexnet"), named("dasgd_v100_10g"), PlanRequest(workers=16))
  by_size = {row.size.examples: row.cells for row in advice.table}
  enough, few = advice.enough.examples, by_size[32]
  assert few["synchronous"].efficiency < 0.2 and few["dasgd"].setting >= 8 and few["local_sgd"].setting >= 137
  assert 512 <= enough <= 1024 and by_size[enough]["synchronous"].efficiency >= 0.95
  for name in ("synchronous", "in bfloat16"):
    efficiencies = [cells[name].efficiency for cells in by_size.values()]
    assert efficiencies == pytest.approx(sorted(efficiencies))
  assert advice.recommendation.speed.algorithm == "sync_sgd" and advice.settings.examples == min(enough, 512)
  assert (
    "8,192 per step" in advice.recommendation.lines[0]
    and f"With at least {enough:,} examples per worker (" in advice.recommendation.lines[1]
  )
  assert "unknown" in advice.recommendation.lines[2] and "8,192 (Goyal" in advice.recommendation.lines[2]


def test_the_threshold_is_the_fewest_examples_with_the_requested_efficiency():
  advice = plan(PLAIN, SLOW, PlanRequest(workers=8))
  enough = advice.enough

  def efficiency(examples):
    return plan(PLAIN, SLOW, PlanRequest(batch=examples, workers=8)).speeds[0].efficiency

  assert enough.micro == 1 and efficiency(enough.examples) >= 0.95 > efficiency(enough.examples // 2)
  assert plan(PLAIN, SLOW, PlanRequest(workers=8, exposed=0.3)).enough.examples < enough.examples


def test_gradients_are_accumulated_if_memory_is_too_small():
  small = SLOW._replace(device=SLOW.device._replace(memory=PLAIN.memory.total(100)))
  advice = plan(PLAIN, small, PlanRequest(workers=8))
  part, micro = advice.enough.examples // advice.enough.micro, advice.enough.micro
  assert part == 64 and micro > 1
  step = 64 * 1e9 / 5e12
  waited = advice.table[-1].step / advice.table[-1].cells["synchronous"].efficiency - micro * step
  assert micro * step / (micro * step + waited) >= 0.95 > (micro - 1) * step / ((micro - 1) * step + waited)
  assert any(f"over {micro} microbatches of 64" in line for line in advice.recommendation.lines)
  assert advice.settings.micro == 1  # a larger batch than usual
  large = plan(PLAIN._replace(usual=UsualBatch(10**9, "any")), small, PlanRequest(workers=8))
  assert (large.settings.examples, large.settings.micro) == advice.enough
  assert large.settings.step == pytest.approx(micro * step) and large.speeds[0].efficiency >= 0.95
  assert plan(PLAIN._replace(most=64, usual=None), small, PlanRequest(workers=8)).enough is None  # too few data


def test_the_global_batch_is_at_most_the_usual_one():
  cluster = named("two_sites_1g")
  advice = plan(job("resnet50"), cluster, PlanRequest(workers=16))
  assert advice.settings.examples * 16 == IMAGES.examples < advice.enough.examples * 16
  assert plan(job("resnet50")._replace(usual=None), cluster, PlanRequest(workers=16)).settings.examples == 32
  automatic = plan(job("vgg_a"), named("cori_fdr"), PlanRequest()).settings
  assert automatic.workers * automatic.examples <= IMAGES.examples and automatic.workers == 256


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
    more = 1 + 16 * advice.settings.examples / critical
    assert f"= {more:.3g} times the examples" in " ".join(advice.recommendation.lines)
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
  assert advice.settings.shards == 4 and advice.recommendation.speed.algorithm in ("fsdp", "hybrid_fsdp")
  assert {row.quantity for row in advice.rows} >= {"shards", "all-reduce"}
  assert not any(row.quantity.startswith(("servers", "period")) for row in advice.rows)
  with pytest.raises(ValueError, match="not even one example fits"):
    plan(large, cluster._replace(device=cluster.device._replace(memory=1e9)), PlanRequest(workers=32))
  with pytest.raises(ValueError, match="not even one example fits"):
    plan(large, cluster._replace(device=cluster.device._replace(memory=3e10)), PlanRequest(workers=2))


def test_the_simplest_of_the_nearly_fastest_algorithms_is_recommended():
  one, other = speed("sync_sgd", 95.0), speed("sync_sgd", 99.0, setting="bfloat16 gradients")
  assert pick([one, other, speed("dasgd", 100.0, 1)]) == one
  assert pick([one._replace(rate=50.0), other, speed("dasgd", 100.0, 1)]) == other
  assert pick([one._replace(rate=50.0), speed("dasgd", 100.0, 1)]).algorithm == "dasgd"
  late = [one._replace(rate=50.0), speed("dasgd", 100.0, 9), speed("local_sgd", 95.0, 17), speed("diloco", 90.0, 500)]
  assert pick(late).algorithm == "diloco"  # the others have no published results with such delays and periods
  slow = speed("sync_sgd", 60.0, setting="PowerSGD, rank 4")
  assert pick([slow, speed("diloco", 100.0, 500)], language=False) == slow
  assert pick([slow, speed("diloco", 100.0, 500)], language=True).algorithm == "diloco"
  assert pick([slow, speed("diloco", 130.0, 500)], language=False).algorithm == "diloco"
  assert pick([one._replace(rate=1.0), speed("easgd", 100.0, 1)]).algorithm == "sync_sgd"


def test_one_worker_is_recommended_if_several_are_no_faster():
  """A step mostly consists of its start of 100 us, so one worker is as fast as 8."""
  small = Job("small", 4e4, 1e5, StepMemory(1e3, 1e5))
  cluster = named("h100_ib400")
  reported = " ".join(plan(small, cluster, PlanRequest(batch=16, workers=8)).recommendation.lines)
  assert "Recommended: one worker. It takes 100 us for all 128 examples of a step" in reported
  assert "one worker" not in " ".join(plan(job("alexnet"), cluster, PlanRequest(workers=8)).recommendation.lines)


def test_one_worker_is_recommended_for_very_short_steps():
  tiny = Job("tiny", 4e3, 1e6, StepMemory(1e3, 1e4))
  advice = plan(tiny, named("cori_fdr"), PlanRequest(batch=1, workers=4)).recommendation
  assert advice.lines[0].startswith("Recommended: one worker. A step of 0.849 us is too short")


def test_the_table_is_short_and_includes_the_recommended_sizes():
  for network, name in (("alexnet", "dasgd_v100_10g"), ("resnet50", "two_sites_1g"), ("nin", "tpu_v5e")):
    advice = plan(job(network), named(name), PlanRequest())
    sizes = [row.size for row in advice.table]
    assert len(sizes) <= batch_size.MOST_ROWS + 1 and sizes == sorted(sizes)
    assert advice.settings.examples in [size.examples for size in sizes] and advice.enough in sizes
