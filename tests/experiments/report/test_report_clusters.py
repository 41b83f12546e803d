"""`compare --cluster`: a run's clock on another cluster, the break-even, the report's section, and what is refused."""

import json
import math
import shutil

import numpy as np
import pytest
from helpers.commands import Command, complaint

from ddl.perf.comm import collectives, server
from ddl.perf.hardware import named
from ddl.perf.hardware.cluster import main_link, server_link, with_bandwidth
from ddl.perf.planning import scaling, time_to_accuracy
from ddl.perf.planning.scaling import Transport, Work
from ddl.perf.planning.time_to_accuracy import Hit
from ddl.perf.step.timeline import round_seconds
from experiments.config.experiment import base, build
from experiments.costs import cluster_clock, predict
from experiments.costs.patterns import pattern_of, vector
from experiments.report import cluster_section, report
from experiments.report import comparison as report_data
from experiments.train import virtual_time

FLOP, NBYTES = 1e9, 4e6  # per example; of the parameters
COLLECTIVE = [("sync_sgd", 1, None), ("local_sgd", 4, None), ("dasgd", 4, 2), ("easgd", 2, None)]
SERVERS = ["async_sgd", "async_easgd", "hogwild_sgd", "gosgd", "ad_psgd", "original_easgd"]


def config_of(name, workers=4, steps=40, **settings):
  config = base()
  config.algorithm.name = name
  for key, value in settings.items():
    if value is not None:
      config.algorithm[key] = value
  config.workers, config.steps, config.batch = workers, steps, 32
  config.times.name = "constant"
  return config


def on(config, cluster, flop=FLOP):
  """A run on a cluster, and its algorithm."""
  algorithm = build(config).algorithm
  return cluster_clock.on(config, pattern_of(algorithm, vector(NBYTES), config.workers), cluster, flop), algorithm


def there(name, cluster, workers=4, steps=40, **settings):
  """Likewise, by names."""
  return on(config_of(name, workers, steps, **settings), named(cluster))


def test_a_mean_that_no_worker_has_is_there_after_an_exchange():
  message = collectives.all_reduce(NBYTES, 4, named("ethernet_10g").network)
  for name, settings, apart in (
    ("sync_sgd", {}, ()), ("sharded_sync_sgd", {}, ()), ("local_sgd", {"period": 4}, (13, 14, 15)),
    ("easgd", {"period": 4}, ()), ("dasgd", {"period": 4, "delay": 2}, (13, 14, 15, 16)),
    ("independent", {}, (13, 14, 15, 16)), ("post_local_sgd", {"start": 14, "period": 2}, (15,)),
  ):  # fmt: skip
    run, algorithm = there(name, "ethernet_10g", **settings)
    clock, steps = (
      cluster_clock.clock(run, algorithm),
      virtual_time.lockstep_seconds(run.config, algorithm, run.charged),
    )
    for step in (13, 14, 15, 16):
      assert clock(step) - steps(step) == pytest.approx(message if step in apart else 0.0), (name, step)
    assert clock(0) == 0


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
  found = named(cluster)
  settings = {} if name == "sync_sgd" else {"period": period, "delay": delay}
  run, algorithm = there(name, cluster, workers=16, **settings)
  step = found.device.start + FLOP * 32 / (found.device.peak * found.efficiency.best)
  message = collectives.all_reduce(NBYTES, 16, found.network)
  clock = cluster_clock.clock(run, algorithm)
  delay = algorithm.exchanges[0].delay if algorithm.exchanges else 0
  expected = round_seconds(step=step, message=message, period=period, delay=delay)
  assert clock(8 * period) - clock(4 * period) == pytest.approx(4 * expected, rel=1e-9)
  assert clock(0) == 0


