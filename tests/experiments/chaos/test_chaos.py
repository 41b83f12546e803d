"""Chaos: the script is seeded, the verdict sees a difference, and a short one with real processes ends well."""

import itertools
import json
import os
import re
import shutil
import signal

import pytest
from helpers.commands import Command

from experiments.chaos.disturbances import KINDS, script
from experiments.chaos.verdict import difference

QUICK = (
  "--config=configs/digits.py", "--config.algorithm.name=dasgd", "--config.workers=2", "--config.steps=1200",
  "--config.eval_every=100", "--steps_per_call=20", "--checkpoint_every=60",
)  # fmt: skip


def test_the_script_is_that_of_the_seed():
  first, again, other = ([*itertools.islice(script(seed, 30, [*KINDS]), 3000)] for seed in (1, 1, 2))
  assert first == again != other
  assert {each.kind for each in first} == {*KINDS}
  assert 55 < sum(each.after for each in first) / 100 < 65  # a minute for each 30
  assert {each.kind for each in itertools.islice(script(1, 30, ["kill", "pause"]), 100)} == {"kill", "pause"}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
  """The folder of a run."""
  folder = tmp_path_factory.mktemp("chaos") / "run"
  steps = ("--config.steps=40", "--config.eval_every=20", f"--workdir={folder}")
  assert Command("train", *QUICK, *steps).end().code == 0
  return folder


def test_the_verdict_sees_metrics_model_and_state(run, tmp_path):
  other = tmp_path / "other"
  shutil.copytree(run, other)
  assert difference(run, other) == ""
  file = next((other / "checkpoints" / "40" / "checksums").rglob("metadata"))
  sums = json.loads(file.read_text())
  name = next(iter(sums))
  file.write_text(json.dumps(sums | {name: sums[name] + 1}))
  assert difference(run, other) == f"its workers' state at the end ({name})"
  model = bytearray((other / "model.msgpack").read_bytes())
  model[-1] ^= 1
  (other / "model.msgpack").write_bytes(model)
  assert difference(run, other) == "its model.msgpack"
  lines = (other / "metrics.jsonl").read_text().splitlines()
  changed = json.loads(lines[1]) | {"train_loss": 0.0, "seconds": 0.0}
  (other / "metrics.jsonl").write_text("\n".join([lines[0], json.dumps(changed), *lines[2:]]))
  assert difference(run, other) == f"its metrics.jsonl from line 2 on ({len(lines)} lines, {len(lines)} in the other)"


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2])
def test_a_short_one(processes, tmp_path):
  flags = (*QUICK, f"--processes={processes}", f"--workdir={tmp_path / 'chaos'}")
  done = Command("chaos", *flags, "--minutes=0.3").end()
  assert done.code == 0 and not done.error, done
  [count] = re.findall(r"^(\d+) events in", done.out, re.MULTILINE)
  assert int(count) > 3
  assert re.search(r"^\d+ jobs? ended as the undisturbed one, bit for bit \(", done.out, re.MULTILINE)


@pytest.mark.slow
def test_a_short_elastic_one(tmp_path):
  flags = ("--config.workers=3", "--processes=3", "--peer_timeout=5", "--elastic")
  quick = [word for word in QUICK if not word.startswith(("--steps_per_call", "--config.workers"))]
  done = Command("chaos", *quick, *flags, f"--workdir={tmp_path / 'chaos'}", "--minutes=0.5").end(400)
  assert done.code == 0, done
  assert re.search(r"^\d+ jobs? ended as its replay in virtual time", done.out, re.MULTILINE)


@pytest.mark.slow
def test_a_job_that_fails_or_is_told_to_end_leaves_nothing_behind(tmp_path):
  wrong = Command("chaos", *QUICK, "--config.optimizer.learning_rate=1e30", f"--workdir={tmp_path / 'a'}").end()
  assert wrong.code == 1, wrong
  assert "fails without a disturbance; it said last: train: " in wrong.error and "diverged" in wrong.error, wrong
  chaos = Command("chaos", *QUICK, f"--workdir={tmp_path / 'b'}")
  chaos.wait_for(lambda: (tmp_path / "b" / "job-1").exists())
  os.kill(chaos.process.pid, signal.SIGTERM)
  assert chaos.end().code == 143


def test_mistakes(wrong, tmp_path):
  wrong(["--resume"], "resume must be left out", command="chaos")
  (tmp_path / "file").touch()
  wrong([f"--workdir={tmp_path}"], "workdir must be an empty folder", command="chaos")
  wrong(["--minutes=0"], "minutes", command="chaos")


@pytest.mark.parametrize("flag", ["--minutes=nan", "--minutes=inf", "--rate=nan", "--rate=inf", "--rate=1e300"])
def test_an_end_or_a_pace_that_never_comes_is_refused(flag, wrong, tmp_path):
  wrong([flag, f"--workdir={tmp_path / 'run'}"], flag.strip("-").partition("=")[0], command="chaos")
