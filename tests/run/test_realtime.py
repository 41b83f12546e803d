"""`--runtime=threads` and `--runtime=ray`: the run folder, replay, stop, and refused settings."""

import json
import os
import re
import shutil
import signal

import numpy as np
import pytest
from helpers.commands import Command, complaint, metrics

from ddl.events import record
from ddl.run.folder import RunFolder
from ddl.run.realtime import covered

SMALL = (
  "--config=configs/async_easgd_digits.py", "--config.model.hidden=(8,)", "--config.steps=24", "--config.eval_every=8",
  "--config.workers=3", "--config.times.slow=()",
)  # fmt: skip


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
  """The folder of a run on threads."""
  folder = tmp_path_factory.mktemp("recorded") / "a"
  done = Command("train", *SMALL, "--runtime=threads", f"--workdir={folder}").end()
  assert done.code == 0, done.error
  return folder


def check_folder_of_threads(folder):
  lines = metrics(folder)
  assert [line["step"] for line in lines] == [0, 8, 16, 24]
  assert lines[-1]["examples"] == 24 * 3 * 16 and np.isfinite(lines[-1]["test_loss"])
  events = record.load(folder / "events.npz")
  record.check(events, 3)
  assert len(events.worker) == lines[-1]["visits"]
  size = 64 * 8 + 8 + 8 * 10 + 10  # float32, sent and received
  assert [line["bytes_sent"] for line in lines] == [line["visits"] * 2 * 4 * size / 3 for line in lines]
  seconds = [line["seconds"] for line in metrics(folder, timeless=False)]
  assert seconds == sorted(seconds) and seconds[-1] >= round(events.served[-1], 6) > seconds[0] == 0
  assert (folder / "schedule.png").exists()


def test_threads_write_a_run_folder(recorded):
  check_folder_of_threads(recorded)


@pytest.mark.slow
def test_lock_free_threads_write_a_run_folder(tmp_path):
  settings = ("--config.algorithm.name=hogwild_sgd", "--config.algorithm.period=None", "--runtime=threads")
  done = Command("train", *SMALL, *settings, f"--workdir={tmp_path}/a").end()
  assert done.code == 0, done.error
  check_folder_of_threads(tmp_path / "a")


@pytest.mark.slow
def test_ray_writes_a_run_folder(tmp_path):
  pytest.importorskip("ray")
  arguments = ("train", *SMALL, "--config.workers=2", "--runtime=ray", "--shards=2", f"--workdir={tmp_path}/a")
  done = Command(*arguments).end()
  assert done.code == 0, done.error
  lines = metrics(tmp_path / "a")
  assert [line["step"] for line in lines] == [0, 8, 16, 24] and np.isfinite(lines[-1]["test_loss"])
  assert [line["visits"] for line in lines] == [0, 6, 10, 14]  # evaluations do not delay training, nor training them
  events = record.load(tmp_path / "a" / "events.npz")
  assert len(events.worker) == 14 and "fork" not in done.error
  seconds = [line["seconds"] for line in metrics(tmp_path / "a", timeless=False)]
  assert seconds == [0, *(round(events.served[visits - 1], 6) for visits in (6, 10, 14))]
  assert "starting Ray" in done.out and (tmp_path / "a" / "schedule.png").exists()


def test_a_torn_last_line_of_metrics_is_ignored(tmp_path):
  written = [{"step": n, "visits": 2 * n, "bytes_sent": 8.0 * n, "seconds": 0.5 * n} for n in (0, 10)]
  text = "".join(json.dumps(line) + "\n" for line in written)
  for torn in ("", '{"step": 20, "vis', "{"):
    (tmp_path / "metrics.jsonl").write_text(text + torn)
    result = covered(RunFolder(tmp_path), 50)
    assert result and result["lines"] == 2 and result["last"] == written[-1] and result["nbytes"] == 80.0
    assert covered(RunFolder(tmp_path), 19)["lines"] == 1
  (tmp_path / "metrics.jsonl").write_text("{\n" + text)
  with pytest.raises(ValueError, match="damaged"):
    covered(RunFolder(tmp_path), 50)


