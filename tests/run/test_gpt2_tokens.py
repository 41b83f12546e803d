"""configs/gpt2_tokens.py: shapes at full size, and small networks trained on token files of a text."""

import csv
import json
import math
from pydoc_data.topics import topics

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ddl.config.experiment import Experiment
from ddl.data import tokenizer
from ddl.run import build
from ddl.run.metrics import with_perplexity
from experiments.command_line import config_flag

CONFIG = "--config=configs/gpt2_tokens.py"
SMALL = (
  "data.length=16", "data.test_windows=8", "model.layers=1", "model.width=16", "model.heads=2", "workers=2", "batch=4",
  "microbatches=2", "steps=12", "eval_every=6", "schedule.warmup=1",
)  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  """The token files of a real text."""
  path = tmp_path_factory.mktemp("tokens")
  (path / "text.txt").write_text(2 * "".join(topics[key] for key in sorted(topics)))
  tokenizer.write(str(path / "text.txt"), str(path / "out"))
  return path / "out"


def lines(run):
  return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.slow
def test_shapes_at_full_size(folder):
  settings = [CONFIG, f"--config.data.path={folder}", "--config.data.vocabulary=50257"]
  config, _ = config_flag.read("train", settings)
  parts = build.build(Experiment.from_config(config))
  model, experiment = parts.model, parts.experiment
  params, extra = jax.eval_shape(model.init, jax.random.key(0))
  assert sum(leaf.size for leaf in jax.tree.leaves(params)) == 124_439_808
  assert experiment.workers * experiment.batch == 480 and experiment.batch // experiment.microbatches == 12
  part = {name: jax.ShapeDtypeStruct((12, 1024), np.int32) for name in ("x", "y")}
  with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
    (loss, _), grads = jax.eval_shape(
      jax.value_and_grad(model.loss, has_aux=True), params, extra, part, jax.random.key(0)
    )
    assert loss.shape == () and jax.tree.map(lambda x: x.shape, grads) == jax.tree.map(lambda x: x.shape, params)
    tested = jax.eval_shape(
      model.metrics, params, extra, {name: jax.ShapeDtypeStruct((512, 1024), np.int32) for name in "xy"}
    )
  assert {name: (x.shape, x.dtype) for name, x in tested.items()} == dict.fromkeys(
    ("loss", "accuracy"), ((512,), jnp.float32)
  )


def test_the_optimizer_decays_matrices_and_clips(folder):
  config, _ = config_flag.read("train", [CONFIG, f"--config.data.path={folder}"])
  optimizer = Experiment.from_config(config).make_optimizer()
  params = {"kernel": jnp.ones((2, 3)), "scale": jnp.ones(3)}
  state = optimizer.init(params)
  with jax.numpy_dtype_promotion("standard"):
    for gradient in (2.0, 200.0):  # both are clipped to a norm of 1
      updates, state = optimizer.update(jax.tree.map(lambda x, g=gradient: g * jnp.ones_like(x), params), state, params)
  rate = 6e-4 / 2000  # at the second step of the warm-up, which starts at 0
  np.testing.assert_allclose(updates["scale"], -rate * np.ones(3), rtol=1e-4)
  np.testing.assert_allclose(updates["kernel"], -rate * (1 + 0.1) * np.ones((2, 3)), rtol=1e-4)


@pytest.mark.slow
def test_a_comparison_of_language_models_uses_the_perplexity(call, wrong, folder, tmp_path):
  flags = [
    CONFIG,
    f"--config.data.path={folder}",
    *(f"--config.{setting}" for setting in SMALL),
    "--only=DaSGD",
    "--devices=1",
  ]
  code, _, error = call("compare", *flags, "--config.compare.target=257", f"--workdir={tmp_path}/run")
  assert code == 0, error
  assert json.loads((tmp_path / "run" / "comparison.json").read_text())["target"] == {
    "metric": "test_perplexity", "value": 257, "higher_is_better": False, "stop": False,
  }  # fmt: skip
  with (tmp_path / "run" / "findings.json").open() as file:
    (row,) = json.load(file)["table"]
  assert row["reached"] == 1  # before training, where all tokens are equally likely
  wrong(
    [*flags, "--config.compare.target=0.95", f"--workdir={tmp_path}/b"],
    "config.compare.target must be above 1",
    "perplexity",
    command="compare",
  )


@pytest.mark.slow
def test_three_algorithms_compared(call, folder, tmp_path):
  flags = [
    CONFIG,
    f"--config.data.path={folder}",
    *(f"--config.{setting}" for setting in SMALL),
    "--config.compare.seeds=0,1",
  ]
  code, out, error = call("compare", *flags, f"--workdir={tmp_path}/run", "--devices=1")
  assert code == 0, error
  run = tmp_path / "run"
  for label in ("sync_AdamW", "DiLoCo", "DaSGD"):
    for seed in (0, 1):
      result = lines(run / label / f"seed-{seed}")
      assert [line["step"] for line in result] == [0, 6, 12]
      for line in result:
        assert math.isclose(line["test_perplexity"], math.exp(line["test_loss"]), rel_tol=1e-12)
      assert 200 < result[0]["test_perplexity"] < 300  # 256 tokens, equally likely before training
      if label != "DiLoCo":  # its first outer step is after 500 steps
        assert result[-1]["test_perplexity"] < result[0]["test_perplexity"]
  assert "perplexity" in out
  assert "final test perplexity" in (run / "report.html").read_text()
  with (run / "metrics.csv").open() as file:
    rows = list(csv.DictReader(file))
  assert all(math.isclose(float(row["test_perplexity"]), math.exp(float(row["test_loss"]))) for row in rows)
  with (run / "table.csv").open() as file:
    table = {row["label"]: row for row in csv.DictReader(file)}
  ends = [lines(run / "DaSGD" / f"seed-{seed}")[-1]["test_perplexity"] for seed in (0, 1)]
  assert math.isclose(float(table["DaSGD"]["test_perplexity"]), sum(ends) / 2)
  assert "perplexity_vs_examples" in (run / "report.html").read_text()


@pytest.mark.slow
def test_diloco_with_an_outer_step(call, folder, tmp_path):
  flags = [
    CONFIG,
    f"--config.data.path={folder}",
    *(f"--config.{setting}" for setting in SMALL),
    "--config.precision=float32",
  ]
  more = ["--config.algorithm.name=diloco", "--config.algorithm.period=2"]
  code, out, error = call("train", *flags, *more, f"--workdir={tmp_path}/run", "--devices=1")
  assert code == 0, error
  result = lines(tmp_path / "run")
  assert [line["distance"] for line in result] == [0, 0, 0]  # evaluated right after an outer step
  assert result[-1]["test_perplexity"] < result[1]["test_perplexity"] < result[0]["test_perplexity"]
  assert result[-1]["bytes_sent"] > result[1]["bytes_sent"] > 0 and "test_perplexity" in out


def test_only_language_models_with_a_finite_loss_have_a_perplexity():
  assert with_perplexity({"loss": 2.0, "accuracy": 0.5}, "classification") == {"loss": 2.0, "accuracy": 0.5}
  assert with_perplexity({"loss": 0.0}, "language") == {"loss": 0.0, "perplexity": 1.0}
  for loss in (1e4, math.inf, math.nan):
    assert list(with_perplexity({"loss": loss}, "language")) == ["loss"]
