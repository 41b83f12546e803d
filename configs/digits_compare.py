"""The main comparison: eight algorithms on handwritten digits, eight workers, ten seeds, the same number of examples.

Das et al. 1602.06709 (sync SGD), Stich 1805.09767 (local SGD), Lin et al. 1808.07217 (post-local SGD), Zhou et al.
2006.00441 (DaSGD), Zhang et al. 1412.6651 and You et al. 1708.02983 (EASGD, EAMSGD).

  python run.py compare --config=configs/digits_compare.py

Expected: under a minute on two cores. All methods except independent workers, the control, reach 95 % with all seeds;
local SGD and DaSGD send about a tenth of the bytes of synchronous SGD.
"""

from ddl.config import base


def get_config():
  config = base()
  config.model.hidden = (64, 64)
  config.partition.name = "sharded"  # disjoint shards, one per worker
  config.workers = 8
  config.batch = 16
  config.steps = 400
  config.eval_every = 10
  config.optimizer.momentum = 0.9
  config.compare.title = "Handwritten digits on eight workers"
  config.compare.target = 0.95
  config.compare.seeds = tuple(range(10))  # with three, no pair of 28 is significant after Holm's correction
  # Each learning rate is the best of nine on a validation split: python run.py sweep --config=configs/digits_compare.py
  config.compare.algorithms = {
    "sync SGD": {"algorithm": {"name": "sync_sgd"}, "optimizer": {"learning_rate": 0.3162}},
    "local SGD": {"algorithm": {"name": "local_sgd", "period": 10}, "optimizer": {"learning_rate": 0.1334}},
    "post-local SGD": {
      "algorithm": {"name": "post_local_sgd", "period": 10, "start": 100},
      "optimizer": {"learning_rate": 0.1778},
    },
    "DaSGD": {
      "algorithm": {"name": "dasgd", "period": 10, "delay": 2, "keep": 0.25},
      "optimizer": {"learning_rate": 0.1778},
    },
    "EASGD": {"algorithm": {"name": "easgd", "period": 10}, "optimizer": {"learning_rate": 0.1}},
    "EAMSGD": {
      "algorithm": {"name": "eamsgd", "period": 10, "momentum": 0.9},
      "optimizer": {"learning_rate": 0.1334, "momentum": 0.0},
    },
    "round robin EASGD": {"algorithm": {"name": "round_robin_easgd"}, "optimizer": {"learning_rate": 0.1334}},
    "independent": {"algorithm": {"name": "independent"}, "optimizer": {"learning_rate": 0.01334}},
  }
  return config
