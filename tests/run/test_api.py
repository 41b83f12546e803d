"""`train` and `compare` as functions: they read no command line or flags and have no state between calls."""

import ast
import json
import sys
from dataclasses import fields, replace

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
OPTIONS = {field.name for field in fields(RunOptions)} | {"only", "tuned", "cluster", "trials"}
FILES = sorted(
  path for path in (ROOT / "experiments").rglob("*.py") if path.parent.name not in ("commands", "command_line")
)


@pytest.fixture(autouse=True)
def no_command_line(monkeypatch):
  """Fail if a test reads flags or arguments."""
  others = flags.FlagValues.__getattr__

  def parse(*_):
    pytest.fail("flags were parsed")

  def read(values, name):
    if name in OPTIONS:
      pytest.fail(f"--{name} was read")
    return others(values, name)  # a library's flag

  assert len(jax.devices()) >= 2  # notebooks often start the devices before the first call
  monkeypatch.setattr(flags.FlagValues, "__getattr__", read)
  monkeypatch.setattr(flags.FlagValues, "__call__", parse)
  monkeypatch.setattr(sys, "argv", ["notebook", "--no_such_flag"])
  with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
    yield


@pytest.mark.slow
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
  with pytest.raises(ValueError, match=r"contains a run with a different config \(batch: 8 recorded, 4 now\)"):
    train(replace(experiment, batch=4), RunOptions(workdir=f"{tmp_path}/a", resume=True))
  with pytest.raises(ValueError, match=r"\(steps: 6 recorded, 12 now\)\. .* a run cannot be extended, because "):
    train(replace(experiment, steps=12), RunOptions(workdir=f"{tmp_path}/a", resume=True))


@pytest.mark.slow
def test_compare_twice(tmp_path):
  settings = Comparison(
    {"mean": default_experiment(**SMALL), "server": default_experiment(**SMALL, algorithm={"name": "async_sgd"})},
    title="Two", seeds=(0, 1), target=0.5,
  )  # fmt: skip
  pages = [compare(settings, RunOptions(workdir=f"{tmp_path}/{n}", devices=n)) for n in (1, 2)]
  for n, page in enumerate(pages, 1):
    assert page["title"] == "Two" and [entry["label"] for entry in page["algorithms"]] == ["mean", "server"]
    assert page == json.loads((tmp_path / str(n) / "comparison.json").read_text()) | {"folder": f"{tmp_path}/{n}"}
    assert (tmp_path / str(n) / "report.html").exists()
    about = json.loads((tmp_path / str(n) / "server" / "seed-1" / "about.json").read_text())
    assert about["layout"]["devices"] == n
  assert pages[0]["config"]["algorithms"] == {
    label: {"algorithm.name": name} for label, name in (("mean", "sync_sgd"), ("server", "async_sgd"))
  }
  assert pages[0]["config"]["common"]["steps"] == 6


@pytest.mark.slow
def test_processes_are_started_without_the_command_line(tmp_path, monkeypatch):
  monkeypatch.setattr(hosts, "command_line", lambda: pytest.fail("the command line was used"))
  experiment = default_experiment(**SMALL)
  last = train(experiment, RunOptions(workdir=f"{tmp_path}/a", processes=2))
  assert json.loads((tmp_path / "a" / "about.json").read_text())["layout"]["processes"] == 2
  assert metrics(tmp_path / "a", timeless=False)[-1] == last


@pytest.mark.parametrize("steps", [24, 25])
def test_a_run_that_ends_before_any_exchange_gives_a_warning(recwarn, steps):
  """DaSGD's first message is sent after 20 steps and arrives 5 steps later."""
  build(default_experiment(steps=steps, algorithm={"name": "dasgd", "period": 20, "delay": 5}))
  assert any("nothing is exchanged" in str(warning.message) for warning in recwarn.list) == (steps < 25)


def test_a_label_can_be_the_name_of_an_algorithm():
  config = base()
  config.compare.algorithms = {
    "a": {"algorithm": "easgd"},
    "b": {"algorithm": {"name": "local_sgd"}, "model": "linear"},
  }
  result = variants(config)
  assert result["a"].algorithm.name == "easgd" and result["b"].model.name == "linear"


def test_an_experiment_is_frozen_and_checks_its_fields():
  config = base()
  config.algorithm.name, config.workers = "local_sgd", 4
  experiment = default_experiment(algorithm={"name": "local_sgd"}, workers=4)
  assert experiment == Experiment.from_config(config)
  assert experiment.algorithm.period == experiment.algorithm.settings["period"]
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


def test_options_of_another_runtime_are_refused():
  for values, words in (
    ({"shards": 2}, "shards must be .* runtime=simulator"),
    ({"runtime": "threads", "step_loop": "scan"}, "step_loop must be .* runtime=threads"),
    ({"runtime": "threads", "checkpoint_every": 2}, "checkpoint_every must be .* runtime=threads"),
  ):
    with pytest.raises(ValueError, match=words):
      RunOptions(**values)


PARSES = ROOT / "experiments/bench/decoding.py"  # parses absl's flags for grain's worker processes, but reads none


def test_only_commands_read_flags():
  for path in FILES:
    for node in ast.walk(ast.parse(path.read_text())) if path != PARSES else ():
      names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
      if isinstance(node, ast.ImportFrom):
        names = [f"{node.module}.{alias.name}" for alias in node.names]
      for name in names:
        assert name.partition(".")[0] != "absl" and not name.startswith("experiments.command"), f"{path}: {name}"


@pytest.mark.parametrize("name", ["easgd", "original_easgd", "round_robin_easgd"])
def test_alpha_is_bounded_only_for_simultaneous_pulls(name, recwarn):
  """The bound is workers * alpha <= 2 if all workers pull the center at once."""
  experiment = default_experiment(**SMALL | {"workers": 8}, algorithm={"name": name, "alpha": 0.9})
  if name == "easgd":
    with pytest.raises(ValueError, match="must be at most 2"):
      build(experiment)
  else:
    build(experiment)
    assert not [warning for warning in recwarn if "overshoots" in str(warning.message)]


@pytest.mark.parametrize("options, expected", [({}, 8), ({"devices": 2}, 2)])
def test_only_the_option_changes_the_number_of_devices(monkeypatch, options, expected):
  """conftest.py has set eight devices."""
  updates = []
  monkeypatch.setattr(hosts, "join", lambda *_: None)
  monkeypatch.setattr(processes.jax.config, "update", lambda name, value: updates.append((name, value)))
  processes.start_devices(4, RunOptions(**options))
  assert updates == [("jax_num_cpu_devices", expected)]
