"""Calibration: fits recover the terms of synthetic times; its file is read back, and invalid files are one line."""

import json
import re

import numpy as np
import optax
import pytest
from helpers.commands import Command

from ddl.config.catalog import keyword_arguments, make_algorithm
from ddl.engine.workers import PackedGroup, make_workers
from ddl.group import Group
from ddl.models import MODELS
from ddl.perf import cluster_file, device_step, fit
from ddl.perf.cluster import Cluster, LinkModel, NetworkModel
from ddl.perf.cluster_file import built_in, named
from ddl.perf.device import Device, Efficiency
from experiments.bench import calibration, microbench, predictions
from experiments.bench.calibration import MeasuredStep
from experiments.bench.microbench import TimedBlock

LINK, RATES = LinkModel(8e-5, 1.5e9), fit.Rates(2e-4, 4e10, 6e9)
CLUSTER = Cluster("here", Device(5e10, 8e9, 1.2e10), Efficiency(0.8, 3.0), NetworkModel(LINK), "a test", workers=2)
LEAVES = (4 * 784 * 256, 4 * 256)


@pytest.fixture
def cache(tmp_path, monkeypatch):
  monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
  return tmp_path / "ddl" / "measured.json"


def calibrated(overlap=False, waiting=0.0):
  links = dict.fromkeys(calibration.COLLECTIVES, LINK)
  link = LINK._replace(latency=LINK.latency + waiting)
  cluster = CLUSTER._replace(network=CLUSTER.network._replace(between=link), overlap=overlap)
  return calibration.Calibration(cluster, {}, {"dense": RATES}, links, 0.1, waiting, [])


def test_a_saved_calibration_is_read_back(cache):
  assert cluster_file.names() == built_in()
  cluster_file.save(CLUSTER, {"overhead": 0.25})
  assert cluster_file.load() == (CLUSTER, {"overhead": 0.25})
  assert cluster_file.named("measured") == CLUSTER
  assert cluster_file.names() == [*built_in(), "measured"]
  with pytest.raises(ValueError, match=r", measured, got 'zzz'"):
    cluster_file.named("zzz")
  assert [p.name for p in cache.parent.iterdir()] == ["measured.json"]


def test_without_a_calibration_the_message_names_the_command(cache):
  with pytest.raises(ValueError, match=r"`python run.py calibrate` adds 'measured'\.$"):
    cluster_file.named("measured")
  with pytest.raises(ValueError, match=r"cluster must be one of .*got 'cori'"):
    cluster_file.named("cori")
  name = next(iter(built_in()))
  assert cluster_file.named(name).title


@pytest.mark.parametrize("text", ["", "[]", '{"cluster": {"title": "x"}}', '{"cluster": 3}', None])
def test_a_damaged_calibration_file(cache, text):
  cluster_file.save(CLUSTER, {})
  if text is None:  # an invalid bandwidth
    figures = json.loads(cache.read_text())
    figures["cluster"]["link"]["node"]["bandwidth"] = 0.0
    text = json.dumps(figures)
  cache.write_text(text)
  with pytest.raises(ValueError, match=r"measured\.json (is damaged|is not a valid calibration).*writes a new one"):
    cluster_file.named("measured")


@pytest.mark.parametrize(
  ("where", "value", "message"),
  [
    ("cluster.device.peak", None, "device.peak must be a number"),
    ("cluster.device.peak", "fast", "device.peak must be a number"),
    ("cluster.device.peek", 1.0, "got 'peek'. Did you mean 'peak'?"),
    ("cluster.device.efficiency", 1.5, "device.efficiency must be in [0.0001, 1], got 1.5"),
    ("cluster.device.chip", 3, "device.chip must be a text in quotes"),
    ("cluster.link.node.latency", -1, "link.node.latency must be in [0, 3600] seconds, got -1"),
    ("cluster.link.node.bandwidth", True, "link.node.bandwidth must be a number"),
    ("cluster.link", None, "[link.node] must be set"),
    ("cluster.nodes.count", 1.5, "nodes.count must be an integer"),
    ("cluster.nodes.count", 10**400, "nodes.count must be an integer in [1, 1048576] or 0, got 1000"),
    ("cluster.device.peak", 1e-300, "device.peak must be >= 1e+09 FLOP per second, got 1e-300"),
    ("cluster.link.node.latency", float("nan"), "latency must be in [0, 3600] seconds, got nan"),
    ("cluster.overlap", "no", "overlap must be true or false"),
    ("cluster.title", 3, "title must be a text in quotes"),
    ("efficiencies.dense", {"half": 1.0}, "efficiencies.dense.best must be a number"),
    ("efficiencies", [], "efficiencies must be a JSON object, got []"),
  ],
)
def test_an_invalid_key_of_the_file_is_named(cache, where, value, message):
  cluster_file.save(CLUSTER, {"efficiencies": {"dense": {"best": 0.5, "half": 0.0}}, "overhead": 0.1})
  figures = json.loads(cache.read_text())
  *path, last = where.split(".")
  table = figures
  for key in path:
    table = table[key]
  if value is None:
    del table[last]
  else:
    table[last] = value
  cache.write_text(json.dumps(figures))
  with pytest.raises(ValueError, match=re.escape(message)) as error:
    cluster_file.named("measured")
  assert "\n" not in str(error.value) and str(cache) in str(error.value)


