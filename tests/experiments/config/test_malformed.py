"""Malformed inputs: exit code 2 and one line with the offending key or path, at once; nothing is written."""

import json
import os
import shutil
import signal
import struct
import warnings
import zipfile

import numpy as np
import pytest
from helpers.commands import Command

from ddl import files
from ddl.api import Arrivals
from ddl.data import DATA
from ddl.data.npz import npz
from ddl.events.barriers import BARRIERS
from ddl.events.lockstep import finish
from ddl.events.schedule import schedule
from ddl.events.times import TIMES
from ddl.models import MODELS
from experiments.config import base, default_experiment
from experiments.config.comparison import Comparison
from experiments.config.factories import check_keys, keywords
from experiments.config.optimizers import SCHEDULES
from experiments.costs import local_cluster
from experiments.train import virtual_time

DIGITS, COMPARE = "--config=configs/digits.py", "--config=configs/digits_compare.py"
ASYNC = "--config.algorithm.name=async_sgd"
NPZ, HUGE = "--config.data.name=npz", 10**9
SHORT = [DIGITS, "--config.steps=4", "--config.eval_every=2", "--config.workers=2", "--devices=1"]
DEEP = "[" * 100_000 + "]" * 100_000
CONFIGS = {  # lines of get_config after c = base(), and the key that is at fault
  "other": ("c = ConfigDict({'a': 1})", "config.algorithm"),
  "section": ("c.unlock(); del c.model", "config.model"),
  "key": ("c.unlock(); del c.model.name", "config.model.name"),
  "unknown": ("c.unlock(); c.stepz = 3", "stepz"),
  "number": ("with c.ignore_type(): c.model = 3", "config.model"),
  "none": ("with c.ignore_type(): c.workers = None", "config.workers"),
  "text": ("with c.ignore_type(): c.workers = '8'", "config.workers"),
  "rate": ("with c.ignore_type(): c.optimizer.learning_rate = 'x'", "config.optimizer.learning_rate"),
  "labels": ("with c.ignore_type(): c.compare.algorithms = 3", "config.compare.algorithms"),
  "surrogate": ("c.compare.title = '\\udcff'", "config.compare.title"),
  "exit": ("raise SystemExit(3)", "x.py, line 5: SystemExit"),
  "nul": ("c.data.name = 'npz'; c.data.path = 'a\\0b'", "a\\x00b"),
}
COMMANDS = {  # name: (command, arguments, what the line must contain); {0} is the folder of `make`
  "width 0": ("train", [DIGITS, NPZ, "--config.data.path={0}/width.npz"], "{0}/width.npz"),
  "features 0": ("train", [DIGITS, NPZ, "--config.data.path={0}/features.npz"], "{0}/features.npz"),
  "pickled": ("train", [DIGITS, NPZ, "--config.data.path={0}/pickled.npz"], "{0}/pickled.npz"),
  "no array": ("train", [DIGITS, NPZ, "--config.data.path={0}/bytes.npz"], "{0}/bytes.npz"),
  "npz pipe": ("train", [DIGITS, NPZ, "--config.data.path={0}/pipe"], "{0}/pipe"),
  "npz device": ("train", [DIGITS, NPZ, "--config.data.path=/dev/zero"], "/dev/zero"),
  "text pipe": ("train", [DIGITS, "--config.data.name=text", "--config.data.path={0}/pipe"], "{0}/pipe"),
  "text device": ("train", [DIGITS, "--config.data.name=text", "--config.data.path=/dev/zero"], "/dev/zero"),
  "tuned pipe": ("compare", [COMPARE, "--tuned={0}/pipe"], "--tuned={0}/pipe"),
  "tuned device": ("compare", [COMPARE, "--tuned=/dev/zero"], "--tuned=/dev/zero"),
  "trials": ("compare", [COMPARE, "--tuned={0}/trials.json"], "--tuned={0}/trials.json"),
  "tuned deep": ("compare", [COMPARE, "--tuned={0}/deep/config.json"], "{0}/deep/config.json"),
  "resume deep": ("train", [DIGITS, "--resume", "--workdir={0}/deep"], "{0}/deep/config.json"),
  "bytes": ("train", [DIGITS, "--workdir={0}/\udcff"], "\\udcff"),
  "home": ("train", [DIGITS, "--workdir=~nobody-has-this-name/x"], "~nobody-has-this-name/x"),
  "url": ("train", [DIGITS, "--workdir=gs://bucket/x"], "gs://bucket/x"),
  "data url": ("train", [DIGITS, NPZ, "--config.data.path=gs://bucket/x"], "gs://bucket/x: invalid"),
  "scale url": ("scale", ["--model=vgg_a", "--cluster=cori_fdr", "--workdir=gs://bucket/x"], "gs://bucket/x"),
  "workers": ("train", [DIGITS, f"--config.workers={HUGE}"], "config.workers"),
  "server workers": ("train", [DIGITS, ASYNC, f"--config.workers={HUGE}"], "config.workers"),
  "steps": ("train", [DIGITS, "--config.steps=1000000000000"], "config.steps"),
  "period": ("train", [DIGITS, "--config.algorithm.name=local_sgd", f"--config.algorithm.period={10**19}"],
             "config.algorithm.period"),
  "period int64": ("train", [DIGITS, "--config.algorithm.name=local_sgd", f"--config.algorithm.period={10**18}"],
                   "config.algorithm.period"),
  "hidden": ("train", [DIGITS, f"--config.model.hidden={HUGE},{HUGE}"], "GB"),
  "hidden of threads": ("train", [DIGITS, ASYNC, "--runtime=threads", f"--config.model.hidden={HUGE},{HUGE}"], "GB"),
  "devices": ("train", [DIGITS, f"--config.workers={10**6}", f"--devices={10**6}"], f"--devices={10**6}"),
  "threads": ("train", [DIGITS, ASYNC, "--runtime=threads", "--config.workers=100000"], "config.workers"),
  "schedule": ("train", [DIGITS, ASYNC, "--config.steps=2000000000"], "visits"),
  "trials of a sweep": ("sweep", [COMPARE, "--trials=1000000000"], "1000000000 trials"),
  "rate": ("train", [DIGITS, "--config.optimizer.learning_rate=inf"], "config.optimizer.learning_rate"),
  "decay": ("train", [DIGITS, "--config.optimizer.weight_decay=inf"], "config.optimizer.weight_decay"),
  "jitter": ("scale", ["--model=vgg_a", "--cluster=cori_fdr", "--nodes=1,2", "--jitter=1e300"], "jitter"),
  "negative message": ("train", [DIGITS, "--config.network.message_seconds=-1.0"], "config.network.message_seconds"),
  "seed": ("compare", [COMPARE, f"--config.compare.seeds={2**32},"], "config.compare.seeds"),
}  # fmt: skip


