"""Noisy least squares with a known optimum, to compare the noise floors of methods, periods and delays.

The metadata of the data set contain the optimal training loss. There are no class labels, so the metric is test loss.

  python run.py compare --config=configs/least_squares.py
"""

from ddl.config import base


def get_config():
  config = base()
  config.data.name = "least_squares"
  config.model.name = "linear"
  config.partition.name = "sharded"
  config.batch = 8
  config.steps = 1000
  config.eval_every = 20
  config.optimizer.learning_rate = 0.1
  config.compare.title = "Least squares on eight workers"
  config.compare.target = 0.0065
  config.compare.algorithms = {
    "sync SGD": {"algorithm": {"name": "sync_sgd"}},
    "local SGD, tau 10": {"algorithm": {"name": "local_sgd", "period": 10}},
    "local SGD, tau 50": {"algorithm": {"name": "local_sgd", "period": 50}},
    "DaSGD": {"algorithm": {"name": "dasgd", "period": 10, "delay": 4, "keep": 0.25}},
    "EASGD": {"algorithm": {"name": "easgd", "period": 10}},
    "independent": {"algorithm": {"name": "independent"}},
  }
  return config
