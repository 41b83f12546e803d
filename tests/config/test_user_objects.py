"""User-defined functions in a config file or by address, in every command."""

import json
import re

import optax
import pytest
from helpers.commands import metrics

import ddl
from ddl.api import ServerAlgorithm
from ddl.config import base, catalog, custom
from ddl.config.experiment import Experiment
from ddl.config.unread_keys import check_virtual
from ddl.errors import OptionError

FILE = '''
"""User-defined functions."""
import jax, jax.numpy as jnp, numpy as np, optax
from ddl import Algorithm, Data, Exchange, Model, ServerAlgorithm, Source
from ddl.algorithms import COLLECTIVE, SERVER
from ddl.api import descend
from ddl.config import base, custom


def halfway(inner, *, period: int = 4, pull: float = 0.5):
  """Local SGD that is pulled to the mean."""
  def merge(group, message, state, params):
    return jax.tree.map(lambda x, m: (1 - pull) * x + pull * m, params, message), state
  return Algorithm(
    lambda group, params, key: inner.init(params),
    lambda group, grads, state, params: descend(inner, grads, state, params),
    (Exchange(lambda group, state, params: (group.mean(params), state), merge, period),),
    lambda group, state, params: group.mean(params))


def asynchronous(inner, *, workers: int) -> ServerAlgorithm:
  return SERVER["async_easgd"].factory(inner, workers=workers)


def needy(inner, *, period: int, workers: int) -> ServerAlgorithm:
  """An algorithm with a required setting."""
  return SERVER["async_easgd"].factory(inner, period=period, workers=workers)


def unannotated(inner, *, workers: int):
  return SERVER["async_easgd"].factory(inner, workers=workers)


DESCRIBED = COLLECTIVE["local_sgd"]._replace(title="The described one")


def line(meta, *, width: int = 1):
  def init(key):
    return {"w": jnp.zeros((2, width))}, {}
  def loss(params, extra, batch, key):
    return jnp.mean((jnp.asarray(batch["x"], params["w"].dtype) @ params["w"] - batch["y"][:, None]) ** 2), extra
  return Model(init, loss, dense=True)


def plane(*, size: int = 64):
  x = np.random.default_rng(0).normal(size=(size, 2)).astype(np.float32)
  y = x @ np.array([1, -1], np.float32)
  source = Source(size, lambda i: {"x": x[i], "y": y[i]})
  return Data(source, source, {"task": "regression", "shape": (2,), "num_outputs": 1, "description": "a plane"})


def twice(rate, *, factor: float = 2.0):
  return optax.sgd(lambda step: factor * (rate(step) if callable(rate) else rate))


def labelled(*, size: int = 64, kind: int = 0):
  """Points whose class number at index 17 is `kind`."""
  x = np.random.default_rng(0).normal(size=(size, 2)).astype(np.float32)
  y = (x[:, 0] > 0).astype(np.int32)
  y[17] = kind
  source = Source(size, lambda i: {"x": x[i], "y": y[i]})
  return Data(source, source, {"task": "classification", "shape": (2,), "num_outputs": 2, "description": "points"})


def wrong(meta):
  return 3


def broken(meta):
  raise KeyError("width")


def get_config():
  config = base()
  config.model, config.data = custom(line, width=1), custom(plane, size=96)
  config.algorithm = custom(halfway, pull=0.25)
  config.optimizer = custom(twice, factor=0.5) | {"learning_rate": 0.1}
  config.workers, config.batch, config.steps, config.eval_every = 2, 8, 8, 4
  config.compare.target, config.compare.seeds = 0.5, (0,)
  config.compare.algorithms = {
    "mine": {},
    "described": {"algorithm": custom(DESCRIBED, period=2) | {"pull": None}},
    "theirs": {"algorithm": {"name": "easgd", "period": 2, "pull": None}},
    "served": {"algorithm": custom(asynchronous) | {"pull": None}},
  }
  return config
'''


@pytest.fixture
def file(tmp_path):
  path = tmp_path / "mine.py"
  path.write_text(FILE)
  return path


def settings(folder):
  return json.loads((folder / "config.json").read_text())


