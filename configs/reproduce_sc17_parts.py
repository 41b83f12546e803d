"""One Knights Landing chip in 1, 4, 8 and 16 parts in You, Buluc, Demmel 2017, arXiv 1708.02983: AlexNet on CIFAR.

  python run.py reproduce

Expected: the cost model predicts no gain from splitting the chip; a curve fitted to one point misses the others.
"""

import ml_collections


def get_config():
  config = ml_collections.ConfigDict()
  config.seconds = ((1, 1605.0), (4, 1025.0), (8, 823.0), (16, 490.0))  # parts, reported seconds to accuracy 0.625
  config.fitted = 4  # parts; the whole chip is the reference
  config.other = 16  # parts, for an alternative fit
  return config.lock()
