"""User-defined metrics and further test sets, in comparisons and sweeps."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ddl
from ddl.engine.consensus import Consensus
from ddl.errors import OptionError
from ddl.run.metrics import Evaluator, Metric, comparison_metric

COUNT = 60


@pytest.fixture(autouse=True)
def as_users_run():
  with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
    yield


def data() -> ddl.Data:
  """Return examples of three classes, with a second test set of noisy copies."""
  rng = np.random.default_rng(0)
  y = np.arange(COUNT) % 3
  x = rng.normal(size=(COUNT, 5)) + 2 * np.eye(5)[y]
  noisy = ddl.from_arrays(x + 3 * rng.normal(size=x.shape), y).test
  return ddl.from_arrays(x, y)._replace(tests={"noisy": noisy})


def with_confidence(meta) -> ddl.Model:
  """Return an MLP that also measures the probability of the true class."""
  model = ddl.MODELS["mlp"](meta, hidden=(8,))

  def metrics(params, extra, batch):
    loss = model.metrics(params, extra, batch)["loss"]
    return {**model.metrics(params, extra, batch), "confidence": jnp.exp(-loss)}

  return model._replace(metrics=metrics)


SMALL = {"model": with_confidence, "workers": 2, "batch": 8, "steps": 12, "eval_every": 4}


def test_each_test_set_has_its_own_columns(tmp_path):
  run = ddl.train(data=data(), workdir=tmp_path / "a", **SMALL)
  last = run.metrics.iloc[-1]
  names = [f"test_{part}{name}" for part in ("", "noisy_") for name in ("accuracy", "confidence", "loss")]
  assert {*names} == {name for name in run.metrics if name.startswith("test_")}
  for part, source in (("", run.data.test), ("noisy_", run.data.tests["noisy"])):
    alone = Evaluator(run.model, source)([Consensus(*jax.tree.map(jnp.asarray, (run.params, run.extra)), None)])[0]
    assert {name: last[f"test_{part}{name}"] for name in alone} == pytest.approx(alone, rel=1e-6)
  assert last["test_noisy_loss"] != last["test_loss"]


@pytest.mark.parametrize("mode", ["max", "min"])
@pytest.mark.sampled(2)
def test_a_comparison_ranks_by_a_custom_metric(tmp_path, mode):
  algorithms = {"fast": {"optimizer": {"learning_rate": 0.5}}, "slow": {"optimizer": {"learning_rate": 0.001}}}
  settings = {"algorithms": algorithms, "seeds": 2, "metric": "noisy_confidence", "mode": mode, "target": 0.34}
  result = ddl.compare(data=data(), workdir=tmp_path / "c", **settings, **SMALL)
  means = result.metrics.groupby(["label", "step"])["test_noisy_confidence"].mean()
  assert result.table.set_index("label")["test_noisy_confidence"].to_dict() == pytest.approx(
    {label: means[label, 12] for label in algorithms}
  )
  best = means[:, 12].idxmax() if mode == "max" else means[:, 12].idxmin()
  marks = result.table.set_index("label")["test_noisy_confidence_mark"]
  assert marks[best] == "best"
  assert result.info["target"].items() >= {"metric": "test_noisy_confidence", "higher_is_better": mode == "max"}.items()
  reached = result.table.set_index("label")["reached"]
  meets = (lambda x: x >= 0.34) if mode == "max" else (lambda x: x <= 0.34)
  runs = result.metrics.groupby(["label", "seed"])["test_noisy_confidence"].apply(lambda x: meets(x).any())
  assert reached.to_dict() == runs.groupby("label").sum().to_dict()
  assert "noisy confidence" in result.report.read_text()


def test_a_sweep_tunes_a_custom_metric(tmp_path):
  swept = ddl.sweep(
    data=data()._replace(tests={}), algorithms=["sync_sgd"], trials=3, seeds=2, metric="confidence", mode="min",
    workdir=tmp_path / "s", **SMALL,
  )  # fmt: skip
  assert [len(trial["seeds"]) for trial in swept.info["sync_sgd"]["trials"]] == [2, 2, 2]
  best = swept.trials.loc[swept.trials["confidence"].idxmin()]  # another trial than that of the best accuracy
  assert swept.best["sync_sgd"]["optimizer"]["learning_rate"] == best["optimizer.learning_rate"]


def test_the_direction_of_an_unknown_metric_is_required():
  model = with_confidence(data().meta)
  sources = {"": data().test, **data().tests}

  def metric(name, mode=""):
    return comparison_metric(name, mode, model, sources, "classification")

  assert metric("") == metric("accuracy") == Metric("accuracy", True)
  assert metric("noisy_loss") == Metric("noisy_loss", False)
  assert metric("confidence", "max") == Metric("confidence", True)
  for name, mode, option in (("confidence", "", "mode"), ("confidence", "up", "mode"), ("f1", "max", "metric")):
    with pytest.raises(OptionError) as error:
      metric(name, mode)
    assert error.value.option == f"config.compare.{option}"


def test_the_name_of_a_test_set_is_checked(tmp_path):
  wrong = data()._replace(tests={"Not valid": data().test})
  with pytest.raises(OptionError, match="names of further test sets"):
    ddl.train(data=wrong, workdir=tmp_path / "a", **SMALL)
