"""`python run.py dryrun`: figures of programs for unavailable devices, and invalid options.

The tests of TPU topologies are skipped without requirements-dryrun.txt.
"""

import importlib.util
import json
import math
from dataclasses import replace

import jax
import numpy as np
import pytest
from helpers.commands import Command

from ddl.config import default_experiment
from ddl.config.options import RunOptions
from ddl.engine import compiled_program as hlo_schedule
from ddl.engine.compiled_program import Collective
from ddl.engine.compiled_trainer import CompiledTrainer
from ddl.engine.execution import ExecutionConfig
from ddl.engine.workers import make_workers
from ddl.perf.cluster_file import named
from ddl.perf.collectives import all_reduce
from ddl.perf.device import Efficiency
from ddl.perf.units import bytes_text
from experiments.dryrun import compiled, overlap, report, target
from experiments.dryrun.compiled import CompiledJob
from experiments.dryrun.program import steady
from experiments.dryrun.target import Target

V5E = named("tpu_v5e")
HIDDEN, BATCH = (64, 48), 8
PARAMS = sum((a + 1) * b for a, b in ((64, 64), (64, 48), (48, 10)))
# The forward pass, the gradients of weights, and those of inputs except the first layer's.
FLOP = BATCH * (6 * (64 * 64 + 64 * 48 + 48 * 10) - 2 * 64 * 64)
FIVE = ("sync_sgd", "easgd", "local_sgd", "dasgd", "diloco")


def job(members=1, where="off", **options):
  data = default_experiment(batch=BATCH).make_part("data")
  devices = Target("local", jax.devices(), V5E)
  return CompiledJob(devices, data, RunOptions(compilation_cache=where, members=members), True)


def experiment(name, workers=8, **settings):
  return default_experiment(
    algorithm={"name": name, **settings},
    model={"name": "mlp", "hidden": HIDDEN},
    batch=BATCH,
    workers=workers,
    steps=48,
  )


@pytest.mark.parametrize("name, per_step", [("sync_sgd", 1), ("local_sgd", 1 / 4), ("dasgd", 1 / 4)])
def test_flop_memory_and_bytes_sent_of_a_step(name, per_step):
  result = compiled.compiled(name, experiment(name, **({"period": 4} if per_step < 1 else {})), job())
  assert result.flop == FLOP
  assert result.parts["parameters"] == 4 * PARAMS
  assert result.parts["parameters"] < result.arguments < result.peak
  across = [row for row in result.rows if row.collective.axis == "worker" and row.collective.nbytes > 1000]
  assert {row.collective.kind for row in across} == {"all-reduce"} and {row.collective.size for row in across} == {8}
  small = 4 * (64 + 48 + 10)  # biases, which may be separate messages
  assert sum(row.times * row.collective.nbytes for row in across) == pytest.approx(
    per_step * 4 * PARAMS, abs=per_step * small
  )
  assert result.sent == pytest.approx(per_step * 2 * 4 * PARAMS * 7 / 8, rel=0.02)
  assert result.hidden == 0 and result.exposed > 0  # XLA:CPU has no asynchronous collectives
  assert result.predicted > result.compute


def test_members_share_the_work():
  result = compiled.compiled("sync_sgd", experiment("sync_sgd", workers=4), job(members=2))
  assert result.members == 2 and result.workers == 4
  assert result.flop == pytest.approx(FLOP / 2, rel=0.1)
  assert {row.collective.axis for row in result.rows} >= {"worker", "member"}


def test_analyses_are_cached(tmp_path, monkeypatch):
  first = compiled.compiled("dasgd", experiment("dasgd"), job(where=str(tmp_path)))
  monkeypatch.setattr(hlo_schedule, "read", None)
  assert compiled.compiled("dasgd", experiment("dasgd"), job(where=str(tmp_path))) == first
  with pytest.raises(TypeError):  # another batch size is another program, which is not cached
    compiled.compiled("dasgd", replace(experiment("dasgd"), batch=4), job(where=str(tmp_path)))


def trainer(name, **settings):
  created = experiment(name, **settings)
  data = created.make_part("data")
  workers = make_workers(8, 8)
  return CompiledTrainer(
    created.make_algorithm(), created.make_part("model", data.meta), workers, ExecutionConfig("vmap", "scan", 16)
  )


