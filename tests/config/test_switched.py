"""A flag replaces a model or optimizer: settings of the file that the new one does not read are dropped."""

import jax
import pytest
from helpers.commands import ROOT

from ddl.config.comparison import Comparison, in_order
from ddl.config.experiment import Experiment
from ddl.config.resolve import resolve
from ddl.config.schedules import SCHEDULES
from ddl.config.sweep import Sweep
from experiments.command_line import config_flag

COMPARE = str(ROOT / "configs" / "digits_compare.py")
FILE = """
from ddl.config import base


def get_config():
  config = base()
  config.model.hidden = (16,)
  config.model.dropout = 0.25
  config.optimizer.momentum = 0.9
  config.optimizer.weight_decay = 0.01
  config.wrapper.name = "topk"
  config.wrapper.share = 0.5
  config.schedule.name = "exponential"
  config.schedule.factor = 0.5
  config.schedule.warmup = 3
  config.compare.algorithms = {
    "b": {"optimizer": {"learning_rate": 0.2, "momentum": 0.5}},
    "a": {"algorithm": {"name": "sync_sgd"}, "optimizer": {"name": "sgd", "momentum": 0.1}},
  }
  config.compare.grid = (("optimizer.momentum", (0.0, 0.9)), ("workers", (2, 4)))
  config.sweep.space = {"b": {"optimizer": {"momentum": (0.0, 0.9), "weight_decay": (1e-5, 1e-2)}}}
  return config
"""


@pytest.fixture(autouse=True)
def standard_promotion():
  """Use standard type promotion, as commands do."""
  with jax.numpy_dtype_promotion("standard"):
    yield


@pytest.fixture
def read(tmp_path, capsys):
  """Read a config: (command, flags) -> (config, stdout)."""
  (tmp_path / "mine.py").write_text(FILE)

  def call(command, *arguments, file=tmp_path / "mine.py"):
    config, _ = config_flag.read(command, [f"--config={file}", *(f"--config.{argument}" for argument in arguments)])
    return config, capsys.readouterr().out

  return call


@pytest.mark.parametrize(
  "argument, dropped",
  [
    ("model.name=lenet", ["hidden"]),
    ("optimizer.name=adam", ["momentum", "momentum of 'EAMSGD'"]),
    ("optimizer.name=lars", []),
  ],
)
def test_comparison_with_another_section(read, argument, dropped):
  config, reported = read("compare", argument, file=COMPARE)
  comparison = Comparison.from_config(config)
  kind, name = argument.split(".name=")
  assert {getattr(experiment, kind).name for experiment in comparison.experiments.values()} == {name}
  assert list(comparison.experiments)[:3] == ["sync SGD", "local SGD", "post-local SGD"]
  rates = [experiment.optimizer.learning_rate for experiment in comparison.experiments.values()]
  assert rates == [0.3162, 0.1334, 0.1778, 0.1778, 0.1, 0.1334, 0.1334, 0.01334]
  assert reported.count("\n") == bool(dropped) and reported.strip().endswith(", ".join(dropped))
  assert Sweep.from_config(config).first == comparison.first.changed({"data": {"validation": 0.2}})


def test_dropped_and_preserved_settings(read):
  config, reported = read(
    "compare", "model.name=resnet20", "optimizer.name=adam", "schedule.name=decay", "wrapper.name=none"
  )
  assert config.model.to_dict().items() >= {"hidden": None, "dropout": None, "width": None}.items()
  assert config.optimizer.momentum is None and config.optimizer.weight_decay == 0.01
  assert config.schedule.warmup == 3 and config.schedule.factor == 0.5 and config.wrapper.share is None
  labels = in_order(config.compare.algorithms)
  assert list(labels) == ["b", "a"] and labels["b"] == {"optimizer": {"learning_rate": 0.2}}
  assert labels["a"]["optimizer"] == {"name": "sgd", "momentum": 0.1}
  assert config.compare.grid == (("optimizer.momentum", (0.0, 0.9)), ("workers", (2, 4)))  # of label a
  assert set(config.sweep.space.b.optimizer) == {"weight_decay"}
  assert reported.count("\n") == 1


def test_flags_for_the_new_section_are_checked(read):
  config, _ = read("train", "optimizer.name=adam", "optimizer.momentum=0.5")
  with pytest.raises(ValueError, match=r"config\.optimizer\.momentum must be unset \(None\) with optimizer 'adam'"):
    Experiment.from_config(config)
  config, _ = read("train", "model.name=lenet", "model.hidden=32")
  assert config.model.hidden == 32
  config, _ = read("train", "optimizer.name=adam", "optimizer.momentum=None")
  assert Experiment.from_config(config).optimizer.name == "adam"


def test_flag_that_every_label_overrides(read):
  with pytest.raises(ValueError, match=r"config\.algorithm\.name must be unset for compare, because every entry"):
    read("compare", "algorithm.name=easgd", file=COMPARE)


def test_flag_replaces_an_unknown_name_in_the_file(read, tmp_path):
  (tmp_path / "mine.py").write_text(
    FILE.replace('config.schedule.name = "exponential"', 'config.schedule.name = "cosin"')
  )
  config, _ = read("train", "schedule.name=exponential")
  assert Experiment.from_config(config).schedule.factor == 0.5 and "cosin" not in SCHEDULES


def test_resolve_drops_the_same_settings(tmp_path):
  (tmp_path / "mine.py").write_text(FILE)
  config = resolve(tmp_path / "mine.py", {"optimizer": "adam", "model": {"name": "lenet", "hidden": 8}})
  assert config.optimizer.momentum is None and config.model.hidden == 8
  assert in_order(config.compare.algorithms)["b"] == {"optimizer": {"learning_rate": 0.2}}
