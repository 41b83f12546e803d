"""Several runs in step: each leaves what it leaves alone, also beside one that diverges; all stop and resume as one."""

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


def run(**more):
  """Messages are in flight at each evaluation."""
  return Run(config(algorithm=DASGD, eval_every=10, noise_batches=2, **more), how=HOW)


def folders(path):
  return [path / f"seed-{seed}" for seed in SEEDS]


def all_metrics(path):
  return [metrics(folder) for folder in folders(path)]


@pytest.mark.slow
def test_each_leaves_what_it_leaves_alone(tmp_path):
  created = run()
  last = created.together(tmp_path / "together", SEEDS, keep_model=True)
  assert len({line["train_loss"] for line in last}) == len(SEEDS)
  expected, folder = run(seed=1)(tmp_path / "alone"), tmp_path / "together" / "seed-1"
  lines, figures = metrics(folder), metrics(tmp_path / "alone")
  assert [each.keys() for each in lines] == [each.keys() for each in figures] and len(lines) == 5
  for ours, theirs in zip(lines, figures, strict=True):
    np.testing.assert_allclose(list(ours.values()), list(theirs.values()), rtol=2e-4)
  assert last[1]["test_loss"] == lines[-1]["test_loss"] != expected["train_loss"]
  assert json.loads((folder / "config.json").read_text())["seed"] == 1
  assert (folder / "result.json").exists() and (folder / "model.msgpack").exists()


@pytest.mark.slow
def test_each_has_its_share_of_the_seconds(tmp_path, monkeypatch):
  class Clock:
    """Six seconds from each start to its stop."""

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
def test_all_are_stopped_and_resumed_bit_for_bit(tmp_path, monkeypatch):
  created = run()
  created.together(tmp_path / "whole", SEEDS)
  for number, by in ((3, signal.SIGTERM), (4, signal.SIGINT)):
    with at_call(monkeypatch, number, send(by)), pytest.raises(loop.Stopped) as stopped:
      created.together(tmp_path / "stopped", SEEDS, resume=number > 3)
    assert 0 < stopped.value.args[0] < created.steps
    assert not any((folder / "result.json").exists() for folder in folders(tmp_path / "stopped"))
  created.together(tmp_path / "stopped", SEEDS, resume=True)
  assert all_metrics(tmp_path / "stopped") == all_metrics(tmp_path / "whole")
  for current, target in zip(folders(tmp_path / "stopped"), folders(tmp_path / "whole"), strict=True):
    assert created.outcome(current) == created.outcome(target)


def test_a_run_has_the_same_bits_whatever_the_others_are(tmp_path):
  created = run()
  created.together(tmp_path / "all", SEEDS)
  created.together(tmp_path / "left", {2: 2})
  created.together(tmp_path / "left", {1: 1, 0: 0})
  assert all_metrics(tmp_path / "left") == all_metrics(tmp_path / "all")
  for current, target in zip(folders(tmp_path / "left"), folders(tmp_path / "all"), strict=True):
    assert created.outcome(current) == created.outcome(target)


def huge_for_seed_one(model):
  """A model whose loss overflows at once with seed 1."""
  bad = np.asarray(jax.random.key_data(initial_key(1)))

  def init(key):
    params, extra = model.init(key)
    scale = jnp.where(jnp.all(jax.random.key_data(key) == bad), jnp.float32(1e30), jnp.float32(1))
    return jax.tree.map(lambda x: x * scale, params), extra

  return model._replace(init=init)


@pytest.mark.slow
def test_one_that_diverges_does_not_end_the_others(tmp_path, monkeypatch):
  plain = run()
  plain.together(tmp_path / "plain", SEEDS)
  created = Run(config(algorithm=DASGD, noise_batches=2), how=HOW, model=huge_for_seed_one(plain.experiment.model))
  result = created.together(tmp_path / "found", SEEDS)
  assert [isinstance(each, loop.Diverged) for each in result] == [False, True, False]
  assert "dasgd diverged: its" in str(result[1]) and "try config.optimizer.learning_rate below 0.05" in str(result[1])
  assert [(folder / "result.json").exists() for folder in folders(tmp_path / "found")] == [True, False, True]
  expected, target = all_metrics(tmp_path / "plain"), all_metrics(tmp_path / "found")
  assert target[0] == expected[0] and target[2] == expected[2] and len(target[1]) < len(expected[1])
  with at_call(monkeypatch, 4, send(signal.SIGTERM)), pytest.raises(loop.Stopped):
    created.together(tmp_path / "stopped", SEEDS)
  kept = [[*(folder / "checkpoints").glob("[0-9]*")] for folder in folders(tmp_path / "stopped")]
  assert kept[0] and kept[2] and not kept[1]  # no model that is not finite is saved


def test_if_all_diverge_each_says_so(tmp_path):
  created = Run(config(algorithm=DASGD, optimizer={"learning_rate": 1e30}), how=HOW)
  result = created.together(tmp_path, SEEDS)
  assert all(isinstance(each, loop.Diverged) for each in result) and len(result) == 3
