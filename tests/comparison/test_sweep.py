"""Sweeps: trials, outcomes, resume, edges of ranges, and refused settings."""

import json
import os
import shutil
import signal
import warnings
from pathlib import Path
from statistics import fmean

import jax
import numpy as np
import optuna
import pytest
from helpers.commands import metrics
from helpers.comparisons import undrawn

import ddl
from ddl.comparison.study import LabelStudy
from ddl.config import base, default_experiment
from ddl.config.options import RunOptions
from ddl.config.sweep import edges, points
from ddl.errors import OptionError
from ddl.run import loop
from ddl.run.exit_codes import Stopped
from ddl.run.folder import RunFolder

LABELS = {"a": {"algorithm": {"name": "local_sgd", "period": 2}}, "b": {"algorithm": {"name": "sync_sgd"}}}
SMALL = {
  "model": {"hidden": (4,)}, "workers": 2, "batch": 8, "steps": 9, "eval_every": 1,
  "compare": {"algorithms": LABELS}, "options": RunOptions(devices=1),
}  # fmt: skip


@pytest.fixture(autouse=True)
def as_users_run():
  """Notebooks do not set strict promotion."""
  with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
    yield


def line(meta):
  """Linear least squares, where gradients can overflow."""

  def init(key):
    return {"w": np.zeros(2, np.float32)}, {}

  def loss(params, extra, batch, key):
    return ((batch["x"] @ params["w"] - batch["y"]) ** 2).mean(), extra

  return ddl.Model(init, loss, dense=True)


def plane():
  """Data without an argument for a validation split."""
  x = np.random.default_rng(0).normal(size=(100, 2)).astype(np.float32)
  source = ddl.Source(100, lambda i: {"x": x[i], "y": x[i] @ np.array([1, -1], np.float32)})
  return ddl.Data(source, source, {"task": "regression", "shape": (2,), "num_outputs": 1, "description": "a plane"})


OWN = SMALL | {"model": line, "data": plane}


def trials(folder, label):
  return optuna.load_study(
    study_name=label,
    storage=optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(folder / "study.journal"))),
  ).trials


@pytest.mark.slow
def test_ranges_choices_and_seeds(tmp_path):
  space = {"a": {"period": [2, 5], "optimizer": {"momentum": (0.0, 0.9), "nesterov": [False, True]}}}
  swept = ddl.sweep(sweep={"space": space, "seeds": (3, 4)}, trials=3, workdir=tmp_path / "s", **SMALL)
  frame, shown = swept.trials, repr(swept)
  assert str(swept.folder) in shown and len(shown.splitlines()) == 3 and "best of 3 trials" in shown
  assert all(f"{swept.best[label]['optimizer']['learning_rate']:.4g}" in shown for label in "ab")
  assert list(frame.label) == ["a"] * 3 + ["b"] * 3 and list(frame.trial) == [0, 1, 2] * 2
  assert set(frame.outcome) == {"complete"}
  a, b = frame[frame.label == "a"], frame[frame.label == "b"]
  assert list(a["optimizer.learning_rate"]) == list(b["optimizer.learning_rate"]) == [0.1, 0.03162, 0.3162]
  assert set(a["algorithm.period"]) == {2, 5} and a["optimizer.momentum"].between(0, 0.9).all()
  assert set(a["optimizer.nesterov"]) == {False} and b["algorithm.period"].isna().all()
  for label, entry in swept.info.items():
    for number, trial in enumerate(entry["trials"]):
      folders = [swept.folder / label / f"trial-{number}" / f"seed-{seed}" for seed in (3, 4)]
      last = [metrics(folder)[-1] for folder in folders]
      assert trial["seeds"] == [{"accuracy": x["test_accuracy"], "loss": x["test_loss"]} for x in last]
      assert trial["validation"]["loss"] == pytest.approx(fmean(x["test_loss"] for x in last))
      config = ddl.load(folders[0]).config
      assert isinstance(config["seed"], int) and config["data"]["validation"] == 0.2
      assert all(config[part].items() >= values.items() for part, values in trial["setting"].items())
    best = max(entry["trials"], key=lambda t: (t["validation"]["accuracy"], -t["validation"]["loss"]))
    assert swept.best[label] == best["setting"] and entry["validation"] == best["validation"]
  assert ddl.load(tmp_path / "s").info == swept.info and swept.tuned.name == "tuned.json"


