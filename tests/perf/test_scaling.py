"""Scaling curves: properties on any cluster, losses by hand, and agreement with `plan` and closed forms."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats

from ddl.algorithms import COLLECTIVE, SERVER
from ddl.config.catalog import keywords
from ddl.costs import scale
from ddl.costs.scale import recorded
from ddl.perf import bounds, collectives, neural_networks, scaling
from ddl.perf.bounds import round_seconds
from ddl.perf.cluster import Cluster, LinkModel, NetworkModel
from ddl.perf.cluster_file import built_in, named
from ddl.perf.device import Device, Efficiency, LayerWork
from ddl.perf.layers import MOMENTUM, parts, training_memory
from ddl.perf.patterns import ExchangePattern, Op, Pattern, Visits
from ddl.perf.placement import Job
from ddl.perf.plan import PlanRequest, plan
from ddl.perf.scaling import LOSSES, Scenario, StepWork, Transport, gradients_of, step_pass, stops, work

JOB = StepWork(tuple(map(LayerWork, (3e9, 6e9, 6e9, 1e9))), (1e5, 4e6, 2e6, 4e7))
FLOP = 16e9
COUNTS = [1, 3, 16]


def cluster(bandwidth=1e9, latency=1e-5, half=0.0, inside=None, per_node=1, limit=None):
  network = NetworkModel(LinkModel(latency, bandwidth), inside, per_node)
  return Cluster("a test", Device(1e12, 1e11, 1e10), Efficiency(0.5, half), network, "", workers=limit)


def curve(name, job, *args, period=None, delay=None, servers=1, overlap=True, bucket=25e6, **settings):
  """Predict an algorithm's curve; period and delay are ignored by algorithms without them."""
  accepted = keywords((COLLECTIVE | SERVER)[name].factory)
  options = {k: v for k, v in (("period", period), ("delay", delay)) if v is not None and k in accepted}
  transport = Transport(servers, overlap, bucket)
  return scaling.curve(recorded(name, sum(job.nbytes), **options), job, *args, transport=transport, **settings)


@settings(max_examples=15)
@given(
  st.sampled_from(sorted(COLLECTIVE | SERVER)), st.floats(1e6, 1e11), st.floats(0, 1e-3), st.floats(0, 20),
  st.booleans(), st.integers(1, 6), st.integers(0, 3), st.sampled_from([0.0, 0.2]),
)  # fmt: skip
def test_properties_of_every_algorithms_curve(name, bandwidth, latency, half, weak, period, delay, jitter):
  settings = {"batch": 64, "weak": weak, "period": period, "delay": delay, "jitter": jitter}
  points = curve(name, JOB, cluster(bandwidth, latency, half), COUNTS, **settings)
  assert points[0].efficiency == 1 and points[0].speedup == 1 and points[0].waiting == 0
  assert points[0].limit == "nothing"
  for point in points:
    assert point.efficiency == pytest.approx(point.speedup / point.workers)
    most = 1.01 if jitter else 1 + 1e-9  # the measured window cuts off some rounds
    assert 0 < point.efficiency <= most and -1e-9 <= point.waiting <= 1
    computing = step_pass(JOB, cluster(half=half), point.examples).seconds
    computing *= point.workers if name == "original_easgd" else 1  # workers compute one after the other
    if not jitter:
      assert computing / point.seconds + point.waiting == pytest.approx(1)
    assert set(point.losses) <= set(LOSSES) and all(loss >= 0 for loss in point.losses.values())
    assert point.examples * point.workers >= (64 * point.workers if weak else 64)


@settings(max_examples=6)
@given(
  st.sampled_from(sorted({*COLLECTIVE, "gosgd", "pull_gossip", "push_gossip", "ad_psgd"} - {"independent"})),
  st.floats(1e6, 1e10), st.floats(1, 100), st.sampled_from([0.0, 0.2]),
)  # fmt: skip
def test_more_bandwidth_is_never_slower(name, bandwidth, factor, jitter):
  settings = {"batch": 64, "period": 4, "delay": 1, "jitter": jitter}
  slow, fast = (curve(name, JOB, cluster(b), COUNTS, **settings) for b in (bandwidth, bandwidth * factor))
  assert all(f.seconds <= s.seconds * (1 + 1e-9) for f, s in zip(fast, slow, strict=True))


