"""Workers that fail and rejoin: the others continue without them (elastic training), or wait.

Eight workers train on handwritten digits. Each fails on average once in four hundred steps and restarts a second later;
a round of four steps takes 40 ms. Algorithms: local SGD (Stich 1805.09767), DaSGD (Zhou et al. 2006.00441), EASGD
(Zhang et al. 1412.6651).

  python run.py compare --config=configs/churn_digits.py

Expected: the same accuracy; elastic training reaches the target in a fraction of the virtual seconds.
"""

from ddl.config import base

ALGORITHMS = {
  "local SGD": {"algorithm": {"name": "local_sgd", "period": 4}, "optimizer": {"learning_rate": 0.1}},
  "DaSGD": {"algorithm": {"name": "dasgd", "period": 4, "delay": 2, "keep": 0.25}, "optimizer": {"learning_rate": 0.1}},
  "EASGD": {"algorithm": {"name": "easgd", "period": 4}, "optimizer": {"learning_rate": 0.1}},
}


def get_config():
  config = base()
  config.partition.name = "sharded"
  config.batch = 16
  config.steps = 400
  config.eval_every = 20
  config.optimizer.momentum = 0.9
  config.times.death_rate = 0.0025
  config.times.down_seconds = 1.0
  config.network.exchange_seconds = 0.01
  config.compare.title = "Eight workers that fail and rejoin"
  config.compare.target = 0.95
  config.compare.algorithms = {
    f"{label}{', elastic' * elastic}": {"elastic": elastic, **settings}
    for label, settings in ALGORITHMS.items()
    for elastic in (False, True)
  }
  return config
