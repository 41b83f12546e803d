"""Sweeps: trials and their outcomes, what a stop and a resume leave, and what is refused before anything runs."""

import json
import os
import shutil
import signal
from pathlib import Path
from statistics import fmean

import jax
import numpy as np
import optuna
import pytest
from helpers.commands import metrics

import ddl
from ddl.comparison.study import LabelStudy
from ddl.config import default_experiment
from ddl.config.options import RunOptions
from ddl.config.sweep import edges, points
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
  """A notebook does not set strict promotion."""
  with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
    yield


def line(meta):
  """Linear least squares, whose gradients can overflow."""

  def init(key):
    return {"w": np.zeros(2, np.float32)}, {}

  def loss(params, extra, batch, key):
    return ((batch["x"] @ params["w"] - batch["y"]) ** 2).mean(), extra

  return ddl.Model(init, loss, dense=True)


def plane():
  """Without an argument for a validation split."""
  x = np.random.default_rng(0).normal(size=(100, 2)).astype(np.float32)
  source = ddl.Source(100, lambda i: {"x": x[i], "y": x[i] @ np.array([1, -1], np.float32)})
  return ddl.Data(source, source, {"task": "regression", "shape": (2,), "num_outputs": 1, "description": "a plane"})


OWN = SMALL | {"model": line, "data": plane}


def trials(folder, label):
  return optuna.load_study(
    study_name=label,
    storage=optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(folder / "study.journal"))),
  ).trials


def test_ranges_choices_and_several_seeds(tmp_path):
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
      run = ddl.load(folders[0])
      assert isinstance(run.config["seed"], int) and run.config["data"]["validation"] == 0.2
      assert trial["setting"].items() <= {
        part: {key: run.config[part][key] for key in trial["setting"].get(part, {})} for part in run.config
        if part in trial["setting"]
      }.items()  # fmt: skip
    best = max(entry["trials"], key=lambda t: (t["validation"]["accuracy"], -t["validation"]["loss"]))
    assert swept.best[label] == best["setting"] and entry["validation"] == best["validation"]
  assert ddl.load(tmp_path / "s").info == swept.info and swept.tuned.name == "tuned.json"


@pytest.mark.parametrize("algorithm", ["easgd", "sharded_sync_sgd", "async_sgd"])
@pytest.mark.sampled(3)
def test_each_trial_equals_the_run_of_its_setting(tmp_path, algorithm):
  bounds, fixed = ({"alpha": (0.05, 0.4)}, {"period": 2}) if algorithm == "easgd" else ({}, {})
  space = {"a": {**bounds, "optimizer": {"momentum": (0.1, 0.9)}}}
  changes = SMALL | {"compare": {"algorithms": {"a": {"algorithm": {"name": algorithm, **fixed}}}}}
  changes |= {"schedule": {"name": "cosine", "warmup": 2}}
  swept = ddl.sweep(sweep={"space": space}, trials=3, workdir=tmp_path / "s", **changes)
  groups = json.loads((swept.folder / "a/together.json").read_text())["runs"]
  assert len(groups) == (3 if algorithm == "async_sgd" else 1)
  changes |= {"compare": {}, "data": {"validation": 0.2}}
  for number, trial in enumerate(swept.info["a"]["trials"]):
    setting = {part: dict(values) for part, values in trial["setting"].items()}
    setting["algorithm"] = setting.get("algorithm", {}) | {"name": algorithm, **fixed}
    run = ddl.train(workdir=tmp_path / f"run-{number}", **changes | setting)
    losses = [line["train_loss"] for line in metrics(run.folder)[1:]]
    swept_losses = [line["train_loss"] for line in metrics(swept.folder / f"a/trial-{number}/seed-0")[1:]]
    np.testing.assert_allclose(swept_losses, losses, rtol=2e-5)
  assert len({trial["validation"]["loss"] for trial in swept.info["a"]["trials"]}) == 3


def stopped_after(monkeypatch, lines):
  """SIGTERM once this many lines of metrics were written."""
  write, left = RunFolder.line, [lines]

  def then_stop(folder, figures):
    write(folder, figures)
    left[0] -= 1
    if not left[0]:
      os.kill(os.getpid(), signal.SIGTERM)

  monkeypatch.setattr(RunFolder, "line", then_stop)