def make(folder):
  """The malformed files."""
  labels = np.zeros(120, np.int32)
  np.savez(folder / "width.npz", image=np.zeros((120, 4, 0), np.uint8), label=labels)
  np.savez(folder / "features.npz", image=np.zeros((120, 0), np.float32), label=labels)
  np.savez(folder / "pickled.npz", image=np.array([{"a": 1}] * 120, object), label=labels)
  with zipfile.ZipFile(folder / "bytes.npz", "w") as archive:
    archive.writestr("image", b"no .npy file")
    archive.writestr("label", b"no .npy file")
  (folder / "deep").mkdir()
  for name in ("config.json", "about.json"):
    (folder / "deep" / name).write_text(DEEP)
  (folder / "trials.json").write_text(json.dumps({"algorithms": {"EASGD": {"best": {}, "trials": 3}}}))
  os.mkfifo(folder / "pipe")


@pytest.fixture
def at_once():
  """What would wait or compute for ever fails after a minute."""

  def late(*_):
    raise AssertionError("no answer within a minute")

  before = signal.signal(signal.SIGALRM, late)
  signal.alarm(60)
  yield
  signal.alarm(0)
  signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("name", COMMANDS)
def test_commands(at_once, wrong, tmp_path, name):
  make(tmp_path)
  command, arguments, words = COMMANDS[name]
  wrong([a.format(tmp_path) for a in arguments], words.format(tmp_path), command=command)
  assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", CONFIGS)
