"""`train` and `compare` as ordinary functions: no command line, no flags, no state between calls."""

import ast
import json
import sys
from dataclasses import fields, replace
from pathlib import Path

import jax
import pytest
from absl import flags
from helpers.commands import ROOT, metrics

from ddl import hosts
from ddl.comparison.compare import compare
from ddl.config import base, default_experiment
from ddl.config.comparison import Comparison, variants
from ddl.config.experiment import Experiment
from ddl.config.options import RunOptions
from ddl.run import processes
from ddl.run.build import build
from ddl.run.train import train

SMALL = {"model": {"hidden": (8,)}, "batch": 8, "steps": 6, "eval_every": 3, "workers": 2}
OPTIONS = {each.name for each in fields(RunOptions)} | {"only", "tuned", "cluster", "trials"}
FILES = sorted(
  path for path in (ROOT / "experiments").rglob("*.py") if path.parent.name not in ("commands", "command_line")
)


@pytest.fixture(autouse=True)
def a_notebook(monkeypatch):
  """Neither flags nor arguments can be read."""
  others = flags.FlagValues.__getattr__

  def parse(*_):
    pytest.fail("flags were parsed")

  def read(values, name):
    if name in OPTIONS:
      pytest.fail(f"--{name} was read")
    return others(values, name)  # of a library

  assert len(jax.devices()) >= 2  # started before the first call, as by whatever a notebook did before
  monkeypatch.setattr(flags.FlagValues, "__getattr__", read)
  monkeypatch.setattr(flags.FlagValues, "__call__", parse)
  monkeypatch.setattr(sys, "argv", ["notebook", "--no_such_flag"])
  with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
    yield


def test_train_twice_with_different_options(tmp_path):
  experiment = default_experiment(**SMALL)
  first = train(experiment, RunOptions(workdir=f"{tmp_path}/a", devices=1, steps_per_call=1))
  second = train(replace(experiment, seed=1), RunOptions(workdir=f"{tmp_path}/b", devices=2, virtual_grad="vmap"))
  layouts = [json.loads((tmp_path / name / "about.json").read_text())["layout"] for name in "ab"]
  assert [layout["devices"] for layout in layouts] == [1, 2]
  assert layouts[0]["execution"][2] == 1 and layouts[1]["execution"][0] == "vmap"
  assert first["step"] == second["step"] == 6 and first["test_loss"] != second["test_loss"]
  assert metrics(tmp_path / "a", timeless=False)[-1] == first
  assert Experiment.from_json(json.loads((tmp_path / "a" / "config.json").read_text())) == experiment
  assert train(experiment, RunOptions(workdir=f"{tmp_path}/a", resume=True)) == first
  with pytest.raises(ValueError, match=r"contains a run with another config \(batch: 8 recorded, 4 now\)"):
    train(replace(experiment, batch=4), RunOptions(workdir=f"{tmp_path}/a", resume=True))


@pytest.mark.slow
def test_compare_twice(tmp_path):
  settings = Comparison(
    {"mean": default_experiment(**SMALL), "server": default_experiment(**SMALL, algorithm={"name": "async_sgd"})},
    title="Two", seeds=(0, 1), target=0.5,
  )  # fmt: skip
  pages = [compare(settings, RunOptions(workdir=f"{tmp_path}/{n}", devices=n)) for n in (1, 2)]
  for n, page in enumerate(pages, 1):
    assert page["title"] == "Two" and [each["label"] for each in page["algorithms"]] == ["mean", "server"]
    assert page == json.loads((tmp_path / str(n) / "comparison.json").read_text()) | {"folder": f"{tmp_path}/{n}"}
    assert (tmp_path / str(n) / "report.html").exists()
    about = json.loads((tmp_path / str(n) / "server" / "seed-1" / "about.json").read_text())
    assert about["layout"]["devices"] == n
  assert pages[0]["config"]["algorithms"] == {
    label: {"algorithm.name": name} for label, name in (("mean", "sync_sgd"), ("server", "async_sgd"))
  }
  assert pages[0]["config"]["common"]["steps"] == 6


@pytest.mark.slow
def test_processes_are_started_from_values(tmp_path, monkeypatch):
  monkeypatch.setattr(hosts, "command_line", lambda: pytest.fail("the command line was used"))
  experiment = default_experiment(**SMALL)
  last = train(experiment, RunOptions(workdir=f"{tmp_path}/a", processes=2))
  assert json.loads((tmp_path / "a" / "about.json").read_text())["layout"]["processes"] == 2
  assert metrics(tmp_path / "a", timeless=False)[-1] == last


