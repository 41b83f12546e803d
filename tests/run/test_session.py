"""The columns of metrics.jsonl, computed again from losses and models, and the other files of a run."""

import io
import json
import sys

import jax
import numpy as np
import pytest
from helpers.commands import metrics
from helpers.sessions import Run, config, normalized, run_batch

from ddl.config.experiment import initial_key, training_key
from ddl.config.options import RunOptions
from ddl.engine.consensus import Consensus
from ddl.engine.execution import ExecutionConfig
from ddl.run.batch import Batch, BatchRun
from ddl.run.build import build, make_trainer
from ddl.run.checkpoints import RunCheckpoints
from ddl.run.folder import RunFolder
from ddl.run.metrics import Evaluator
from ddl.run.realtime import NoStore, ThreadsTrainer


@pytest.fixture(autouse=True)
def as_users_run():
  """The command line does not set strict promotion."""
  with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
    yield


BYTES = 4 * (64 * 16 + 16 + 16 * 10 + 10)  # of the perceptron's parameters


@pytest.mark.parametrize(
  "algorithm, exchanges, per_call",  # exchanges until steps 0, 12, 24, ...
  [
    ({"name": "sync_sgd"}, [0, 12, 24, 36, 40], 5),
    ({"name": "local_sgd", "period": 10}, [0, 1, 2, 3, 4], 64),
    ({"name": "dasgd", "period": 10, "delay": 2}, [0, 1, 2, 3, 3], 1),
    ({"name": "easgd", "period": 10}, [0, 2, 3, 4, 4], 7),
    ({"name": "independent"}, [0, 0, 0, 0, 0], 64),
  ],
  ids=lambda x: x["name"] if isinstance(x, dict) else "",
)
@pytest.mark.sampled(5)
def test_metrics_equal_those_computed_from_losses_and_models(tmp_path, algorithm, exchanges, per_call):
  run = Run(config(algorithm=algorithm, eval_every=12), how=ExecutionConfig("vmap", "scan", per_call))
  last = run(tmp_path, keep_final=False)
  lines = metrics(tmp_path, timeless=False)
  assert json.loads((tmp_path / "result.json").read_text()) == last == lines[-1]
  assert [line["step"] for line in lines] == [0, 12, 24, 36, 40]
  np.testing.assert_allclose([line["bytes_sent"] for line in lines], [n * 2 * BYTES * 7 / 8 for n in exchanges])
  trainer, test = run.trainer, run.experiment.data.test
  batch, losses, carry = test.take(np.arange(test.size)), [], trainer.start(initial_key(0))
  calls = trainer.plan(0, 40, 12)
  feed = run.experiment.feed(trainer.workers.local)
  checked = 0
  for call, carry, loss in trainer.run(carry, calls, feed, training_key(0)):  # noqa: B020
    losses.extend(trainer.losses(call, loss).astype(np.float64))
    line = next((line for line in lines if line["step"] == call.end), None)
    if not line:
      continue
    consensus = trainer.consensus(carry)
    figures = run.experiment.model.metrics(consensus.params, consensus.extra, batch)
    np.testing.assert_allclose(line["train_loss"], np.mean(losses), rtol=1e-12)
    np.testing.assert_allclose(line["test_loss"], np.mean(figures["loss"]), rtol=1e-5)
    np.testing.assert_allclose(line["test_accuracy"], np.mean(figures["accuracy"]), rtol=1e-5)
    np.testing.assert_allclose(line["distance"], consensus.distance, rtol=1e-5)
    assert line["examples"] == call.end * 8 * 8 and line["epoch"] == line["examples"] / 1437
    losses, checked = [], checked + 1
  assert checked == 4 and lines[-1]["seconds"] > lines[1]["seconds"] > lines[0]["seconds"] == 0
  assert (lines[-1]["distance"] > 1e-3) is (exchanges[-1] not in (40, 4) or algorithm["name"] == "easgd")


@pytest.mark.parametrize("runtime", ["compiled", "threads"])
@pytest.mark.slow
def test_batch_statistics_are_reestimated(tmp_path, runtime):
  algorithm = "sync_sgd" if runtime == "compiled" else "async_sgd"
  components = build(config(algorithm={"name": algorithm}, steps=4, eval_every=4))._replace(model=normalized())
  folder, tested = RunFolder(tmp_path), {}
  if runtime == "compiled":
    (trainer, clock), store = make_trainer(components, RunOptions()), RunCheckpoints(4)
  else:
    trainer = clock = ThreadsTrainer(components, folder)
    store = NoStore()
  evaluator = Evaluator(components.model, components.data.test)
  run_batch(Batch([BatchRun(components, folder, clock)], trainer), store, evaluator, batch_stats="reestimate")
  params, statistics = components.model.init(initial_key(0))
  loss = jax.jit(components.model.loss)
  for name, batches in (("initial", 0), ("estimated", 20)):
    for step in range(batches):
      batch = jax.tree.map(lambda x: x[0, 0], components.feed([0])(step, 1))
      statistics = loss(params, statistics, batch, jax.random.key(0))[1]
    tested[name] = evaluator([Consensus(params, statistics, None)])[0]["loss"]
  first = metrics(tmp_path)[0]["test_loss"]
  np.testing.assert_allclose(first, tested["estimated"], rtol=1e-5)
  assert abs(first - tested["initial"]) > 1e-3


def test_a_terminal_shows_compilation_and_the_folder_records_config_and_layout(tmp_path, monkeypatch):
  class Terminal(io.StringIO):
    def isatty(self):
      return True

  monkeypatch.setattr(sys, "stderr", Terminal())
  experiment = config(steps=20, eval_every=20, optimizer={"nesterov": True})
  Run(experiment, how=ExecutionConfig("vmap", "scan", 5))(tmp_path, label="x")
  first, *later = [text for text in sys.stderr.getvalue().split("\r") if text.strip()]
  assert first.startswith("x: compiling:   0%") and later and all(text.startswith("x: ") for text in later)
  assert "compiling" not in later[-1]
  resolved = json.loads((tmp_path / "config.json").read_text())
  assert resolved["optimizer"] == {
    "name": "sgd", "momentum": 0.9, "nesterov": True, "weight_decay": 0.0, "decay_all": False, "clip_norm": 0.0,
    "learning_rate": 0.05,
  }  # fmt: skip
  assert resolved["model"] == {"name": "mlp", "hidden": [16], "dropout": 0.0} and resolved["batch"] == 8
  about = json.loads((tmp_path / "about.json").read_text())
  assert about["layout"] == {"devices": 2, "execution": ["vmap", "scan", 5, True], "processes": 1, "together": 1}
