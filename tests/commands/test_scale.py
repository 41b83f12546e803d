"""`python run.py scale`: its table and page, the numbers of nodes, and invalid flags."""

import re
from functools import partial
from html.parser import HTMLParser
from itertools import pairwise

import pytest
from helpers.commands import Command
from hypothesis import given
from hypothesis import strategies as st

from ddl.algorithms import COLLECTIVE, SERVER
from ddl.config import default_experiment
from ddl.config.catalog import keywords
from ddl.costs import scale, step_cost
from ddl.costs.step_cost import SIZES, synthetic
from ddl.engine import traffic
from ddl.perf import cluster_file, neural_networks, scaling
from ddl.perf.cluster import NetworkModel
from ddl.perf.cluster_file import named
from ddl.perf.device import LayerWork
from ddl.perf.layers import MOMENTUM, largest_batch, training_memory
from ddl.perf.patterns import ExchangePattern, Op, Pattern, Visits
from ddl.perf.scaling import Transport
from ddl.report import scale_page
from ddl.run.build import build
from experiments.commands.scale import counts


@pytest.mark.parametrize(
  "text, numbers",
  [
    ("1", [1]),
    ("1,2,4", [1, 2, 4]),
    ("1,2,...,128", [1, 2, 4, 8, 16, 32, 64, 128]),
    ("1, 2, ..., 8", [1, 2, 4, 8]),
    ("1,2,...,10", list(range(1, 11))),
    ("1,2,4,...,16", [1, 2, 4, 8, 16]),
    ("1,2,3,...,8", [1, 2, 3, 4, 5, 6, 7, 8]),
    ("16,32,...,64", [16, 32, 64]),
    ("8,16,...,40", [8, 16, 24, 32, 40]),
    ("2,5,…,14", [2, 5, 8, 11, 14]),
  ],
)
def test_numbers_of_nodes(text, numbers):
  assert counts("nodes", text) == numbers


@given(st.integers(1, 50), st.integers(1, 20), st.integers(2, 30))
def test_dots_stand_for_equal_steps_or_doubling(first, step, more):
  numbers = counts("nodes", f"{first},{first + step},...,{first + step * (more + 1)}")
  assert numbers[:2] == [first, first + step] and numbers[-1] == first + step * (more + 1)
  assert numbers == list(range(first, numbers[-1] + 1, step)) or all(b == 2 * a for a, b in pairwise(numbers))


@pytest.mark.parametrize(
  "text",
  ["", "0,1", "-1", "1,x", "1,...,8", "...,8", "1,2,...", "1,2,...,7,9", "4,2", "2,2", "1,4,...,9", "1,2.5", "1,70000"],
)
def test_invalid_numbers_of_nodes(text):
  with pytest.raises(ValueError, match="nodes must be") as error:
    counts("nodes", text)
  assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", sorted(COLLECTIVE | SERVER))
def test_every_algorithm_has_a_curve(name):
  work = scaling.work(neural_networks.table("lenet"))
  transport = Transport(servers=2)
  result = scale.curves(work, named("cori_fdr"), [1, 4], {name: {}}, transport, batch=64, weak=True, jitter=0.0)
  assert result[0].points[0].efficiency == 1 and 0 < result[0].points[1].efficiency <= 1 + 1e-9
  assert scale.verdict(result[0]).endswith(".")


@pytest.mark.parametrize("name", ["transformer:layers=2,width=256", "llama_1b:length=4096", "vit_b16", "lstm_large"])
def test_a_layer_table_with_other_sizes_can_be_scaled(name):
  job = scale.scaled_job(name, 8, named("h100_ib400"))[0].job
  assert job.table == neural_networks.table(name) and sum(job.work.nbytes) == job.params_bytes


