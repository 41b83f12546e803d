"""When DaSGD hides its exchange: Zhou et al. 2020, arXiv 2006.00441, in the cost model of its authors' code.

  python run.py reproduce

Expected: a delay of 1 to 10 steps, by network and batch, hides the exchange; a delay of 1 suffices in four of ten
cases. At once.
"""

import ml_collections


def get_config():
  config = ml_collections.ConfigDict()
  config.workers = 256
  config.bandwidth = "infiniband"  # 70 Gb/s, of experiments.papers.dasgd
  config.batches = (128, 32)  # examples per worker: of the example in the authors' code, and of its CIFAR-10 script
  config.cluster = "dasgd_v100_70g"  # the same machine, for the cheapest all-reduce that there is
  config.compared = "VGG-16"  # of the networks, whose exchange is set against it
  config.period = 4  # tau and d of that script
  config.delay = 1
  rows = {  # title: table, points of the map that the first dense layer takes whole
    "NiN": ("nin", 1),
    "AlexNet v2": ("alexnet_v2", 25),
    "OverFeat": ("overfeat", 36),
    "Inception v3": ("inception_v3", 1),
    "VGG-16": ("vgg16", 49),
  }
  config.networks = ml_collections.ConfigDict(rows, sort_keys=False)
  return config.lock()
