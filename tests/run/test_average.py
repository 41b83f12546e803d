"""The exponential moving average of the consensus parameters."""

import os
import signal

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ddl
from ddl.engine.consensus import Consensus
from ddl.errors import OptionError
from ddl.run.exit_codes import Stopped
from ddl.run.metrics import Evaluator

SMALL = {
  "algorithm": {"name": "easgd", "period": 2}, "model": {"hidden": (8,)}, "workers": 2, "batch": 16, "steps": 18,
  "eval_every": 4, "ema": 0.9,
}  # fmt: skip


def equal(one, two):
  jax.tree.map(np.testing.assert_array_equal, one, two)


def test_the_average_follows_its_equation(tmp_path):
  consensus: list[tuple[int, dict]] = []
  run = ddl.train(
    workdir=tmp_path / "a", hooks=[lambda info: consensus.append((info.step, jax.device_get(info.params)))], **SMALL
  )
  (before, expected), *others = consensus[:-1] if consensus[-1][0] == consensus[-2][0] else consensus
  assert [before, *(step for step, _ in others)] == [0, 4, 8, 12, 16, 18]
  for step, params in others:
    decay = 0.9 ** (step - before)
    expected, before = jax.tree.map(lambda m, x, d=decay: d * m + (1 - d) * x, expected, params), step
  jax.tree.map(lambda m, x: np.testing.assert_allclose(m, x, rtol=1e-6, atol=1e-7), run.average.params, expected)
  model = Consensus(jax.tree.map(jnp.asarray, run.average.params), {}, None)
  tested = Evaluator(run.model, run.data.test)([model])[0]
  last = run.metrics.iloc[-1]
  assert {name: last[f"test_ema_{name}"] for name in tested} == pytest.approx(tested, rel=1e-6)
  assert last["test_ema_loss"] != last["test_loss"]


@pytest.mark.parametrize("lines", [3, pytest.param(4, marks=pytest.mark.slow)])
def test_a_resume_continues_the_average(tmp_path, lines):
  whole = ddl.train(workdir=tmp_path / "a", options=ddl.RunOptions(checkpoint_every=3), **SMALL)

  def stop(info):
    if info.step == 4 * (lines - 1):
      os.kill(os.getpid(), signal.SIGTERM)

  with pytest.raises(Stopped):
    ddl.train(workdir=tmp_path / "b", hooks=[stop], **SMALL)
  resumed = ddl.train(workdir=tmp_path / "b", options=ddl.RunOptions(resume=True), **SMALL)
  equal(resumed.average.params, whole.average.params)
  names = [name for name in whole.metrics if "seconds" not in name]
  assert resumed.metrics[names].equals(whole.metrics[names])


@pytest.mark.slow
def test_seeds_in_one_program_have_their_own_averages(tmp_path):
  settings = {
    "algorithms": ["local_sgd"],
    "metric": "ema_accuracy",
    "target": 0.3,
    "options": ddl.RunOptions(keep_best=True),
  }
  both = ddl.compare(seeds=(1, 2), workdir=tmp_path / "c", **settings, **SMALL | {"algorithm": "local_sgd"})
  one = ddl.compare(seeds=(2,), workdir=tmp_path / "d", **settings, **SMALL | {"algorithm": "local_sgd"})
  assert (both.folder / "local_sgd" / "together.json").exists()
  assert both.info["target"]["metric"] == "test_ema_accuracy"
  lines = [run.metrics["test_ema_loss"] for run in (both.runs["local_sgd"][1], one.runs["local_sgd"][0])]
  np.testing.assert_allclose(*lines, rtol=1e-4)
  best = one.runs["local_sgd"][0]
  accuracy = best.metrics["test_ema_accuracy"]
  tested = Evaluator(best.model, best.data.test)([Consensus(jax.tree.map(jnp.asarray, best.best.params), {}, None)])[0]
  assert tested["accuracy"] == pytest.approx(accuracy[1:].max(), rel=1e-6)


def test_the_average_is_refused_where_it_is_not_kept(tmp_path):
  for changes in ({"elastic": True, "algorithm": "local_sgd"}, {"ema": 1.0}):
    with pytest.raises(OptionError) as error:
      ddl.train(workdir=tmp_path / "a", **SMALL | changes)
    assert error.value.option == "config.ema"
  options = ddl.RunOptions(runtime="threads")
  with pytest.raises(OptionError, match=r"config\.ema"):
    ddl.train(workdir=tmp_path / "a", options=options, **SMALL | {"algorithm": "async_easgd"})
