"""The consensus rate of gossip: the graphs of D-PSGD, Lian et al. 2017, arXiv 1705.09056, without gradients.

  python run.py reproduce

Expected: each round multiplies the distance from the mean by the graph's second eigenvalue. A few seconds.
"""

import ml_collections


def get_config():
  config = ml_collections.ConfigDict()
  config.workers = 16
  config.graphs = ("ring", "torus", "exponential", "one_peer_exponential")
  config.rounds = 36
  config.settled = 24  # rounds after which only the slowest mode is left
  config.zero = 1e-12  # what is below is rounding
  return config.lock()
