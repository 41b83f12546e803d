"""The planner: recommendations against searches and closed forms, and invalid requests."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddl.perf import bounds, collectives, neural_networks, plan_text, scaling, server
from ddl.perf.batch_size import ENOUGH, tried_sizes
from ddl.perf.cluster import Cluster, LinkModel, NetworkModel
from ddl.perf.cluster_file import built_in, named
from ddl.perf.device import USABLE, Device, Efficiency, LayerWork, step_seconds
from ddl.perf.families import FamilySettings, averaging
from ddl.perf.layers import MOMENTUM, StepMemory, params_bytes, parts, train_flop, training_memory
from ddl.perf.patterns import Op, Pattern
from ddl.perf.placement import Job, table_job
from ddl.perf.plan import PlanRequest, plan
from ddl.perf.units import seconds_text

PLAIN = Job("plain", 4e8, 1e9, StepMemory(1e6, 1.2e9))


def cluster(bandwidth=1e9, latency=1e-5, half=0.0, memory=16e9, workers=None, duplex=1.0):
  link = LinkModel(latency, bandwidth, duplex)
  return Cluster(
    "a test", Device(1e13, 1e12, memory), Efficiency(0.5, half), NetworkModel(link), "none", workers=workers
  )


def job(name, **keys):
  table = neural_networks.table(name)
  return Job(name, params_bytes(table), parts(table), training_memory(table, MOMENTUM), table, **keys)


def rows(advice):
  return {row.quantity: row for row in advice.rows}


def test_a_plan_for_a_million_devices_takes_seconds(at_once):
  advice = plan(job("alexnet"), cluster(workers=2**20, memory=1e13), PlanRequest(batch=1, workers=2**20))
  assert advice.settings.workers == 2**20


# ---- examples per worker


def test_a_lower_efficiency_on_few_examples_requires_more_examples():
  assert tried_sizes(PLAIN, cluster()).enough == 32
  result = tried_sizes(PLAIN, cluster(half=300))
  curve = Efficiency(0.5, 300)
  most = curve.at(result.best)
  assert curve.at(result.enough) >= ENOUGH * most > curve.at(result.enough // 2)
  rates = {x: x / seconds for x, seconds in result.steps.items()}
  assert rates[result.enough] / rates[result.best] == pytest.approx(curve.at(result.enough) / most)
  why = rows(plan(PLAIN, cluster(half=300), PlanRequest()))["examples per worker"].why
  assert f"at least {100 * ENOUGH:g} % of the best rate" in why
  assert f"of {rates[result.best]:,.0f} with {result.best}" in why
  assert rows(plan(PLAIN, cluster(), PlanRequest(batch=64)))["examples per worker"].why.startswith(
    "as requested: 64 / "
  )


def test_memory_limits_the_examples():
  memory = PLAIN.memory.total(80) / USABLE
  result = tried_sizes(PLAIN, cluster(half=1000, memory=memory))
  assert (result.enough, result.largest) == (80, 80)
  assert tried_sizes(PLAIN, cluster(memory=memory), requested=80).requested == (80, 1)
  several = tried_sizes(PLAIN, cluster(memory=memory), requested=800)
  assert several.requested == (800, 10) and several.step == pytest.approx(800 * 1e9 / 5e12)
  assert tried_sizes(PLAIN, cluster(memory=memory), requested=81).requested.micro == 3
  assert tried_sizes(PLAIN, cluster(memory=memory), requested=64, micro=4).requested.micro == 4
  with pytest.raises(ValueError, match=r"not even one example fits in 900 MB: a step on one example needs 1.2 GB"):
    tried_sizes(PLAIN, cluster(memory=1e9))


def test_data_limits_the_examples():
  few = PLAIN._replace(most=50)
  assert tried_sizes(few, cluster(half=1000)).enough == 50
  with pytest.raises(ValueError, match=r"batch .examples per worker. must be at most 50 .*got 64"):
    tried_sizes(few, cluster(), requested=64)


def test_rematerialization_is_required_if_not_even_one_example_fits_without_it():
  less = PLAIN.memory._replace(per_example=PLAIN.memory.per_example / 2)
  limit = cluster(memory=(PLAIN.memory.total(1) - 1) / USABLE)
  with pytest.raises(ValueError, match=r"^config.model.remat must be True.*got False"):
    tried_sizes(PLAIN._replace(remat=lambda: less), limit)
  with pytest.raises(ValueError, match="not even one example fits"):
    tried_sizes(PLAIN._replace(remat=lambda: PLAIN.memory), limit)


def test_a_plan_advises_rematerialization_and_members_only_if_the_microbatch_does_not_fit():
  job = PLAIN._replace(remat=lambda: PLAIN.memory._replace(per_example=PLAIN.memory.per_example / 4))
  for examples, advises in ((job.least - 1, True), (job.least, False)):
    target = cluster(memory=PLAIN.memory.total(examples) / USABLE)
    text = plan_text.text(job, "test", target, plan(job, target, PlanRequest(workers=2)))
    assert ("--config.model.remat=True" in text, "--members=2" in text) == (advises, advises)


def test_workspaces_use_the_remaining_memory():
  """With more memory the 0-1 program selects faster convolutions, up to those of the step."""
  target, needed = named("dasgd_v100_10g"), job("vgg_a").memory.total(64)
  results = []
  for room in (0, 4e8, 20e9):
    device = target.device._replace(memory=(needed + room) / USABLE)
    placed = table_job("vgg_a", target._replace(device=device))
    advice = plan(placed.job, placed.cluster, PlanRequest(64, 1))
    results.append(rows(advice)["convolutions"])
    assert f"{seconds_text(advice.settings.step)}, direct only" in results[-1].why or room < 1e9
  none, tight, roomy = results
  assert none.value == "8 direct" and none.limit == "0 bytes are left for workspaces, 0 bytes are used"
  assert tight.value != none.value and roomy.value == "8 winograd"
  assert tried_sizes(job("vgg_a"), cluster(memory=(needed - 1) / USABLE), requested=64).requested.micro == 2


def test_plan_and_scale_predict_the_same_step():
  """ResNet-50 on H100 is bound by memory; computation is less than two thirds of the step."""
  target = named("h100_ib400")
  advice = plan(job("resnet50"), target, PlanRequest(batch=64, workers=16))
  gradients = Pattern(local=(Op("all_reduce", params_bytes(neural_networks.table("resnet50"))),))
  work = scaling.work(neural_networks.table("resnet50"))
  single, several = scaling.curve(lambda _: gradients, work, target, [1, 16], batch=64, weak=True)
  assert advice.settings.step == pytest.approx(single.seconds, rel=1e-12)
  flop = step_seconds(train_flop(neural_networks.table("resnet50")), 64, target.device, target.efficiency)
  assert single.seconds > 1.5 * flop
  reported = rows(advice)
  assert reported["step"].value in reported["examples per worker"].why
  assert "2 bytes per value" in reported["step"].why and "memory bandwidth in" in reported["step"].limit
  speed = advice.speeds[0]
  assert (speed.algorithm, speed.seconds) == ("sync_sgd", several.seconds)
  assert speed.rate == pytest.approx(several.examples_per_second)


def test_the_step_row_by_hand():
  """One layer is bound by computation, the other by memory."""
  slow = cluster()._replace(device=Device(1e13, 1e11, 16e9, start=1e-4, width=2))
  both = PLAIN._replace(step=(LayerWork(1e9, 1e3, 1e6), LayerWork(1e6, 1e4, 1e8)))
  advice = plan(both, slow, PlanRequest(batch=64))
  computing = 64 * 1e9 / 5e12, 64 * 1e6 / 5e12
  moving = 2 * (64e3 + 1e6) / 1e11, 2 * (64e4 + 1e8) / 1e11
  assert computing[0] > moving[0] and computing[1] < moving[1]
  assert advice.settings.step == pytest.approx(1e-4 + computing[0] + moving[1])
  row = rows(advice)["step"]
  for seconds in (sum(computing), sum(moving), advice.settings.step):
    assert f"= {1e3 * seconds:.3g} ms" in row.why
  assert row.limit == f"memory bandwidth in 1 of 2 parts, {100 * moving[1] / advice.settings.step:.3g} % of the step"


# ---- workers, delay, period


@settings(max_examples=30)
@given(st.floats(1e7, 1e11), st.floats(0, 1e-3), st.integers(0, 64), st.sampled_from([0.0, 200.0]))
def test_settings_of_a_plan_keep_the_requested_shares(bandwidth, latency, workers, half):
  slow_cluster = cluster(bandwidth, latency, half)
  advice = plan(PLAIN, slow_cluster, PlanRequest(workers=workers))
  s = advice.settings
  step = step_seconds(PLAIN.step, advice.settings.examples, slow_cluster.device, slow_cluster.efficiency)
  message = collectives.all_reduce(PLAIN.params_bytes, s.workers, slow_cluster.network)
  assert s.step == step
  assert s.delay * step >= message * (1 - 1e-9) and (s.delay - 1) * step < message
  assert s.period >= s.delay and s.local_period >= 1
  speed = {x.algorithm: x for x in reversed(advice.speeds)}  # synchronous SGD in float32
  for x in speed.values():
    assert x.seconds >= step * (1 - 1e-12) and x.efficiency == pytest.approx(step / x.seconds)
  assert speed["dasgd"].efficiency == pytest.approx(1)
  assert speed["local_sgd"].efficiency >= 0.95 * (1 - 1e-9)
  hidden = step / 3  # the layer's gradients are sent while those of its inputs are computed
  assert speed["sync_sgd"].seconds == pytest.approx(step + max(0, message - hidden))
  if not workers and s.workers > 1:
    assert speed["sync_sgd"].efficiency >= 0.8


def test_twice_the_recommended_workers_are_inefficient():
  slow_cluster = cluster(bandwidth=0.845e9, latency=1e-3, workers=500)
  options = plan(PLAIN, slow_cluster, PlanRequest(batch=8192)).settings.workers
  assert 1 < options < 500

  def efficiency(g):
    return plan(PLAIN, slow_cluster, PlanRequest(batch=8192, workers=g)).speeds[0].efficiency

  assert efficiency(options) >= 0.8 > efficiency(2 * options)


def test_worker_rows_state_the_overlap_and_the_limit_by_the_data():
  reported = rows(plan(PLAIN._replace(data=1000), cluster(), PlanRequest(batch=64, workers=4)))
  weak = reported["workers (weak scaling)"]
  assert "overlapped gradients" in weak.why
  sequential = rows(plan(PLAIN, cluster()._replace(overlap=False), PlanRequest(batch=64, workers=4)))[
    "workers (weak scaling)"
  ]
  assert "no overlap" in sequential.why
  assert weak.limit.endswith("; the data suffice for at most 15 workers with 64 examples each")
  assert (
    "the data" not in rows(plan(PLAIN, cluster(), PlanRequest(batch=64, workers=4)))["workers (weak scaling)"].limit
  )


def test_a_single_worker_exchanges_nothing():
  advice = plan(PLAIN, cluster(), PlanRequest(workers=1))
  assert all(x.seconds == advice.settings.step for x in advice.speeds)
  assert "all-reduce" not in rows(advice)
  s = advice.settings
  assert (s.delay, s.period, s.local_period) == (0, 1, 1)


def test_without_overlap_the_recommended_delay_is_0():
  sequential = cluster(bandwidth=1e10)._replace(overlap=False)
  advice = plan(PLAIN, sequential, PlanRequest(batch=64, workers=4))
  assert advice.settings.delay == 0
  message, step = collectives.all_reduce(PLAIN.params_bytes, 4, sequential.network), advice.settings.step
  for speed in advice.speeds:
    if speed.algorithm in ("dasgd", "local_sgd"):
      period = advice.settings.period if speed.algorithm == "dasgd" else advice.settings.local_period
      assert speed.seconds == pytest.approx(step + message / period)
  assert plan(PLAIN, cluster(bandwidth=1e10), PlanRequest(batch=64, workers=4)).settings.delay > 0


@pytest.mark.parametrize(("workers", "bandwidth"), [(4, 1e9 / 8), (16, 1.25e9)])
@pytest.mark.parametrize("duplex", [0.0, 1.0])
def test_the_lemma_gives_the_fewest_servers_that_hide_simulated_messages(workers, bandwidth, duplex):
  needed = bounds.servers_for(244e6, workers, bandwidth, 1.0, duplex)

  def round_seconds(servers):
    computing = np.ones((1, workers))
    visit = server.VisitSeconds(0.0, (2 - duplex) * 244e6 / servers / bandwidth)  # the workers' links are no limit
    return server.mean_round(computing, 0 * computing, visit, rounds=20)

  busy = (2 - duplex) * 244e6 * workers / bandwidth
  if needed > 1:
    assert round_seconds(needed - 1) == pytest.approx(
      busy / (needed - 1), rel=0.02
    )  # the steady state is reached slowly
    assert round_seconds(needed - 1) > 1.001
  assert round_seconds(needed) == pytest.approx(1)


def test_speeds_by_hand():
  slow_cluster = cluster(bandwidth=1e9, latency=0.0)
  result = averaging(FamilySettings(1e8, 32, 0.1, 2, delay=1, period=2, local_period=4), slow_cluster)
  exchange = 1e8 / 1e9  # between two workers: twice half of the bytes
  assert {x.algorithm: x.seconds for x in result} == pytest.approx({"local_sgd": 0.1 + exchange / 4, "dasgd": 0.1})
  for x in result:
    assert x.rate == pytest.approx(2 * 32 / x.seconds) and x.efficiency == pytest.approx(0.1 / x.seconds)
  assert max(result, key=lambda x: x.rate).algorithm == "dasgd"


def test_every_cluster_has_a_plan():
  for name in built_in():
    target, advice = named(name), plan(job("nin"), named(name), PlanRequest())
    s = advice.settings
    assert all(math.isfinite(x.seconds) and x.seconds > 0 for x in advice.speeds), name
    assert all(row.why and row.limit for row in advice.rows), name
    assert target.workers is None or s.workers <= target.workers, name
    message = collectives.all_reduce(s.params_bytes, s.workers, target.network)
    assert s.delay == bounds.smallest_delay(message, s.step), name


def test_invalid_requests_are_rejected_in_one_line():
  for target, request, text in (
    (cluster(workers=8), PlanRequest(workers=9), "workers must be from 1 to 8 .*got 9"),
    (cluster(), PlanRequest(workers=-1), "workers must be .*got -1"),
    (cluster(), PlanRequest(workers=65_537), "workers must be .*65,536 .*got 65537"),
    (cluster(), PlanRequest(efficiency=0), r"efficiency must be in \(0, 1\], got 0"),
    (cluster(), PlanRequest(exposed=math.nan), r"exposed must be in \(0, 1\), got nan"),
    (cluster(memory=0), PlanRequest(), "not even one example"),
    (cluster(memory=math.nan), PlanRequest(), "not even one example"),
  ):
    with pytest.raises(ValueError, match=text) as error:
      plan(PLAIN, target, request)
    assert "\n" not in str(error.value)