@pytest.mark.parametrize("steps", [24, 25])
def test_a_run_that_ends_before_any_exchange_is_warned_of(recwarn, steps):
  """DaSGD's first message leaves after 20 steps and arrives 5 later."""
  build(default_experiment(steps=steps, algorithm={"name": "dasgd", "period": 20, "delay": 5}))
  assert any("nothing is exchanged" in str(each.message) for each in recwarn.list) == (steps < 25)


def test_a_label_may_name_its_algorithm_alone():
  config = base()
  config.compare.algorithms = {
    "a": {"algorithm": "easgd"},
    "b": {"algorithm": {"name": "local_sgd"}, "model": "linear"},
  }
  result = variants(config)
  assert result["a"].algorithm.name == "easgd" and result["b"].model.name == "linear"


def test_an_experiment_is_frozen_and_says_what_cannot_be():
  experiment = default_experiment(algorithm={"name": "local_sgd"}, workers=4)
  assert experiment.algorithm.period == experiment.algorithm.settings[
    "period"
  ] and experiment == Experiment.from_config(chosen_config())
  assert Experiment.from_json(json.loads(json.dumps(experiment.to_json()))) == experiment
  with pytest.raises(AttributeError):
    experiment.steps = 3  # type: ignore
  for changes, words in (
    ({"steps": 0}, "config.steps must be an integer >= 1, got 0"),
    ({"seed": -1}, "config.seed must be an integer >= 0, got -1"),
  ):
    with pytest.raises(ValueError, match=words):
      replace(experiment, **changes)
  with pytest.raises(ValueError, match=r"config\.algorithm\.keep must be unset"):
    experiment.changed({"algorithm": {"keep": 0.5}})


def chosen_config():
  config = base()
  config.algorithm.name, config.workers = "local_sgd", 4
  return config


def test_an_option_that_the_runtime_would_not_read_is_refused():
  for values, words in (
    ({"shards": 2}, "shards must be left out with runtime=simulator"),
    ({"runtime": "threads", "step_loop": "scan"}, "step_loop must be left out with runtime=threads"),
    ({"runtime": "threads", "checkpoint_every": 2}, "checkpoint_every must be left out with runtime=threads"),
  ):
    with pytest.raises(ValueError, match=words):
      RunOptions(**values)


PARSES = ROOT / "experiments/bench/decoding.py"  # absl's flags for grain's worker processes, and reads none


@pytest.mark.parametrize(
  "path", [path for path in FILES if path != PARSES], ids=lambda path: str(Path(path).relative_to(ROOT))
)
def test_flags_are_read_by_the_commands_alone(path):
  for node in ast.walk(ast.parse(path.read_text())):
    names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
    if isinstance(node, ast.ImportFrom):
      names = [f"{node.module}.{alias.name}" for alias in node.names]
    for name in names:
      assert name.partition(".")[0] != "absl" and not name.startswith("experiments.command"), f"{path}: {name}"


@pytest.mark.parametrize("name", ["original_easgd", "round_robin_easgd"])
def test_workers_that_pull_in_turn_may_pull_together_by_more_than_two(name, recwarn):
  experiment = default_experiment(**SMALL | {"workers": 8}, algorithm={"name": name, "alpha": 0.9})
  build(experiment)
  assert not [each for each in recwarn if "overshoots" in str(each.message)]


def test_workers_that_pull_at_the_same_time_may_not():
  with pytest.raises(ValueError, match="must be at most 2"):
    build(default_experiment(**SMALL | {"workers": 8}, algorithm={"name": "easgd", "alpha": 0.9}))


@pytest.mark.parametrize("options, expected", [({}, 8), ({"devices": 2}, 2)])
def test_devices_that_a_caller_chose_stay_unless_the_options_name_a_number(monkeypatch, options, expected):
  """Eight are set in conftest.py, by JAX's own setting."""
  asked = []
  monkeypatch.setattr(hosts, "join", lambda *_: None)
  monkeypatch.setattr(processes.jax.config, "update", lambda name, value: asked.append((name, value)))
  processes.start_devices(4, RunOptions(**options))
  assert asked == [("jax_num_cpu_devices", expected)]