@pytest.mark.slow
def test_a_replay_of_threads_in_virtual_time_has_the_same_bits(recorded, tmp_path):
  done = Command("train", *SMALL, f"--replay={recorded}/events.npz", f"--workdir={tmp_path}/b").end()
  assert done.code == 0, done.error
  assert (tmp_path / "b" / "schedule.png").exists()
  events, again = (record.load(folder / "events.npz") for folder in (recorded, tmp_path / "b"))
  assert all(map(np.array_equal, events, again))
  real, virtual = metrics(recorded), metrics(tmp_path / "b")
  for key in ("step", "test_loss", "test_accuracy", "bytes_sent"):
    assert [line[key] for line in virtual] == [line[key] for line in real]
  for key in ("train_loss", "distance"):  # sums in another order
    np.testing.assert_allclose([line[key] for line in virtual[1:]], [line[key] for line in real[1:]], rtol=1e-6)
  assert [line["virtual_seconds"] for line in virtual[1:]] == [events.served[line["visits"] - 1] for line in real[1:]]


@pytest.mark.slow
def test_a_replay_of_the_schedule_of_a_comparison_has_the_same_loss(call, tmp_path):
  """Lock-free events can be replayed if they were recorded in virtual time."""
  (tmp_path / "config.py").write_text(
    "from configs.async_easgd_digits import get_config as whole\n\n\ndef get_config():\n  config = whole()\n"
    "  config.algorithm.name, config.compare.seeds = 'hogwild_easgd', (0,)\n"
    "  config.compare.algorithms = {'a': {'algorithm': {'name': 'hogwild_easgd'}}}\n  return config\n"
  )
  flags = (f"--config={tmp_path}/config.py", *SMALL[1:])
  assert call("compare", *flags, f"--workdir={tmp_path}/all")[0] == 0
  assert call("train", *flags, f"--replay={tmp_path}/all/a/events.npz", f"--workdir={tmp_path}/b")[0] == 0
  assert metrics(tmp_path / "b")[-1]["test_loss"] == metrics(tmp_path / "all" / "a" / "seed-0")[-1]["test_loss"]


@pytest.mark.parametrize(
  "flags, words",
  [
    (("--config.workers=4",), "config.workers must be 3, got 4"),
    (
      ("--config.algorithm.name=downpour", "--config.optimizer.momentum=0"),
      "config.algorithm.name must be async_easgd, got downpour",
    ),
    (("--config.algorithm.period=2",), "config.algorithm.period must be 4, got 2"),
    (("--config.steps=48",), "the number of visits of the schedule must be at least"),
    (("--config.algorithm.name=sync_sgd", "--config.algorithm.period=None"), "replay must be a presence.json, got"),
    (("--runtime=threads",), "Only runtime=simulator"),
  ],
)
def test_a_replay_with_other_settings_is_refused(wrong, recorded, tmp_path, flags, words):
  wrong([*SMALL, f"--replay={recorded}/events.npz", f"--workdir={tmp_path}/b", *flags], words)
  assert not (tmp_path / "b" / "config.json").exists()


def test_missing_damaged_and_lock_free_records_are_refused(wrong, recorded, tmp_path):
  def refusal(folder, *flags):
    return wrong([*SMALL, f"--replay={folder}/events.npz", f"--workdir={tmp_path}/b", *flags])

  assert "replay must be an existing file" in refusal(tmp_path)
  (tmp_path / "without_run").mkdir()
  shutil.copy(recorded / "events.npz", tmp_path / "without_run")
  assert "config.json" in refusal(tmp_path / "without_run")
  shutil.copytree(recorded, tmp_path / "wrong")
  events = record.load(recorded / "events.npz")
  record.save(tmp_path / "wrong" / "events.npz", events._replace(worker=events.worker + 1))
  assert "worker must be in 0..2" in refusal(tmp_path / "wrong")
  (tmp_path / "wrong" / "events.npz").write_bytes((recorded / "events.npz").read_bytes()[:999])
  assert "not a record of events" in refusal(tmp_path / "wrong")
  config = json.loads((recorded / "config.json").read_text())
  config["algorithm"] = {"name": "hogwild_sgd"}
  (tmp_path / "wrong" / "config.json").write_text(json.dumps(config))
  shutil.copy(recorded / "events.npz", tmp_path / "wrong")
  unlocked = ("--config.algorithm.name=hogwild_sgd", "--config.algorithm.period=None", "--config.optimizer.momentum=0")
  assert "replay must be a recorded run with locks" in refusal(tmp_path / "wrong", *unlocked)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.slow
