"""A newest checkpoint that was cut or damaged: the run goes on from the one before it, to the same bits."""

import json

import jax
import pytest
from helpers.sessions import Run, at_call, config, snapshot

from ddl.runtime.execution import ExecutionConfig


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
def test_goes_on_from_the_one_before_it(killed, damage, tmp_path, capsys):
  run, folder, expected = killed
  snapshot(folder, tmp_path / "run")
  newest, before = newest_two(tmp_path / "run")
  damage(tmp_path / "run" / "checkpoints" / str(newest))
  run(tmp_path / "run", resume=True, checkpoint_every=6)
  out = capsys.readouterr().out
  assert f"checkpoints/{newest} cannot be read" in out and f"resuming from step {before} of 40" in out
  assert run.outcome(tmp_path / "run") == expected


def test_without_a_good_one_nothing_is_removed(killed, tmp_path):
  run, folder, _ = killed
  snapshot(folder, tmp_path / "run")
  both = newest_two(tmp_path / "run")
  for step in both:
    cut(tmp_path / "run" / "checkpoints" / str(step))
  with pytest.raises(ValueError, match=r"cannot be read .* no other checkpoint either"):
    run(tmp_path / "run", resume=True, checkpoint_every=6)
  assert newest_two(tmp_path / "run") == both