@pytest.mark.parametrize("cluster", ["ethernet_10g", "pcie_8gpu", "two_sites_1g"])
@pytest.mark.parametrize("duplex", [0.0, 0.5, 1.0])
def test_an_unhurried_worker_pays_a_whole_visit_and_a_crowd_the_servers_link(cluster, duplex):
  found = named(cluster)
  slow = found.network._replace(between=found.network.between._replace(duplex=duplex))
  slow = slow._replace(inside=slow.inside and slow.inside._replace(duplex=duplex))
  found = found._replace(network=slow, host=found.host and found.host._replace(duplex=duplex))
  link = server_link(found, 1)
  alone, algorithm = on(config_of("async_sgd", workers=1), found)
  clock = cluster_clock.clock(alone, algorithm)
  visit = server.visit_seconds(NBYTES, NBYTES, link)
  assert clock(20) - clock(10) == pytest.approx(10 * (alone.config.times.seconds + visit), rel=1e-9)
  clock = cluster_clock.clock(*on(config_of("async_sgd", workers=8), found, 1.0))
  busy = (2 - duplex) * NBYTES / server_link(found, 8).bandwidth
  assert clock(20) - clock(10) == pytest.approx(10 * 8 * busy, rel=1e-6)


@pytest.mark.parametrize("name", [*(name for name, _, _ in COLLECTIVE), *SERVERS])
def test_more_bandwidth_is_never_slower(name):
  ends = []
  for bandwidth in (1e6, 1e8, 1e10, 1e12):
    other = with_bandwidth(named("cloud_100g"), 4, bandwidth)
    ends.append(cluster_clock.clock(*on(config_of(name), other))(40))
  assert ends == sorted(ends, reverse=True)
  assert ends[0] > 10 * ends[-1]


def test_the_bandwidth_is_that_of_the_link_in_use():
  cluster = named("h100_ib400")
  assert main_link(cluster, 8) == cluster.network.inside
  assert main_link(cluster, 9) == cluster.network.between
  inside, between = with_bandwidth(cluster, 8, 9e9), with_bandwidth(cluster, 16, 9e9)
  assert (inside.network.inside.bandwidth, inside.network.between) == (9e9, cluster.network.between)
  assert (between.network.between.bandwidth, between.network.inside) == (9e9, cluster.network.inside)
  assert inside.host.bandwidth / cluster.host.bandwidth == pytest.approx(9e9 / cluster.network.inside.bandwidth)
  with pytest.raises(ValueError, match="above 0"):
    with_bandwidth(cluster, 8, 0.0)


def test_jitter_and_slow_workers_are_the_configs():
  even, algorithm = there("sync_sgd", "ethernet_10g")
  uneven = even._replace(config=even.config.copy_and_resolve_references())
  uneven.config.times.slow = (1.0, 1.0, 1.0, 3.0)
  took = [cluster_clock.clock(run, algorithm)(40) / 40 - even.charged.local for run in (even, uneven)]
  assert took[1] == pytest.approx(3 * took[0])


def entrant(config, seeds, steps, hits):
  experiment = build(config)
  pattern = pattern_of(experiment.algorithm, vector(NBYTES), config.workers)
  return predict.Entrant(config, experiment, pattern, seeds, steps, hits)


