"""The gradient noise scale: unbiased estimates, the exact value on least squares, and its columns in each runtime."""

import itertools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.commands import metrics
from helpers.sessions import config, run_batch

from ddl.api import Model
from ddl.config.options import RunOptions
from ddl.engine.consensus import Consensus
from ddl.run import metrics as noise_scale
from ddl.run.batch import Batch, BatchRun
from ddl.run.build import build, make_trainer
from ddl.run.checkpoints import RunCheckpoints
from ddl.run.folder import RunFolder
from ddl.run.metrics import NORM2, SCALE, TRACE, Evaluator, NoiseEstimator
from ddl.run.realtime import NoStore, ThreadsTrainer, covered

KEY = jax.random.key(0)


def loss(params, extra, batch, key):
  residual = batch["x"] @ params["w"] + params["b"] - batch["y"]
  return 0.5 * jnp.mean(residual**2), extra


LINEAR = Model(lambda key: ({}, {}), loss)


def least_squares(size):
  """Return (examples, parameters, exact |G|^2, exact tr(Sigma))."""
  rng = np.random.default_rng(0)
  data = {"x": rng.normal(size=(size, 3)), "y": rng.normal(size=size)}
  params = {"w": rng.normal(size=3), "b": np.asarray(0.3)}
  gradients = (data["x"] @ params["w"] + params["b"] - data["y"])[:, None] * np.column_stack([data["x"], np.ones(size)])
  mean = gradients.mean(axis=0)
  return (
    data,
    Consensus(jax.tree.map(jnp.asarray, params), {}, None),
    mean @ mean,
    ((gradients - mean) ** 2).sum(1).mean(),
  )


def estimates(data, consensus, draws):
  estimator = NoiseEstimator(LINEAR)
  result = [estimator(consensus, ({k: v[i] for k, v in data.items()} for i in rows), KEY) for rows in draws]
  return np.array([[row[NORM2], row[TRACE]] for row in result])


@pytest.mark.parametrize("size, batches, batch", [(3, 2, 2), (4, 3, 1)])
def test_both_estimates_are_unbiased(x64, size, batches, batch):
  """The means over all draws with replacement are |G|^2 and tr(Sigma)."""
  data, consensus, norm2, trace = least_squares(size)
  draws = np.array([*itertools.product(range(size), repeat=batches * batch)]).reshape(-1, batches, batch)
  result = estimates(data, consensus, draws)
  np.testing.assert_allclose(result.mean(axis=0), [norm2, trace], rtol=1e-12)
  assert result[:, 0].min() < 0  # single estimates of |G|^2 can be negative


def test_the_estimates_equal_those_of_the_paper(x64):
  """McCandlish et al. 2018, appendix A, with squared norms of batches of b and k b examples."""
  data, consensus, *_ = least_squares(12)
  rows = np.arange(12).reshape(3, 4)
  gradient = jax.grad(lambda params, i: loss(params, {}, {k: v[i] for k, v in data.items()}, KEY)[0])

  def norm2(i):
    return sum(float((x**2).sum()) for x in jax.tree.leaves(gradient(consensus.params, i)))

  small, big = np.mean([norm2(i) for i in rows]), norm2(rows.ravel())
  paper = [(12 * big - 4 * small) / (12 - 4), (small - big) / (1 / 4 - 1 / 12)]
  np.testing.assert_allclose(estimates(data, consensus, [rows])[0], paper, rtol=1e-12)


def test_the_ratio_of_means_agrees_with_the_exact_noise_scale():
  """The tolerance is 4 standard errors."""
  data, consensus, norm2, trace = least_squares(256)
  data = {name: x.astype(np.float32) for name, x in data.items()}
  consensus = Consensus(jax.tree.map(lambda x: x.astype(jnp.float32), consensus.params), {}, None)
  draws = [noise_scale.draw(256, batches=8, batch=4, seed=0, step=step) for step in range(300)]
  result = estimates(data, consensus, draws)
  error = result.std(axis=0, ddof=1) / np.sqrt(len(result))
  assert (np.abs(result.mean(axis=0) - [norm2, trace]) < 4 * error).all() and (error < 0.05 * result.mean(axis=0)).all()
  ratio = result[:, 1].mean() / result[:, 0].mean()
  np.testing.assert_allclose(ratio, trace / norm2, rtol=4 * np.hypot(*(error / result.mean(axis=0))))


def test_the_ratio_uses_means_over_recent_evaluations():
  result = noise_scale.recent([], {NORM2: -1.0, TRACE: 4.0})
  assert noise_scale.ratio(result) == {} == noise_scale.ratio([])  # the mean is not positive
  result = noise_scale.recent(result, {NORM2: 3.0, TRACE: 6.0})
  assert noise_scale.ratio(result) == {SCALE: 10 / 2} and noise_scale.recent(result, {"step": 1.0}) == result
  for _ in range(noise_scale.WINDOW):
    result = noise_scale.recent(result, {NORM2: 2.0, TRACE: 1.0})
  assert noise_scale.ratio(result) == {SCALE: 0.5}


def test_a_resume_on_ray_restores_recent_estimates(tmp_path):
  """They are read from the lines of metrics.jsonl that the checkpoint covers."""
  line = {"step": 0, "visits": 0, "bytes_sent": 0.0, "seconds": 0.0}
  lines = [line | {"visits": 4 * k, NORM2: 1.0 + k, TRACE: 2.0 * k} for k in range(8)]
  (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
  assert covered(RunFolder(tmp_path), 24)["noise"] == [[1.0 + k, 2.0 * k] for k in range(2, 7)]


def lines_of(path, runtime, count):
  algorithm = {"name": "local_sgd", "period": 2} if runtime == "collective" else {"name": "async_sgd"}
  sizes = {"workers": 2, "steps": 4, "eval_every": 2, "model": {"hidden": (4,)}, "optimizer": {"momentum": 0.0}}
  with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
    components = build(config(algorithm=algorithm, **sizes, noise_batches=count))
    folder, evaluator = RunFolder(path), Evaluator(components.model, components.data.test)
    if runtime == "threads":
      trainer = clock = ThreadsTrainer(components, folder)
      store = NoStore()
    else:
      (trainer, clock), store = make_trainer(components, RunOptions(devices=1)), RunCheckpoints(4)
    run_batch(Batch([BatchRun(components, folder, clock)], trainer), store, evaluator)
  return metrics(path)


@pytest.mark.slow
@pytest.mark.parametrize("runtime", ["collective", "virtual time", "threads"])
def test_every_runtime_records_the_noise_scale(tmp_path, runtime):
  lines = lines_of(tmp_path / "with", runtime, 32)
  assert [line["step"] for line in lines] == [0, 2, 4]
  assert all(line[TRACE] > 0 and np.isfinite(line[NORM2]) for line in lines)
  assert lines[0][SCALE] == pytest.approx(lines[0][TRACE] / lines[0][NORM2])
  if runtime == "collective":  # training does not change
    rest = [{k: v for k, v in line.items() if k not in (NORM2, TRACE, SCALE)} for line in lines]
    assert rest == lines_of(tmp_path / "without", runtime, 0)


def test_one_batch_is_refused():
  for count in (-1, 1):
    with pytest.raises(ValueError, match=rf"config\.noise_batches .*{count}"):
      config(noise_batches=count)