def test_a_model_gets_the_efficiency_of_its_kind(cache):
  cluster_file.save(CLUSTER, {"efficiencies": {"convolution": {"best": 0.25, "half": 2.0}}})
  assert named("measured", "lenet").efficiency == Efficiency(0.25, 2.0)
  assert named("measured", "vgg_a").efficiency == Efficiency(0.25, 2.0)
  assert named("measured", "mlp") == CLUSTER  # the file has no curve of dense models
  assert named("fdr", "lenet") == named("fdr")


def test_every_model_has_a_kind():
  assert {device_step.kind_of_model(name) for name in MODELS} == {"dense", "convolution", "attention"}
  assert device_step.kind_of_model("cd_dnn") == "dense" and device_step.kind_of_model("mine.py:model") == ""
  assert device_step.kind_of_model("llama_7b") == "attention"


def test_timed_blocks_of_one_worker():
  """A calibration runs these blocks of steps and collectives in each process."""
  workers = make_workers(1)
  case = calibration.ModelCase("mlp", {"hidden": (8,)}, 4)
  trainer, components, step = microbench.make_trainer(case, "independent", {}, workers)
  products = 784 * 8 + 8 * 10
  assert step.flop == pytest.approx(4 * 2 * (3 * products - 784 * 8), rel=0.5)
  assert sorted(step.messages) == [32, 40, 320, 4 * 784 * 8] and step.kind == "dense"
  assert step.fed == 4 * (4 * 784 + 4)
  for block in microbench.trainer_blocks(trainer, components):
    assert block.run(1) > 0 and block.units >= 1
  assert microbench.exchange_block("all_reduce", 64, workers).run(1) > 0


@pytest.mark.slow
def test_fits_recover_the_terms_of_synthetic_times(monkeypatch):
  """The second of two processes is 10 % slower in every block; the fit is that of their mean."""
  steps = {
    c.name: MeasuredStep(b + 1e5 * i, 1e7 + 0.1 * b, LEAVES, device_step.kind_of_model(c.model), 3e3 * (i + c.batch))
    for i, c, b in ((i, c, 1e6 * c.batch) for i, c in enumerate(calibration.CASES))
  }
  sizes = microbench.MESSAGES
  exact = {f"loop {name}": 1.2 * RATES.seconds(s.flop, s.moved) for name, s in steps.items()}
  exact |= {f"compute {name}": RATES.seconds(s.flop, s.moved) for name, s in steps.items()}
  message = sum(calibration.collective_cost("all_reduce", 2)(n, LINK) for n in LEAVES)
  exact |= {f"sync_sgd {c.name}": exact[f"loop {c.name}"] + message + 2 * 3e-4 for c in calibration.TOGETHER}
  exact |= {"product": 2e9 / 5e10, "copy": 2e8 / 8e9}
  for name in microbench.COLLECTIVES:
    exact |= {f"{name} {n}": calibration.collective_cost(name, 2)(n, LINK) for n in sizes}
  paces = np.array([1.0, 1.1]) / 1.05
  times = {name: np.array([[1.0], [1.0], [9.0]]) * t * paces for name, t in exact.items()}  # the last pass disturbed
  work = calibration.Measurements(steps, sizes, 2, 2e9, 2e8, "a test", 1e9, overlap=False)
  result = calibration.solve(work, times)
  for name, link in result.links.items():
    np.testing.assert_allclose(link[:2], LINK[:2], rtol=1e-3, err_msg=name)
  for s in steps.values():
    np.testing.assert_allclose(
      result.rates[s.kind].seconds(s.flop, s.moved, s.fed), 1.2 * RATES.seconds(s.flop, s.moved), rtol=1e-3
    )
  np.testing.assert_allclose(result.overhead, 0.2)
  np.testing.assert_allclose(result.waiting, 3e-4, rtol=1e-2)
  np.testing.assert_allclose(result.cluster.device[:2], (5e10, 8e9))
  monkeypatch.setattr(calibration, "fit_rates", lambda *_: (result.rates, np.zeros(len(steps))))  # fitted above
  slow = calibration.solve(work._replace(copy_bytes=2e7), times).cluster.device  # no step beats the roofline
  fastest = max(s.moved / RATES.seconds(s.flop, s.moved) for s in steps.values())
  np.testing.assert_allclose(slow.memory_bandwidth, fastest)
  assert result.cluster.workers == 2 and not result.cluster.overlap and result.cluster.device.memory == 1e9
  link, between = result.links["all_reduce"], result.cluster.network.between
  assert between == link._replace(latency=link.latency + result.waiting)
  kinds = {f"efficiency, {kind}" for kind in calibration.CURVES}
  assert {row["fit"] for row in result.rows} == {*calibration.COLLECTIVES, "step", "sync_sgd", *kinds}
  assert {*result.efficiencies} == {*calibration.CURVES} and result.cluster.efficiency == result.efficiencies["dense"]


