"""A run that was stopped or killed and resumed has the same bits as an uninterrupted one."""

import os
import random
import signal

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.commands import Command, metrics
from helpers.sessions import Run, at_call, config, normalized, send, snapshot

from ddl.engine.checkpoint import Checkpoints
from ddl.engine.execution import ExecutionConfig
from ddl.engine.workers import make_workers
from ddl.run import loop, progress


@pytest.fixture(autouse=True)
def as_users_run():
  """The command line does not set strict promotion."""
  with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
    yield


IN_FLIGHT = {"algorithm": {"name": "dasgd", "period": 4, "delay": 3, "keep": 0.25}}
ADAM = {"optimizer": {"name": "adam", "momentum": None}, "schedule": {"name": "cosine", "warmup": 5}}
CASES = {  # name: (config, execution, steps between checkpoints, model)
  "in flight, a step a call": (IN_FLIGHT, ExecutionConfig("vmap", "scan", 1), 7, None),
  "in flight, three steps a call": (IN_FLIGHT, ExecutionConfig("unroll", "scan", 3), 6, None),
  "adam, cosine, dropout": ({"algorithm": {"name": "local_sgd", "period": 5}, "model": {"dropout": 0.3}, **ADAM,
                             "noise_batches": 3}, ExecutionConfig("vmap", "scan", 5), 5, None),
  "strips": ({"algorithm": {"name": "sharded_sync_sgd"}, **ADAM}, ExecutionConfig("vmap", "scan", 4), 8, None),
  "center": ({"algorithm": {"name": "easgd", "period": 3}, "partition": {"name": "sharded"}},
             ExecutionConfig("map", "scan", 2), 3, None),
  "members": (IN_FLIGHT | ADAM | {"model": {"hidden": (64,)}, "workers": 2, "noise_batches": 2},
              ExecutionConfig("unroll", "scan", 3), 7, None),
  "turn": ({"algorithm": {"name": "round_robin_easgd"}}, ExecutionConfig("vmap", "scan", 3), 9, None),
  "phases": ({"algorithm": {"name": "post_local_sgd", "period": 4, "start": 15}},
             ExecutionConfig("vmap", "scan", 4), 10, None),
  "outer schedule": ({"algorithm": {"name": "streaming_diloco", "period": 6, "delay": 3, "fragments": 2},
                      "outer_schedule": {"name": "cosine", "warmup": 2}}, ExecutionConfig("vmap", "scan", 3), 7, None),
  "period schedule": ({"algorithm": {"name": "scaffold", "period": 2}, "schedule": {"name": "cosine", "warmup": 2},
                       "period_schedule": {"name": "qsr", "alpha": 0.2}}, ExecutionConfig("vmap", "scan", 4), 7, None),
  "low-rank factors": ({"algorithm": {"name": "dion"}, "optimizer": {"name": "sgd_adamw", "momentum": None},
                        "model": {"hidden": (16, 8)}}, ExecutionConfig("vmap", "scan", 3), 7, None),
  "batch norm": ({"algorithm": {"name": "dasgd", "period": 4, "delay": 2}, "noise_batches": 2},
                 ExecutionConfig("vmap", "scan", 3), 5, normalized),
}  # fmt: skip