@pytest.mark.parametrize("freeze_step", [5, 5000])
def test_exchanges_that_end_do_not_count_in_the_steady_state(freeze_step):
  """5000 exceeds the round in which a changing period is evaluated."""
  pattern, options = recorded("one_bit_adam", sum(JOB.nbytes), freeze_step=freeze_step), {"batch": 64, "weak": True}
  assert [exchange.ends for exchange in pattern(8).exchanges] == [True, False]

  def only_last(workers):
    return pattern(workers)._replace(exchanges=pattern(workers).exchanges[1:])

  ours, expected = (scaling.curve(x, JOB, cluster(1e8), [8], **options)[0].seconds for x in (pattern, only_last))
  assert ours == pytest.approx(expected, rel=1e-9)


def test_larger_buckets_save_latency():
  slow = cluster(1e9, 1e-2)
  separate, partial, packed = (
    curve("sync_sgd", JOB, slow, [8], batch=64, overlap=False, bucket=bucket)[0].seconds
    for bucket in (0.0, 25e6, math.inf)
  )
  assert separate >= partial >= packed and separate > packed
  whole = collectives.all_reduce(sum(JOB.nbytes), 8, slow.network)
  assert packed == pytest.approx(8 * FLOP / 5e11 + whole)


def test_workers_of_a_node_share_its_link_to_a_server():
  nodes = cluster(1e9, 0.0, inside=LinkModel(0.0, 1e12), per_node=4)
  (point,) = curve("async_sgd", JOB, nodes, [8], batch=64, servers=1000)
  assert point.seconds >= 4 * sum(JOB.nbytes) / 1e9  # up and down concurrently, for four workers
  (pairs,) = curve("gosgd", JOB, nodes, [8], batch=64)
  assert pairs.seconds >= 4 * 4 / 7 * sum(JOB.nbytes) / 1e9
  (one_node,) = curve("gosgd", JOB, nodes, [4], batch=64)
  assert one_node.seconds < 2 * 16 * FLOP / 5e11


def test_without_overlap_a_step_is_computation_plus_messages():
  slow_cluster = cluster(1e8, 1e-4)
  (point,) = curve("sync_sgd", JOB, slow_cluster, [8], batch=64, overlap=False, bucket=0.0)
  sent = sum(collectives.all_reduce(n, 8, slow_cluster.network) for n in JOB.nbytes)
  assert point.seconds == pytest.approx(8 * FLOP / 5e11 + sent)
  assert point.waiting == pytest.approx(sent / point.seconds)
  assert curve("sync_sgd", JOB, slow_cluster._replace(overlap=False), [8], batch=64, bucket=0.0) == [point]
  (packed,) = curve("local_sgd", JOB, slow_cluster, [8], batch=64, period=1)
  assert packed.seconds == pytest.approx(8 * FLOP / 5e11 + collectives.all_reduce(46.1e6, 8, slow_cluster.network))


def test_strong_scaling_with_a_fixed_overhead_follows_the_lemma():
  """arXiv 1709.06622 with R_O = half / batch: a fixed part of each step takes as long as `half` examples."""
  points = curve("independent", JOB, cluster(half=16), [1, 2, 4, 8, 16, 64], batch=64)
  for point in points:
    assert point.speedup == pytest.approx(point.workers * bounds.efficiency(point.workers, 16 / 64))
  assert {p.limit for p in points[1:]} == {"small batches"}
  assert points[-1].losses["small batches"] == pytest.approx(points[-1].seconds - points[0].seconds / 64)


def test_the_loss_of_small_batches_is_the_only_one_without_exchanges():
  """ResNet-50 on H100: each step launches its kernels and reads the weights, regardless of its examples."""
  points = curve("independent", work(neural_networks.table("resnet50")), named("h100_ib400"), [1, 4, 64], batch=64)
  for point in points[1:]:
    assert point.losses["small batches"] == pytest.approx(point.seconds - points[0].seconds / point.workers)
    assert point.losses["small batches"] > 0 and point.limit == "small batches"


@pytest.mark.parametrize(("workers", "period"), [(2, 1), (64, 1), (8, 4)])
def test_stragglers_cost_the_expected_maximum(workers, period):
  """A round waits for the slowest of p sums of `period` lognormal steps: order statistics by quadrature."""
  jitter = 0.2
  spread = math.sqrt(math.log1p(jitter**2 / period))  # a sum of lognormal steps is nearly lognormal
  distribution = stats.lognorm(spread, scale=math.exp(-(spread**2) / 2))
  expected = integrate.quad(lambda x: 1 - distribution.cdf(x) ** workers, 0, 10, limit=200)[0]
  fast = cluster(1e15, 0.0)
  (point,) = curve("local_sgd", JOB, fast, [workers], batch=64, weak=True, period=period, jitter=jitter)
  (even,) = curve("local_sgd", JOB, fast, [workers], batch=64, weak=True, period=period)
  assert point.seconds / even.seconds == pytest.approx(expected, rel=0.02)  # mean of 150 rounds
  assert point.limit == "stragglers"
  assert point.losses["stragglers"] == pytest.approx(point.seconds - even.seconds)