def test_config_files(at_once, wrong, tmp_path, name):
  lines, words = CONFIGS[name]
  imports = "from ml_collections import ConfigDict\nfrom experiments.config import base\n"
  (tmp_path / "x.py").write_text(f"{imports}def get_config():\n  c = base()\n  {lines}\n  return c\n")
  wrong([f"--config={tmp_path}/x.py"], words, command="train")
  assert not (tmp_path / "run").exists()


def endless(workers):
  return TIMES["constant"](workers=workers, seed=0, seconds=1e308)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
  """A short run with checkpoints, in a process of its own."""
  folder = tmp_path_factory.mktemp("trained") / "run"
  done = Command("train", *SHORT, f"--workdir={folder}").end()
  assert not done.code, done
  (folder / "result.json").unlink()
  return folder


DAMAGED = {  # file of a run: its content, and the path that the line must contain
  "metrics.jsonl": (b"\xff", "metrics.jsonl"),
  "config.json": (b"[]", "config.json"),
  "result.json": (b'{"test_loss": "x"}', "result.json"),
  "checkpoints/4/figures/metadata": (b"{}", "checkpoints/4"),
}


@pytest.mark.parametrize("file", DAMAGED)
def test_a_damaged_run(wrong, trained, tmp_path, file):
  content, words = DAMAGED[file]
  shutil.copytree(trained, tmp_path / "copy")
  (tmp_path / "copy" / file).write_bytes(content)
  wrong([*SHORT, "--resume", f"--workdir={tmp_path}/copy"], f"{tmp_path}/copy/{words}")