def test_a_custom_algorithm_has_a_short_name(monkeypatch):
  monkeypatch.setattr(scale, "recorded", lambda *_: lambda _: SYNC)
  cluster = named("cori_fdr")
  work = scale.scaled_job("mlp", 64, cluster)[0].job.work
  settings = {"/a/folder/mine.py:SPEC": {}, "sync_sgd": {}}
  result = scale.curves(work, cluster, [1, 4], settings, Transport(), batch=64, weak=True, jitter=0.0)
  assert [curve.algorithm for curve in result] == ["mine", "sync_sgd"]
  picture = scale_page.picture(result[0], work, cluster)
  assert picture is not None and picture.name == "step_mine"  # the name of its files


def test_periods_and_delays_default_to_the_algorithms():
  names = ["sync_sgd", "local_sgd", "dasgd", "easgd", "original_easgd"]
  settings = scale.settings(names, period=6, delay=8)
  assert settings == {
    "sync_sgd": {}, "local_sgd": {"period": 6}, "dasgd": {"period": 6, "delay": 8}, "easgd": {"period": 6},
    "original_easgd": {},
  }  # fmt: skip
  (exchange,) = scale.recorded("dasgd", 4e6, **settings["dasgd"])(4).exchanges
  assert (exchange.period, exchange.delay) == (6, 8)
  (default,) = scale.recorded("dasgd", 4e6)(4).exchanges
  declared = keywords(COLLECTIVE["dasgd"].factory)
  assert (default.period, default.delay) == (declared["period"].default, declared["delay"].default)
  with pytest.raises(ValueError, match=r"delay must be unset for algorithms .*\(sync_sgd\), got 2"):
    scale.settings(["sync_sgd"], period=None, delay=2)


def test_a_model_of_ddl_has_the_flop_that_xla_counts():
  placed, reported = scale.scaled_job("mlp", 16, named("h100_ib400"))
  assert "no published step of dense networks" in placed.job.source  # the efficiency is that of this kind of network
  work, title = placed.job.work, placed.job.title
  products = 784 * 512 + 512 * 512 + 512 * 10
  assert sum(work.nbytes) == 4 * (products + 512 + 512 + 10)
  counted = 6 * products - 2 * 784 * 512  # without the gradient of the images
  assert sum(part.flop for part in work.parts) == pytest.approx(
    counted, rel=0.06
  )  # biases, activations, the update of a batch of 16
  assert "XLA" in reported and title in reported and title == "mlp 784-512-512-10"


def test_points_that_exceed_memory_have_no_figures():
  cluster = named("dasgd_v100_10g")
  job = scale.scaled_job("vgg_a", 1, cluster)[0].job
  work, room = job.work, partial(largest_batch, job.memory)
  result = {"sync_sgd": {}}, Transport()
  settings = {"batch": 4096, "weak": False, "jitter": 0.0}
  largest = room(cluster.device.memory)
  needed = training_memory(neural_networks.table("vgg_a"), MOMENTUM)
  assert needed.total(largest) <= cluster.device.memory < needed.total(largest + 1)
  (curve,) = scale.curves(work, cluster, [8, 16, 32], *result, largest=largest, **settings)
  assert 4096 / 16 <= largest < 4096 / 8 and curve.possible == curve.points[1:]
  rows = scale.rows(curve, cluster.network, len(scale.HEAD))
  assert rows[0] == ("1", "8", "-", "-", "-", "-", "-", f"memory: {largest} of 512 examples fit")
  (roomy,) = scale.curves(work, cluster, [16, 32], *result, **settings)
  assert rows[1:] == scale.rows(roomy, cluster.network, len(scale.HEAD))
  start = f"fits in memory from 16 workers (8 would have 512 examples each, of which {largest} fit in memory) and "
  assert scale.verdict(curve) == start + scale.verdict(roomy)
  shown = scale_page.picture_of(scale_page.CHARTS[0], [curve])
  assert "for 16 to 32 workers" in shown.alt
  with pytest.raises(ValueError, match=rf"batch must be at most {largest} \({largest} per worker fit .*\), got 4,096"):
    scale.curves(work, cluster, [8, 16, 32], *result, largest=largest, **settings | {"weak": True})
  with pytest.raises(ValueError, match=rf"batch must be at most {8 * largest:,} \(.*, got 4,096\. Use .* more workers"):
    scale.curves(work, cluster, [8], *result, largest=largest, **settings)
  with pytest.raises(ValueError, match="not even one example fits in 1 MB"):
    room(1e6)