@pytest.mark.parametrize("period, calls", [(4, 1), (40, 3)])
def test_representative_calls_cover_whole_rounds(period, calls):
  new_trainer = trainer("diloco", period=period)
  settings = steady(new_trainer, 48, 16)
  steps = sum(call.steps * count for call, count in settings)
  launches = sum(count * sum(len(due.exchange) for due in call.due) for call, count in settings)
  assert launches and steps / launches == period
  assert len(settings) <= calls


def test_representative_calls_of_a_run_shorter_than_a_round():
  new_trainer = trainer("diloco", period=10**9)
  assert sum(call.steps * count for call, count in steady(new_trainer, 48, 16)) <= 48


def test_hidden_and_exposed_seconds():
  device, collectives = V5E.device, [Collective("all-reduce", 10**8, 8, "worker", True)]
  link = all_reduce(1e8, 8, V5E.network)
  half = ["work", 0.5 * link * device.peak * V5E.efficiency.best, 0, False]

  def price(*events):
    return overlap.price([*events], collectives, V5E, 8)

  sequential = price(["start", 0, False], ["done", 0], half)
  assert sequential.exposed == pytest.approx(link) == pytest.approx(sequential.link)
  assert sequential.compute == pytest.approx(link / 2)
  partial = price(["start", 0, False], half, ["done", 0])
  assert partial.exposed == pytest.approx(link / 2) and partial.transfers[0].kernels == 1
  assert price(["start", 0, False], half, half, half, ["done", 0]).exposed == pytest.approx(0, abs=1e-12)
  memory_bound = ["work", 0, 0.25 * link * device.memory_bandwidth, False]
  assert price(["start", 0, False], memory_bound, ["done", 0]).exposed == pytest.approx(0.75 * link)
  driven = [*half[:3], True]
  assert price(["start", 0, True], half, driven, ["done", 0]).exposed == pytest.approx(link / 2)
  inner = price(["loop", 5, [["start", 0, False], half, ["done", 0]]])
  assert inner.exposed == pytest.approx(5 * link / 2) and inner.transfers[0].times == 5
  across = price(["start", 0, False], ["loop", 4, [half]], ["done", 0])
  assert across.exposed == pytest.approx(0, abs=1e-12)


def test_collectives_in_flight_use_the_links_one_after_the_other():
  collectives = [Collective("all-reduce", 10**8, 8, "worker", True)] * 2
  link = all_reduce(1e8, 8, V5E.network)
  work = ["work", 1.5 * link * V5E.device.peak * V5E.efficiency.best, 0, False]
  both = overlap.price([["start", 0, False], ["start", 1, False], work, ["done", 0], ["done", 1]], collectives, V5E, 8)
  assert both.transfers[0].exposed == 0 and both.transfers[1].exposed == pytest.approx(link / 2)


@pytest.mark.parametrize(
  "arguments, words",
  [
    ([], "topology must be set"),
    (["--topology=v9:4x4"], "v5e:SHAPE (2x2, 2x4, "),
    (["--topology=h200:2x9"], "h200:2x8"),
    (["--topology=v5e:2x4", "--devices=4"], "devices must be unset for dryrun"),
  ],
)
def test_invalid_options_are_refused(wrong, arguments, words):
  wrong(["--config=configs/digits.py", *arguments], words, command="dryrun")


@pytest.mark.parametrize(
  "name, file", [("v5e:2x4", "requirements-dryrun.txt"), ("h100:1x8", "requirements-dryrun-cuda.txt")]
)
def test_a_missing_compiler_has_a_command_to_install_it(name, file, monkeypatch):
  monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
  with pytest.raises(ValueError, match=f"pip install -r {file} "):
    target.find(name)


def test_workers_and_members_must_divide_the_devices():
  eight = Target("v5e:2x4", [None] * 8, V5E)
  compiled.check_workers(eight, 16, 1)
  with pytest.raises(ValueError, match="members must be one of 1, 2, 4, 8"):
    compiled.check_workers(eight, 8, 3)
  with pytest.raises(ValueError, match="workers must be a multiple of 4"):
    compiled.check_workers(eight, 6, 2)