def test_packed_groups_send_small_arrays_as_one_message():
  leaves = (100, 2**22, 200, 2**23)
  assert microbench.messages(leaves, Group("worker")) == leaves
  assert microbench.messages(leaves, PackedGroup("worker", 2**22)) == (300, 2**22, 2**23)
  assert microbench.messages((2**22,), PackedGroup("worker", 2**22)) == (2**22,)


def test_predicted_step_with_its_exchange():
  step, cost = 1e-3, calibration.collective_cost("all_reduce", 2)
  message = sum(cost(n, LINK) for n in LEAVES)

  def predict(name, result, **settings):
    algorithm = make_algorithm(name, optax.sgd(0.1), 2, keyword_arguments("algorithm", {"name": name, **settings}, 2))
    return predictions.predict(algorithm, step, LEAVES, result)

  exposed, overlapped = calibrated(), calibrated(overlap=True)
  np.testing.assert_allclose(predict("sync_sgd", exposed), step + message)
  np.testing.assert_allclose(predict("local_sgd", exposed, period=4), step + message / 4)
  np.testing.assert_allclose(predict("easgd", exposed, period=10), step + message / 10)
  np.testing.assert_allclose(predict("dasgd", exposed, period=10, delay=2), step + message / 10)
  np.testing.assert_allclose(predict("dasgd", overlapped, period=10, delay=2), step)
  slow = calibrated(waiting=1e-4)
  np.testing.assert_allclose(predict("sync_sgd", slow), step + message + 2e-4)
  np.testing.assert_allclose(predict("local_sgd", slow, period=4), step + (message + 2e-4) / 4)
  np.testing.assert_allclose(message, 2 * LINK.latency + sum(LEAVES) / LINK.bandwidth)


def test_blocks_are_interleaved_and_timed_per_unit():
  calls = []

  def block(name, seconds):
    return lambda count: calls.append((name, count)) or count * seconds

  blocks = {"a": TimedBlock(block("a", 0.01), 10), "b": TimedBlock(block("b", 0.5))}
  seconds = microbench.interleaved(blocks, 3, 0.1)
  np.testing.assert_allclose(seconds["a"], np.full((3, 1), 0.001))
  np.testing.assert_allclose(seconds["b"], np.full((3, 1), 0.5))
  assert [sorted(calls[i : i + 2]) for i in (4, 6, 8)] == [[("a", 10), ("b", 1)]] * 3
  assert calibration.typical(np.array([[1.0, 3.0], [2.0, 4.0], [50.0, 70.0]])) == 3.0


@pytest.mark.parametrize(
  "command, message",
  [
    (["calibrate", "--processes=1"], "processes must be from 2 to 64 for calibrate, got 1"),
    (["bench", "--perf", "--processes=1"], "processes must be from 2 to 64 for bench --perf, got 1"),
    (["calibrate", "--processes=100000"], "processes must be from 2 to 64 for calibrate, got 100000"),
    (["calibrate", "--json=/no/such/place.json"], "json must be a file in an existing folder, got /no/such/place.json"),
    (["calibrate", "--json=/proc/place.json"], "json must be a writable file, got /proc/place.json"),
    (["bench", "--json=/no/such/place.json"], "json must be a file in an existing folder, got /no/such/place.json"),
    (["netbench", "--json=/no/such/place.json"], "json must be a file in an existing folder, got /no/such/place.json"),
    (["tokenize", "--text=README.md", "--out=/proc/x"], "out must be a writable folder, got /proc/x"),
    (["list", "--markdown=/proc/pages"], "markdown must be a writable folder, got /proc/pages"),
  ],
)
def test_invalid_flags_are_refused_before_anything_is_measured(wrong, command, message):
  wrong(command[1:], message, command=command[0])


@pytest.mark.slow
@pytest.mark.parametrize("processes", [2, 3])
def test_calibration_of_real_processes(processes, tmp_path, monkeypatch):
  monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
  done = Command(str(processes), file="tests/helpers/process_calibrate.py").end(600)
  assert done.code == 0, done
  record = json.loads(done.out.splitlines()[-1])
  assert record["shapes"] == [[3, processes]] and record["overlap"] is False and 0 <= record["overhead"] < 100
  cluster, figures = cluster_file.load() or pytest.fail("nothing was saved")
  figures_of = cluster.network.between.bandwidth, cluster.device.peak, cluster.device.memory_bandwidth
  assert cluster.workers == processes and all(0 < figure < float("inf") for figure in figures_of)
  sizes = [row for row in figures["rows"] if row["fit"] == "all_reduce"]
  assert [row["of"] for row in sizes] == ["1024 bytes", "1048576 bytes"]
  assert all(row["measured_s"] > 0 for row in sizes)