@pytest.mark.parametrize("algorithm", ["easgd", "sharded_sync_sgd", "async_sgd", "diloco"])
@pytest.mark.sampled(3)
def test_each_trial_equals_a_run_with_its_settings(tmp_path, algorithm):
  bounds = {"easgd": {"alpha": (0.05, 0.4)}, "diloco": {"outer_learning_rate": (0.2, 1.0)}}.get(algorithm, {})
  fixed = {"period": 2} if bounds else {}
  space = {"a": {**bounds, "optimizer": {"momentum": (0.1, 0.9)}}}
  changes = SMALL | {"compare": {"algorithms": {"a": {"algorithm": {"name": algorithm, **fixed}}}}}
  changes |= {"schedule": {"name": "cosine", "warmup": 2}}
  changes |= {"outer_schedule": "cosine"} if algorithm == "diloco" else {}
  swept = ddl.sweep(sweep={"space": space}, trials=2, workdir=tmp_path / "s", **changes)
  groups = json.loads((swept.folder / "a/together.json").read_text())["runs"]
  assert len(groups) == (2 if algorithm == "async_sgd" else 1)
  changes |= {"compare": {}, "data": {"validation": 0.2}}
  for number, trial in enumerate(swept.info["a"]["trials"]):
    setting = {section: dict(values) for section, values in trial["setting"].items()}
    setting["algorithm"] = setting.get("algorithm", {}) | {"name": algorithm, **fixed}
    run = ddl.train(workdir=tmp_path / f"run-{number}", **changes | setting)
    losses = [line["train_loss"] for line in metrics(run.folder)[1:]]
    swept_losses = [line["train_loss"] for line in metrics(swept.folder / f"a/trial-{number}/seed-0")[1:]]
    np.testing.assert_allclose(swept_losses, losses, rtol=2e-5)
  assert len({trial["validation"]["loss"] for trial in swept.info["a"]["trials"]}) == 2


def stopped_after(monkeypatch, lines):
  """Send SIGTERM after this many lines of metrics."""
  write, left = RunFolder.line, [lines]

  def then_stop(folder, figures):
    write(folder, figures)
    left[0] -= 1
    if not left[0]:
      os.kill(os.getpid(), signal.SIGTERM)

  monkeypatch.setattr(RunFolder, "line", then_stop)


