"""Eight GPUs and LeNet on MNIST in You, Buluc, Demmel 2017, arXiv 1708.02983: Original EASGD and Sync EASGD 1 to 3.

  python run.py reproduce

Expected: the law P -> log2 P alone gives less than the gains reported, and no share near 14 %; an exchange of another
kind, chosen with the reported figures in sight, comes near to them. At once.
"""

import ml_collections


def get_config():
  config = ml_collections.ConfigDict()
  config.workers = 8
  config.network = "lenet"
  config.cluster = "pcie_8gpu"
  config.parameters = 0.86  # share of Original EASGD's time: between CPU and GPUs
  config.data = 0.01  # share of its time: the same for the examples; with the above 87 %, the fitted point
  config.gains = {"first": 3.7, "second": 1.3, "third": 1.1, "whole": 5.3}  # reported, in time to the same accuracy
  config.left = 14.0  # % of Sync EASGD 3's time that is communication, reported
  config.law = {"network": "alexnet", "cluster": "fdr", "workers": (2, 8, 64)}  # of P -> log2 P
  return config.lock()
