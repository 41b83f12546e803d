"""Asynchronous EASGD on handwritten digits: eight workers of different speeds and one center.

You, Buluc and Demmel 2017, arXiv 1708.02983; Zhang, Choromanska and LeCun 2014, arXiv 1412.6651.

  python run.py train --config=configs/async_easgd_digits.py
  python run.py compare --config=configs/async_easgd_digits.py

Expected: 96 % test accuracy after 400 steps per worker; takes seconds on two cores.
"""

from ddl.config import base


def get_config():
  config = base()
  config.algorithm.name = "async_easgd"
  config.algorithm.period = 4
  config.model.hidden = (64, 64)
  config.workers = 8
  config.batch = 16
  config.steps = 400
  config.eval_every = 20
  config.optimizer.momentum = 0.9
  config.optimizer.learning_rate = 0.05
  config.times.seconds = 0.01
  config.times.jitter = 0.1
  config.times.slow = (1.0,) * 7 + (3.0,)  # one worker takes three times as long
  config.network.message_seconds = 0.001
  config.network.service_seconds = 0.0005
  config.compare.title = "Synchronous and asynchronous, one worker three times slower"
  config.compare.target = 0.95
  config.compare.algorithms = {
    "sync SGD": {"algorithm": {"name": "sync_sgd", "period": None}, "optimizer": {"learning_rate": 0.3}},
    "Sync EASGD": {"algorithm": {"name": "easgd"}, "optimizer": {"learning_rate": 0.1}},
    "Async SGD": {
      "algorithm": {"name": "async_sgd", "period": None},
      "optimizer": {"learning_rate": 0.05, "momentum": 0.0},
    },
    "Async EASGD": {"algorithm": {"name": "async_easgd"}, "optimizer": {"learning_rate": 0.1}},
  }
  return config