@pytest.mark.parametrize("sampler", ["halton", "tpe"])
@pytest.mark.slow
def test_a_resumed_sweep_repeats_no_run_and_equals_an_uninterrupted_one(call, tmp_path, monkeypatch, sampler):
  settings = OWN | {"sweep": {"sampler": sampler, "trials": 6, "pruning": True}}
  whole = ddl.sweep(workdir=tmp_path / "whole", **settings)
  with monkeypatch.context() as patch:
    last = whole.trials[(whole.trials.label == "a") & (whole.trials.outcome == "complete")].trial.max()
    before = [metrics(tmp_path / f"whole/a/trial-{number}/seed-0") for number in range(last)]
    stopped_after(patch, sum(map(len, before)) + 4)
    with pytest.raises(Stopped) as stop:
      ddl.sweep(workdir=tmp_path / "s", **settings)
    assert stop.value.args[1] == signal.SIGTERM
  assert not (tmp_path / "s/tuned.json").exists()
  results = {file: file.stat().st_mtime_ns for file in (tmp_path / "s").glob("*/*/*/result.json")}
  finished = sum(trial.state.is_finished() for trial in trials(tmp_path / "s", "a"))
  trained, run = [], loop.run
  monkeypatch.setattr(
    loop, "run", lambda *args, **more: trained.append(args[0].runs[0].folder.path) or run(*args, **more)
  )
  code, _, error = call("sweep", "--resume", f"--workdir={tmp_path}/s", "--devices=1")
  assert code == 0, error
  assert finished == last > 0 and len(trained) == 12 - finished and len({*trained}) == len(trained)
  assert {file: file.stat().st_mtime_ns for file in results} == results
  assert ddl.load(tmp_path / "s").info == whole.info
  for path in (tmp_path / "whole").glob("*/*/*/metrics.jsonl"):
    assert metrics(tmp_path / "s" / path.parent.relative_to(tmp_path / "whole")) == metrics(path.parent)
  trained.clear()
  assert call("sweep", "--resume", f"--workdir={tmp_path}/s", "--devices=1")[0] == 0 and not trained
  assert call("sweep", "--resume", f"--workdir={tmp_path}/s", "--devices=1", "--trials=7")[0] == 0 and len(trained) == 2
  tuned = ddl.load(tmp_path / "s").info
  assert {len(entry["trials"]) for entry in tuned.values()} == {7}
  assert call("sweep", "--resume", f"--workdir={tmp_path}/s", "--devices=1", "--trials=7", "--only=a")[0] == 0
  assert ddl.load(tmp_path / "s").info == tuned  # also of the labels that --only leaves out


@pytest.mark.slow
def test_tpe_and_halton_share_only_the_first_trials(tmp_path):
  bounds = tuple(base().sweep.learning_rate)
  halton = [point["rate"] for point in points({"rate": bounds}, 6)]
  swept = ddl.sweep(sweep={"sampler": "tpe", "trials": 6}, workdir=tmp_path / "s", **OWN)
  rates = swept.trials.pivot(index="trial", columns="label", values="optimizer.learning_rate")
  for label in LABELS:
    assert list(rates[label])[:4] == halton[:4] and not {*rates[label][4:]} & {*halton[4:]}
  assert (rates.a[4:] != rates.b[4:]).all()


@pytest.mark.slow
def test_pruning_has_the_same_rungs_for_all_labels(tmp_path):
  rates = {"learning_rate": (1e-4, 1e-1), "pruning": True, "seeds": (0, 1)}
  swept = ddl.sweep(sweep=rates, trials=4, workdir=tmp_path / "s", **OWN)
  for label in LABELS:
    outcomes = list(swept.trials[swept.trials.label == label].outcome)
    assert outcomes == ["complete", "pruned", "complete", "pruned"]
    for number, (outcome, trial) in enumerate(zip(outcomes, trials(tmp_path / "s", label), strict=True)):
      folder = tmp_path / "s" / label / f"trial-{number}"
      complete = outcome == "complete"
      assert list(trial.intermediate_values) == [1, 3][: 2 if complete else 1]
      assert [line["step"] for line in metrics(folder / "seed-0")] == list(range(10 if complete else 2))
      assert (folder / "seed-1").exists() is complete
      rungs = {n: metrics(folder / "seed-0")[n]["test_loss"] for n in trial.intermediate_values}
      assert trial.intermediate_values == rungs


@pytest.mark.slow
def test_diverged_trials_are_recorded_and_one_must_complete(tmp_path):
  swept = ddl.sweep(sweep={"learning_rate": (1e-2, 1e8)}, trials=2, workdir=tmp_path / "s", **OWN)
  assert list(swept.trials.outcome) == ["diverged", "complete"] * 2
  assert list(swept.trials.loss.isna()) == [True, False] * 2
  with pytest.raises(ValueError, match="learning_rate"):
    ddl.sweep(sweep={"learning_rate": (1e-2, 1e8)}, trials=1, workdir=tmp_path / "none", **OWN)
  assert not (tmp_path / "none/tuned.json").exists()