def test_the_break_even_of_each_seed_is_the_one_solved_by_hand():
  """h (s + T) = m s + m / 4 T for hits h and m of every and of every fourth step: T = (m - h) / (h - m / 4) s."""
  cluster = named("ethernet_10g")
  cluster = cluster._replace(network=cluster.network._replace(between=cluster.network.between._replace(latency=0.0)))
  entrants, hits = {}, {"often": (20, 24), "seldom": (32, 36)}
  for label, settings in (("often", {}), ("seldom", {"period": 4})):
    config = config_of("sync_sgd" if label == "often" else "local_sgd", **settings)
    entrants[label] = entrant(config, [0, 1], [], [Hit(n, n - 4) for n in hits[label]])
  step = cluster_clock.on(entrants["often"].config, entrants["often"].pattern, cluster, FLOP).config
  expected = [
    2 * 3 / 4 * NBYTES / ((m - h) / (h - m / 4) * step.times.seconds) for h, m in zip(*hits.values(), strict=True)
  ]
  assert max(expected) < cluster.network.between.bandwidth  # the second has the lead below both
  verdict = time_to_accuracy.Verdict("often", "seldom", None, False)
  found = predict._break_even(cluster, 4, entrants, verdict, FLOP)
  (turn,) = found["turns"]
  assert turn["other"] == "seldom" and turn["bandwidths"] == pytest.approx(expected, rel=2e-3)
  assert min(expected) < turn["mean"] < max(expected)
  assert [end["first"] for end in found["ends"]] == ["seldom", "often"]
  between = with_bandwidth(cluster, 4, math.sqrt(turn["mean"] * max(expected)))
  (turn,) = predict._break_even(between, 4, entrants, verdict, FLOP)["turns"]
  assert turn["bandwidths"] == pytest.approx(expected, rel=2e-3)  # though in one seed the other is ahead there
  assert predict._break_even(cluster, 4, entrants, time_to_accuracy.Verdict(None, None, None, False), FLOP) is None


ENTRY = {"bandwidth": 1e9, "link": "between nodes"}


def test_turns_in_words():
  turn = {"winner": "a", "searched": [1e3, 1e15], "turns": [], "ends": [
    {"first": "a", "second": "b", "ratio": 0.251}, {"first": "a", "second": "c", "ratio": 0.9},
  ]}  # fmt: skip
  assert cluster_section._turn(ENTRY | {"break_even": turn}) == (
    "At no bandwidth from 1.00 kB/s to 1.00 PB/s would another be first: a takes 0.25 of the time of b at the low end, "
    "where time is what is sent, and 0.9 of the time of c at the high end, where it is steps and latency."
  )
  turn["turns"] = [
    {"other": "b", "mean": 1e7, "bandwidths": [1e7, 1e7, None]},
    {"other": "c", "mean": 2e9, "bandwidths": [None, None, None]},
  ]
  assert cluster_section._turn(ENTRY | {"break_even": turn}) == (
    "Below 10.0 MB/s (10.0 MB/s to 10.0 MB/s), in 2 of 3 seeds, b would be first; above 2.00 GB/s, in 0 of 3 seeds, c "
    "would be first; the link between nodes has 1.00 GB/s."
  )


VISITING = ["async_sgd", "hogwild_sgd", "async_easgd", "hogwild_easgd", "gosgd", "ad_psgd", "original_easgd"]


@pytest.mark.parametrize(("cluster", "workers"), [("pcie_8gpu", 8), ("cloud_100g", 16), ("two_sites_1g", 8)])
@pytest.mark.parametrize("name", [*(name for name, _, _ in COLLECTIVE), *VISITING])
def test_a_step_takes_what_scale_says(name, cluster, workers):
  """Queues at the server and at the nodes' links included: two programs, one answer."""
  run, algorithm = there(name, cluster, workers=workers, steps=80)
  clock = cluster_clock.clock(run, algorithm)
  how, job = Transport(overlap=name != "sync_sgd"), Work((FLOP,), (NBYTES,))  # a mean, not layer by layer
  recorded = lambda _: run.pattern  # noqa: E731
  (point,) = scaling.curve(recorded, job, named(cluster), [workers], batch=32, weak=True, transport=how)
  assert (clock(80) - clock(40)) / 40 == pytest.approx(point.seconds, rel=2e-3)


@pytest.mark.parametrize(("locked", "free"), [("async_sgd", "hogwild_sgd"), ("async_easgd", "hogwild_easgd")])
def test_without_a_lock_visits_still_share_the_link(locked, free):
  for cluster in ("ethernet_10g", "cloud_100g"):
    took = [cluster_clock.clock(*there(name, cluster, workers=16))(40) for name in (locked, free)]
    assert took[0] == took[1]
    assert took[1] > 0.9 * 40 * 16 * NBYTES / named(cluster).network.between.bandwidth


