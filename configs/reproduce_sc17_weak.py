"""Weak scaling on Knights Landing nodes of Cori in You, Buluc, Demmel 2017, arXiv 1708.02983: GoogLeNet and VGG.

  python run.py reproduce

Expected: with costs fitted to two nodes, a bandwidth-optimal all-reduce gives nearly the reported efficiency of 64
nodes; an all-reduce over a tree does not.
"""

import ml_collections


def get_config():
  config = ml_collections.ConfigDict()
  config.cluster = "knl_aries"
  config.cores = 68  # per node
  config.nodes = (1, 2, 4, 8, 16, 32, 64)
  config.fitted = 2  # nodes; each network is fitted separately
  config.networks = {
    "GoogLeNet": {"network": "googlenet", "seconds": (1533.0, 1590.0, 1608.0, 1641.0, 1630.0, 1662.0, 1674.0)},
    "VGG-19": {"network": "vgg19", "seconds": (1318.0, 1440.0, 1482.0, 1524.0, 1634.0, 1679.0, 1642.0)},
  }
  config.headline = {"network": "GoogLeNet", "nodes": 64, "reported": 91.5}  # %, in the abstract, "on 4253 KNL cores"
  return config.lock()