@pytest.mark.parametrize("sampler", ["halton", "tpe"])
@pytest.mark.slow
def test_a_resume_repeats_nothing_and_ends_as_if_it_had_not_stopped(call, tmp_path, monkeypatch, sampler):
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
  kept = {p: p.stat().st_mtime_ns for p in (tmp_path / "s").glob("*/*/*/result.json")}
  finished = sum(each.state.is_finished() for each in trials(tmp_path / "s", "a"))
  created, run = [], loop.run
  monkeypatch.setattr(
    loop, "run", lambda *args, **more: created.append(args[0].runs[0].folder.path) or run(*args, **more)
  )
  code, _, error = call("sweep", "--resume", f"--workdir={tmp_path}/s", "--devices=1")
  assert code == 0, error
  assert finished == last > 0 and len(created) == 12 - finished and len({*created}) == len(created)
  assert {p: p.stat().st_mtime_ns for p in kept} == kept
  assert ddl.load(tmp_path / "s").info == whole.info
  for path in (tmp_path / "whole").glob("*/*/*/metrics.jsonl"):
    assert metrics(tmp_path / "s" / path.parent.relative_to(tmp_path / "whole")) == metrics(path.parent)
  created.clear()
  assert call("sweep", "--resume", f"--workdir={tmp_path}/s", "--devices=1")[0] == 0 and not created
  assert call("sweep", "--resume", f"--workdir={tmp_path}/s", "--devices=1", "--trials=7")[0] == 0 and len(created) == 2
  assert {len(each["trials"]) for each in ddl.load(tmp_path / "s").info.values()} == {7}


@pytest.mark.slow
def test_a_sampler_that_learns_tries_other_points_after_the_first_ones(tmp_path):
  result = {}
  for sampler in ("halton", "tpe"):
    swept = ddl.sweep(sweep={"sampler": sampler, "trials": 6}, workdir=tmp_path / sampler, **OWN)
    result[sampler] = swept.trials.pivot(index="trial", columns="label", values="optimizer.learning_rate")
  assert (result["halton"].loc[:3] == result["tpe"].loc[:3]).all(axis=None)
  assert (result["halton"].loc[4:] != result["tpe"].loc[4:]).all(axis=None)
  assert (result["halton"].a == result["halton"].b).all() and (result["tpe"].loc[4:].a != result["tpe"].loc[4:].b).all()


@pytest.mark.slow
def test_pruning_has_the_same_rungs_for_all(tmp_path):
  rates = {"learning_rate": (1e-4, 1e-1), "pruning": True, "seeds": (0, 1)}
  swept = ddl.sweep(sweep=rates, trials=4, workdir=tmp_path / "s", **OWN)
  for label in LABELS:
    outcomes = list(swept.trials[swept.trials.label == label].outcome)
    assert outcomes == ["complete", "pruned", "complete", "pruned"]
    for number, (outcome, trial) in enumerate(zip(outcomes, trials(tmp_path / "s", label), strict=True)):
      folder = tmp_path / "s" / label / f"trial-{number}"
      ended = outcome == "complete"
      assert list(trial.intermediate_values) == [1, 3][: 2 if ended else 1]
      assert [line["step"] for line in metrics(folder / "seed-0")] == list(range(10 if ended else 2))
      assert (folder / "seed-1").exists() is ended
      rungs = {n: metrics(folder / "seed-0")[n]["test_loss"] for n in trial.intermediate_values}
      assert trial.intermediate_values == rungs


@pytest.mark.slow
def test_a_diverging_trial_and_a_label_without_any_result(tmp_path):
  swept = ddl.sweep(sweep={"learning_rate": (1e-2, 1e8)}, trials=2, workdir=tmp_path / "s", **OWN)
  assert list(swept.trials.outcome) == ["diverged", "complete"] * 2
  assert list(swept.trials.loss.isna()) == [True, False] * 2
  with pytest.raises(ValueError, match="learning_rate"):
    ddl.sweep(sweep={"learning_rate": (1e-2, 1e8)}, trials=1, workdir=tmp_path / "none", **OWN)
  assert not (tmp_path / "none/tuned.json").exists()