@pytest.mark.slow
def test_largest_batch_of_a_model_of_ddl_fits_in_memory():
  room = partial(largest_batch, scale.scaled_job("mlp", 16, named("cori_fdr"))[0].job.memory)
  settings = default_experiment(model={"name": "mlp", **SIZES["mlp"]}, workers=1, batch=16)
  experiment = build(settings, synthetic("mlp"))

  def peak(examples):
    sizes = step_cost.step_program(experiment, examples).memory_analysis()
    held = sizes.argument_size_in_bytes + sizes.output_size_in_bytes - sizes.alias_size_in_bytes
    return held + sizes.temp_size_in_bytes

  result = room(20e6)
  assert result > 16 and peak(result) <= 20e6 < peak(result * 5 // 4)


@pytest.mark.parametrize(("bandwidth", "jitter"), [(1e9, 0.3), (1e10, 0.0), (1e10, 0.3)])  # full, and at its knee
def test_a_servers_queue_needs_few_simulated_workers(bandwidth, jitter, monkeypatch):
  cluster, job = named("ethernet_10g").with_bandwidth(128, bandwidth), scaling.StepWork((LayerWork(1e10),), (4e6,))
  run = scaling.Scenario(Pattern(visits=Visits(4e6, 4e6)), job, cluster, 128, 32, Transport(), jitter)
  seconds = []
  for queued in (64, 128):
    monkeypatch.setattr(scaling, "SIMULATED", queued)
    seconds.append(scaling.seconds_and_waiting(run)[0])
  assert seconds[0] == pytest.approx(seconds[1], rel=0.02) and (seconds[0] != seconds[1] or not jitter)


def test_graphs_are_limited_to_4096_workers():
  with pytest.raises(ValueError, match=r"workers must be at most 4,096 for d_psgd, got 8,192"):
    scale.recorded("d_psgd", 4e6)(8192)


def test_bytes_of_a_visit_are_traced_once(monkeypatch):
  calls = []
  result = traffic.visit_nbytes
  monkeypatch.setattr(traffic, "visit_nbytes", lambda *args: calls.append(1) or result(*args))
  pattern = scale.recorded("async_sgd", 4e6)
  assert [pattern(n).visits for n in (4, 16, 64)] == [Visits(4e6, 4e6)] * 3 and len(calls) == 1


SYNC = Pattern(local=(Op("all_reduce", 4e6),))


def curve_of(speedups):
  """Return a curve with the speed-ups, by number of workers."""
  points = [
    scaling.ScalingPoint(n, 8, 1.0, 8.0, speedup, speedup / n, 0.5, {"bandwidth": 0.5})
    for n, speedup in speedups.items()
  ]
  return scale.Curve("sync_sgd", SYNC, Transport(), points)


@pytest.mark.parametrize(
  "speedups, beginning",
  [
    ({1: 1}, "has a single worker: there is nothing to scale."),
    ({8: 7}, "8 workers are 7 times as fast as one; "),
    ({1: 1, 2: 2, 4: 4}, "scales over the whole range: 4 workers are 4 times as fast as one; "),
    ({1: 1, 2: 2, 4: 2.4}, "scales to 2 workers (2x): 4 workers are 2.4 times as fast as one, and "),
    ({1: 1, 2: 2, 4: 1.5}, "scales to 2 workers (2x): 4 workers are 1.5 times as fast as one, and "),
    ({1: 1, 2: 1.01}, "does not scale: 2 workers are 1.01 times as fast as one, and "),
    ({1: 1, 2: 0.5, 4: 0.6}, "does not scale: 2 workers are 0.5 times as fast as one, and "),
    ({1: 1, 2: 1.1, 4: 2.15, 8: 2.151, 16: 2.15}, "scales poorly from 2 workers, where the largest loss is "
     "50 % of a step: bandwidth; at best 4 workers are 2.15 times as fast as one."),
    ({1: 1, 12: 5.7}, "does not scale: 12 workers are 5.7 times as fast as one, and "),
  ],
)  # fmt: skip
def test_verdict_of_a_curve(speedups, beginning):
  verdict = scale.verdict(curve_of(speedups))
  assert verdict.startswith(beginning) and (
    len(speedups) == 1 == max(speedups) or "50 % of a step: bandwidth" in verdict
  )


def test_only_server_algorithms_show_servers():
  def setting(name):
    return scale.setting(scale.Curve(name, scale.recorded(name, 4e6)(4), Transport(servers=2), []))

  names = {name for name in COLLECTIVE | SERVER if "2 servers" in setting(name)}
  assert names == set(SERVER) - {"gosgd", "pull_gossip", "push_gossip", "ad_psgd"}


def test_the_setting_shows_every_period_and_delay():
  op, every = (Op("permute", 4.0),), lambda *clock: ExchangePattern((Op("permute", 4.0),), *clock)
  for exchanges, reported in {
    (every(1),): "",
    (every(4, 2),): "period 4, delay 2",
    (every(4), every(4, 0, 1), every(6)): "2 x period 4, delay 0, period 6, delay 0",
    (every(lambda k: min(k + 1, 9)),): "period 9, delay 0",
  }.items():
    assert scale.setting(scale.Curve("own", Pattern(exchanges=exchanges), Transport(), [])) == reported
  assert scale.setting(scale.Curve("own", Pattern(op), Transport(overlap=False), [])) == "no overlap"


def test_a_single_number_is_drawn_as_a_line_from_one_worker():
  curve = curve_of({16: 12.0})
  speedup, efficiency, waiting = ([chart.value(p) for p in scale_page.line_of(curve)] for chart in scale_page.CHARTS)
  assert (speedup, efficiency, waiting) == ([1, 12], [1, 0.75], [0, 0.5])
  assert "for 1 to 16 workers: sync_sgd 1 to 12" in scale_page.picture_of(scale_page.CHARTS[0], [curve]).alt
  for whole in (curve_of({1: 1}), curve_of({8: 7, 16: 12})):
    assert scale_page.line_of(whole) == whole.points


@pytest.mark.parametrize("bandwidth", [2e8, 2e9, 2e10])
def test_bars_of_a_step_add_up_to_its_timeline(bandwidth):
  cluster = named("cori_fdr").with_bandwidth(64, bandwidth)
  work = scaling.work(neural_networks.table("overfeat_fast"))
  shown = scaling.gradients_of(
    scaling.Scenario(scale.recorded("sync_sgd", sum(work.nbytes))(64), work, cluster, 64, 4, Transport(bucket=0.0))
  )
  took = dict.fromkeys(scale_page.KINDS, 0.0)
  for bar in scale_page.bars(shown):
    assert bar.end > bar.start >= 0
    took[bar.kind] += bar.end - bar.start
  assert took["message, hidden"] == pytest.approx(shown.hidden, abs=1e-9)
  assert took["message, exposed"] == pytest.approx(shown.exposed, abs=1e-9)
  assert took["backward"] == pytest.approx(2 * took["forward"])
  assert took["forward"] + took["backward"] + took["message, exposed"] == pytest.approx(shown.seconds)
  assert max(bar.end for bar in scale_page.bars(shown)) == pytest.approx(shown.seconds)


class Page(HTMLParser):
  """The URLs that a page loads, and the alternative texts of its images."""

  def __init__(self):
    super().__init__()
    self.loaded, self.alts = [], []

  def handle_starttag(self, tag, attrs):
    values = dict(attrs)
    self.loaded += [values[k] for k in ("src", "srcset", "href") if k in values and not values[k].startswith("data:")]
    self.alts += [values["alt"]] if tag == "img" else []


@pytest.mark.slow
def test_the_command(tmp_path):
  done = Command(
    "scale", "--model=overfeat_fast", "--cluster=aws_c4_8xlarge", "--nodes=1,2,...,16", "--batch=256",
    "--algorithms=sync_sgd,dasgd,async_sgd", "--period=4", "--delay=1", f"--workdir={tmp_path / 'out'}",
  ).end()  # fmt: skip
  assert done.code == 0, done.error
  placed, _ = scale.scaled_job("overfeat_fast", 1, named("aws_c4_8xlarge"))
  work = placed.job.work
  recorded = scale.recorded("sync_sgd", sum(work.nbytes))
  point = scaling.curve(recorded, work, placed.cluster, [16], batch=256)[0]
  row = next(line for line in done.out.splitlines() if re.match(r"\s+16 ", line))  # of the first algorithm
  assert row.split()[2] == f"{point.seconds:.4g}" and f"{100 * point.efficiency:.1f} %" in row
  assert row.endswith("bandwidth")
  assert scale.EFFICIENCY in done.out
  assert {p.name for p in (tmp_path / "out").iterdir()} == {"scale.html", "figures"}
  names, kinds = ("speedup", "efficiency", "communication", "step_sync_sgd"), ("csv", "pdf", "svg")
  assert {p.name for p in (tmp_path / "out/figures").iterdir()} == {f"{n}.{kind}" for n in names for kind in kinds}
  text = (tmp_path / "out" / "scale.html").read_text()
  page = Page()
  page.feed(text)
  assert page.loaded == [] and len(page.alts) == 8 and all("sync_sgd" in alt for alt in page.alts)
  for line in done.out.splitlines():
    if re.match(r"\s+\d", line):
      cells = re.split(r"\s{2,}", line.strip())
      assert "".join(f'<td data-label="{h}">{c}</td>' for h, c in zip(scale.HEAD[1:], cells[1:], strict=True)) in text


def test_measured_seconds_are_shown_with_errors():
  work = scaling.work(neural_networks.table("lenet"))
  points = scaling.curve(lambda _: SYNC, work, named("cori_fdr"), [1, 2], batch=64)
  took = {1: points[0].seconds * 2, 2: points[1].seconds / 1.25}
  curve = scale.Curve("sync_sgd", SYNC, Transport(), points, took)
  head = scale.head([curve])
  cells = [dict(zip(head, row, strict=True)) for row in scale.rows(curve, named("cori_fdr").network, len(head))]
  assert [c["measured s/step"] for c in cells] == [f"{took[1]:.4g}", f"{took[2]:.4g}"]
  assert [c["error"] for c in cells] == ["-50.0 %", "+25.0 %"]
  assert scale.head([curve._replace(measured={})]) == scale.HEAD
  speedup, efficiency, waiting = (scale_page.measured_points(chart, curve) for chart in scale_page.CHARTS)
  assert speedup == [(1, pytest.approx(1)), (2, pytest.approx(points[1].speedup * 2 * 1.25))]
  assert efficiency[1][1] == pytest.approx(speedup[1][1] / 2) and waiting == []


@pytest.mark.slow
def test_a_measurement_on_this_machine(tmp_path, monkeypatch):
  monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
  cluster = named("cori_fdr")._replace(workers=2, overlap=False)
  cluster_file.save(cluster._replace(network=NetworkModel(cluster.network.between)), {"overhead": 0.0})
  done = Command(
    "scale",
    "--model=mlp",
    "--cluster=measured",
    "--nodes=1,2",
    "--batch=64",
    "--measure",
    f"--workdir={tmp_path / 'o'}",
    XDG_CACHE_HOME=str(tmp_path),
  ).end()
  assert done.code == 0, done.error
  tables = [line.split() for line in done.out.splitlines() if re.match(r"\s+[12] ", line)]
  assert len(tables) == 6 and all(float(cells[-3]) > 0 for cells in tables)
  assert "measured on this machine" in (tmp_path / "o" / "scale.html").read_text()


@pytest.mark.parametrize(
  "arguments, message",
  [
    (["--cluster="], "cluster must be one name or one .toml file, got none. The names are asr, "),
    (["--cluster=cory"], "Did you mean 'cori_fdr'?"),
    (["--model=vgg_b"], "got 'vgg_b'. Did you mean 'vgg_a'?"),
    (["--nodes=1,2,...,7,9"], "got '1,2,...,7,9'"),
    (["--nodes=0,1"], "nodes must be increasing numbers from 1"),
    (["--nodes=1,2", "--workers=1,2"], "nodes must be unset when workers is set"),
    (["--nodes=1,2,...,128", "--batch=64"], "batch must be at least 128"),
    (["--batch=0"], "batch"),
    (["--algorithms=sgd"], "got 'sgd'"),
    (["--algorithms="], "algorithms must be one or more names"),
    (
      ["--cluster=asr", "--nodes=1,32"],
      "nodes must be at most 16, got 1,32. The cluster asr has 16 nodes of 1 worker; 1 would fit.",
    ),
    (["--cluster=pcie_8gpu", "--nodes=16"], "got 16. The cluster pcie_8gpu has 1 node of 8 workers; 1 would fit."),
    (
      ["--cluster=pcie_8gpu", "--workers=2,4,16", "--nodes="],
      "got 2,4,16. The cluster pcie_8gpu has 8 workers; 2,4 would fit.",
    ),
    (["--jitter=-1"], "jitter"),
    (["--jitter=1e9"], "jitter"),
    (["--workdir=/proc/nothing"], "workdir must be a writable folder, got /proc/nothing"),
    (["--measure", "--model=mlp"], "measure must be unset with --cluster=cori_fdr and --model=mlp"),
    (["--scaling=weak", "--batch=100000"], "batch must be at most"),
    (["--servers=10000000000", "--algorithms=async_sgd"], "servers"),
    (["--servers=100000000000000000000"], "servers"),
    (["--period=1000000000"], "period"),
    (["--delay=1000000000"], "delay"),
  ],
)
def test_invalid_flags_are_one_line(wrong, arguments, message, tmp_path):
  defaults = ["--cluster=cori_fdr", "--nodes=1,2", f"--workdir={tmp_path / 'out'}"]
  names = {argument.partition("=")[0] for argument in arguments}
  wrong([*(flag for flag in defaults if flag.partition("=")[0] not in names), *arguments], message, command="scale")
  assert not (tmp_path / "out").exists()


def test_source_and_range_of_the_efficiency(call):
  code, out, error = call("scale", "--model=alexnet", "--cluster=cori_fdr", "--nodes=1,2")
  assert code == 0, error
  assert "efficiency: 31 % to 80 % of the peak in whole steps: " in out
  low, high = out.split("with 31 % of the peak:")[1].split("with 80 % of the peak:")
  assert all(part.count("  sync_sgd: ") == part.count("  dasgd: ") == 1 for part in (low, high))


def test_numbers_of_workers_that_cannot_shard_the_states_are_dropped():
  job = scale.scaled_job("llama_7b", 1, named("h100_ib400"))[0].job
  assert scale.large_enough([1, 4, 8, 16], job) == [8, 16]
  with pytest.raises(ValueError, match=r"workers must be at least 8 to hold .*, got 4"):
    scale.large_enough([1, 4], job)
  assert sum(job.work.nbytes) == pytest.approx(4 * 6_738_415_616)
  assert largest_batch(job.memory, 80e9) == 3 and "4,096 tokens" in job.title
  assert len(job.work.nbytes) <= 200
