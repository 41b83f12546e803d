"""The planner: each recommendation is the one that a search finds, and invalid wishes are one line."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddl.perf import bounds, collectives, neural_networks, scaling, server
from ddl.perf.batch_size import ENOUGH, choose_batch
from ddl.perf.cluster import Cluster, LinkModel, NetworkModel
from ddl.perf.cluster_file import built_in, named
from ddl.perf.device import Device, Efficiency, LayerWork, step_seconds
from ddl.perf.families import FamilySettings, averaging
from ddl.perf.layers import params_bytes, parts, train_flop
from ddl.perf.memory import StepMemory, step_memory
from ddl.perf.patterns import Op, Pattern
from ddl.perf.placement import Job
from ddl.perf.plan import PlanRequest, plan
from ddl.perf.units import percent, seconds_text

PLAIN = Job("plain", 4e8, 1e9, StepMemory(1e6, 1.2e9))


def cluster(bandwidth=1e9, latency=1e-5, half=0.0, memory=16e9, workers=None, duplex=1.0):
  link = LinkModel(latency, bandwidth, duplex)
  return Cluster(
    "a test", Device(1e13, 1e12, memory), Efficiency(0.5, half), NetworkModel(link), "none", workers=workers
  )


def job(name, **keys):
  table = neural_networks.table(name)
  return Job(name, params_bytes(table), parts(table), step_memory(table, extra_copies=1), table, **keys)


def rows(advice):
  return {row.quantity: row for row in advice.rows}


@pytest.mark.parametrize("start", [1.0, 3600.0])
@pytest.mark.parametrize("workers", [1, 8])
def test_a_long_start_leaves_the_seconds_of_computing_exact(start, workers):
  """T_C is 1e-9 of the step, which subtracting two steps would lose."""
  slow_cluster = cluster(latency=0.0, bandwidth=1e15)
  slow_cluster = slow_cluster._replace(device=slow_cluster.device._replace(start=start, peak=1e21))
  small = PLAIN._replace(step=1e9)
  row = next(
    row for row in plan(small, slow_cluster, PlanRequest(batch=32, workers=workers)).rows if "strong" in row.quantity
  )
  compute = workers * 32 * 1e9 / (1e21 * 0.5)
  overhead = bounds.efficiency(workers, (start + compute / workers - compute / workers) / compute)
  assert (
    f"{seconds_text(compute)} = " in row.why and f"alpha = (1 + R_O) / (1 + G R_O) = {percent(overhead)}" in row.why
  )


def test_a_step_that_only_reads_its_parameters_gains_nothing_from_workers():
  job = PLAIN._replace(step=(LayerWork(1e-9, held=1e9),))
  row = next(row for row in plan(job, cluster(), PlanRequest(batch=32, workers=8)).rows if "strong" in row.quantity)
  assert row.value == "1" and "as long with fewer examples" in row.why


def test_a_plan_for_a_million_devices_takes_seconds(at_once):
  advice = plan(job("alexnet"), cluster(workers=2**20, memory=1e13), PlanRequest(batch=1, workers=2**20))
  assert advice.settings.workers == 2**20


# ---- examples per worker


def test_an_efficiency_curve_asks_for_more_examples():
  assert choose_batch(PLAIN, cluster()).examples == 32
  result = choose_batch(PLAIN, cluster(half=300))
  curve = Efficiency(0.5, 300)
  most = curve.at(result.best)
  assert curve.at(result.examples) >= ENOUGH * most > curve.at(result.examples // 2)
  assert result.rate / result.best_rate == pytest.approx(curve.at(result.examples) / most)
  why = rows(plan(PLAIN, cluster(half=300), PlanRequest()))["examples per worker"].why
  assert f"{100 * ENOUGH:g} % of the best rate" in why and f"of {result.best_rate:,.0f} with {result.best}" in why
  assert rows(plan(PLAIN, cluster(), PlanRequest(batch=64)))["examples per worker"].why.startswith(
    "as requested: 64 / "
  )


def test_memory_limits_the_examples():
  memory = PLAIN.memory.total(80)
  result = choose_batch(PLAIN, cluster(half=1000, memory=memory))
  assert (result.examples, result.largest) == (80, 80)
  assert choose_batch(PLAIN, cluster(memory=memory), requested=80).examples == 80
  with pytest.raises(ValueError, match=r"examples per worker must be at most 80, .* 1.28 GB, got 81"):
    choose_batch(PLAIN, cluster(memory=memory), requested=81)
  with pytest.raises(ValueError, match=r"not even one example fits in 1 GB: a step on one needs 1.2 GB"):
    choose_batch(PLAIN, cluster(memory=1e9))


def test_the_data_limit_the_examples():
  few = PLAIN._replace(most=50)
  assert choose_batch(few, cluster(half=1000)).examples == 50
  with pytest.raises(ValueError, match=r"examples per worker must be at most 50, .*got 64"):
    choose_batch(few, cluster(), requested=64)


def test_the_compiled_step_decides_where_there_is_one():
  exact = PLAIN._replace(exact=lambda examples: 5e8 + 1e8 * examples + 1e6 * max(0, examples - 50) ** 2)
  result = choose_batch(exact, cluster(half=1000, memory=11e9))
  assert result.exact == exact.exact(result.examples) <= 11e9  # linear it would be 105, but it is not
  assert result.examples == result.largest == 84  # 105, then a tenth less again and again
  with pytest.raises(ValueError, match="not even one example"):
    choose_batch(exact, cluster(memory=4e8))


def test_workspaces_are_what_memory_leaves():
  """Direct convolutions need none; with room the program finds faster ones, and the step does not count on them."""
  net = job("vgg_a")
  needed = net.memory.total(64)
  none, tight, roomy = (choose_batch(net, cluster(memory=needed + room), requested=64) for room in (0, 1e9, 20e9))
  assert set(none.program.shared.algorithms) == {"direct"} and none.program.step == pytest.approx(none.step)
  assert (
    roomy.program.shared.seconds < tight.program.shared.seconds < none.program.shared.seconds == none.program.direct
  )
  assert roomy.program.shared.seconds <= roomy.program.separate.seconds
  assert roomy.program.step == pytest.approx(roomy.step - roomy.program.direct + roomy.program.shared.seconds)
  assert none.step == tight.step == roomy.step == step_seconds(net.step, 64, cluster().device, cluster().efficiency)
  with pytest.raises(ValueError, match=r"examples per worker must be at most 63, .*got 64"):
    choose_batch(net, cluster(memory=needed - 1), requested=64)


def test_a_plan_and_a_scaling_curve_have_one_step():
  """ResNet-50 on H100 is bound by memory: the FLOP alone would be half of the step."""
  target = named("h100_ib400")
  advice = plan(job("resnet50"), target, PlanRequest(batch=64, workers=16))
  gradients = Pattern(local=(Op("all_reduce", params_bytes(neural_networks.table("resnet50"))),))
  work = scaling.work(neural_networks.table("resnet50"))
  alone, together = scaling.curve(lambda _: gradients, work, target, [1, 16], batch=64, weak=True)
  assert advice.settings.step == pytest.approx(alone.seconds, rel=1e-12)
  flop = step_seconds(train_flop(neural_networks.table("resnet50")), 64, target.device, target.efficiency)
  assert alone.seconds > 1.5 * flop
  reported = rows(advice)
  assert (
    reported["step"].value in reported["examples per worker"].why
    and reported["step"].value in reported["delay (DaSGD)"].why
  )
  assert "2 bytes per value" in reported["step"].why and "memory bandwidth in" in reported["step"].limit
  beside = advice.speeds[0]
  assert (beside.algorithm, beside.seconds) == ("sync_sgd", together.seconds)
  assert beside.rate == pytest.approx(together.examples_per_second)


def test_the_row_of_the_step_is_its_formula():
  """One layer that computes and one that moves: the larger of both terms of each, worked out by hand."""
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


# ---- workers, servers, delay, period


@settings(deadline=None, max_examples=40)
@given(st.floats(1e7, 1e11), st.floats(0, 1e-3), st.integers(0, 64), st.sampled_from([0.0, 200.0]))
def test_what_a_plan_promises(bandwidth, latency, workers, half):
  slow_cluster = cluster(bandwidth, latency, half)
  advice = plan(PLAIN, slow_cluster, PlanRequest(workers=workers))
  s = advice.settings
  step = step_seconds(PLAIN.step, advice.settings.examples, slow_cluster.device, slow_cluster.efficiency)
  message = collectives.all_reduce(PLAIN.params_bytes, s.workers, slow_cluster.network)
  assert s.step == step
  assert s.delay * step >= message * (1 - 1e-9) and (s.delay - 1) * step < message
  assert s.period >= s.delay and s.local_period >= s.easgd_period >= 1
  speed = {x.algorithm: x for x in reversed(advice.speeds)}  # of synchronous SGD the one in float32
  for each in speed.values():
    assert each.seconds >= step * (1 - 1e-12) and each.efficiency == pytest.approx(step / each.seconds)
  assert speed["dasgd"].efficiency == pytest.approx(1)
  for name in ("local_sgd", "easgd", "async_easgd"):  # the last with the queue at its servers
    assert speed[name].efficiency >= 0.95 * (1 - 1e-9)
  hidden = step / 3  # of the one layer's gradients, while those of its inputs are computed
  assert speed["sync_sgd"].seconds == pytest.approx(step + max(0, message - hidden))
  if not workers and s.workers > 1:
    assert speed["sync_sgd"].efficiency >= 0.8


def test_more_workers_would_not_be_efficient():
  slow_cluster = cluster(bandwidth=0.845e9, latency=1e-3, workers=500)
  options = plan(PLAIN, slow_cluster, PlanRequest(batch=8192)).settings.workers
  assert 1 < options < 500

  def efficiency(g):
    return plan(PLAIN, slow_cluster, PlanRequest(batch=8192, workers=g)).speeds[0].efficiency

  assert efficiency(options) >= 0.8 > efficiency(2 * options)


def test_the_lemma_on_workers():
  """R_O with the host's part (from the efficiency curve) and the wait, for the same examples shared by more."""
  target, name = cluster(half=100), "workers (strong scaling, 256 examples)"

  def waited(target):  # what of the exchange is not hidden by the last third of the step
    step = step_seconds(1e9, 64, target.device, target.efficiency)
    return collectives.all_reduce(PLAIN.params_bytes, 4, target.network) - step / 3

  row = rows(plan(PLAIN, target, PlanRequest(batch=64, workers=4)))[name]
  overhead = (1e9 * 100 / 5e12 + waited(target)) / (1e9 * 256 / 5e12)
  assert f"= {overhead:.3g};" in row.why and "20 ms of each step, regardless of" in row.why
  assert f"= {100 * bounds.efficiency(4, overhead):.3g} %" in row.why
  slow = target._replace(device=target.device._replace(start=0.03))
  row = rows(plan(PLAIN, slow, PlanRequest(batch=64, workers=4)))[name]
  assert f"= {(0.05 + waited(slow)) / (1e9 * 256 / 5e12):.3g};" in row.why and "50 ms of each step" in row.why
  measured = rows(plan(PLAIN, target, PlanRequest(batch=64, workers=4), overhead=0.5))[name]
  own = 0.5 * step_seconds(1e9, 64, target.device, target.efficiency)  # of the step that the 64 examples take
  assert (
    f"= {(own + waited(target)) / (1e9 * 256 / 5e12):.3g};" in measured.why and "measured R_O = 0.5" in measured.why
  )
  flat = rows(plan(PLAIN, cluster(), PlanRequest(workers=4)))["workers (strong scaling, 128 examples)"]
  assert "nothing fixed in a step" in flat.why