@pytest.mark.parametrize("case, members", [(case, 1 + (case == "members")) for case in CASES])
@pytest.mark.sampled(12)
def test_a_resume_after_a_stop_or_kill_has_the_same_bits(case, members, tmp_path, monkeypatch):
  settings, how, every, model = CASES[case]
  run = Run(config(**settings), how=how, model=model and model(), devices=2 * members, members=members)
  moments = random.Random(case)
  calls = len(run.trainer.plan(0, run.steps, 10))

  def crash():
    snapshot(tmp_path / "whole", tmp_path / "killed")
    with (tmp_path / "killed" / "metrics.jsonl").open(
      "a"
    ) as file:  # lines after the last checkpoint, of which the last is torn
      file.write('{"step": 1234, "test_loss": 0.5}\n{"step": 12')

  with at_call(monkeypatch, moments.randrange(calls // 2, calls), crash):
    last = run(tmp_path / "whole", checkpoint_every=every)
  expected = run.outcome(tmp_path / "whole")
  assert [line["step"] for line in expected[0]] == [0, 10, 20, 30, 40]
  assert expected[0][-1]["test_loss"] < expected[0][0]["test_loss"]
  assert {k: v for k, v in last.items() if k != "seconds"} == expected[0][-1]

  run(tmp_path / "killed", resume=True, checkpoint_every=every)
  assert run.outcome(tmp_path / "killed") == expected

  stopped = 0
  for number in (signal.SIGTERM, signal.SIGINT, signal.SIGTERM):
    with at_call(monkeypatch, moments.randint(1, max(calls // 4, 1)), send(number)):
      try:
        run(tmp_path / "stopped", resume=stopped > 0)
        break
      except loop.Stopped as caught:
        step, received = caught.args
        assert received == number and step > stopped
        stopped = step
        complete = step == run.steps  # raised nevertheless, so that no further run starts
        assert (tmp_path / "stopped" / "result.json").exists() == complete
        if complete:
          break
  assert stopped
  if not (tmp_path / "stopped" / "result.json").exists():
    run(tmp_path / "stopped", resume=True)
  assert run.outcome(tmp_path / "stopped") == expected


def test_a_checkpoint_contains_messages_in_flight(tmp_path, monkeypatch):
  run = Run(config(**IN_FLIGHT), how=ExecutionConfig("vmap", "scan", 1))
  with at_call(monkeypatch, 4, send(signal.SIGTERM)), pytest.raises(loop.Stopped) as stopped:
    run(tmp_path)
  assert stopped.value.args[0] == 6  # a message is sent before step 4 and arrives after step 6
  like = run.trainer.saved(run.trainer.start(jax.random.key(0)))
  carry = Checkpoints(tmp_path / "checkpoints").carry(6, like)
  assert all(np.abs(x).max() > 0 for x in jax.tree.leaves(carry.messages))


@pytest.fixture(scope="module")
def short():
  """A compiled run of 20 steps, two per call."""
  with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
    return Run(config(steps=20), how=ExecutionConfig("vmap", "scan", 2))


def test_without_a_terminal_progress_is_printed_after_quiet_seconds(short, tmp_path, monkeypatch, capsys):
  monkeypatch.setattr(progress, "QUIET_SECONDS", 0.0)
  short(tmp_path, label="label")
  lines = capsys.readouterr().out.splitlines()
  assert [line.split(",")[0] for line in lines] == [f"label: step {step} of 20" for step in (0, 10, 20)]
  monkeypatch.setattr(progress, "QUIET_SECONDS", 1e9)
  short(tmp_path / "again")
  assert not capsys.readouterr().out


def test_resuming_a_complete_run_changes_nothing(short, tmp_path):
  run = short
  last = run(tmp_path)
  before = run.outcome(tmp_path)
  (tmp_path / "result.json").unlink()  # killed between its last checkpoint and its end
  assert run(tmp_path, resume=True) == last
  assert run.outcome(tmp_path) == before and (tmp_path / "result.json").exists()


@pytest.mark.parametrize("lost", ["checkpoints", "metrics.jsonl"])
def test_a_run_killed_before_its_first_checkpoint_restarts(short, lost, tmp_path, monkeypatch):
  run = short
  with at_call(monkeypatch, 4, lambda: snapshot(tmp_path / "whole", tmp_path / "killed")):
    (tmp_path / "killed").mkdir()
    run(tmp_path / "whole")
  (tmp_path / "killed" / "metrics.jsonl").open("a").write('{"step": 10, "tor')  # a torn line
  if lost == "metrics.jsonl":
    (tmp_path / "killed" / lost).write_text("")
  run(tmp_path / "killed", resume=True)
  assert run.outcome(tmp_path / "killed") == run.outcome(tmp_path / "whole")


def test_a_checkpoint_survives_the_donation_of_its_arrays(tmp_path):
  """Saving runs in the background while the next steps overwrite their donated arguments."""
  workers = make_workers(2, 2)
  step = jax.jit(lambda x: x * 1.5 + 1.0, donate_argnums=0)
  x = step(workers.put(np.ones((2, 500_000), np.float32)))
  checkpoints = Checkpoints(tmp_path)
  checkpoints.save(1, {"x": x}, {"a": 0.1})
  y = x
  for _ in range(10):
    y = step(y)
  like = {"x": jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=workers.split())}
  jax.block_until_ready(y)
  checkpoints.save(2, {"x": y}, {"a": 0.2}, wait=True)
  assert checkpoints.steps() == [2, 1] and checkpoints.figures(1) == {"a": 0.1}
  np.testing.assert_array_equal(checkpoints.carry(1, like)["x"], 2.5)
  np.testing.assert_array_equal(checkpoints.carry(2, like)["x"], jnp.asarray(y))
  checkpoints.close()


# ---- real processes

LONG = [
  "train", "--config=configs/digits.py", "--config.algorithm.name=dasgd", "--config.algorithm.delay=3",
  "--config.steps=600", "--config.eval_every=20", "--steps_per_call=3", "--devices=2",
]  # fmt: skip


@pytest.mark.slow
def test_a_process_resumes_after_kill_and_ctrl_c(tmp_path):
  """The signals are sent at random times; tests/hosts/test_processes.py sends SIGTERM."""
  whole = Command(*LONG, f"--workdir={tmp_path}/whole")
  for number in (signal.SIGKILL, signal.SIGINT):
    before = len(metrics(tmp_path / "run"))
    command = Command(*LONG, f"--workdir={tmp_path}/run", "--checkpoint_every=7", *["--resume"][: before > 0])
    more = random.randint(2, 6)
    command.wait_for(lambda at=before + more: len(metrics(tmp_path / "run")) > at)
    os.kill(command.process.pid, number)
    done = command.end()
    if number == signal.SIGKILL:
      assert done.code == -number
    else:
      assert done.code == 128 + number and len(done.error.split("\n")) == 3 and "Ctrl-C" in done.error, done
      assert f"of 600 and saved; resume with: python run.py train --resume --workdir={tmp_path}/run" in done.out
  done = Command("train", "--resume", f"--workdir={tmp_path}/run").end()
  assert done.code == 0 and not done.error, done
  assert done.out.startswith(f"{tmp_path}/run: resuming with the config and options")
  assert whole.end().code == 0
  assert metrics(tmp_path / "run") == metrics(tmp_path / "whole") and len(metrics(tmp_path / "run")) == 31
  bits = []
  for name in ("run", "whole"):
    files = Checkpoints(tmp_path / name / "checkpoints")
    carry = files._manager.restore(600).carry
    bits.append([np.asarray(x).tobytes() for x in jax.tree.leaves(carry)])
    files.close()
  assert bits[0] == bits[1]
