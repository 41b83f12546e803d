"""Stability limits of EASGD on a quadratic: as published (Zhang et al. 2014, arXiv 1412.6651), and in three variants.

  python run.py reproduce

Expected: with one worker, `original_easgd` is stable exactly up to the published alpha; with several workers,
`original_easgd` and `round_robin_easgd` are stable at least up to that alpha, but the limit of `easgd` is lower.
Takes seconds.
"""

import ml_collections


def get_config():
  config = ml_collections.ConfigDict()
  config.etas = (0.1, 0.5, 1.0, 1.5, 1.9)
  config.around = (0.99, 1.0, 1.01)  # multiples of the largest stable alpha
  config.turns = 2  # workers of Original EASGD
  config.workers = 4  # workers of the other algorithms
  config.points = 97  # per axis of a map: 0, 0.025, ..., 2.4 and 0, 1/96, ..., 1
  config.maps = (("original_easgd", 2), ("round_robin_easgd", 4), ("easgd", 4))
  return config.lock()
