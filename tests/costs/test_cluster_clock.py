"""The clock of a run on another cluster, against closed forms and against `scale`."""

from dataclasses import replace

import pytest
from helpers.cluster_configs import COLLECTIVE, FLOP, NBYTES, WORK, config_of, on, run_on

from ddl.config import default_experiment
from ddl.costs import cluster_clock
from ddl.perf import collectives, scaling, server
from ddl.perf.bounds import round_seconds
from ddl.perf.cluster_file import named
from ddl.perf.placement import with_shares
from ddl.run import virtual_time

SERVERS = ["async_sgd", "async_easgd", "hogwild_sgd", "gosgd", "ad_psgd", "original_easgd"]


def test_the_consensus_takes_a_collective_unless_an_exchange_formed_it():
  message = collectives.all_reduce(NBYTES, 4, named("ethernet_10g").network)
  for name, settings, differing in (  # steps after which the workers differ
    ("sync_sgd", {}, ()), ("sharded_sync_sgd", {}, ()), ("local_sgd", {"period": 4}, (13, 14, 15)),
    ("easgd", {"period": 4}, ()), ("dasgd", {"period": 4, "delay": 2}, (13, 14, 15, 16)),
    ("independent", {}, (13, 14, 15, 16)), ("post_local_sgd", {"start": 14, "period": 2}, (15,)),
  ):  # fmt: skip
    run, algorithm = run_on(name, "ethernet_10g", **settings)
    clock = cluster_clock.clock(run, algorithm)
    steps = virtual_time.lockstep_seconds(run.config, algorithm, run.charged)
    for step in (13, 14, 15, 16):
      assert clock(step) - steps(step) == pytest.approx(message if step in differing else 0.0), (name, step)
    assert clock(0) == 0


def test_a_step_takes_the_seconds_of_all_microbatches():
  cluster = named("ethernet_10g")
  cluster = cluster._replace(efficiency=cluster.efficiency._replace(half=8.0))
  one, four = (
    on(replace(config_of("sync_sgd"), batch=batch, microbatches=k), cluster)[0].config.times.seconds
    for batch, k in ((8, 1), (32, 4))
  )
  assert four == pytest.approx(4 * one, rel=1e-12)


def test_without_overlap_a_delay_hides_no_message():
  rounds = []
  for overlap in (False, True):
    run, algorithm = on(config_of("dasgd", period=4, delay=2), named("ethernet_10g")._replace(overlap=overlap))
    clock = cluster_clock.clock(run, algorithm)
    rounds.append((clock(32) - clock(16)) / 4)
    step, message = run.config.times.seconds, run.charged.exchanges[0]
  assert rounds[0] == pytest.approx(4 * step + message, rel=1e-9)
  assert rounds[1] == pytest.approx(round_seconds(step=step, message=message, period=4, delay=2), rel=1e-9)


@pytest.mark.parametrize(("name", "period", "delay"), COLLECTIVE)
@pytest.mark.parametrize("cluster", ["ethernet_10g", "h100_ib400", "two_sites_1g"])
def test_a_collective_algorithm_takes_the_seconds_of_the_closed_form(name, period, delay, cluster):
  target = named(cluster)
  settings = {} if name == "sync_sgd" else {"period": period, "delay": delay}
  run, algorithm = run_on(name, cluster, workers=16, **settings)
  step = target.device.start + FLOP * 32 / (target.device.peak * target.efficiency.best)
  message = collectives.all_reduce(NBYTES, 16, target.network)
  clock = cluster_clock.clock(run, algorithm)
  delay = algorithm.exchanges[0].delay if algorithm.exchanges else 0
  hidden = step / 3 if name == "sync_sgd" else 0.0  # sent before the last third of the step, the input gradient
  expected = round_seconds(step=step, message=message, period=period, delay=delay) - min(hidden, message)
  assert clock(8 * period) - clock(4 * period) == pytest.approx(4 * expected, rel=1e-9)
  assert clock(0) == 0


@pytest.mark.parametrize("cluster", ["ethernet_10g", "pcie_8gpu", "two_sites_1g"])
@pytest.mark.parametrize("duplex", [0.0, 0.5, 1.0])
def test_one_worker_takes_a_whole_visit_and_many_are_limited_by_the_servers_link(cluster, duplex):
  target = named(cluster)
  network = target.network._replace(between=target.network.between._replace(duplex=duplex))
  network = network._replace(inside=network.inside and network.inside._replace(duplex=duplex))
  target = target._replace(network=network, host=target.host and target.host._replace(duplex=duplex))
  run, algorithm = on(config_of("async_sgd", workers=1), target)
  clock = cluster_clock.clock(run, algorithm)
  visit = server.visit_seconds(NBYTES, NBYTES, target.server_link(1))
  assert clock(20) - clock(10) == pytest.approx(10 * (run.config.times.seconds + visit), rel=1e-9)
  clock = cluster_clock.clock(*on(config_of("async_sgd", workers=8), target, 1.0))
  busy = (2 - duplex) * NBYTES / target.server_link(8).bandwidth
  assert clock(20) - clock(10) == pytest.approx(10 * 8 * busy, rel=1e-6)


