"""Damaged checkpoints and metrics: the run resumes from an earlier checkpoint, to the same bits."""

import asyncio
import errno
import json
import os
import sys
import tempfile

import jax
import pytest
from helpers.sessions import Run, at_call, config, snapshot
from orbax import checkpoint as ocp

import ddl
from ddl.engine import checkpoint
from ddl.engine.checkpoint import Checkpoints, Damaged
from ddl.engine.execution import ExecutionConfig
from ddl.report import reader
from ddl.run.folder import RunFolder


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
  """(the run, a folder as a kill leaves it with two checkpoints, outcome of the complete run)."""
  with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"), pytest.MonkeyPatch.context() as patch:
    run = Run(config(algorithm={"name": "dasgd", "period": 4, "delay": 3, "keep": 0.25}),
              how=ExecutionConfig("vmap", "scan", 3), devices=2)  # fmt: skip
    path = tmp_path_factory.mktemp("runs")
    with at_call(patch, 12, lambda: snapshot(path / "whole", path / "killed")):
      run(path / "whole", checkpoint_every=6)
    yield run, path / "killed", run.outcome(path / "whole")


def cut(folder):
  """Cut every file of the arrays in half, as a crash of the file system may do."""
  for file in (folder / "carry").rglob("*"):
    if file.is_file():
      file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def flip(folder):
  """Flip eight bytes of the largest file of the arrays."""
  file = max((path for path in (folder / "carry").rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)
  data = bytearray(file.read_bytes())
  middle = len(data) // 2
  data[middle : middle + 8] = bytes(255 - x for x in data[middle : middle + 8])
  file.write_bytes(data)


def without_figures(folder):
  for file in (folder / "figures").iterdir():
    file.write_text(json.dumps({"step": 3}))


def newest_two(folder):
  steps = [int(path.name) for path in (folder / "checkpoints").iterdir() if path.name.isdigit()]
  return sorted(steps, reverse=True)[:2]


@pytest.mark.parametrize("damage", [cut, pytest.param(flip, marks=pytest.mark.slow), without_figures])
def test_a_damaged_checkpoint_is_replaced_by_the_previous_one(killed, damage, tmp_path, capsys, monkeypatch):
  run, folder, expected = killed
  snapshot(folder, tmp_path / "run")
  newest, before = newest_two(tmp_path / "run")
  damage(tmp_path / "run" / "checkpoints" / str(newest))
  steps = []
  with at_call(monkeypatch, 1, lambda: steps.extend(newest_two(tmp_path / "run"))):
    run(tmp_path / "run", resume=True, checkpoint_every=6)
  assert steps == [before]  # the damaged one is removed before training
  out = capsys.readouterr().out
  assert f"checkpoints/{newest} " in out and f"step {before} of 40" in out
  assert run.outcome(tmp_path / "run") == expected


def test_nothing_is_removed_if_all_checkpoints_are_damaged(killed, tmp_path):
  run, folder, _ = killed
  snapshot(folder, tmp_path / "run")
  both = newest_two(tmp_path / "run")
  for step in both:
    cut(tmp_path / "run" / "checkpoints" / str(step))
  with pytest.raises(ValueError, match=r"cannot be read .* no other checkpoint is intact"):
    run(tmp_path / "run", resume=True, checkpoint_every=6)
  assert newest_two(tmp_path / "run") == both


def test_concurrent_reads_report_no_error_after_one_fails(killed, tmp_path, monkeypatch):
  """Orbax closes the event loop of all reads when one fails; reads that end later could not report to it."""
  run, folder, _ = killed
  complaints, policy = [], asyncio.get_event_loop_policy()
  monkeypatch.setattr(sys, "unraisablehook", lambda error: complaints.append(str(error.exc_value)))
  monkeypatch.setattr(sys, "excepthook", lambda *error: complaints.append(str(error[1])))
  for number in range(3):
    snapshot(folder, tmp_path / f"run{number}")
    newest, _ = newest_two(tmp_path / f"run{number}")
    (tmp_path / f"run{number}" / "checkpoints" / str(newest) / "carry" / "manifest.ocdbt").unlink()
    checkpoints = Checkpoints(tmp_path / f"run{number}" / "checkpoints")
    like = run.trainer.saved(run.trainer.start(jax.random.key(0)))
    with pytest.raises(Damaged):
      checkpoints.carry(newest, like)
    checkpoints.close()
  assert complaints == [] and asyncio.get_event_loop_policy() is policy


def test_a_failed_read_waits_for_the_other_reads(tmp_path, monkeypatch):
  ended = []

  async def fails():
    await asyncio.sleep(0)  # until the other read has started
    raise ValueError("no such array")

  async def other():
    await asyncio.sleep(0.05)
    ended.append("other")

  async def both():
    await asyncio.gather(fails(), other())

  def restore(*_, **__):
    loop = asyncio.new_event_loop()
    try:
      loop.run_until_complete(both())
    finally:
      loop.close()

  monkeypatch.setattr(ocp.JsonCheckpointHandler, "restore", restore)
  checkpoints = Checkpoints(tmp_path)
  with pytest.raises(Damaged, match="no such array"):
    checkpoints.figures(3)
  checkpoints.close()
  assert ended == ["other"]


# ---- metrics


def damaged(lines, damage, at):
  """Return the lines with the line `at` damaged."""
  line = bytearray(lines[at])
  if damage == "byte":
    line[len(line) // 2] ^= 0x80
  elif damage == "digit":  # still a number
    place = line.index(b'"test_loss": ') + len(b'"test_loss": ')
    line[place] = ord("7") if line[place] != ord("7") else ord("8")
  elif damage == "cut":
    line = line[: len(line) // 2] + b"\n"
  elif damage == "empty":
    line = bytearray(b"\n")
  elif damage == "twice":
    line *= 2
  elif damage == "order":
    return [*lines[: at - 1], lines[at], lines[at - 1], *lines[at + 1 :]]
  return [*lines[:at], bytes(line), *lines[at + 1 :]]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EROFS], ids=errno.errorcode.get)
def test_a_wait_for_a_write_that_stalls_ends_if_the_folder_accepts_no_file(number, tmp_path, monkeypatch):
  """With several processes orbax's manager stays in progress after a failed write."""
  checkpoints, busy = Checkpoints(tmp_path), iter([True] * 50 + [False])
  temporary, working = tempfile.TemporaryFile, iter(range(2))

  def file(dir):
    if next(working, None) is None:
      raise OSError(number, os.strerror(number))
    return temporary(dir=dir)

  monkeypatch.setattr(checkpoint, "STALLED", 0.0)
  monkeypatch.setattr(ocp.CheckpointManager, "is_saving_in_progress", lambda self: next(busy))
  monkeypatch.setattr(checkpoint.tempfile, "TemporaryFile", file)
  with pytest.raises(OSError, match=rf"cannot write a checkpoint \({os.strerror(number).lower()}\)"):
    checkpoints.close()
  assert next(busy)


@pytest.mark.parametrize("damage", ["digit", "byte", "cut", "short", "empty", "twice"])
@pytest.mark.sampled(3)
def test_damaged_metrics_fall_back_to_the_previous_checkpoint(killed, damage, tmp_path, capsys):
  run, folder, expected = killed
  snapshot(folder, tmp_path / "run")
  newest, before = newest_two(tmp_path / "run")
  file = tmp_path / "run" / "metrics.jsonl"
  lines = file.read_bytes().splitlines(keepends=True)
  at = next(number for number, line in enumerate(lines) if before < json.loads(line)["step"] <= newest)
  at -= damage == "twice"  # the copy takes the place of a line that the newest checkpoint covers
  file.write_bytes(b"".join(lines[:at] if damage == "short" else damaged(lines, damage, at)))
  run(tmp_path / "run", resume=True, checkpoint_every=6)
  out = capsys.readouterr().out
  assert out.count("metrics.jsonl") == 1 and f"to step {before}" in out, out
  assert run.outcome(tmp_path / "run") == expected


@pytest.mark.parametrize("checked", [True, False], ids=["with checksum", "of an older version"])
def test_intact_metrics_resume_from_the_newest_checkpoint(killed, checked, tmp_path, capsys):
  run, folder, expected = killed
  snapshot(folder, tmp_path / "run")
  newest, before = newest_two(tmp_path / "run")
  for step in (newest, before) if not checked else ():
    files = (tmp_path / "run/checkpoints" / str(step) / "figures").iterdir()
    (file,) = (path for path in files if '"lines"' in path.read_text())
    figures = json.loads(file.read_text())
    assert figures["lines"] and figures.pop("crc")
    file.write_text(json.dumps(figures))
  run(tmp_path / "run", resume=True, checkpoint_every=6)
  assert "falling back" not in capsys.readouterr().out
  assert run.outcome(tmp_path / "run") == expected


def test_missing_lines_are_damage_even_without_a_checksum(tmp_path):
  folder = RunFolder(tmp_path)
  (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n{"step": 2}\n{"step": 3')
  assert folder.damage(2, None) == "" and "has only 2 of 3 lines" in folder.damage(3, None)


@pytest.mark.parametrize("damage, at", [("digit", 0), ("order", 1)])
@pytest.mark.sampled(2)
def test_a_run_restarts_if_no_checkpoint_precedes_the_damaged_line(killed, damage, at, tmp_path, capsys):
  run, folder, expected = killed
  snapshot(folder, tmp_path / "run")
  file = tmp_path / "run" / "metrics.jsonl"
  file.write_bytes(b"".join(damaged(file.read_bytes().splitlines(keepends=True), damage, at)))
  run(tmp_path / "run", resume=True, checkpoint_every=6)
  assert "falling back to step 0" in capsys.readouterr().out
  assert run.outcome(tmp_path / "run") == expected


def test_load_and_report_name_the_damaged_line(killed, tmp_path):
  snapshot(killed[1], tmp_path / "run")
  file = tmp_path / "run" / "metrics.jsonl"
  lines = file.read_bytes().splitlines(keepends=True)
  for damage in ("byte", "cut", "empty", "twice", "order"):
    file.write_bytes(b"".join(damaged(lines, damage, 1)))
    for read in (lambda: ddl.load(tmp_path / "run").metrics, lambda: reader.read_run(tmp_path / "run")):
      with pytest.raises(ValueError, match=rf"{file}: line [23] ") as error:
        read()
      assert "\n" not in str(error.value)
    assert str(ddl.load(tmp_path / "run"))  # no error