def test_what_rounding_leaves_of_a_fixed_part_is_none():
  advice = plan(job("alexnet"), named("dasgd_v100_10g"), PlanRequest(workers=12))
  assert any("nothing fixed in a step" in row.why for row in advice.rows)


def test_the_rows_on_workers_say_what_overlaps_and_what_the_data_feed():
  reported = rows(plan(PLAIN._replace(data=1000), cluster(), PlanRequest(batch=64, workers=4)))
  weak, strong = reported["workers (weak scaling)"], reported["workers (strong scaling, 256 examples)"]
  assert "overlapped gradients" in weak.why and "waiting" in strong.why
  sequential = rows(plan(PLAIN, cluster()._replace(overlap=False), PlanRequest(batch=64, workers=4)))[
    "workers (weak scaling)"
  ]
  assert "no overlap" in sequential.why
  assert weak.limit.endswith("; the data suffice for at most 15 workers with 64 examples each")
  assert (
    "the data" not in rows(plan(PLAIN, cluster(), PlanRequest(batch=64, workers=4)))["workers (weak scaling)"].limit
  )


def test_one_worker_exchanges_nothing():
  advice = plan(PLAIN, cluster(), PlanRequest(workers=1))
  assert all(x.seconds == advice.settings.step for x in advice.speeds)
  assert rows(advice)["exchange"].value == "none"
  assert not any(row.quantity.startswith(("servers", "delay", "period", "all-reduce")) for row in advice.rows)
  s = advice.settings
  assert (s.servers, s.delay, s.period, s.local_period, s.easgd_period, s.server_period) == (1, 0, 1, 1, 1, 1)


