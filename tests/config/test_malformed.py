"""Invalid arguments and damaged files: the error is one line with the argument or the path."""

import json
import os
import shutil
import struct
import warnings

import numpy as np
import pytest
from helpers.schedules import visit_events

from ddl import files
from ddl.api import Arrivals
from ddl.config import base, default_experiment
from ddl.config.catalog import check_keys, keywords
from ddl.config.comparison import Comparison
from ddl.config.schedules import SCHEDULES
from ddl.data import DATA
from ddl.data.image_arrays import npz
from ddl.events.barriers import BARRIERS
from ddl.events.lockstep import finish
from ddl.events.times import TIMES
from ddl.models import MODELS
from ddl.perf import cluster_file

DIGITS, COMPARE = "--config=configs/digits.py", "--config=configs/digits_compare.py"
ASYNC = "--config.algorithm.name=async_sgd"
NPZ, HUGE = "--config.data.name=npz", 10**9
SHORT = [DIGITS, "--config.steps=4", "--config.eval_every=2", "--config.workers=2", "--devices=1"]
DEEP = "[" * 100_000 + "]" * 100_000


def endless(workers):
  return TIMES["constant"](workers=workers, seed=0, seconds=1e308)


DAMAGED = {  # file of a run: its content, and the path that the error contains
  "config.json": (b"[]", "config.json"),
  "result.json": (b'{"test_loss": "x"}', "result.json"),
  "checkpoints/4/figures/metadata": (b"{}", "checkpoints/4"),
  "metrics.jsonl": (b"\xff", "metrics.jsonl"),
}


@pytest.mark.slow
def test_damaged_runs(call, wrong, tmp_path):
  """Only metrics.jsonl is read if the run is complete; the other files are read if it is not."""
  trained = tmp_path / "trained"
  code, _, error = call("train", *SHORT, f"--workdir={trained}")
  assert code == 0, error
  for number, (file, (content, path)) in enumerate(DAMAGED.items()):
    copy = tmp_path / f"{number}"
    shutil.copytree(trained, copy)
    if file != "metrics.jsonl":
      (copy / "result.json").unlink()
    else:
      content += (copy / file).read_bytes().partition(b"\n")[2]
    (copy / file).write_bytes(content)
    wrong([*SHORT, "--resume", f"--workdir={copy}"], f"{copy}/{path}")


@pytest.mark.slow
def test_damaged_comparison_is_rewritten(call, tmp_path):
  short = [COMPARE, *SHORT[1:], "--only=EASGD", "--config.compare.seeds=0,"]
  assert call("compare", *short)[0] == 0
  run = tmp_path / "run"
  for about, page in (("{}", "{}"), ('{"layout": 3, "versions": 1}', DEEP)):
    (run / "EASGD" / "seed-0" / "about.json").write_text(about)
    (run / "comparison.json").write_text(page)
    assert call("compare", *short, "--resume")[0] == 0
    assert json.loads((run / "comparison.json").read_text())["target"]["metric"] == "test_accuracy"


