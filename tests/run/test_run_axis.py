"""Several runs in one program: each equals its run alone, also if another diverges; all stop and resume together."""

import functools
import json
import signal

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.commands import metrics
from helpers.sessions import Run, at_call, config, send

from ddl.config.experiment import initial_key
from ddl.engine.execution import ExecutionConfig
from ddl.run import loop

SEEDS = {0: 0, 1: 1, 2: 2}  # seed -> lane
HOW = ExecutionConfig("vmap", "scan", 4)
DASGD = {"name": "dasgd", "period": 4, "delay": 2, "keep": 0.25}


@functools.cache
def run(**more):
  """Return a compiled run with messages in flight at each evaluation."""
  return Run(config(algorithm=DASGD, eval_every=10, noise_batches=2, **more), how=HOW)


def folders(path):
  return [path / f"seed-{seed}" for seed in SEEDS]


def all_metrics(path):
  return [metrics(folder) for folder in folders(path)]


@pytest.mark.slow
def test_each_run_of_a_batch_equals_its_run_alone(tmp_path):
  created = run()
  last = created.together(tmp_path / "together", SEEDS, keep_model=True)
  assert len({line["train_loss"] for line in last}) == len(SEEDS)
  expected, folder = run(seed=1)(tmp_path / "single"), tmp_path / "together" / "seed-1"
  lines, single_lines = metrics(folder), metrics(tmp_path / "single")
  assert [line.keys() for line in lines] == [line.keys() for line in single_lines] and len(lines) == 5
  for batched, single in zip(lines, single_lines, strict=True):
    np.testing.assert_allclose(list(batched.values()), list(single.values()), rtol=2e-4)
  assert last[1]["test_loss"] == lines[-1]["test_loss"] != expected["train_loss"]
  assert json.loads((folder / "config.json").read_text())["seed"] == 1
  assert (folder / "result.json").exists() and (folder / "model.msgpack").exists()


@pytest.mark.slow
def test_the_seconds_of_a_batch_are_divided_among_its_runs(tmp_path, monkeypatch):
  class Clock:
    """A stopwatch that adds six seconds per start and stop."""

    def __init__(self, _, seconds):
      self.seconds = seconds

    def start(self):
      pass

    def stop(self):
      self.seconds += 6.0

  monkeypatch.setattr(loop, "Stopwatch", Clock)
  run().together(tmp_path, SEEDS)
  for folder in folders(tmp_path):
    assert [line["seconds"] for line in metrics(folder, timeless=False)] == [0, 2, 4, 6, 8]


@pytest.mark.slow
def test_a_resumed_batch_has_the_same_bits(tmp_path, monkeypatch):
  created = run()
  created.together(tmp_path / "whole", SEEDS)
  for number, sent in ((3, signal.SIGTERM), (4, signal.SIGINT)):
    with at_call(monkeypatch, number, send(sent)), pytest.raises(loop.Stopped) as stopped:
      created.together(tmp_path / "stopped", SEEDS, resume=number > 3)
    assert 0 < stopped.value.args[0] < created.steps
    assert not any((folder / "result.json").exists() for folder in folders(tmp_path / "stopped"))
  created.together(tmp_path / "stopped", SEEDS, resume=True)
  assert all_metrics(tmp_path / "stopped") == all_metrics(tmp_path / "whole")
  for current, target in zip(folders(tmp_path / "stopped"), folders(tmp_path / "whole"), strict=True):
    assert created.outcome(current) == created.outcome(target)


@pytest.mark.slow
def test_the_bits_of_a_run_do_not_depend_on_the_other_runs(tmp_path):
  created = run()
  created.together(tmp_path / "all", SEEDS)
  created.together(tmp_path / "parts", {2: 2})
  created.together(tmp_path / "parts", {1: 1, 0: 0})
  assert all_metrics(tmp_path / "parts") == all_metrics(tmp_path / "all")
  for current, target in zip(folders(tmp_path / "parts"), folders(tmp_path / "all"), strict=True):
    assert created.outcome(current) == created.outcome(target)


def huge_for_seed_one(model):
  """Return the model with initial parameters that overflow the first loss of seed 1."""
  seed_one = np.asarray(jax.random.key_data(initial_key(1)))

  def init(key):
    params, extra = model.init(key)
    scale = jnp.where(jnp.all(jax.random.key_data(key) == seed_one), jnp.float32(1e30), jnp.float32(1))
    return jax.tree.map(lambda x: x * scale, params), extra

  return model._replace(init=init)


@pytest.mark.slow
def test_a_diverged_run_does_not_end_the_other_runs(tmp_path, monkeypatch):
  plain = run()
  plain.together(tmp_path / "plain", SEEDS)
  created = Run(config(algorithm=DASGD, noise_batches=2), how=HOW, model=huge_for_seed_one(plain.experiment.model))
  result = created.together(tmp_path / "one_diverges", SEEDS)
  assert [isinstance(outcome, loop.Diverged) for outcome in result] == [False, True, False]
  assert "dasgd diverged: " in str(result[1]) and "config.optimizer.learning_rate below 0.05" in str(result[1])
  assert [(folder / "result.json").exists() for folder in folders(tmp_path / "one_diverges")] == [True, False, True]
  expected, target = all_metrics(tmp_path / "plain"), all_metrics(tmp_path / "one_diverges")
  assert target[0] == expected[0] and target[2] == expected[2] and len(target[1]) < len(expected[1])
  with at_call(monkeypatch, 4, send(signal.SIGTERM)), pytest.raises(loop.Stopped):
    created.together(tmp_path / "stopped", SEEDS)
  saved = [[*(folder / "checkpoints").glob("[0-9]*")] for folder in folders(tmp_path / "stopped")]
  assert saved[0] and saved[2] and not saved[1]  # a model that is not finite is not saved


@pytest.mark.slow
def test_each_of_several_diverged_runs_has_its_error(tmp_path):
  created = Run(config(algorithm=DASGD, optimizer={"learning_rate": 1e30}), how=HOW)
  result = created.together(tmp_path, SEEDS)
  assert all(isinstance(outcome, loop.Diverged) for outcome in result) and len(result) == 3