def test_a_required_setting_of_a_server_algorithm(tmp_path):
  (tmp_path / "mine.py").write_text(FILE)
  config = base()
  config.algorithm.name, config.algorithm.period = f"{tmp_path}/mine.py:needy", 3
  check_virtual("train", ["times.jitter"], [Experiment.from_config(config)])
  with pytest.raises(OptionError) as error:
    check_virtual("train", ["network.blocks"], [Experiment.from_config(config)])
  assert error.value.option == "config.network.blocks"


def test_train_and_resume(call, file, tmp_path):
  """`twice` with factor 0.5 trains like SGD with half the rate, so the user's function is what runs."""
  pull = "--config.algorithm.pull=0.75"
  code, _, error = call("train", f"--config={file}", f"--workdir={tmp_path}/a", pull)
  assert code == 0, error
  experiment = Experiment.from_json(settings(tmp_path / "a"))
  assert (experiment.label, experiment.model.short_name) == ("halfway", "line")  # used in names of folders
  result = settings(tmp_path / "a")
  assert result["algorithm"] == {"name": f"{file}:halfway", "period": 4, "pull": 0.75}
  assert result["optimizer"] == {"name": f"{file}:twice", "factor": 0.5, "learning_rate": 0.1}
  assert result["model"]["width"] == 1 and result["data"] == {"name": f"{file}:plane", "size": 96}
  rows = metrics(tmp_path / "a")
  assert [row["step"] for row in rows] == [0, 4, 8] and rows[-1]["test_loss"] < rows[0]["test_loss"]
  assert rows[-1]["epoch"] == 8 * 2 * 8 / 96
  code, out, error = call("train", "--resume", f"--workdir={tmp_path}/a")
  assert code == 0 and "complete" in out, error
  sgd = ("--config.optimizer.name=sgd", "--config.optimizer.factor=None", "--config.optimizer.learning_rate=0.05")
  code, _, error = call("train", f"--config={file}", f"--workdir={tmp_path}/b", pull, *sgd)
  assert code == 0 and metrics(tmp_path / "b") == rows, error


def test_labels_out_of_range(wrong, file):
  """The settings of a user-defined function may have any name, also `kind`."""
  words = "labels of the training set must be integers from 0 to 1, got -1 at index 17"
  wrong([f"--config={file}", f"--config.data.name={file}:labelled", "--config.data.kind=-1"], words)


@pytest.mark.slow
def test_compare_plan_and_list(call, file, tmp_path):
  only = "--only=mine,described,served"
  code, _, error = call("compare", f"--config={file}", f"--workdir={tmp_path}/c", only)
  assert code == 0, error
  page = json.loads((tmp_path / "c/comparison.json").read_text())
  entries = {entry["label"]: entry for entry in page["algorithms"]}
  assert (
    entries["mine"]["title"] == "Local SGD that is pulled to the mean." and entries["mine"]["hyper"]["pull"] == 0.25
  )
  assert entries["described"]["title"] == "The described one" and entries["described"]["hyper"] == {"period": 2}
  assert entries["served"]["events"]
  code, out, error = call("plan", f"--config={file}", "--cluster=dasgd_v100_10g")
  assert code == 0 and re.search(r"^  halfway +as configured", out, re.MULTILINE), (out, error)
  code, out, error = call("list", f"--config={file}")
  assert code == 0 and "pull: float = 0.5" in out and "DESCRIBED" in out and "size: int = 64" in out, error
  assert all(f"\n  {label}\n    " in out for label in ("mine", "described", "theirs", "served")), out


def test_sweep_splits_off_validation_examples(call, file, tmp_path):
  code, _, error = call("sweep", f"--config={file}", "--trials=1", f"--workdir={tmp_path}/s", "--only=mine")
  assert code == 0, error
  run = tmp_path / "s/mine/trial-0/seed-0"
  assert "validation" not in settings(run)["data"]
  assert metrics(run)[-1]["epoch"] == 8 * 2 * 8 / (96 - round(0.2 * 96))
  record = json.loads((tmp_path / "s/tuned.json").read_text())["algorithms"]
  assert record["mine"]["trials"][0]["outcome"] == "complete"