@pytest.fixture(scope="module")
def complete(tmp_path_factory):
  """A sweep of label a with two trials and a validation split of 0.25, and its warnings."""
  path = tmp_path_factory.mktemp("sweep") / "s"
  sweep = {"validation": 0.25, "space": {"a": {"period": (2, 3)}}}
  with (
    jax.numpy_dtype_promotion("standard"),
    jax.numpy_rank_promotion("allow"),
    warnings.catch_warnings(record=True) as log,
  ):
    warnings.simplefilter("always")
    return ddl.sweep(sweep=sweep, only=["a"], trials=2, workdir=path, **OWN), [str(warning.message) for warning in log]


def test_trials_are_validated_on_a_split_of_the_training_set(complete):
  folder = complete[0].folder / "a/trial-0/seed-0"
  lines = metrics(folder)
  assert lines[-1]["epoch"] == 9 * 2 * 8 / 75 and "validation" not in ddl.load(folder).config["data"]
  x = np.random.default_rng(0).normal(size=(100, 2)).astype(np.float32)
  first = lines[0]["test_loss"]
  _, split = ddl.data.source.split(plane().train, 0.25)
  assert first == pytest.approx(np.mean(split.take(np.arange(25))["y"] ** 2), rel=1e-5)
  assert first != pytest.approx(np.mean((x @ np.array([1, -1])) ** 2), rel=1e-3)


# ---- edges of a range


@pytest.mark.parametrize(
  "bounds, number, side",
  [
    ((0.01, 1.0), 0, None), ((0.01, 1.0), -1, "high"), ((0.2, 1.0), "least", "low"), ((0.01, 1.0), "least", "low"),
    ([0.1, 0.2], "least", None), ([0.1, 0.2, 0.4], "least", "low"), ([0.1, 0.2, 0.4], -1, "high"),
  ],
)  # fmt: skip
def test_the_smallest_or_largest_of_nine_values_is_an_edge(bounds, number, side):
  key = "optimizer.learning_rate"
  tried = sorted(points({key: bounds}, 9), key=lambda point: point[key])
  best = tried[{0: 4, "least": 0}.get(number, number)]
  best = {key: 0.2} if isinstance(bounds, list) and side is None and len(bounds) > 2 else best
  assert edges(default_experiment(), {key: bounds}, best, tried) == ({key: side} if side else {})


@pytest.mark.slow
def test_diverged_trials_count_for_the_edges_of_a_sweep(tmp_path, monkeypatch):
  finished = LabelStudy.finished
  scores = [{"accuracy": 1.0, "loss": 1.0}, {"accuracy": 0.5, "loss": 2.0}, None]  # of the rates 0.1, 0.03 and 0.3
  monkeypatch.setattr(
    LabelStudy,
    "finished",
    lambda self: [(point, trial | {"score": x}) for (point, trial), x in zip(finished(self), scores, strict=False)],
  )
  swept = ddl.sweep(only=["b"], trials=3, workdir=tmp_path / "s", **OWN)
  assert swept.best["b"]["optimizer"]["learning_rate"] == 0.1 and swept.info["b"]["edges"] == {}


def test_a_value_between_tried_values_is_no_edge():
  space, key = {"optimizer.learning_rate": (0.01, 1.0)}, "optimizer.learning_rate"
  assert edges(default_experiment(), space, {key: 0.4}, [{key: 0.1}, {key: 0.4}, {key: 0.8}]) == {}
  assert edges(default_experiment(), space, {key: 0.4}, [{key: 0.4}]) == {}  # one trial only


def test_choices_without_an_order_have_no_edge():
  experiment = default_experiment(optimizer={"name": "sgd", "nesterov": True, "momentum": 0.9})
  space = {"optimizer.nesterov": [False, True], "optimizer.momentum": [0.0, 0.5, 0.9]}
  point = lambda nesterov, momentum: {"optimizer.nesterov": nesterov, "optimizer.momentum": momentum}  # noqa: E731
  tried = [point(False, 0.0), point(True, 0.5), point(True, 0.9)]
  assert edges(experiment, space, point(True, 0.9), tried) == {"optimizer.momentum": "high"}
  assert edges(experiment, space, point(True, 0.0), tried) == {}  # no momentum is below zero


