"""Handwritten digits (scikit-learn's 1,797 real 8x8 images), a small multilayer perceptron, eight workers.

python run.py train --config=configs/digits.py --config.algorithm.name=dasgd
"""

from ddl.config import base


def get_config():
  config = base()
  config.model.hidden = (64, 64)
  config.batch = 16
  config.steps = 400
  config.eval_every = 20
  config.optimizer.momentum = 0.9
  config.optimizer.learning_rate = 0.05
  return config