def test_where_nothing_overlaps_no_delay_helps():
  sequential = cluster(bandwidth=1e10)._replace(overlap=False)
  advice = plan(PLAIN, sequential, PlanRequest(batch=64, workers=4))
  assert rows(advice)["delay (DaSGD)"].value == "0" and "does not overlap" in rows(advice)["delay (DaSGD)"].why
  message, step = collectives.all_reduce(PLAIN.params_bytes, 4, sequential.network), advice.settings.step
  for speed in advice.speeds:
    if speed.algorithm in ("dasgd", "easgd", "local_sgd"):
      period = {"dasgd": advice.settings.period, "easgd": advice.settings.easgd_period}.get(
        speed.algorithm, advice.settings.local_period
      )
      assert speed.seconds == pytest.approx(step + message / period)
  assert rows(plan(PLAIN, cluster(bandwidth=1e10), PlanRequest(batch=64, workers=4)))["delay (DaSGD)"].value != "0"


def test_the_queue_at_the_servers_lengthens_the_period():
  """128 * 531 MB / (32 * 7 GB/s) = 304 ms of the servers' links against a step of 163 ms."""
  advice = plan(job("vgg_a"), named("cori_fdr"), PlanRequest(batch=4, workers=128))
  s, row = advice.settings, rows(advice)["period (asynchronous EASGD)"]
  needed = 0.95 * 128 * s.params_bytes / (s.servers * 7e9) / s.step
  assert (s.servers, s.server_period) == (32, 2) and f"= {needed:.4g}" in row.why
  assert row.value == "2" and row.limit == "the servers' queue"
  reported = rows(advice)["servers"]
  assert "(async_sgd)" in reported.why and reported.limit == "more would not make async_sgd faster"
  for servers, limit in ((8, "as requested; the servers' links"), (64, "as requested")):
    assert rows(plan(job("vgg_a"), named("cori_fdr"), PlanRequest(4, 128, servers)))["servers"].limit == limit