def test_a_bound_of_the_valid_range_is_no_edge():
  experiment = default_experiment(algorithm={"name": "dasgd", "period": 4, "delay": 1, "keep": 0.5})
  point = {"optimizer.learning_rate": 0.1, "algorithm.delay": 0, "algorithm.period": 16, "optimizer.momentum": 0.0}
  space = {
    "optimizer.learning_rate": (0.01, 1.0), "algorithm.delay": (0, 3), "algorithm.period": (4, 16),
    "optimizer.momentum": (0.0, 0.9),
  }  # fmt: skip
  tried = [point, {key: {0: 3, 16: 4}.get(value, 2 * value) for key, value in point.items()}]
  tried.append(point | {"optimizer.learning_rate": 0.01, "optimizer.momentum": 0.5})
  assert edges(experiment, space, point, tried) == {"algorithm.period": "high"}


def test_a_warning_names_the_key_and_the_bound(complete):
  swept, warned = complete
  [text] = [text for text in warned if "config.sweep.space" in text]
  best = swept.best["a"]["algorithm"]["period"]
  assert swept.info["a"]["edges"]["algorithm.period"] == ("low" if best == 2 else "high")
  assert "config.sweep.space['a'].period" in text and str(best) in text
  assert ("smallest" in text, "lower" in text) == (best == 2, best == 2)


# ---- grids


GRID = {"algorithm.period": (2, 3)}
POINTS = {"a, period 2": {"algorithm.period": 2}, "a, period 3": {"algorithm.period": 3}, "b": {}}


@pytest.fixture(scope="module")
def in_grid(tmp_path_factory):
  """A sweep over a grid with three trials of each label and point, and its warnings."""
  path, space = tmp_path_factory.mktemp("grid") / "s", {"a": {"optimizer": {"momentum": (0.1, 0.9)}}}
  with (
    jax.numpy_dtype_promotion("standard"),
    jax.numpy_rank_promotion("allow"),
    warnings.catch_warnings(record=True) as log,
  ):
    warnings.simplefilter("always")
    settings = {"sweep": {"space": space}, "grid": GRID, "algorithms": LABELS}
    return ddl.sweep(**OWN | settings, trials=3, workdir=path), [str(warning.message) for warning in log]


def test_each_label_is_tuned_at_each_grid_point(in_grid):
  swept, _ = in_grid
  assert {label: entry["point"] for label, entry in swept.info.items()} == POINTS
  assert [entry["group"] for entry in swept.info.values()] == ["a", "a", "b"]
  assert list(swept.best) == list(POINTS) and list(swept.trials.label) == [label for label in POINTS for _ in range(3)]
  for label, entry in swept.info.items():
    folder = swept.folder / label.replace(", ", "__").replace(" ", "_")
    assert [len(runs) for runs in json.loads((folder / "together.json").read_text())["runs"]] == [3]  # side by side
    assert ddl.load(folder / "trial-0/seed-0").config["algorithm"].get("period") == POINTS[label].get(
      "algorithm.period"
    )
    assert entry["settings"].get("algorithm.period") == POINTS[label].get("algorithm.period")
  scores = [[trial["validation"]["loss"] for trial in entry["trials"]] for entry in swept.info.values()]
  assert scores[0] != scores[1]


def test_warnings_name_the_label_at_its_grid_point_and_the_key_of_the_label(in_grid):
  swept, warned = in_grid
  for label, entry in swept.info.items():
    for key in entry["edges"]:
      [text] = [text for text in warned if text.startswith(f"{label}: the best {key.partition('.')[2]}, ")]
      assert ("config.sweep.space['a'].optimizer.momentum" in text) is (key == "optimizer.momentum")
  assert any(entry["edges"] for entry in swept.info.values())
  assert any("config.sweep.space['a'].optimizer.momentum" in text for text in warned)


