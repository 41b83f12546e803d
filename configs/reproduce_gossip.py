"""Consensus rate of gossip on the graphs of D-PSGD, Lian et al. 2017, arXiv 1705.09056, without gradients.

  python run.py reproduce

Expected: each round multiplies the distance from the mean by the second-largest modulus of the eigenvalues of the
graph's mixing matrix. Takes a few seconds.
"""

import ml_collections


def get_config():
  config = ml_collections.ConfigDict()
  config.workers = 16
  config.graphs = ("ring", "torus", "exponential", "one_peer_exponential")
  config.rounds = 36
  config.settled = 24  # rounds after which the slowest mode dominates
  config.zero = 1e-12  # smaller distances are rounding errors
  return config.lock()