def test_servers():
  slow_cluster = cluster(latency=0.0, duplex=0.0)
  advice = plan(PLAIN, slow_cluster, PlanRequest(workers=16, batch=4096))  # a step of 0.8 s
  needed = bounds.servers_for(4e8, 16, 1e9, step_seconds(1e9, 4096, slow_cluster.device, slow_cluster.efficiency))
  assert f"so {needed};" in rows(advice)["servers"].why and needed == 16

  def turn(servers):
    link, step = slow_cluster.network.between, advice.settings.step
    served = server.served_seconds(4e8, 16, link, slow_cluster.network, servers)
    return max(step + server.visit_seconds(4e8, 4e8, link, servers), served)

  assert turn(advice.settings.servers) <= 1.01 * min(map(turn, range(1, needed + 1)))
  assert advice.settings.servers <= needed
  assert plan(PLAIN, slow_cluster, PlanRequest(workers=16, servers=3)).settings.servers == 3
  tiny = PLAIN._replace(params_bytes=40.0)
  with pytest.raises(ValueError, match="servers must be at most 10, the number of parameters, got 11"):
    plan(tiny, slow_cluster, PlanRequest(servers=11))


@pytest.mark.parametrize("workers", [4, 16])
@pytest.mark.parametrize("bandwidth", [1.25e9, 1e9 / 8])
@pytest.mark.parametrize("duplex", [0.0, 1.0])
def test_the_lemma_on_servers_is_the_simulated_knee(workers, bandwidth, duplex):
  """Just as many servers as the lemma says keep up with workers that compute meanwhile; one fewer does not."""
  needed = bounds.servers_for(244e6, workers, bandwidth, 1.0, duplex)

  def round_seconds(servers):
    return server.simulate(
      workers=workers, servers=servers, nbytes=244e6, bandwidth=bandwidth, compute_seconds=1.0,
      full_duplex=duplex == 1, overlap=1.0, rounds=20,
    ).round_seconds  # fmt: skip

  busy = (2 - duplex) * 244e6 * workers / bandwidth
  if needed > 1:
    assert round_seconds(needed - 1) == pytest.approx(busy / (needed - 1), rel=0.02)  # it is reached slowly
    assert round_seconds(needed - 1) > 1.001
  assert round_seconds(needed) == pytest.approx(1)


