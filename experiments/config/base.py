"""The config that every experiment starts from: all keys, which a config file and `--config.key=value` edit."""

from dataclasses import fields
from typing import Any

import ml_collections
from ml_collections import config_dict

from ddl.algorithms import WRAPPERS
from ddl.data import DATA
from ddl.data.partition import PARTITIONS
from ddl.events.barriers import BARRIERS
from ddl.events.times import TIMES
from ddl.models import MODELS
from experiments.config.experiment import ALGORITHMS, NO_WRAPPER, PARTS, Experiment, Network
from experiments.config.factories import Config, section
from experiments.config.optimizers import OPTIMIZERS, SCHEDULES

SECTIONS = (*PARTS, "algorithm", "wrapper", "network", "compare", "sweep")


def base() -> Config:
  """All keys of an experiment with their defaults; a config file sets what differs. Unset keys are None."""
  config: Config = ml_collections.ConfigDict()
  config.algorithm = section("sync_sgd", [spec.factory for spec in ALGORITHMS.values()])
  config.wrapper = section(NO_WRAPPER, [spec.factory for spec in WRAPPERS.values()])  # compresses messages
  config.model = section("mlp", MODELS.values())
  config.data = section("digits", DATA.values())
  config.partition = section("iid", PARTITIONS.values())
  config.optimizer = section("sgd", OPTIMIZERS.values())
  config.optimizer.learning_rate = 0.1
  config.schedule = section("constant", SCHEDULES.values())
  config.times = section("lognormal", TIMES.values())  # of steps, in virtual time
  config.barrier = section("asp", BARRIERS.values())  # of server algorithms
  config.network = ml_collections.ConfigDict(
    {f.name: config_dict.placeholder(float) if f.default is None else f.default for f in fields(Network)}
  )
  config.workers = 8  # p
  config.batch = 32  # examples per worker and step
  config.steps = 200  # of each worker; with a server or peers on average
  config.eval_every = 50  # steps between lines of metrics
  config.seed = 0  # initial parameters, order of the examples, dropout
  config.compare = ml_collections.ConfigDict(
    {
      "title": "",
      "seeds": (0, 1, 2),
      "target": 0.95,  # of the test accuracy, or of the test loss where there is no accuracy
      "expected": (),  # pairs of labels, the first of which a paper found to be sooner at the target
      "algorithms": ml_collections.ConfigDict(),  # label -> what differs, e.g. {"algorithm": {"name": "dasgd"}}
    }
  )
  config.sweep = ml_collections.ConfigDict(
    {
      "trials": 9,  # per algorithm
      "validation": 0.2,  # share of the training examples, where the data section sets none
      "learning_rate": (0.01, 1.0),  # bounds of a logarithmic scale
      "space": ml_collections.ConfigDict(),  # algorithm label -> {key of config.algorithm: (low, high)}
    }
  )
  return config.lock()


def default_experiment(**changes: Any) -> Experiment:
  """The experiment of `base()` with other values: workers=4, model={"name": "lenet"}, ..."""
  values = base().to_dict()
  for key, change in changes.items():
    values[key] = values[key] | change if isinstance(values[key], dict) else change
  experiment = Experiment.from_json(values)
  experiment.make_algorithm()
  return experiment