IMAGES = {"task": "classification", "shape": (16, 16, 1), "num_outputs": 10, "description": "images"}
TEXT = {"task": "language", "shape": (8,), "num_outputs": 10, "description": "text"}
TURNS = dict(message_seconds=0.0, service_seconds=0.0, seed=0, arrivals=Arrivals())
CALLS = {  # a call, and the argument that its error contains
  "lenet": (lambda: MODELS["lenet"](IMAGES, channels=()), "channels"),
  "layers": (lambda: MODELS["transformer"](TEXT, layers=HUGE), "layers"),
  "blocks": (lambda: MODELS["resnet20"](IMAGES, blocks=HUGE), "blocks"),
  "negative step": (lambda: SCHEDULES["decay"](0.1, 10, at=(-3, 2)), "decay.at"),
  "unsorted steps": (lambda: SCHEDULES["decay"](0.1, 10, at=(3, 1)), "decay.at"),
  "examples": (lambda: DATA["least_squares"](examples=10**12), "examples"),
  "features": (lambda: DATA["least_squares"](features=HUGE), "features"),
  "noise": (lambda: DATA["least_squares"](noise=float("nan")), "noise"),
  "round_steps": (lambda: finish(steps=HUGE, round_steps=HUGE, workers=100,
                                 times=TIMES["constant"](workers=100, seed=0)), "steps"),
  "lockstep overflow": (lambda: finish(steps=9, round_steps=1, workers=1, times=endless(1)), "seconds"),
  "schedule overflow": (lambda: visit_events(workers=1, num_visits=9, period=1, delay=0, times=endless(1),
                                         barrier=BARRIERS["asp"](), **TURNS), "seconds"),
  "local": (lambda: files.local("s3://x"), "s3://x"),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_invalid_arguments(at_once, name):
  """The error is one line, without warnings before it."""
  call, words = CALLS[name]
  with warnings.catch_warnings(), pytest.raises(ValueError) as error:
    warnings.simplefilter("error")
    call()
  assert words in str(error.value) and "\n" not in str(error.value)


INVALID = {  # key of config.times: invalid values
  "seconds": (0.0, -1.0, np.nan, np.inf),
  "jitter": (-1.0, np.nan, np.inf, 1e200, 1e-200),
  "slow": ((1.0,), (1.0, 0.0), (1.0, np.nan)),
  "straggler_rate": (-0.1, 2.0, np.nan),
  "straggler_factor": (0.0, np.inf),
  "straggler_steps": (0.5, np.nan),
  "death_rate": (1.0, -0.1, np.nan),
  "down_seconds": (-1.0, np.inf),
  "path": ("comments.txt", "ragged.txt", "bytes.npy", "pipe"),
}


@pytest.mark.parametrize("name", TIMES)
def test_invalid_step_times(at_once, tmp_path, name):
  """The error is one line, without warnings before it."""
  (tmp_path / "comments.txt").write_text("# nothing else\n")
  (tmp_path / "ragged.txt").write_text("1 2\n3\n")
  (tmp_path / "bytes.npy").write_bytes(struct.pack("<6sBB", b"\x93NUMPY", 9, 9))
  (tmp_path / "good.txt").write_text("1 2\n3 4\n")
  os.mkfifo(tmp_path / "pipe")
  factory, checked = TIMES[name], 0
  for key in keywords(factory):
    for value in INVALID[key]:
      settings = {"path": str(tmp_path / "good.txt")} if name == "trace" else {}
      settings[key] = str(tmp_path / value) if key == "path" else value
      with warnings.catch_warnings(), pytest.raises(ValueError) as error:
        warnings.simplefilter("error")
        factory(workers=2, seed=0, **settings)
      assert "\n" not in str(error.value) and (value if key == "path" else key) in str(error.value)
      checked += 1
  assert checked > 15


def test_no_warning_before_an_error():
  with warnings.catch_warnings(), pytest.raises(ValueError, match="straggler_rate"):
    warnings.simplefilter("error")
    default_experiment(times={"straggler_rate": 2.0})


def test_finish_with_a_round_longer_than_the_run():
  """The clock is that of the whole round, without a loop over the steps after the run."""
  settings = dict(workers=2, times=TIMES["lognormal"](workers=2, seed=0))
  np.testing.assert_array_equal(
    finish(steps=5, round_steps=10**9, **settings), finish(steps=10, round_steps=10, **settings)[:5]
  )


def test_a_single_seed_becomes_a_tuple():
  config = base()
  with config.compare.ignore_type():
    config.compare.seeds = 0
  check_keys(config, base())
  Comparison({"a": default_experiment()}, seeds=config.compare.seeds)
  assert config.compare.seeds == (0,)


def test_warning_for_more_classes_than_examples(tmp_path):
  np.savez(tmp_path / "x.npz", image=np.zeros((120, 4, 4), np.uint8), label=np.full(120, 500_000))
  with pytest.warns(UserWarning, match="500,000 for 120 examples"):
    npz(path=str(tmp_path / "x.npz"))


def test_damaged_calibration_and_missing_home_folder(monkeypatch, tmp_path):
  monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
  (tmp_path / "ddl").mkdir()
  cluster_file.path().write_text(DEEP)
  with pytest.raises(ValueError, match=r"measured\.json"):
    cluster_file.load()
  monkeypatch.delenv("XDG_CACHE_HOME")
  monkeypatch.setattr(files.Path, "expanduser", lambda path: (_ for _ in ()).throw(RuntimeError("no home")))
  with pytest.raises(ValueError, match=r"~/\.cache"):
    cluster_file.load()


def test_schedule_too_large_for_memory():
  times = TIMES["constant"](workers=2, seed=0)
  with pytest.raises(ValueError, match="visits"):
    visit_events(workers=2, num_visits=10**12, period=1, delay=0, times=times, barrier=BARRIERS["asp"](), **TURNS)