def test_a_damaged_comparison_is_drawn_anew(call, tmp_path):
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
CALLS = {  # what is called, and the argument that the line must name
  "lenet": (lambda: MODELS["lenet"](IMAGES, channels=()), "channels"),
  "layers": (lambda: MODELS["transformer"](TEXT, layers=HUGE), "layers"),
  "blocks": (lambda: MODELS["resnet20"](IMAGES, blocks=HUGE), "blocks"),
  "negative step": (lambda: SCHEDULES["decay"](0.1, 10, at=(-3, 2)), "config.schedule.at"),
  "unsorted steps": (lambda: SCHEDULES["decay"](0.1, 10, at=(3, 1)), "config.schedule.at"),
  "examples": (lambda: DATA["least_squares"](examples=10**12), "examples"),
  "features": (lambda: DATA["least_squares"](features=HUGE), "features"),
  "noise": (lambda: DATA["least_squares"](noise=float("nan")), "noise"),
  "round_steps": (lambda: finish(steps=HUGE, round_steps=HUGE, workers=100,
                                 times=TIMES["constant"](workers=100, seed=0)), "steps"),
  "lockstep overflow": (lambda: finish(steps=9, round_steps=1, workers=1, times=endless(1)), "seconds"),
  "schedule overflow": (lambda: schedule(workers=1, num_visits=9, period=1, delay=0, times=endless(1),
                                         barrier=BARRIERS["asp"](), **TURNS), "seconds"),
  "local": (lambda: files.local("s3://x"), "s3://x"),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_arguments(at_once, name):
  """One line and no warning beside it."""
  call, words = CALLS[name]
  with warnings.catch_warnings(), pytest.raises(ValueError) as caught:
    warnings.simplefilter("error")
    call()
  assert words in str(caught.value) and "\n" not in str(caught.value)


WRONG = {  # key of config.times: values that none can have
  "seconds": (0.0, -1.0, np.nan, np.inf),
  "jitter": (-1.0, np.nan, np.inf, 1e200, 1e-200),
  "slow": ((1.0,), (1.0, 0.0), (1.0, np.nan)),
  "straggler_rate": (-0.1, 2.0, np.nan),
  "straggler_factor": (0.0, np.inf),
  "straggler_rounds": (0.5, np.nan),
  "death_rate": (1.0, -0.1, np.nan),
  "down_seconds": (-1.0, np.inf),
  "path": ("comments.txt", "ragged.txt", "bytes.npy", "pipe"),
}


@pytest.mark.parametrize("name", TIMES)
def test_step_times(at_once, tmp_path, name):
  """One line and no warning beside it."""
  (tmp_path / "comments.txt").write_text("# nothing else\n")
  (tmp_path / "ragged.txt").write_text("1 2\n3\n")
  (tmp_path / "bytes.npy").write_bytes(struct.pack("<6sBB", b"\x93NUMPY", 9, 9))
  (tmp_path / "good.txt").write_text("1 2\n3 4\n")
  os.mkfifo(tmp_path / "pipe")
  factory, tried = TIMES[name], 0
  for key in keywords(factory):
    for value in WRONG[key]:
      given = {"path": str(tmp_path / "good.txt")} if name == "trace" else {}
      given[key] = str(tmp_path / value) if key == "path" else value
      with warnings.catch_warnings(), pytest.raises(ValueError) as caught:
        warnings.simplefilter("error")
        factory(workers=2, seed=0, **given)
      assert "\n" not in str(caught.value) and (value if key == "path" else key) in str(caught.value)
      tried += 1
  assert tried > 15


def test_trouble_that_is_refused_is_not_warned_of():
  config = default_experiment(times={"straggler_rate": 2.0})
  with warnings.catch_warnings(), pytest.raises(ValueError, match="straggler_rate"):
    warnings.simplefilter("error")
    virtual_time.step_times(config)


def test_a_turn_longer_than_the_run():
  """Its steps beyond the run are not made: the clock is that of the whole turn."""
  times = TIMES["lognormal"](workers=2, seed=0)
  given = dict(workers=2, times=times)
  np.testing.assert_array_equal(
    finish(steps=5, round_steps=10**9, **given), finish(steps=10, round_steps=10, **given)[:5]
  )


def test_one_seed_as_a_number():
  config = base()
  with config.compare.ignore_type():
    config.compare.seeds = 0
  check_keys(config, base())
  Comparison({"a": default_experiment()}, seeds=config.compare.seeds)
  assert config.compare.seeds == (0,)


def test_more_classes_than_examples(tmp_path):
  np.savez(tmp_path / "x.npz", image=np.zeros((120, 4, 4), np.uint8), label=np.full(120, 500_000))
  with pytest.warns(UserWarning, match="500,000 for 120 examples"):
    npz(path=str(tmp_path / "x.npz"))


def test_a_calibration_that_is_damaged_or_has_no_home(monkeypatch, tmp_path):
  monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
  (tmp_path / "ddl").mkdir()
  local_cluster.path().write_text(DEEP)
  with pytest.raises(ValueError, match=r"measured\.json"):
    local_cluster.load()
  monkeypatch.delenv("XDG_CACHE_HOME")
  monkeypatch.setattr(files.Path, "expanduser", lambda path: (_ for _ in ()).throw(RuntimeError("no home")))
  with pytest.raises(ValueError, match=r"~/\.cache"):
    local_cluster.load()


def test_a_schedule_that_no_memory_holds():
  times = TIMES["constant"](workers=2, seed=0)
  with pytest.raises(ValueError, match="visits"):
    schedule(workers=2, num_visits=10**12, period=1, delay=0, times=times, barrier=BARRIERS["asp"](), **TURNS)