def test_a_program_too_large_for_memory_has_a_number_of_members_that_fits():
  small = V5E._replace(device=V5E.device._replace(memory=60e3))
  small_job = job()
  small_job = small_job._replace(target=small_job.target._replace(cluster=small))
  created = experiment("sync_sgd")
  result = compiled.compiled("sync_sgd", created, small_job)
  assert not compiled.fits(result, small)
  other = compiled.smallest_that_fits(
    "sync_sgd", created, small_job, small._replace(device=small.device._replace(memory=result.peak - 1))
  )
  assert other and other.members > 1 and other.peak < result.peak and other.workers * other.members == 8
  line = report.too_large(result, 60e3, other, "local")
  assert f"--members={other.members} fits" in line and "microbatches" in line and bytes_text(4 * PARAMS) in line
  assert "no tried number of members up to 16 fits" in report.too_large(result, 10e3, None, "local")


@pytest.mark.slow
def test_explain_prints_the_program_of_a_run(tmp_path):
  done = Command(
    "train", "--config=configs/digits.py", "--config.steps=8", "--config.eval_every=8", "--devices=2", "--explain",
    "--config.algorithm.name=dasgd", f"--workdir={tmp_path}/a",
  ).end()  # fmt: skip
  assert done.code == 0, done.error
  assert "2 along worker" in done.out and "FLOP/step" in done.out
  server = Command(
    "train", "--config=configs/digits.py", "--explain", "--config.algorithm.name=async_sgd", f"--workdir={tmp_path}/b"
  ).end()
  assert server.code == 2 and "a collective algorithm" in server.error


@pytest.fixture(scope="module")
def on_tpus(tmp_path_factory):
  pytest.importorskip("libtpu")

  def run(topology, *more):
    file = tmp_path_factory.mktemp("dryrun") / "figures.json"
    done = Command(
      "dryrun", "--config=configs/digits.py", f"--topology={topology}", f"--json={file}",
      "--config.model.hidden=(2048,2048,2048)", "--config.batch=1024", *more,
    ).end(600)  # fmt: skip
    assert done.code == 0, done.error
    return {figures["label"]: figures for figures in json.loads(file.read_text())}, done.out

  return run


def test_a_tpu_slice_hides_a_delayed_average_only_with_options_for_overlap(on_tpus):
  words = ("--config.algorithm.delay=2", "--config.algorithm.period=4", "--algorithms=dasgd")
  result, out = on_tpus("v5e:2x4", *words)
  widths = (64, 2048, 2048, 2048, 10)
  flop = 1024 * (6 * math.fsum(np.multiply(widths[:-1], widths[1:])) - 2 * 64 * 2048)
  assert result["dasgd"]["flop"] == flop
  assert result["dasgd"]["hidden"] > 0.95 * (result["dasgd"]["hidden"] + result["dasgd"]["exposed"])
  assert "all algorithms fit into the 16 GB" in out
  plain, _ = on_tpus("v5e:2x4", *words, "--compiler_defaults")
  assert plain["dasgd"]["hidden"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("topology", ["v5e:2x4", "v5e:16x16"])
def test_five_algorithms_on_a_tpu_slice(topology, on_tpus):
  result, _ = on_tpus(topology, f"--algorithms={','.join(FIVE)}", "--config.algorithm.period=8")
  assert tuple(result) == FIVE and len({figures["flop"] for figures in result.values()}) == 1
  sent = {name: figures["sent"] for name, figures in result.items()}
  assert sent["sync_sgd"] == pytest.approx(8 * sent["local_sgd"], rel=0.01)
  assert result["dasgd"]["exposed"] < 0.1 * result["local_sgd"]["exposed"]


def test_operations_reach_the_efficiency_of_the_cluster():
  cluster = V5E._replace(efficiency=Efficiency(0.5, memory=0.25))
  device = cluster.device
  assert overlap.operation_seconds(device.peak, 0.0, cluster) == pytest.approx(2.0)
  assert overlap.operation_seconds(0.0, device.memory_bandwidth, cluster) == pytest.approx(4.0)
