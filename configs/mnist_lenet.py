"""LeNet on MNIST from files on disk: a .npz (as in Keras) or the four idx files of the original distribution.

Model and data of You, Buluc and Demmel 2017, arXiv 1708.02983, who do not report learning rate and batch size.

  python run.py train --config=configs/mnist_lenet.py --config.data.path=mnist.npz
  python run.py compare --config=configs/mnist_lenet.py --config.data.name=idx --config.data.path=folder/
"""

from ddl.config import base


def get_config():
  config = base()
  config.data.name = "npz"
  config.model.name = "lenet"
  config.partition.name = "sharded"
  config.workers = 4
  config.batch = 32
  config.steps = 300
  config.eval_every = 50
  config.optimizer.momentum = 0.9
  config.optimizer.learning_rate = 0.02
  config.compare.title = "LeNet on MNIST, four workers"
  config.compare.target = 0.95
  config.compare.algorithms = {
    "sync SGD": {"algorithm": {"name": "sync_sgd"}},
    "local SGD": {"algorithm": {"name": "local_sgd", "period": 10}},
    "DaSGD": {"algorithm": {"name": "dasgd", "period": 10, "delay": 2, "keep": 0.25}},
    "EASGD": {"algorithm": {"name": "easgd", "period": 10}},
  }
  return config
