"""The exponential moving average (EMA) of each run's consensus parameters; it is evaluated and saved as well.

An evaluation that follows the previous one after k steps updates the average: m <- d^k m + (1 - d^k) x. Here x are the
consensus parameters, and d is the decay per step, `config.ema`; the first evaluation sets m = x. The average is on the
host; checkpoints contain it.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from ddl.engine.consensus import Consensus
from ddl.engine.placement import gather
from ddl.run.batch import Batch

EMA = "ema"  # prefix of the names of the averaged model's metrics


def update(batch: Batch, step: int, models: Sequence[Consensus]) -> list[Consensus]:
  """Update the averages of all lanes with their consensus models; return the models with the averaged parameters."""
  params = gather([model.params for model in models])
  if batch.averages:
    before = max(figures["last"].get("step", 0) for figures in batch.figures)
    weight = 1.0 - batch.experiment.ema ** (step - before)
    params = [
      jax.tree.map(lambda m, x: _moved(m, x, weight), *pair) for pair in zip(batch.averages, params, strict=True)
    ]
  batch.averages = params
  return consensuses(batch, models)


def consensuses(batch: Batch, models: Sequence[Consensus]) -> list[Consensus]:
  """Return the consensus models of all lanes with the averaged parameters."""
  pairs = zip(models, batch.averages, strict=True)
  return [model._replace(params=jax.tree.map(jnp.asarray, average)) for model, average in pairs]


def _moved(average: np.ndarray, x: np.ndarray, weight: float) -> np.ndarray:
  return np.asarray(average + weight * (x - average), average.dtype)