@pytest.mark.parametrize("name", [*(name for name, _, _ in COLLECTIVE), *SERVERS])
def test_more_bandwidth_is_never_slower(name):
  ends = []
  for bandwidth in (1e6, 1e8, 1e10, 1e12):
    other = named("cloud_100g").with_bandwidth(4, bandwidth)
    ends.append(cluster_clock.clock(*on(config_of(name), other))(40))
  assert ends == sorted(ends, reverse=True)
  assert ends[0] > 10 * ends[-1]


def test_with_bandwidth_changes_the_link_in_use():
  cluster = named("h100_ib400")
  assert cluster.network.main_link(8) == cluster.network.inside
  assert cluster.network.main_link(9) == cluster.network.between
  inside, between = cluster.with_bandwidth(8, 9e9), cluster.with_bandwidth(16, 9e9)
  assert (inside.network.inside.bandwidth, inside.network.between) == (9e9, cluster.network.between)
  assert (between.network.between.bandwidth, between.network.inside) == (9e9, cluster.network.inside)
  assert inside.host.bandwidth / cluster.host.bandwidth == pytest.approx(9e9 / cluster.network.inside.bandwidth)


def test_the_config_sets_slow_workers():
  even, algorithm = run_on("sync_sgd", "ethernet_10g")
  uneven = even._replace(config=even.config.changed({"times": {"slow": (1.0, 1.0, 1.0, 3.0)}}))
  exposed = even.charged.local - even.charged.lead
  fast, slow = (cluster_clock.clock(run, algorithm)(40) / 40 - exposed for run in (even, uneven))
  assert slow == pytest.approx(3 * fast)


VISITING = ["async_sgd", "hogwild_sgd", "async_easgd", "hogwild_easgd", "gosgd", "ad_psgd", "original_easgd"]


@pytest.mark.parametrize(("cluster", "workers"), [("pcie_8gpu", 8), ("cloud_100g", 16), ("two_sites_1g", 8)])
@pytest.mark.parametrize("name", [*(name for name, _, _ in COLLECTIVE), *VISITING])
@pytest.mark.sampled(2)
def test_the_seconds_of_a_step_equal_those_of_scale(name, cluster, workers):
  """Including queues at the server and at the links of nodes."""
  run, algorithm = run_on(name, cluster, workers=workers, steps=80)
  clock = cluster_clock.clock(run, algorithm)
  recorded = lambda _: run.pattern  # noqa: E731
  (point,) = scaling.curve(recorded, WORK, named(cluster), [workers], batch=32, weak=True)
  within = 1e-9 if name in dict.fromkeys(name for name, _, _ in COLLECTIVE) else 2e-3
  assert (clock(80) - clock(40)) / 40 == pytest.approx(point.seconds, rel=within)


@pytest.mark.parametrize(("locked", "free"), [("async_sgd", "hogwild_sgd"), ("async_easgd", "hogwild_easgd")])
def test_lock_free_visits_share_the_link(locked, free):
  for cluster in ("ethernet_10g", "cloud_100g"):
    seconds = [cluster_clock.clock(*run_on(name, cluster, workers=16))(40) for name in (locked, free)]
    assert seconds[0] == seconds[1] > 0.9 * 40 * 16 * NBYTES / named(cluster).network.between.bandwidth


def test_workers_of_a_node_share_its_link_to_peers():
  slow = named("cloud_100g").with_bandwidth(16, 1e8)
  for name in ("ad_psgd", "pull_gossip"):
    run, algorithm = on(config_of(name, workers=16), slow, 1.0)
    clock, visits = cluster_clock.clock(run, algorithm), run.pattern.visits
    shared = server.node_seconds(visits.up, visits.down, 16, slow.network, peers=True)
    assert (clock(40) - clock(20)) / 20 == pytest.approx(shared, rel=1e-3)
    assert shared > 3 * server.visit_seconds(visits.up, visits.down, slow.network.between) / 2


def test_step_times_from_a_file_are_rejected():
  config = default_experiment(times={"name": "trace", "path": "x.csv"})
  with pytest.raises(ValueError, match=r"config\.times\.name must be one of constant, lognormal, gamma .* got trace"):
    cluster_clock.clusters_by_name(["fdr"], config)
  assert cluster_clock.clusters_by_name([], config) == {}


def test_a_cluster_gets_the_published_efficiency_for_the_kind_of_model():
  config = default_experiment(model={"name": "lenet"})
  (result,) = cluster_clock.clusters_by_name(["dasgd_v100_10g"], config).values()
  assert result == with_shares(named("dasgd_v100_10g"), "resnet50") != named("dasgd_v100_10g")