@pytest.mark.slow
def test_address_on_the_command_line(call, file, tmp_path):
  mine = (f"--config.algorithm.name={file}:halfway", "--config.algorithm.period=2", "--config.algorithm.pull=1")
  sizes = ("--config.steps=4", "--config.eval_every=4", "--config.model.hidden=(4,)")
  code, _, error = call("train", "--config=configs/digits.py", *mine, *sizes, f"--workdir={tmp_path}/a")
  assert code == 0, error
  assert settings(tmp_path / "a")["algorithm"] == {"name": f"{file}:halfway", "period": 2, "pull": 1.0}
  theirs = ("--config.algorithm.name=local_sgd", "--config.algorithm.period=2")
  code, _, error = call("train", "--config=configs/digits.py", *theirs, *sizes, f"--workdir={tmp_path}/b")
  assert code == 0, error
  assert metrics(tmp_path / "a") == metrics(tmp_path / "b")


@pytest.mark.parametrize(
  "name, words",
  [
    ("model.name={file}:lin", ("model", "line", "'line'")),
    ("model.name={file}:wrong", ("model", "Model", "int")),
    ("model.name={file}:broken", ("model", "KeyError")),
    ("model.name={file}:FILE", ("model", "FILE")),
    ("model.name=/nowhere.py:line", ("model", "/nowhere.py")),
    ("model.name=no_such_module:line", ("model", "no_such_module")),
    ("algorithm.name={file}:unannotated", ("algorithm", "ServerAlgorithm")),
    ("algorithm.name={file}:halfway --config.algorithm.pul=1", ("algorithm", "'pull'")),
    ("algorithm.name={file}:halfway --config.algorithm.pull=x", ("pull",)),
  ],
)
def test_mistakes(wrong, file, name, words):
  wrong(
    ["--config=configs/digits.py", "--config.model.hidden=None", *f"--config.{name.format(file=file)}".split()], *words
  )


def test_custom_returns_the_name_of_a_registered_factory():
  assert custom(ddl.dasgd, keep=0.5) == {"name": "dasgd", "keep": 0.5}
  assert [custom(factory)["name"] for factory in (ddl.async_sgd, ddl.topk)] == ["async_sgd", "topk"]


def test_addresses(tmp_path):
  with pytest.raises(ValueError, match=r"user-defined function .*lambda"):
    custom(lambda inner: inner)
  assert custom(base)["name"] == "ddl.config.base:base"
  assert not catalog.has_server("easgd") and catalog.has_server("async_sgd")
  (tmp_path / "mine.py").write_text(FILE)
  assert catalog.has_server(f"{tmp_path}/mine.py:asynchronous")
  assert isinstance(catalog.make_algorithm(f"{tmp_path}/mine.py:asynchronous", optax.sgd(0.1), 2, {}), ServerAlgorithm)


def test_suggested_names_include_those_in_the_config_file(file, wrong, monkeypatch):
  monkeypatch.chdir(file.parent)
  for name in ("Halfway", "halfwy", "halfway.py"):
    hints = "Did you mean 'mine.py:halfway'?", "one of mine.py:halfway, sync_sgd"
    wrong([f"--config={file}", f"--config.algorithm.name={name}"], *hints)
  wrong([f"--config={file}", "--config.algorithm.name=x/rule.py"], "For a function in this file, use x/rule.py:NAME.")
  with pytest.raises(ValueError, match="Did you mean 'local_sgd'") as error:  # a config without user-defined functions
    ddl.train(algorithm="locl_sgd")
  assert "halfway" not in str(error.value)


def test_missing_config_file(tmp_path, wrong):
  (tmp_path / "config.py").write_text("")
  (tmp_path / "notes.txt").write_text("")
  wrong([f"--config={tmp_path}/confg.py"], f"{tmp_path}/confg.py", f"Did you mean {tmp_path}/config.py?")
  wrong([f"--config={tmp_path}/notes.txt"], "notes.txt, which does not end in .py", "configs/")
  wrong([f"--config={tmp_path}"], f"{tmp_path}, which is a folder")
