"""Elastic runs: metrics of the present workers, bit-exact resume and replay, and refused settings."""

import json
import shutil

import jax
import pytest
from helpers.commands import metrics
from helpers.comparisons import undrawn
from helpers.sessions import at_call, config, snapshot

from ddl.comparison.compare import compare
from ddl.config.comparison import Comparison
from ddl.config.options import RunOptions
from ddl.events import lockstep, presence
from ddl.run.train import train

DEATHS = {"death_rate": 0.2, "down_seconds": 0.05}
ALGORITHM = {"name": "dasgd", "period": 4, "delay": 3, "keep": 0.25}


@pytest.fixture(scope="module", autouse=True)
def as_commands_do():
  with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"), undrawn():
    yield


def experiment(**more):
  return config(workers=4, elastic=True, algorithm=ALGORITHM, steps=20, **({"times": DEATHS} | more))


def run(path, setup=None, **options):
  return train(setup or experiment(), RunOptions(workdir=str(path), devices=2, **options))


def model(path):
  return (path / "model.msgpack").read_bytes()


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
  """(folder of a complete run, folder as a kill leaves it while workers are absent)."""
  path = tmp_path_factory.mktemp("runs")
  with pytest.MonkeyPatch.context() as patch, at_call(patch, 5, lambda: snapshot(path / "whole", path / "killed")):
    run(path / "whole", checkpoint_every=4)
  return path / "whole", path / "killed"


def test_metrics_count_the_present_workers(killed):
  recorded = presence.load(killed[0] / "presence.json", 4)
  assert len({len(ids) for _, ids in recorded.changes}) >= 2
  for line in metrics(killed[0]):
    assert line["present"] == len(recorded.at(max(line["step"] - 1, 0)))
    assert line["examples"] == 8 * recorded.worker_steps(line["step"])


def test_a_resume_has_the_same_bits(killed, tmp_path, capsys):
  whole, folder = killed
  snapshot(folder, tmp_path / "run")
  recorded = presence.load(whole / "presence.json", 4)
  newest = max(int(file.name) for file in (folder / "checkpoints").iterdir() if file.name.isdigit())
  assert 0 < newest < 20 and len(recorded.at(newest - 1)) < 4
  run(tmp_path / "run", resume=True, checkpoint_every=4)
  assert f"from step {newest} of 20" in capsys.readouterr().out
  assert model(tmp_path / "run") == model(whole) and metrics(tmp_path / "run") == metrics(whole)


def test_a_replay_has_the_same_bits(killed, tmp_path, capsys):
  whole = killed[0]
  run(tmp_path / "run", experiment(times={"seconds": 0.5}), replay=str(whole / "presence.json"))
  recorded = presence.load(whole / "presence.json", 4)
  assert recorded.describe(20) in capsys.readouterr().out
  assert model(tmp_path / "run") == model(whole)


def test_a_resume_with_another_presence_is_refused(killed, tmp_path):
  snapshot(killed[1], tmp_path / "run")
  (tmp_path / "other.json").write_text("[[0, [0, 1, 2, 3]], [8, [0, 1]]]")
  with pytest.raises(ValueError, match=r"presence\.json must contain the membership of this run, got a diff"):
    run(tmp_path / "run", resume=True, checkpoint_every=4, replay=str(tmp_path / "other.json"))


@pytest.mark.slow
def test_an_elastic_run_without_failures_equals_the_plain_run(tmp_path):
  with pytest.warns(UserWarning, match=r"config\.elastic has no effect"):
    run(tmp_path / "elastic", experiment(times={}))
  run(tmp_path / "plain", config(workers=4, algorithm=ALGORITHM, steps=20), virtual_grad="vmap", steps_per_call=4)
  assert model(tmp_path / "elastic") == model(tmp_path / "plain")
  lines = [{key: value for key, value in line.items() if key != "present"} for line in metrics(tmp_path / "elastic")]
  assert lines == metrics(tmp_path / "plain")


@pytest.mark.slow
def test_a_comparison_of_elastic_and_waiting_workers(tmp_path):
  labels = {"elastic": experiment(), "waiting": config(workers=4, algorithm=ALGORITHM, times=DEATHS, steps=20)}
  settings = Comparison(labels, seeds=(0, 1), target=0.5)
  options = RunOptions(workdir=str(tmp_path), devices=2, print_table=False)
  compare(settings, options)
  for seed in ("seed-0", "seed-1"):
    elastic, waiting = (metrics(tmp_path / label / seed)[-1] for label in ("elastic", "waiting"))
    assert elastic["examples"] < waiting["examples"] and elastic["virtual_seconds"] < waiting["virtual_seconds"]
  recorded = [(tmp_path / "elastic" / seed / "presence.json").read_text() for seed in ("seed-0", "seed-1")]
  assert recorded[0] != recorded[1]
  record = lockstep.load(tmp_path / "elastic" / "lockstep.npz")
  assert json.loads(recorded[0]) == [[step, [*ids]] for step, ids in lockstep.presence_of(
    4, map(lockstep.StepTimes._make, zip(*record, strict=True))).changes]  # fmt: skip
  before = metrics(tmp_path / "elastic" / "seed-1")
  shutil.rmtree(tmp_path / "elastic" / "seed-1")
  compare(settings, RunOptions(workdir=str(tmp_path), devices=2, print_table=False, resume=True))
  assert metrics(tmp_path / "elastic" / "seed-1") == before


@pytest.mark.parametrize(
  ("arguments", "words"),
  [
    (["--config.algorithm.name=async_sgd"], ["config.elastic must be False", "async_sgd"]),
    (
      ["--config.algorithm.name=sharded_sync_sgd", "--config.times.death_rate=0.3"],
      ["config.elastic must be False with sharded_sync_sgd, got True", "different shapes for 8 and"],
    ),
    (["--members=2"], ["members must be 1", "config.elastic=True"]),
    (["--processes=2", "--config.times.death_rate=0.1"], ["death_rate must be 0", "got 0.1"]),
    (
      ["--processes=2", "--config.algorithm.name=sharded_sync_sgd"],
      ["config.elastic must be False with sharded_sync_sgd, got True", "different shapes for 8 and"],
    ),
    (
      ["--processes=2", "--ray_address=127.0.0.1:9"],
      ["ray_address must be the address of a running Ray cluster, got 127.0.0.1:9"],
    ),
    (
      ["--num_processes=2", "--process_id=0", "--coordinator=127.0.0.1:1"],
      ["num_processes must be 1", "Start one process: Ray starts the others"],
    ),
    (["--processes=2", "--ray_address=127.0.0.1:9", "--config.elastic=False"], ["ray_address", "config.elastic=False"]),
    (["--ray_address=127.0.0.1:9"], ["ray_address must be ", "processes=1"]),
    (["--replay=nowhere.json"], ["nowhere.json", "no such file"]),
  ],
)
def test_unsupported_elastic_settings_are_refused(arguments, words, wrong, tmp_path):
  wrong(["--config=configs/digits.py", "--config.elastic=True", f"--workdir={tmp_path / 'run'}", *arguments], *words)


def test_a_replay_of_a_presence_requires_elastic(wrong, killed, tmp_path):
  wrong(["--config=configs/digits.py", f"--replay={killed[0] / 'presence.json'}", f"--workdir={tmp_path / 'run'}"],
        "config.elastic must be True to replay the presence of workers, got False")  # fmt: skip
