"""Tests the consensus model on a source of examples."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ddl.api import Model, Source, Tree
from ddl.runtime.hosts import in_order
from ddl.runtime.layout.placement import beside, gather, is_split, local
from ddl.runtime.rounds.consensus import Consensus, unstacked
from experiments.train.metrics.noise_scale import NoiseEstimator

BATCH = 512  # examples
CACHED = 256 * 2**20  # bytes; a smaller test set stays on the device
REESTIMATED = 20  # training batches that re-estimate batch-norm statistics


class Evaluator:
  """Mean metrics over all examples of a source, computed on one device, or on all where the model is split."""

  def __init__(self, model: Model, source: Source):
    """Compiles when first called; `noise` is the model's `NoiseEstimator`, beside its metrics."""
    self._source, self.noise = source, NoiseEstimator(model)
    metrics = model.metrics or _loss_as_metric(model)
    self._metrics, self._together = jax.jit(metrics), jax.jit(partial(_together, metrics))
    self._train = jax.jit(lambda params, extra, batch: model.loss(params, extra, batch, jax.random.key(0))[1])
    self._batches: list[Any] | None = None

  def __call__(self, models: Sequence[Consensus]) -> list[dict[str, float]]:
    """Return {"loss": mean, "accuracy": mean where there is one} of each model; one program tests them all."""
    of = local([each[:2] for each in models])
    params, alone = of[0][0], len(of) == 1
    waits = in_order if is_split(params) else lambda figures: figures
    sums: list[tuple[int, Tree]] = [
      (len(jax.tree.leaves(batch)[0]), waits([self._metrics(*of[0], batch)] if alone else self._together(of, batch)))
      for batch in self._all(params)
    ]
    totals: list[dict[str, float]] = [{} for _ in of]
    for size, each in gather(sums):
      for total, figures in zip(totals, each, strict=True):
        for name, values in figures.items():
          total[name] = total.get(name, 0.0) + float(np.mean(values, dtype=np.float64)) * size
    return [{name: x / self._source.size for name, x in total.items()} for total in totals]

  def reestimated(self, model: Consensus, batches: Sequence[dict[str, np.ndarray]]) -> Consensus:
    """Return the model with the batch statistics of these."""
    params, extra = local(model[:2])
    for batch in batches:
      extra = self._train(params, extra, beside(batch, params))
    return model._replace(extra=extra)

  def _all(self, params: Tree) -> Any:
    """The batches; where the parameters are has to be the same each time."""
    if self._batches is not None:
      return self._batches
    starts = range(0, self._source.size, BATCH)
    made = (self._source.take(np.arange(s, min(s + BATCH, self._source.size))) for s in starts)
    first = self._source.take(np.arange(1))
    if sum(x.nbytes for x in first.values()) * self._source.size > CACHED:
      return (beside(batch, params) for batch in made)
    self._batches = [beside(batch, params) for batch in made]
    return self._batches


def judged_by(asked: str, model: Model, source: Source, task: str) -> str:
  """Return the metric that runs are compared by, "accuracy", "loss" or "perplexity"; nothing is compiled or computed.

  asked: one of them, or "" for the accuracy where there is one, else the loss. ValueError for one that is not measured.
  """
  known = ["accuracy"] * _has_accuracy(model, source) + ["loss"] + ["perplexity"] * (task == "language")
  if asked and asked not in known:
    raise ValueError(f"config.compare.metric is {asked!r}; of this model and data it can be {', '.join(known)}")
  return asked or known[0]


def _has_accuracy(model: Model, source: Source) -> bool:

  def metrics() -> Tree:
    return (model.metrics or _loss_as_metric(model))(*model.init(jax.random.key(0)), source.take(np.arange(1)))

  return "accuracy" in jax.eval_shape(metrics)


def _together(metrics: Any, models: Sequence[Tree], batch: Any) -> list[dict[str, jax.Array]]:
  stacked = jax.tree.map(lambda *x: jnp.stack(x), *models)
  figures = jax.vmap(lambda model: metrics(*model, batch))(stacked)
  return unstacked(figures)


def _loss_as_metric(model: Model) -> Any:
  def metrics(params: Tree, extra: Tree, batch: Any) -> dict[str, jax.Array]:
    return {"loss": jnp.atleast_1d(model.loss(params, extra, batch, jax.random.key(0))[0])}

  return metrics
