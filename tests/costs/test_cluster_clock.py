"""A run's clock on another cluster against closed forms and against `scale`."""

from dataclasses import replace

import pytest
from helpers.cluster_configs import COLLECTIVE, FLOP, NBYTES, config_of, on, run_on

from ddl.config import default_experiment
from ddl.costs import cluster_clock
from ddl.perf import collectives, scaling, server
from ddl.perf.bounds import round_seconds
from ddl.perf.cluster_file import named
from ddl.perf.device import LayerWork
from ddl.perf.placement import with_shares
from ddl.perf.scaling import StepWork, Transport
from ddl.run import virtual_time

SERVERS = ["async_sgd", "async_easgd", "hogwild_sgd", "gosgd", "ad_psgd", "original_easgd"]


def test_a_mean_that_no_worker_has_is_there_after_an_exchange():
  message = collectives.all_reduce(NBYTES, 4, named("ethernet_10g").network)
  for name, settings, apart in (
    ("sync_sgd", {}, ()), ("sharded_sync_sgd", {}, ()), ("local_sgd", {"period": 4}, (13, 14, 15)),
    ("easgd", {"period": 4}, ()), ("dasgd", {"period": 4, "delay": 2}, (13, 14, 15, 16)),
    ("independent", {}, (13, 14, 15, 16)), ("post_local_sgd", {"start": 14, "period": 2}, (15,)),
  ):  # fmt: skip
    run, algorithm = run_on(name, "ethernet_10g", **settings)
    clock, steps = (
      cluster_clock.clock(run, algorithm),
      virtual_time.lockstep_seconds(run.config, algorithm, run.charged),
    )
    for step in (13, 14, 15, 16):
      assert clock(step) - steps(step) == pytest.approx(message if step in apart else 0.0), (name, step)
    assert clock(0) == 0


def test_a_step_of_microbatches_takes_the_seconds_of_all():
  cluster = named("ethernet_10g")
  cluster = cluster._replace(efficiency=cluster.efficiency._replace(half=8.0))
  took = [
    on(replace(config_of("sync_sgd"), batch=batch, microbatches=k), cluster)[0].config.times.seconds
    for batch, k in ((8, 1), (32, 4))
  ]
  assert took[1] == pytest.approx(4 * took[0], rel=1e-12)


def test_where_nothing_overlaps_a_delay_hides_nothing():
  apart = named("ethernet_10g")._replace(overlap=False)
  took = {}
  for name, cluster in (("apart", apart), ("beside", apart._replace(overlap=True))):
    run, algorithm = on(config_of("dasgd", period=4, delay=2), cluster)
    clock = cluster_clock.clock(run, algorithm)
    took[name] = (clock(32) - clock(16)) / 4, run.config.times.seconds, run.charged.exchanges[0]
  seconds, step, message = took["apart"]
  assert seconds == pytest.approx(4 * step + message, rel=1e-9)
  assert took["beside"][0] == pytest.approx(round_seconds(step=step, message=message, period=4, delay=2), rel=1e-9)


@pytest.mark.parametrize(("name", "period", "delay"), COLLECTIVE)
@pytest.mark.parametrize("cluster", ["ethernet_10g", "h100_ib400", "two_sites_1g"])
def test_a_collective_algorithm_takes_the_closed_form_on_a_cluster(name, period, delay, cluster):
  result = named(cluster)
  settings = {} if name == "sync_sgd" else {"period": period, "delay": delay}
  run, algorithm = run_on(name, cluster, workers=16, **settings)
  step = result.device.start + FLOP * 32 / (result.device.peak * result.efficiency.best)
  message = collectives.all_reduce(NBYTES, 16, result.network)
  clock = cluster_clock.clock(run, algorithm)
  delay = algorithm.exchanges[0].delay if algorithm.exchanges else 0
  expected = round_seconds(step=step, message=message, period=period, delay=delay)
  assert clock(8 * period) - clock(4 * period) == pytest.approx(4 * expected, rel=1e-9)
  assert clock(0) == 0


@pytest.mark.parametrize("cluster", ["ethernet_10g", "pcie_8gpu", "two_sites_1g"])
@pytest.mark.parametrize("duplex", [0.0, 0.5, 1.0])
def test_an_unhurried_worker_pays_a_whole_visit_and_a_crowd_the_servers_link(cluster, duplex):
  result = named(cluster)
  slow = result.network._replace(between=result.network.between._replace(duplex=duplex))
  slow = slow._replace(inside=slow.inside and slow.inside._replace(duplex=duplex))
  result = result._replace(network=slow, host=result.host and result.host._replace(duplex=duplex))
  link = result.server_link(1)
  alone, algorithm = on(config_of("async_sgd", workers=1), result)
  clock = cluster_clock.clock(alone, algorithm)
  visit = server.visit_seconds(NBYTES, NBYTES, link)
  assert clock(20) - clock(10) == pytest.approx(10 * (alone.config.times.seconds + visit), rel=1e-9)
  clock = cluster_clock.clock(*on(config_of("async_sgd", workers=8), result, 1.0))
  busy = (2 - duplex) * NBYTES / result.server_link(8).bandwidth
  assert clock(20) - clock(10) == pytest.approx(10 * 8 * busy, rel=1e-6)


