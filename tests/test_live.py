"""`--runtime=threads` and `ray` as commands: the folder they leave, a replay of it, and what they refuse."""

import numpy as np
import pytest
from commands import Command, complaint, metrics

from ddl.events import record

SMALL = (
  "--config=configs/async_easgd_digits.py", "--config.model.hidden=(8,)", "--config.steps=24", "--config.eval_every=8",
  "--config.workers=3", "--config.times.slow=()",
)  # fmt: skip


@pytest.mark.parametrize("name", ["async_easgd", "hogwild_sgd"])
def test_threads_leave_a_run_folder(tmp_path, name):
  period = () if name == "async_easgd" else ("--config.algorithm.period=None",)
  chosen = (f"--config.algorithm.name={name}", *period, "--runtime=threads", f"--workdir={tmp_path}/a")
  done = Command("train", *SMALL, *chosen).end()
  assert done.code == 0, done.error
  lines = metrics(tmp_path / "a")
  assert [line["step"] for line in lines] == [8, 16, 24]
  assert lines[-1]["examples"] == 24 * 3 * 16 and np.isfinite(lines[-1]["test_loss"])
  events = record.load(tmp_path / "a" / "events.npz")
  record.check(events, 3)
  assert len(events.worker) == lines[-1]["visits"]


def test_ray_leaves_a_run_folder(tmp_path):
  pytest.importorskip("ray")
  arguments = ("train", *SMALL, "--config.workers=2", "--runtime=ray", "--shards=2", f"--workdir={tmp_path}/a")
  done = Command(*arguments).end()
  assert done.code == 0, done.error
  lines = metrics(tmp_path / "a")
  assert lines[-1]["step"] == 24 and np.isfinite(lines[-1]["test_loss"])
  assert len(record.load(tmp_path / "a" / "events.npz").worker) == lines[-1]["visits"] == 2 * 24 // 4 + 2


@pytest.mark.parametrize(
  "flags, words",
  [
    (("--runtime=threads", "--config.algorithm.name=sync_sgd", "--config.algorithm.period=None"), "async_sgd"),
    (("--runtime=threads", "--resume"), "does not resume"),
    (("--runtime=threads", "--config.algorithm.name=async_sgd", "--config.algorithm.period=None",
      "--config.barrier.name=backup", "--config.barrier.spare=1"), "can't drop"),
    (("--runtime=ray", "--config.barrier.name=bsp"), "has to be asp"),
    (("--config.barrier.name=backup", "--config.barrier.spare=1"), "async_easgd"),
    (("--config.times.seconds=-1",), "seconds"),
    (("--config.times.slow=(1,2)",), "slow"),
    (("--config.algorithm.alpha=1.0",), "alpha"),
  ],
)  # fmt: skip
def test_refusals_are_one_line(tmp_path, flags, words):
  assert words in complaint(Command("train", *SMALL, f"--workdir={tmp_path}/a", *flags).end())
