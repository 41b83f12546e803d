"""The comparison of You, Buluc and Demmel 2017 (arXiv 1708.02983) with LeNet, in virtual time.

It covers Original EASGD, the asynchronous and lock-free methods, and Sync EASGD 1 to 3, which are one algorithm on
three networks: through the host (1), between devices (2), and overlapped with the steps (3). As in the paper,
every step is followed by an exchange. The paper does not report learning rates, batch sizes and step times; here
a message takes 0.4 times as long as a step.

  python run.py compare --config=configs/sc17_lenet.py
  python run.py compare --config=configs/sc17_lenet.py --config.data.name=npz --config.data.path=mnist.npz
  python run.py compare --config=configs/sc17_lenet.py --config.data.name=tfds --config.data.dataset=mnist

The first command uses scikit-learn's digits. Expected: a few minutes on two cores; the report shows which orderings of
the paper are reproduced.
"""

from ddl.config import base

STEP, MESSAGE = 0.01, 0.004  # seconds


def get_config():
  config = base()
  config.model.name = "lenet"
  config.workers = 8
  config.batch = 16
  config.steps = 300
  config.eval_every = 10
  config.optimizer.learning_rate = 0.05
  config.times.seconds = STEP
  config.times.jitter = 0.1
  config.network.message_seconds = MESSAGE
  config.network.service_seconds = 0.0005
  config.compare.title = "The methods of SC17 with LeNet, in virtual time"
  config.compare.target = 0.95

  def server(name, rate, **network):
    return {"algorithm": {"name": name}, "optimizer": {"learning_rate": rate}, "network": network}

  def sync(exchange, overlap):
    return {
      "algorithm": {"name": "easgd", "period": 1},
      "optimizer": {"learning_rate": 0.3162},
      "network": {"exchange_seconds": exchange, "overlap": overlap},
    }

  tree = 2 * 3 * MESSAGE  # log2(8) levels to the root and back
  # Each learning rate is the best of six from 0.01 to 1 (Async MSGD: 0.0003 to 0.03) on a validation split:
  # python run.py sweep --config=configs/sc17_lenet.py --config.sweep.trials=6 --config.steps=150
  config.compare.algorithms = {
    "Original EASGD": server("original_easgd", 0.3162),
    "Async SGD": server("async_sgd", 0.05623),
    "Async MSGD": server("async_msgd", 0.005335),
    "Hogwild SGD": server("hogwild_sgd", 0.05623),
    "Async EASGD": server("async_easgd", 0.3162),
    "Async MEASGD": server("async_measgd", 0.1),
    "Hogwild EASGD": server("hogwild_easgd", 0.3162),
    "Sync EASGD 1": sync(tree, overlap=False),
    "Sync EASGD 2": sync(tree / 2, overlap=False),
    "Sync EASGD 3": sync(tree / 2, overlap=True),
  }
  config.compare.expected = (
    ("Sync EASGD 1", "Original EASGD"),
    ("Sync EASGD 2", "Sync EASGD 1"),
    ("Sync EASGD 3", "Sync EASGD 2"),
    ("Async EASGD", "Async SGD"),
    ("Async MEASGD", "Async MSGD"),
    ("Hogwild EASGD", "Hogwild SGD"),
    ("Sync EASGD 3", "Async EASGD"),
    ("Hogwild EASGD", "Async EASGD"),
  )
  return config
