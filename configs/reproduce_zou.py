"""Both lemmas of Zou et al. 2017, arXiv 1709.06622, evaluated and compared with simulated GPUs and servers.

  python run.py reproduce

Expected: the simulations agree with the lemmas where their conditions hold.
"""

import ml_collections


def get_config():
  config = ml_collections.ConfigDict()
  config.overheads = (0.05, 0.10, 0.20)  # R_O: ratio of overhead to computation in a step on one GPU
  config.gpus = (2, 4, 8, 16)
  config.share = 0.8  # required efficiency
  config.grown = {"network": "alexnet", "batch": 1024, "cluster": "pcie_8gpu", "gpus": (2, 4, 8)}  # nothing overlapped
  config.nbytes = 244e6  # S_p: AlexNet
  config.workers = 4  # N_w
  config.seconds = 1.0  # T_C
  config.gigabits = (10, 1)  # half-duplex bandwidth of a server's link
  return config.lock()