def test_examples_that_the_sweep_sets_apart(tmp_path):
  swept = ddl.sweep(sweep={"validation": 0.25}, trials=1, workdir=tmp_path / "s", **OWN)
  line = metrics(swept.folder / "a/trial-0/seed-0")[-1]
  assert (
    line["epoch"] == 9 * 2 * 8 / 75 and "validation" not in ddl.load(swept.folder / "a/trial-0/seed-0").config["data"]
  )
  x = np.random.default_rng(0).normal(size=(100, 2)).astype(np.float32)
  first = metrics(swept.folder / "a/trial-0/seed-0")[0]["test_loss"]
  _, held = ddl.data.source.split(plane().train, 0.25)
  assert first == pytest.approx(np.mean(held.take(np.arange(25))["y"] ** 2), rel=1e-5)
  assert first != pytest.approx(np.mean((x @ np.array([1, -1])) ** 2), rel=1e-3)


# ---- edges of a range


@pytest.mark.parametrize(
  "bounds, number, side",
  [
    ((0.01, 1.0), 0, None), ((0.01, 1.0), -1, "high"), ((0.2, 1.0), "least", "low"), ((0.01, 1.0), "least", "low"),
    ([0.1, 0.2], "least", None), ([0.1, 0.2, 0.4], "least", "low"), ([0.1, 0.2, 0.4], -1, "high"),
  ],
)  # fmt: skip
def test_the_best_of_nine_is_the_smallest_or_the_largest_tried(bounds, number, side):
  key = "optimizer.learning_rate"
  tried = sorted(points({key: bounds}, 9), key=lambda each: each[key])
  best = tried[{0: 4, "least": 0}.get(number, number)]
  best = {key: 0.2} if isinstance(bounds, list) and side is None and len(bounds) > 2 else best
  assert edges(default_experiment(), {key: bounds}, best, tried) == ({key: side} if side else {})


def test_a_sweep_tells_edges_by_the_trials_that_diverged_too(tmp_path, monkeypatch):
  finished = LabelStudy.finished
  scores = [{"accuracy": 1.0, "loss": 1.0}, {"accuracy": 0.5, "loss": 2.0}, None]  # of the rates 0.1, 0.03 and 0.3
  monkeypatch.setattr(
    LabelStudy,
    "finished",
    lambda self: [(at, reported | {"score": x}) for (at, reported), x in zip(finished(self), scores, strict=False)],
  )
  swept = ddl.sweep(only=["b"], trials=3, workdir=tmp_path / "s", **SMALL)
  assert swept.best["b"]["optimizer"]["learning_rate"] == 0.1 and swept.info["b"]["edges"] == {}


def test_a_larger_value_that_diverged_was_tried_too():
  space, key = {"optimizer.learning_rate": (0.01, 1.0)}, "optimizer.learning_rate"
  assert edges(default_experiment(), space, {key: 0.4}, [{key: 0.1}, {key: 0.4}, {key: 0.8}]) == {}
  assert edges(default_experiment(), space, {key: 0.4}, [{key: 0.4}]) == {}  # of one trial


def test_choices_without_an_order_have_no_edge():
  experiment = default_experiment(optimizer={"name": "sgd", "nesterov": True, "momentum": 0.9})
  space = {"optimizer.nesterov": [False, True], "optimizer.momentum": [0.0, 0.5, 0.9]}
  at = lambda nesterov, momentum: {"optimizer.nesterov": nesterov, "optimizer.momentum": momentum}  # noqa: E731
  tried = [at(False, 0.0), at(True, 0.5), at(True, 0.9)]
  assert edges(experiment, space, at(True, 0.9), tried) == {"optimizer.momentum": "high"}
  assert edges(experiment, space, at(True, 0.0), tried) == {}  # below zero there is none


