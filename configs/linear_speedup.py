"""Linear speed-up in workers: least squares with p = 1 to 32 workers at the theoretical learning rates.

"Test loss" is the excess training loss f - f* of the averaged model. The mean of p gradients has 1/p of the variance of
one gradient. The learning rate eta grows as p^power. With eta = c sqrt(p / K), the error after K steps is
O(1 / sqrt(p K)) (local SGD: Yu, Yang and Zhu 2018, arXiv 1807.06629); K is fixed, so the loss is proportional to
p^(-1/2) (power 0.5). With eta = c p (power 1), a given error takes 1/p of the steps: the linear speed-up
(DaSGD: Zhou et al. 2020, arXiv 2006.00441).

  python run.py compare --config=configs/linear_speedup.py

Expected: minutes. A plot of log loss against log p has a slope of about -1/2 at power 0.5; a plot of log steps against
log p has a slope of -1 at power 1.
"""

import numpy as np

from ddl.config import base, custom
from ddl.data import source
from ddl.data.synthetic import least_squares

STEPS = 1500


def excess_loss(*, examples: int = 2**16, features: int = 32, noise: float = 1.0, condition: float = 2.0):
  """Build the data set least_squares with a test set on which the mean loss is the excess training loss f - f*.

  The test set has `features` examples.
  """
  data = least_squares(examples=examples, features=features, noise=noise, condition=condition)
  x = data.train.take(np.arange(examples))["x"].astype(np.float64)
  scales, vectors = np.linalg.eigh(x.T @ x / examples)
  rows = np.sqrt(features * scales)[:, None] * vectors.T  # rows^T rows / features is the Hessian
  test = source.in_memory(rows.astype(np.float32), (rows @ data.meta["optimum"]).astype(np.float32))
  return data._replace(test=test)


def scaled(rate: float, steps: int, *, workers: int, power: float):
  """Return a constant learning rate: rate * workers^power."""
  del steps
  return rate * workers**power


def get_config():
  config = base()
  config.data = custom(excess_loss)
  config.model.name = "linear"
  config.schedule = custom(scaled, power=0.5)
  config.batch = 8
  config.steps = STEPS
  config.eval_every = 10
  config.optimizer.learning_rate = 0.008
  config.compare.title = "Linear speed-up in workers, least squares"
  config.compare.target = 0.05
  config.compare.seeds = tuple(range(5))
  config.compare.algorithms = {
    "sync SGD": {"algorithm": {"name": "sync_sgd"}},
    "local SGD": {"algorithm": {"name": "local_sgd", "period": 8}},
    "DaSGD": {"algorithm": {"name": "dasgd", "period": 8, "delay": 2, "keep": 0.25}},
  }
  config.compare.grid = {"workers": (1, 2, 4, 8, 16, 32), "schedule.power": (0.5, 1.0), "steps": (STEPS,)}
  return config