def test_a_delay_reduces_the_cost_of_stragglers():
  settings = {"batch": 64, "weak": True, "jitter": 0.3}
  seconds = [
    curve("dasgd", JOB, cluster(1e10), [16], period=4, delay=delay, **settings)[0].seconds for delay in (0, 1, 4)
  ]
  assert seconds[0] > seconds[1] > seconds[2]


def test_the_limit_is_the_largest_loss():
  for slow_cluster, limit in (
    (cluster(latency=1.0, bandwidth=1e12), "latency"),
    (cluster(bandwidth=1e7), "bandwidth"),
    (cluster(half=64), "small batches"),
  ):
    assert curve("sync_sgd", JOB, slow_cluster, [16], batch=64)[0].limit == limit


def test_a_loss_is_the_time_saved_by_an_ideal_component():
  slow_cluster = cluster(1e8, 1e-3, half=4)
  lost = curve("sync_sgd", JOB, slow_cluster, [7], batch=64)[0]
  assert lost.examples == 10  # of the worker with the most
  for name, changed in (("latency", cluster(1e8, 0.0, half=4)), ("bandwidth", cluster(math.inf, 1e-3, half=4))):
    (without,) = curve("sync_sgd", JOB, changed, [7], batch=64)
    assert lost.losses[name] == pytest.approx(lost.seconds - without.seconds) and lost.losses[name] > 0


@pytest.mark.parametrize("duplex, busy", [(1.0, 3.0), (0.0, 4.0)])
def test_a_servers_link_carries_requests_and_replies_of_different_sizes(duplex, busy):
  slow_cluster = cluster(1e6, 0.0)._replace(network=NetworkModel(LinkModel(0.0, 1e6, duplex)))
  sent = Pattern(visits=Visits(1e6, 3e6))
  (point,) = scaling.curve(lambda _: sent, StepWork((LayerWork(1.0),), (1e6,)), slow_cluster, [16], batch=1, weak=True)
  assert point.seconds == pytest.approx(16 * busy, rel=1e-3)


def test_gradients_and_exchanges_share_the_link():
  """By hand: steps of 1 s, gradients of 2 s, and an exchange of 3 s with period 2 and delay 1."""
  target = Cluster("a test", Device(1e9, 1e12, 1e12), Efficiency(1.0), NetworkModel(LinkModel(0.0, 1e6)), "")
  sent = Pattern((Op("permute", 2e6),), (ExchangePattern((Op("permute", 3e6),), 2, 1),))
  (point,) = scaling.curve(lambda _: sent, StepWork((LayerWork(1e9),), (2e6,)), target, [8], batch=1, weak=True)
  # The first gradient is sent at 2/3 s and arrives at 8/3 s, when the second step begins; then the exchange is sent and
  # arrives at 17/3 s; then the second gradient, ready at 10/3 s, arrives at 23/3 s.
  assert point.seconds == pytest.approx(23 / 3 / 2, rel=1e-9)


def test_round_robin_has_no_speedup():
  points = curve("original_easgd", JOB, cluster(1e12), COUNTS, batch=64, weak=True)
  assert all(p.speedup == pytest.approx(1, rel=1e-3) for p in points)
  assert points[-1].limit == "serialized access"


def test_stops_at_less_than_half_of_the_ideal_gain():
  slow_cluster = cluster(5e7)
  points = curve("sync_sgd", JOB, slow_cluster, [1, 2, 4, 8, 16, 32, 64], batch=64)
  stop = stops(points)
  assert stop is not None and stop.limit == "bandwidth"
  before = points[points.index(stop) - 1]
  assert stop.speedup < 1.5 * before.speedup and before.speedup >= 1.5 * points[points.index(before) - 1].speedup
  assert stops(curve("independent", JOB, slow_cluster, [1, 2, 64], batch=64)) is None


def test_fast_links_inside_nodes_speed_up_synchronous_sgd():
  flat, nodes = cluster(1e8), cluster(1e8, inside=LinkModel(1e-6, 1e11), per_node=8)
  assert (
    curve("sync_sgd", JOB, nodes, [8], batch=64)[0].seconds < curve("sync_sgd", JOB, flat, [8], batch=64)[0].seconds
  )