@pytest.mark.slow
def test_a_comparison_uses_the_best_settings_at_each_point(in_grid, tmp_path):
  swept, _ = in_grid
  compare = {"algorithms": LABELS, "seeds": (0,), "target": 1.0, "grid": GRID}
  with undrawn():
    compared = ddl.compare(tuned=swept.tuned, workdir=tmp_path / "c", **OWN | {"compare": compare})
  for entry in compared.info["algorithms"]:
    best = swept.best[entry["label"]]["optimizer"]
    assert entry["settings"]["optimizer"].items() >= best.items()
    assert entry["tuned"] == {"keys": [f"optimizer.{key}" for key in best], "trials": 3}
  assert len({tuple(setting["optimizer"].items()) for setting in swept.best.values()}) > 1
  with pytest.raises(OptionError) as error:
    ddl.compare(tuned=swept.tuned, workdir=tmp_path / "d", **OWN | {"compare": compare, "steps": 12})
  assert (error.value.option, error.value.value) == ("config.steps", 12) and not (tmp_path / "d").exists()


@pytest.mark.slow
def test_a_sweep_is_extended_to_a_larger_grid(in_grid, call, wrong, tmp_path):
  shutil.copytree(in_grid[0].folder, tmp_path / "s")
  before = {file: file.stat().st_mtime_ns for file in (tmp_path / "s").glob("*/*/*/metrics.jsonl")}
  larger = "--config.compare.grid={'algorithm.period': (2, 3, 4)}"
  code, _, error = call("sweep", "--resume", f"--workdir={tmp_path}/s", "--devices=1", larger, "--only=a")
  assert code == 0, error
  assert {file: file.stat().st_mtime_ns for file in before} == before
  info = ddl.load(tmp_path / "s").info
  assert {label: info[label] for label in in_grid[0].info} == in_grid[0].info
  assert [info[label]["point"] for label in info.keys() - in_grid[0].info.keys()] == [{"algorithm.period": 4}]
  grid = "--config.compare.grid={'algorithm.period': (2, 0)}"
  wrong(["--config=configs/digits_compare.py", "--only=DaSGD", grid], "DaSGD, period 0", command="sweep")


# ---- refused


@pytest.mark.parametrize("trials", [-1, 1.5, float("nan")])
def test_an_invalid_number_of_trials_is_refused(tmp_path, trials):
  with pytest.raises(ValueError, match=rf"^trials must be an integer >= 0, got {trials}\.$"):
    ddl.sweep(trials=trials, workdir=tmp_path / "s", **OWN)
  assert not (tmp_path / "s").exists()


@pytest.mark.slow
def test_a_folder_of_another_sweep_is_refused(complete, wrong, monkeypatch):
  folder = complete[0].folder
  before = (folder / "study.journal").read_bytes()
  monkeypatch.setattr(loop, "run", lambda *_: pytest.fail("a run was started"))
  for flags in (
    ("--resume", "--config.batch=4"), ("--resume", "--trials=1"), ("--resume", "--config.sweep.sampler=tpe"),
    ("--config=configs/digits_compare.py",),
  ):  # fmt: skip
    wrong([*flags, f"--workdir={folder}"], str(folder), command="sweep")
  assert (folder / "study.journal").read_bytes() == before


@pytest.mark.slow
def test_a_torn_last_line_of_the_journal_is_ignored_and_damage_refused(complete, wrong, call, tmp_path):
  shutil.copytree(complete[0].folder, tmp_path / "s")
  file: Path = tmp_path / "s/study.journal"
  file.write_bytes(file.read_bytes() + b'{"op_co')
  assert call("sweep", "--resume", f"--workdir={tmp_path}/s", "--trials=3")[0] == 0
  assert list(ddl.load(tmp_path / "s").trials.trial) == [0, 1, 2]
  for content in (b"\xff\n" * 3, b"[]\n" * 3, b'{"op_code": 0}\n' * 3):
    file.write_bytes(content)
    wrong(["--resume", f"--workdir={tmp_path}/s"], str(file), "damaged", command="sweep")