def test_a_stop_on_threads_saves_metrics_and_events(tmp_path, number):
  flags = ("--runtime=threads", "--config.steps=1000000", f"--workdir={tmp_path}/a")
  command = Command("train", *SMALL, *flags)
  command.wait_for(lambda: len(metrics(tmp_path / "a")) > 1)
  os.kill(command.process.pid, number)
  done = command.end(60)
  assert done.code == 128 + number and "Traceback" not in done.error
  assert "stopped at step" in done.out.splitlines()[-1] and "cannot be resumed" in done.out.splitlines()[-1]
  events = record.load(tmp_path / "a" / "events.npz")
  record.check(events, 3)
  step, visits = int(re.search(r"stopped at step (\d+)", done.out)[1]), len(events.worker)
  assert visits >= metrics(tmp_path / "a")[-1]["visits"]
  assert step * 3 // 4 + 3 <= visits < (step + 1) * 3 // 4 + 3  # three workers, period 4, first visits without steps


@pytest.mark.slow
def test_a_stopped_run_on_ray_is_resumed(tmp_path):
  pytest.importorskip("ray")
  folder, records = tmp_path / "a", []
  long = (*SMALL, "--config.workers=2", "--config.steps=1000000", "--runtime=ray", "--checkpoint_every=20")
  for flags, number in ((long, signal.SIGTERM), (("--resume",), signal.SIGINT)):
    lines = len(metrics(folder))
    command = Command("train", *flags, f"--workdir={folder}")
    command.wait_for(lambda lines=lines: len(metrics(folder)) > lines + 1)
    stop = os.killpg if number == signal.SIGINT else os.kill  # Ctrl-C in a terminal also reaches Ray's processes
    stop(command.process.pid, number)
    done = command.end()
    assert done.code == 128 + number and "Traceback" not in done.error
    assert "stopped at step" in done.out.splitlines()[-1] and "--resume" in done.out.splitlines()[-1]
    records.append(record.load(folder / "events.npz"))
    record.check(records[-1], 2)
  before, after = (events.worker for events in records)
  assert len(after) > len(before) and np.array_equal(after[: len(before)], before)
  visits = [line["visits"] for line in metrics(folder)]
  assert visits == sorted(set(visits)) and len(before) < visits[-1] <= len(after)


def test_divergence_on_threads_suggests_a_smaller_learning_rate(wrong, tmp_path):
  flags = ("--runtime=threads", "--config.optimizer.learning_rate=1e30", f"--workdir={tmp_path}/a")
  wrong([*SMALL, *flags], "async_easgd", "no checkpoints", "config.optimizer.learning_rate", "1e+30")


@pytest.mark.slow
def test_a_resumed_replay_needs_no_replay_flag(call, recorded, tmp_path):
  replayed = (*SMALL, f"--replay={recorded}/events.npz")
  whole, part = tmp_path / "whole", tmp_path / "part"
  assert call("train", *replayed, f"--workdir={whole}")[0] == 0
  shutil.copytree(whole, part)
  shutil.rmtree(part / "checkpoints")
  (part / "result.json").unlink()
  assert call("train", *SMALL, "--resume", f"--workdir={part}")[0] == 0
  assert metrics(part) == metrics(whole)


@pytest.mark.slow
def test_an_address_without_a_ray_cluster_is_a_one_line_error(tmp_path):
  """In a new process, as Ray reads its settings only when it is first imported."""
  flags = ("--runtime=ray", "--ray_address=127.0.0.1:9", f"--workdir={tmp_path}/a")
  assert "127.0.0.1:9" in complaint(Command("train", *SMALL, *flags).end())