def test_every_cluster_has_a_curve():
  for name in built_in():
    target = named(name)
    counts = [n for n in (1, 4, 16) if not target.workers or n <= target.workers]
    points = curve("sync_sgd", work(neural_networks.table("vgg_a")), target, counts, batch=256)
    assert [p.speedup for p in points] == sorted(p.speedup for p in points) or stops(points), name
    assert all(np.isfinite(p.seconds) and p.efficiency <= 1 + 1e-9 for p in points), name


@pytest.mark.parametrize(
  ("name", "cluster"),
  [
    ("alexnet", "ethernet_10g"),
    ("resnet50", "h100_ib400"),
    pytest.param("resnet50", "ethernet_10g", marks=pytest.mark.slow),
    pytest.param("alexnet", "h100_ib400", marks=pytest.mark.slow),
    pytest.param("resnet50", "two_sites_1g", marks=pytest.mark.slow),  # periods of hundreds of steps
    pytest.param("alexnet", "two_sites_1g", marks=pytest.mark.slow),
  ],
)
def test_scale_and_plan_predict_the_same_seconds(name, cluster):
  """The closed forms of `plan` agree with the timeline of `scale`."""
  table, cluster = neural_networks.table(name), named(cluster)
  job = Job(name, 4.0 * sum(layer.params for layer in table), parts(table), training_memory(table, MOMENTUM), table)
  advice = plan(job, cluster, PlanRequest(batch=32, workers=16))
  options = advice.settings
  rounds = {  # period, delay
    "sync_sgd": (1, 0), "local_sgd": (options.local_period, 0), "dasgd": (options.period, options.delay),
  }  # fmt: skip
  known = [speed for speed in advice.speeds if speed.algorithm in rounds]  # others have sharded parameters or islands
  assert {speed.algorithm for speed in known} == set(rounds)
  for speed in known:
    if speed.algorithm == "sync_sgd" and speed.setting != "float32 gradients":
      continue
    period, delay = rounds[speed.algorithm]
    settings = {"period": period, "delay": delay}
    (point,) = curve(speed.algorithm, work(table), cluster, [16], batch=32, weak=True, **settings)
    simplified = period > scaling.MOST_STEPS  # the steps of a long round are simulated in groups
    assert point.seconds == pytest.approx(speed.seconds, rel=1e-3 if simplified else 1e-9)


@pytest.mark.parametrize(("period", "delay"), [(65_536, 1), (65_536, 65_536), (7_001, 3_000)])
def test_a_long_round_equals_the_closed_form(period, delay, at_once):
  """Without grouping of steps, the simulation would take minutes."""
  target, job, message = named("ethernet_10g"), StepWork((LayerWork(1e9),), (4e9,)), Op("all_reduce", 4e9)
  (point,) = scaling.curve(
    lambda _: Pattern(exchanges=(ExchangePattern((message,), period, delay),)), job, target, [16], batch=32, weak=True
  )
  step = step_pass(job, target, 32).seconds
  seconds = collectives.all_reduce(4e9, 16, target.network)
  assert period * point.seconds == pytest.approx(
    round_seconds(step=step, message=seconds, period=period, delay=delay), rel=2e-3
  )


def test_a_delay_of_many_periods_hides_no_more_than_a_few(at_once):
  target, job, message = named("ethernet_10g"), StepWork((LayerWork(1e9),), (4e9,)), Op("all_reduce", 4e9)
  short, long = (
    scaling.curve(
      lambda _, delay=delay: Pattern(exchanges=(ExchangePattern((message,), 2, delay),)),
      job,
      target,
      [16],
      batch=32,
      weak=True,
    )
    for delay in (20, 65_536)
  )
  assert short[0].seconds == pytest.approx(long[0].seconds, rel=1e-9)


def steps_of_a_second(*exchanges):
  """Return the seconds per step, if a step computes 1 s, of exchanges (seconds, period, delay)."""
  target = Cluster("a test", Device(1e9, 1e12, 1e12), Efficiency(1.0), NetworkModel(LinkModel(0.0, 1e6)), "")
  sent = Pattern(exchanges=tuple(ExchangePattern((Op("permute", 1e6 * x),), *clock) for x, *clock in exchanges))
  (point,) = scaling.curve(lambda _: sent, StepWork((LayerWork(1e9),), (2e6,)), target, [8], batch=1, weak=True)
  return point.seconds


@settings(max_examples=60)
@given(st.floats(1e-3, 1e3), st.integers(1, 8), st.data())
def test_one_exchange_takes_the_seconds_of_the_closed_form(message, period, data):
  delay = data.draw(st.integers(0, period))
  closed = round_seconds(step=1.0, message=message, period=period, delay=delay)
  assert period * steps_of_a_second((message, period, delay)) == pytest.approx(closed, rel=1e-9)


