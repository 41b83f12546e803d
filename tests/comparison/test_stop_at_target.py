"""Runs that end at the target, and the best model of a run."""

import os
import signal

import numpy as np
import pytest

import ddl
from ddl.run.exit_codes import Stopped

ALGORITHMS = {"fast": {"optimizer": {"learning_rate": 0.5}}, "slow": {"optimizer": {"learning_rate": 0.02}}}
SMALL = {"model": {"hidden": (8,)}, "workers": 2, "batch": 16, "steps": 24, "eval_every": 4}
TARGET = 0.5


def compared(path, **settings):
  return ddl.compare(algorithms=ALGORITHMS, seeds=3, target=TARGET, workdir=path, **{**SMALL, **settings})


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
  return compared(tmp_path_factory.mktemp("whole") / "c")


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
  options = ddl.RunOptions(keep_models=True)
  return compared(tmp_path_factory.mktemp("stopped") / "c", stop_at_target=True, options=options)


def test_runs_end_at_the_first_evaluation_that_meets_the_target(whole, stopped):
  for key, lines in whole.metrics.groupby(["label", "seed"]):
    met = lines["test_accuracy"].to_numpy() >= TARGET
    expected = lines.iloc[: met.argmax() + 1] if met.any() else lines
    ended = stopped.metrics.set_index(["label", "seed"]).loc[[key]]
    columns = ["step", "test_loss", "test_accuracy", "bytes_sent"]
    np.testing.assert_allclose(ended[columns], expected[columns], rtol=1e-5)
    run = stopped.runs[key[0]][key[1]]
    assert run.step == expected["step"].iloc[-1]
    assert run.evaluate()["accuracy"] == pytest.approx(expected["test_accuracy"].iloc[-1], rel=1e-5)
  costs = [name for name in whole.table if name.endswith("_to_target") and "seconds" not in name]
  np.testing.assert_allclose(stopped.table[costs], whole.table[costs], rtol=1e-5)
  assert whole.table["reached"].tolist() == stopped.table["reached"].tolist()
  assert whole.table["reached"].sum() > 0 and "test_accuracy" not in stopped.table
  assert not any(name.startswith("test_") for name in stopped.pairs["quantity"])


def test_a_resume_does_not_train_runs_that_have_ended(tmp_path, stopped):
  def stop_at_8(info):
    if info.step == 8 and "slow" in str(info.folder):
      os.kill(os.getpid(), signal.SIGTERM)

  with pytest.raises(Stopped):
    compared(tmp_path / "c", stop_at_target=True, hooks=[stop_at_8])
  ended = {run: (run / "metrics.jsonl").read_bytes() for run in (tmp_path / "c" / "fast").glob("seed-*")}
  resumed = ddl.compare(workdir=tmp_path / "c", options=ddl.RunOptions(resume=True))
  assert ended == {run: (run / "metrics.jsonl").read_bytes() for run in ended}
  columns = ["label", "seed", "step", "test_loss", "test_accuracy"]
  assert resumed.metrics[columns].equals(stopped.metrics[columns])


@pytest.mark.slow
def test_a_grid_stops_at_the_target(tmp_path):
  result = compared(tmp_path / "c", stop_at_target=True, grid={"workers": (1, 2)})
  assert "grid_step_vs_workers" in result.figures and "grid_accuracy_vs_workers" not in result.figures


def test_the_best_model_of_a_run(tmp_path):
  options = ddl.RunOptions(keep_best=True, checkpoint_every=4)
  run = ddl.train(workdir=tmp_path / "a", options=options, **SMALL | {"optimizer": {"learning_rate": 2.0}})
  lines = run.metrics[run.metrics["step"] > 0]
  best = lines.loc[lines["test_accuracy"].idxmax()]
  assert run.best.step == best["step"]
  assert run.evaluate(run.best)["accuracy"] == pytest.approx(best["test_accuracy"], rel=1e-6)
  other = ddl.train(workdir=tmp_path / "b", options=ddl.RunOptions(init_from=str(tmp_path / "a/best.msgpack")), **SMALL)
  assert other.metrics["test_accuracy"].iloc[0] == pytest.approx(best["test_accuracy"], rel=1e-6)
  with pytest.raises(ValueError, match="keep_best"):
    _ = other.best