def test_speeds_by_hand():
  slow_cluster = cluster(bandwidth=1e9, latency=0.0)
  result = averaging(
    FamilySettings(1e8, 32, 0.1, 2, 1, delay=1, period=2, local_period=4, easgd_period=1, server_period=2), slow_cluster
  )
  exchange = 1e8 / 1e9  # two workers: half of the bytes, twice
  visit = 2 * 0.1
  assert {x.algorithm: x.seconds for x in result} == pytest.approx(
    {
      "local_sgd": 0.1 + exchange / 4,
      "dasgd": 0.1,
      "easgd": 0.1,
      "async_sgd": 0.1 + visit,
      "async_easgd": (0.2 + visit - 0.1) / 2,
    }
  )
  for each in result:
    assert each.rate == pytest.approx(2 * 32 / each.seconds) and each.efficiency == pytest.approx(0.1 / each.seconds)
  best = max(each.rate for each in result)
  assert {each.algorithm for each in result if each.rate == pytest.approx(best)} == {"dasgd", "easgd"}
  # Many workers at one server wait for its line.
  crowd = averaging(FamilySettings(1e8, 32, 0.1, 64, 1, 1, 2, 4, 1, 2), slow_cluster)
  assert {x.algorithm: x.seconds for x in crowd}["async_sgd"] == pytest.approx(64 * 0.1)


@pytest.mark.parametrize("name", sorted(built_in()))
@pytest.mark.parametrize("network", ["nin", "cd_dnn"])
def test_every_cluster_has_a_plan(name, network):
  advice = plan(job(network), named(name), PlanRequest())
  assert all(math.isfinite(x.seconds) and x.seconds > 0 for x in advice.speeds)
  assert all(row.why and row.limit for row in advice.rows)
  assert named(name).workers is None or advice.settings.workers <= named(name).workers
  assert advice.settings.delay == bounds.smallest_delay(
    collectives.all_reduce(advice.settings.params_bytes, advice.settings.workers, named(name).network),
    advice.settings.step,
  )


@pytest.mark.parametrize(
  ("cluster", "wish", "text"),
  [
    (cluster(bandwidth=0.0), PlanRequest(), "bandwidth.* must be .*got 0"),
    (cluster(bandwidth=0.0), PlanRequest(workers=1), "bandwidth.* must be .*got 0"),
    (cluster(bandwidth=math.nan), PlanRequest(), "bandwidth.* must be .*got nan"),
    (cluster(workers=8), PlanRequest(workers=9), "workers must be from 1 to 8 .*got 9"),
    (cluster(), PlanRequest(workers=-1), "workers must be .*got -1"),
    (cluster(), PlanRequest(workers=65_537), "workers must be .*65,536 .*got 65537"),
    (cluster(), PlanRequest(batch=-1), "examples per worker must be .*got -1"),
    (cluster(), PlanRequest(servers=-1), "number of servers must be .*got -1"),
    (cluster(), PlanRequest(efficiency=0), r"must be shares between 0 and 1, got 0 and"),
    (cluster(), PlanRequest(exposed=math.nan), r"must be shares between 0 and 1, got 0.8 and nan"),
    (cluster(memory=0), PlanRequest(), "not even one example"),
    (cluster(memory=math.nan), PlanRequest(), "not even one example"),
  ],
)
def test_invalid_arguments(cluster, wish, text):
  with pytest.raises(ValueError, match=text) as error:
    plan(PLAIN, cluster, wish)
  assert "\n" not in str(error.value)
