"""Conditions under which DaSGD hides its exchange (Zhou et al. 2020, arXiv 2006.00441), by the authors' cost model.

  python run.py reproduce

Expected: a delay of 1 to 10 steps, depending on network and batch, hides the exchange; a delay of 1 is sufficient in
four of ten cases. Takes less than a second.
"""

import ml_collections


def get_config():
  config = ml_collections.ConfigDict()
  config.workers = 256
  config.bandwidth = "infiniband"  # 70 Gb/s, see experiments.papers.dasgd
  config.batches = (128, 32)  # examples per worker, from the example and from the CIFAR-10 script of the authors' code
  config.cluster = "dasgd_v100_70g"  # the same machine, for the cheapest all-reduce
  config.compared = "VGG-16"  # network for the comparison with the cheapest all-reduce
  config.period = 4  # tau and d of the CIFAR-10 script
  config.delay = 1
  rows = {  # title: table, spatial positions that the first dense layer flattens
    "NiN": ("nin", 1),
    "AlexNet v2": ("alexnet_v2", 25),
    "OverFeat": ("overfeat", 36),
    "Inception v3": ("inception_v3", 1),
    "VGG-16": ("vgg16", 49),
  }
  config.networks = ml_collections.ConfigDict(rows, sort_keys=False)
  return config.lock()