def test_workers_of_a_node_share_its_link_to_their_peers():
  slow = with_bandwidth(named("cloud_100g"), 16, 1e8)
  for name in ("ad_psgd", "pull_gossip"):
    run, algorithm = on(config_of(name, workers=16), slow, 1.0)
    clock, found = cluster_clock.clock(run, algorithm), run.pattern.visits
    shared = server.node_seconds(found.up, found.down, 16, slow.network, peers=True)
    assert (clock(40) - clock(20)) / 20 == pytest.approx(shared, rel=1e-3)
    assert shared > 3 * server.visit_seconds(found.up, found.down, slow.network.between) / 2


SMALL = (
  "--config=configs/async_easgd_digits.py",
  "--config.steps=60",
  "--config.workers=2",
  "--config.times.slow=(1.0,3.0)",
  "--config.compare.seeds=(0,1)",
  "--config.compare.target=0.5",
  "--only=sync SGD,Async EASGD",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  path = tmp_path_factory.mktemp("runs") / "compare"
  first = Command("compare", *SMALL, f"--workdir={path}").end()
  assert first.code == 0, first.error
  assert "clusters" not in json.loads((path / "comparison.json").read_text())
  assert "On other clusters" not in (path / "report.html").read_text()
  before = {p: p.stat().st_mtime_ns for p in path.glob("*/seed-*/metrics.jsonl")}
  again = Command("compare", *SMALL, f"--workdir={path}", "--resume", "--cluster=ethernet_10g,h100_ib400").end()
  assert again.code == 0, again.error
  assert len(before) == 4 and {p: p.stat().st_mtime_ns for p in before} == before  # nothing was trained anew
  return path, again.out


def test_a_finished_comparison_gets_its_clusters_without_training(folder):
  path, out = folder
  entries = json.loads((path / "comparison.json").read_text())["clusters"]
  assert [entry["name"] for entry in entries] == ["ethernet_10g", "h100_ib400"]
  assert entries[0]["link"] == "between nodes" and entries[1]["link"] == "inside a node"
  for entry in entries:
    assert f"On {entry['name']} with 2 workers: " in out
    matrices = 2 * (2 * 64 * 64 + 3 * 64 * 64 + 3 * 64 * 10)  # forward, weights, and inputs but for the first layer's
    assert matrices < entry["flop_per_example"] < 1.2 * matrices
    for label, figures in entry["algorithms"].items():
      runs = [report_data.read_run(p) for p in sorted((path / label.replace(" ", "_")).glob("seed-*"))]
      assert [len(clock) for clock in figures["seconds"]] == [len(run.columns["step"]) for run in runs]
      assert all(clock[0] == 0 and clock == sorted(clock) for clock in figures["seconds"])
      assert figures["seconds_per_step"] > figures["step_seconds"] > 0
      assert ("staleness" in figures) == (label == "Async EASGD")
    assert (path / f"accuracy_on_{entry['name']}.png").stat().st_size > 10_000
  page = (path / "report.html").read_text()
  assert "On other clusters" in page and "predicted time to 50 %" in page and "arXiv 1708.02983, table 2" in page
  assert page.count('<figure id="accuracy_on_') == 2
  assert "One node of h100_ib400 holds all workers" in page


def test_the_report_is_made_from_the_folder_alone(folder):
  path = folder[0]
  before = (path / "report.html").read_text()
  report.write_report(path)
  assert (path / "report.html").read_text() == before
  found = cluster_section.on_clusters(report_data.read(path))
  for each in found:
    first = {label: times.at for label, times in each.times.items()}
    for label, at in first.items():
      assert all(second in clock for second, clock in zip(at, each.entry["algorithms"][label]["seconds"], strict=True))
    assert each.verdict.winner == min(first, key=lambda label: first[label].mean())
    assert each.sentence.startswith(f"On {each.entry['name']} with 2 workers: {each.verdict.winner} reaches 50 % first")


def test_pictures_of_clusters_that_the_page_no_longer_has_go(folder, tmp_path):
  path = tmp_path / "compare"
  shutil.copytree(folder[0], path)
  pictures = {p.name for p in path.glob("*.png")}
  info = json.loads((path / "comparison.json").read_text())
  info["clusters"] = info["clusters"][1:]
  (path / "comparison.json").write_text(json.dumps(info))
  report.write_report(path)
  assert pictures - {p.name for p in path.glob("*.png")} == {"accuracy_on_ethernet_10g.png"}


@pytest.mark.parametrize("name", ["sync_sgd", "async_sgd"])
def test_the_seconds_of_a_step_are_a_mean_over_the_seeds(name):
  config, cluster = config_of(name), named("ethernet_10g")
  config.times.name, config.times.jitter = "lognormal", 0.5
  found = []
  for seeds in ([0], [1], [0, 1]):
    each = entrant(config, seeds, [np.array([40])] * len(seeds), [Hit(20, 16)] * len(seeds))
    figures = predict._entry("c", cluster, {"a": each}, FLOP, NBYTES)["algorithms"]["a"]
    found.append([figures["seconds_per_step"], *figures.get("staleness", {}).values()])
  assert len(found[0]) == (3 if name == "async_sgd" else 1) and found[0][0] != found[1][0]
  assert found[2] == pytest.approx(np.mean(found[:2], axis=0))


def test_seconds_of_other_runs_are_refused(folder, tmp_path):
  info = json.loads((folder[0] / "comparison.json").read_text())
  info["clusters"][0]["algorithms"]["sync SGD"]["seconds"][1].pop()
  comparison = report_data.read(folder[0])._replace(info=info)
  with pytest.raises(ValueError, match="ethernet_10g has 3 times of sync_SGD/seed-1, which has other lines"):
    cluster_section.on_clusters(comparison)


def test_who_never_gets_there_is_said(folder):
  comparison = report_data.read(folder[0])._replace(target=1.1)
  found = cluster_section.on_clusters(comparison)
  assert found[0].sentence == "On ethernet_10g with 2 workers: no algorithm reaches 110 % with every seed."
  assert cluster_section._row("sync SGD", found)["cells"][0]["text"] == "never"


@pytest.mark.parametrize(
  ("flags", "words"),
  [
    (("--cluster=h100_ib40",), "no cluster named 'h100_ib40': did you mean 'h100_ib400'? known are cori_fdr"),
    (
      ("--cluster=fdr,pcie_8gpu", "--config.workers=16", "--config.times.slow=()"),
      "8 workers; config.workers is 16: --config.workers=8 fits",
    ),
  ],
)
def test_what_can_not_be_is_said_before_anything_runs(tmp_path, flags, words):
  small = [flag for flag in SMALL if not any(flag.startswith(given.split("=")[0] + "=") for given in flags)]
  assert words in complaint(Command("compare", *small, f"--workdir={tmp_path}/a", *flags).end())
  assert not (tmp_path / "a").exists()


def test_recorded_step_times_have_no_seconds_to_set():
  config = base()
  config.times.name = "trace"
  with pytest.raises(ValueError, match=r"config\.times\.name can be constant, lognormal, gamma, not trace"):
    cluster_clock.chosen(["fdr"], config)
  assert cluster_clock.chosen([], config) == {}


@pytest.mark.parametrize(
  ("mean", "half", "text"),
  [
    (1.5, None, "1.50 s"),
    (0.0123, 0.001, "12.3 ± 1.0 ms"),
    (2e-4, 0.005, "0.20 ± 5.00 ms"),
    (4.2e-9, None, "4.20 ns"),
    (0.0, 0.0, "0 ± 0 s"),
    (12345.6, 10.0, "12,346 ± 10 s"),
  ],
)
def test_seconds_have_the_unit_of_the_larger_figure(mean, half, text):
  assert cluster_section.seconds(mean, half) == text