def test_an_edge_beyond_which_there_is_nothing():
  experiment = default_experiment(algorithm={"name": "dasgd", "period": 4, "delay": 1, "keep": 0.5})
  point = {"optimizer.learning_rate": 0.1, "algorithm.delay": 0, "algorithm.period": 16, "optimizer.momentum": 0.0}
  space = {
    "optimizer.learning_rate": (0.01, 1.0), "algorithm.delay": (0, 3), "algorithm.period": (4, 16),
    "optimizer.momentum": (0.0, 0.9),
  }  # fmt: skip
  tried = [point, {key: {0: 3, 16: 4}.get(value, 2 * value) for key, value in point.items()}]
  tried.append(point | {"optimizer.learning_rate": 0.01, "optimizer.momentum": 0.5})
  assert edges(experiment, space, point, tried) == {"algorithm.period": "high"}


def test_a_warning_names_the_key_and_the_bound(tmp_path):
  space = {"a": {"period": (2, 3)}}
  with pytest.warns(UserWarning) as reported:
    swept = ddl.sweep(sweep={"space": space}, only=["a"], trials=2, workdir=tmp_path / "s", **SMALL)
  [text] = [str(each.message) for each in reported if "config.sweep.space" in str(each.message)]
  best = swept.best["a"]["algorithm"]["period"]
  assert swept.info["a"]["edges"]["algorithm.period"] == ("low" if best == 2 else "high")
  assert "config.sweep.space['a'].period" in text and str(best) in text
  assert ("smallest" in text, "lower" in text) == (best == 2, best == 2)


# ---- refused


def test_a_grid_is_refused(tmp_path, wrong):
  with pytest.raises(ValueError, match=r"config\.compare\.grid must be empty for a sweep, got workers"):
    ddl.sweep(trials=1, workdir=tmp_path / "s", **OWN | {"compare": {**OWN["compare"], "grid": {"workers": (1, 2)}}})
  grid = "--config.compare.grid={'workers': (1, 2)}"
  wrong(["--config=configs/digits_compare.py", grid], "config.compare.grid", command="sweep")
  assert not (tmp_path / "s").exists()


@pytest.mark.parametrize("trials", [-1, 1.5, float("nan")])
def test_a_number_of_trials_that_is_none(tmp_path, trials):
  with pytest.raises(ValueError, match=rf"^trials must be an integer >= 0, got {trials}\.$"):
    ddl.sweep(trials=trials, workdir=tmp_path / "s", **OWN)
  assert not (tmp_path / "s").exists()


@pytest.fixture
def begun(tmp_path):
  ddl.sweep(trials=2, workdir=tmp_path / "s", **OWN)
  return tmp_path / "s"


@pytest.mark.parametrize(
  "flags",
  [
    ("--resume", "--config.batch=4"), ("--resume", "--config.sweep.seeds=1,2"), ("--resume", "--trials=1"),
    ("--resume", "--config.sweep.learning_rate=(0.1,0.5)"), ("--resume", "--config.sweep.sampler=tpe"),
    ("--config=configs/digits_compare.py",),
  ],
)  # fmt: skip
@pytest.mark.sampled(3)
def test_a_folder_of_another_sweep(begun, wrong, flags, monkeypatch):
  before = (begun / "study.journal").read_bytes()
  monkeypatch.setattr(loop, "run", lambda *_: pytest.fail("a run was started"))
  wrong([*flags, f"--workdir={begun}"], str(begun), command="sweep")
  assert (begun / "study.journal").read_bytes() == before


def test_a_journal_that_is_damaged_or_ends_in_the_middle_of_a_line(begun, wrong, call):
  file: Path = begun / "study.journal"
  whole = file.read_bytes()
  shutil.copytree(begun, begun.parent / "t")
  (begun.parent / "t/study.journal").write_bytes(whole + b'{"op_co')
  assert call("sweep", "--resume", f"--workdir={begun.parent}/t", "--trials=3")[0] == 0
  assert list(ddl.load(begun.parent / "t").trials.trial) == [0, 1, 2] * 2
  for content in (b"\xff\n" * 3, b"[]\n" * 3, b'{"op_code": 0}\n' * 3):
    file.write_bytes(content)
    wrong(["--resume", f"--workdir={begun}"], str(file), "damaged", command="sweep")