@pytest.mark.parametrize("name", [*(name for name, _, _ in COLLECTIVE), *SERVERS])
def test_more_bandwidth_is_never_slower(name):
  ends = []
  for bandwidth in (1e6, 1e8, 1e10, 1e12):
    other = named("cloud_100g").with_bandwidth(4, bandwidth)
    ends.append(cluster_clock.clock(*on(config_of(name), other))(40))
  assert ends == sorted(ends, reverse=True)
  assert ends[0] > 10 * ends[-1]


def test_the_bandwidth_is_that_of_the_link_in_use():
  cluster = named("h100_ib400")
  assert cluster.network.main_link(8) == cluster.network.inside
  assert cluster.network.main_link(9) == cluster.network.between
  inside, between = cluster.with_bandwidth(8, 9e9), cluster.with_bandwidth(16, 9e9)
  assert (inside.network.inside.bandwidth, inside.network.between) == (9e9, cluster.network.between)
  assert (between.network.between.bandwidth, between.network.inside) == (9e9, cluster.network.inside)
  assert inside.host.bandwidth / cluster.host.bandwidth == pytest.approx(9e9 / cluster.network.inside.bandwidth)
  with pytest.raises(ValueError, match="above 0"):
    cluster.with_bandwidth(8, 0.0)


def test_jitter_and_slow_workers_are_the_configs():
  even, algorithm = run_on("sync_sgd", "ethernet_10g")
  uneven = even._replace(config=even.config.changed({"times": {"slow": (1.0, 1.0, 1.0, 3.0)}}))
  took = [cluster_clock.clock(run, algorithm)(40) / 40 - even.charged.local for run in (even, uneven)]
  assert took[1] == pytest.approx(3 * took[0])


VISITING = ["async_sgd", "hogwild_sgd", "async_easgd", "hogwild_easgd", "gosgd", "ad_psgd", "original_easgd"]


@pytest.mark.parametrize(("cluster", "workers"), [("pcie_8gpu", 8), ("cloud_100g", 16), ("two_sites_1g", 8)])
@pytest.mark.parametrize("name", [*(name for name, _, _ in COLLECTIVE), *VISITING])
def test_a_step_takes_what_scale_says(name, cluster, workers):
  """Queues at the server and at the nodes' links included: two programs, one answer."""
  run, algorithm = run_on(name, cluster, workers=workers, steps=80)
  clock = cluster_clock.clock(run, algorithm)
  how, job = (
    Transport(overlap=name != "sync_sgd"),
    StepWork((LayerWork(FLOP),), (NBYTES,)),
  )  # a mean, not layer by layer
  recorded = lambda _: run.pattern  # noqa: E731
  (point,) = scaling.curve(recorded, job, named(cluster), [workers], batch=32, weak=True, transport=how)
  assert (clock(80) - clock(40)) / 40 == pytest.approx(point.seconds, rel=2e-3)


@pytest.mark.parametrize(("locked", "free"), [("async_sgd", "hogwild_sgd"), ("async_easgd", "hogwild_easgd")])
def test_without_a_lock_visits_still_share_the_link(locked, free):
  for cluster in ("ethernet_10g", "cloud_100g"):
    took = [cluster_clock.clock(*run_on(name, cluster, workers=16))(40) for name in (locked, free)]
    assert took[0] == took[1]
    assert took[1] > 0.9 * 40 * 16 * NBYTES / named(cluster).network.between.bandwidth


def test_workers_of_a_node_share_its_link_to_their_peers():
  slow = named("cloud_100g").with_bandwidth(16, 1e8)
  for name in ("ad_psgd", "pull_gossip"):
    run, algorithm = on(config_of(name, workers=16), slow, 1.0)
    clock, result = cluster_clock.clock(run, algorithm), run.pattern.visits
    shared = server.node_seconds(result.up, result.down, 16, slow.network, peers=True)
    assert (clock(40) - clock(20)) / 20 == pytest.approx(shared, rel=1e-3)
    assert shared > 3 * server.visit_seconds(result.up, result.down, slow.network.between) / 2


def test_recorded_step_times_have_no_seconds_to_set():
  config = default_experiment(times={"name": "trace", "path": "x.csv"})
  with pytest.raises(ValueError, match=r"config\.times\.name must be one of constant, lognormal, gamma .* got trace"):
    cluster_clock.clusters_by_name(["fdr"], config)
  assert cluster_clock.clusters_by_name([], config) == {}


def test_a_comparison_takes_what_is_published_of_the_models_kind():
  result = cluster_clock.clusters_by_name(["dasgd_v100_10g"], default_experiment(model={"name": "lenet"}))[
    "dasgd_v100_10g"
  ]
  assert result == with_shares(named("dasgd_v100_10g"), "resnet50") != named("dasgd_v100_10g")
