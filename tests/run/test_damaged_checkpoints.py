"""A newest checkpoint, or metrics, that were cut or damaged: the run resumes from the one before, to the same bits."""

import asyncio
import json
import sys

import jax
import pytest
from helpers.sessions import Run, at_call, config, snapshot
from orbax import checkpoint as ocp

import ddl
from ddl.engine.checkpoint import Checkpoints, Damaged
from ddl.engine.execution import ExecutionConfig
from ddl.report import reader
from ddl.run.folder import RunFolder


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
  """A run, the folder of one that was killed with two checkpoints, and the outcome of the whole run."""
  with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"), pytest.MonkeyPatch.context() as patch:
    run = Run(config(algorithm={"name": "dasgd", "period": 4, "delay": 3, "keep": 0.25}),
              how=ExecutionConfig("vmap", "scan", 3), devices=2)  # fmt: skip
    path = tmp_path_factory.mktemp("runs")
    with at_call(patch, 12, lambda: snapshot(path / "whole", path / "killed")):
      run(path / "whole", checkpoint_every=6)
    yield run, path / "killed", run.outcome(path / "whole")


def cut(folder):
  """Every file of the arrays ends early, as after a crash of a file system."""
  for file in (folder / "carry").rglob("*"):
    if file.is_file():
      file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def flip(folder):
  """The largest file of the arrays has other bytes in its middle."""
  file = max((each for each in (folder / "carry").rglob("*") if each.is_file()), key=lambda each: each.stat().st_size)
  data = bytearray(file.read_bytes())
  middle = len(data) // 2
  data[middle : middle + 8] = bytes(255 - x for x in data[middle : middle + 8])
  file.write_bytes(data)


def without_figures(folder):
  for file in (folder / "figures").iterdir():
    file.write_text(json.dumps({"step": 3}))


def newest_two(folder):
  steps = [int(each.name) for each in (folder / "checkpoints").iterdir() if each.name.isdigit()]
  return sorted(steps, reverse=True)[:2]


@pytest.mark.parametrize("damage", [cut, flip, without_figures])
def test_goes_on_from_the_one_before_it(killed, damage, tmp_path, capsys, monkeypatch):
  run, folder, expected = killed
  snapshot(folder, tmp_path / "run")
  newest, before = newest_two(tmp_path / "run")
  damage(tmp_path / "run" / "checkpoints" / str(newest))
  steps = []
  with at_call(monkeypatch, 1, lambda: steps.extend(newest_two(tmp_path / "run"))):
    run(tmp_path / "run", resume=True, checkpoint_every=6)
  assert steps == [before]  # the damaged one is removed before anything is trained
  out = capsys.readouterr().out
  assert f"checkpoints/{newest} cannot be read" in out and f"resuming from step {before} of 40" in out
  assert run.outcome(tmp_path / "run") == expected


def test_without_a_good_one_nothing_is_removed(killed, tmp_path):
  run, folder, _ = killed
  snapshot(folder, tmp_path / "run")
  both = newest_two(tmp_path / "run")
  for step in both:
    cut(tmp_path / "run" / "checkpoints" / str(step))
  with pytest.raises(ValueError, match=r"cannot be read .* no other checkpoint is intact"):
    run(tmp_path / "run", resume=True, checkpoint_every=6)
  assert newest_two(tmp_path / "run") == both


def test_reads_that_are_in_flight_when_one_fails_do_not_complain(killed, tmp_path, monkeypatch):
  """Orbax closes the event loop of all of them, to which those that end later could not report."""
  run, folder, _ = killed
  complaints, policy = [], asyncio.get_event_loop_policy()
  monkeypatch.setattr(sys, "unraisablehook", lambda each: complaints.append(str(each.exc_value)))
  monkeypatch.setattr(sys, "excepthook", lambda *each: complaints.append(str(each[1])))
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


def test_a_read_that_fails_waits_for_the_others(tmp_path, monkeypatch):
  ended = []

  async def fails():
    await asyncio.sleep(0)  # the other one has begun
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
  """The lines of metrics with one of them damaged."""
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


@pytest.mark.parametrize("damage", ["byte", "digit", "cut", "empty", "twice", "short"])
def test_damaged_metrics_resume_from_the_checkpoint_before(killed, damage, tmp_path, capsys):
  run, folder, expected = killed
  snapshot(folder, tmp_path / "run")
  newest, before = newest_two(tmp_path / "run")
  file = tmp_path / "run" / "metrics.jsonl"
  lines = file.read_bytes().splitlines(keepends=True)
  at = next(number for number, line in enumerate(lines) if before < json.loads(line)["step"] <= newest)
  at -= damage == "twice"  # so that the second is in the place of a line that the newest checkpoint covers
  file.write_bytes(b"".join(lines[:at] if damage == "short" else damaged(lines, damage, at)))
  run(tmp_path / "run", resume=True, checkpoint_every=6)
  out = capsys.readouterr().out
  assert out.count("metrics.jsonl") == 1 and f"falling back to step {before}" in out, out
  assert run.outcome(tmp_path / "run") == expected


@pytest.mark.parametrize("checked", [True, False], ids=["checked", "of an older version"])
def test_intact_metrics_resume_from_the_newest(killed, checked, tmp_path, capsys):
  run, folder, expected = killed
  snapshot(folder, tmp_path / "run")
  newest, before = newest_two(tmp_path / "run")
  for step in (newest, before) if not checked else ():
    files = (tmp_path / "run/checkpoints" / str(step) / "figures").iterdir()
    (file,) = (each for each in files if '"lines"' in each.read_text())
    figures = json.loads(file.read_text())
    assert figures["lines"] and figures.pop("crc")
    file.write_text(json.dumps(figures))
  run(tmp_path / "run", resume=True, checkpoint_every=6)
  assert "falling back" not in capsys.readouterr().out
  assert run.outcome(tmp_path / "run") == expected


def test_missing_lines_are_damage_without_a_checksum_too(tmp_path):
  folder = RunFolder(tmp_path)
  (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n{"step": 2}\n{"step": 3')
  assert folder.damage(2, None) == "" and "has only 2 of 3 lines" in folder.damage(3, None)


@pytest.mark.parametrize("damage, at", [("digit", 0), ("order", 1)])
def test_metrics_that_no_checkpoint_covers_start_over(killed, damage, at, tmp_path, capsys):
  run, folder, expected = killed
  snapshot(folder, tmp_path / "run")
  file = tmp_path / "run" / "metrics.jsonl"
  file.write_bytes(b"".join(damaged(file.read_bytes().splitlines(keepends=True), damage, at)))
  run(tmp_path / "run", resume=True, checkpoint_every=6)
  assert "falling back to step 0" in capsys.readouterr().out
  assert run.outcome(tmp_path / "run") == expected


@pytest.mark.parametrize("damage", ["byte", "cut", "empty", "twice", "order"])
def test_damaged_metrics_are_one_line_for_load_and_report(killed, damage, tmp_path):
  snapshot(killed[1], tmp_path / "run")
  file = tmp_path / "run" / "metrics.jsonl"
  file.write_bytes(b"".join(damaged(file.read_bytes().splitlines(keepends=True), damage, 1)))
  for read in (lambda: ddl.load(tmp_path / "run").metrics, lambda: reader.read_run(tmp_path / "run")):
    with pytest.raises(ValueError, match=rf"{file}: line [23] (is not a JSON object|has step)") as error:
      read()
    assert "\n" not in str(error.value)
  assert str(ddl.load(tmp_path / "run"))  # no error