def test_a_delay_beyond_the_period_hides_no_more():
  for message, delay in ((0.5, 3), (1.0, 5), (1.5, 12), (4.0, 7), (9.0, 2)):
    closed = round_seconds(step=1, message=message, delay=delay)
    assert steps_of_a_second((message, 1, delay)) == pytest.approx(closed) == max(1.0, message)


def test_two_exchanges_by_hand():
  """Steps of 1 s; one exchange of 3 s with period 2 and delay 1, one of 1 s with period 3; a round has six steps."""
  # After steps 2 and 4 the first occupies the link for 3 s, of which a step hides 1 s; the second, after step 3, waits
  # for it and adds 1 s. After step 6 the second goes first, then the first overlaps the next step.
  assert 6 * steps_of_a_second((3.0, 2, 1), (1.0, 3)) == pytest.approx(6 + (2 + 1) + 2 + (1 + 2))
  assert steps_of_a_second((1.0, 997), (1.0, 1009)) > 1  # simulates 1,009 steps, not a million


@pytest.mark.parametrize("bandwidth", [1e8, 1e9, 1e12])
def test_an_outer_step_overlaps_the_last_backward_pass_before_it(bandwidth):
  """The last step of a round takes as long as one of synchronous SGD; the other steps send nothing."""
  job, period = work(neural_networks.table("vgg_a")), 5
  network = Transport(bucket=0.0, outer=True), cluster(bandwidth, latency=0.0)

  def seconds(name, transport, **settings):
    sent = recorded(name, sum(job.nbytes), **settings)(8)
    return scaling.seconds_of(Scenario(sent, job, network[1], 8, 4, transport))

  step = step_pass(job, network[1], 4).seconds
  outer, plain = (seconds("diloco", network[0]._replace(outer=x), period=period) for x in (True, False))
  assert period * outer == pytest.approx((period - 1) * step + seconds("sync_sgd", network[0]))
  message = collectives.all_reduce(sum(job.nbytes), 8, network[1].network)
  assert period * plain == pytest.approx(period * step + message) and outer < plain
  late = [seconds("dasgd", network[0]._replace(outer=x), period=period, delay=1) for x in (True, False)]
  assert late[0] == late[1]


@pytest.mark.parametrize(
  "name, outer, shown", [("diloco", True, True), ("diloco", False, False), ("dasgd", True, False)]
)
def test_the_output_names_overlapped_outer_steps(name, outer, shown):
  pattern = recorded(name, 4e6)(8)
  text = scale.setting(scale.Curve(name, pattern, Transport(outer=outer), []))
  assert ("during the last backward pass" in text) == shown


def test_too_long_rounds_with_jitter_are_rejected():
  job = StepWork((LayerWork(1e9),), (4e6,))
  exchange, visits = ExchangePattern((Op("all_reduce", 4e6),), 65_536), Visits(4e6, 4e6, 65_536)
  for pattern in (Pattern(exchanges=(exchange,)), Pattern(visits=visits)):
    with pytest.raises(ValueError, match="steps of a round with jitter must be at most 5,000"):
      scaling.curve(lambda _, sent=pattern: sent, job, named("ethernet_10g"), [16], batch=32, weak=True, jitter=0.1)


def test_work_of_vgg_a_equals_the_published_numbers():
  """arXiv 1602.06709 reports 7485.5 M multiply-accumulates of convolutions and 132.9 M parameters."""
  job = work(neural_networks.table("vgg_a"))
  assert sum(part.flop for part in job.parts) == pytest.approx(6 * (7485.5e6 + 123.634e6), rel=1e-3)
  assert sum(job.nbytes) == pytest.approx(4 * 132.86e6, rel=1e-3)
  shown = gradients_of(
    Scenario(recorded("sync_sgd", sum(job.nbytes))(64), job, named("cori_fdr"), 64, 4, Transport(bucket=0.0))
  )
  assert shown.hidden + shown.exposed == pytest.approx(
    sum(collectives.all_reduce(n, 64, named("cori_fdr").network) for n in job.nbytes)
  )


def test_invalid_arguments_are_rejected_in_one_line():
  for call, text in (
    (lambda: curve("sync_sgd", JOB, cluster(), [1, 8], batch=4), "batch must be at least 8"),
    (lambda: curve("sync_sgd", JOB, cluster(limit=4), [1, 8], batch=8), "workers must be at most 4"),
  ):
    with pytest.raises(ValueError, match=text) as error:
      call()
    assert "\n" not in str(error.value)
