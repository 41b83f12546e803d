"""Small experiments on clusters."""

from ddl.config import default_experiment
from ddl.costs import cluster_clock
from ddl.costs.cluster_clock import pattern_of, vector
from ddl.perf.cluster_file import named
from ddl.perf.scaling import work_of

FLOP, NBYTES = 1e9, 4e6  # per example; of the parameters
WORK = work_of(FLOP, NBYTES)
COLLECTIVE = [("sync_sgd", 1, None), ("local_sgd", 4, None), ("dasgd", 4, 2), ("easgd", 2, None)]


def config_of(name, workers=4, steps=40, **settings):
  algorithm = {"name": name} | {key: value for key, value in settings.items() if value is not None}
  return default_experiment(algorithm=algorithm, workers=workers, steps=steps, times={"name": "constant"})


def on(config, cluster, flop=FLOP):
  """Return a run on a cluster, and its algorithm."""
  algorithm = config.make_algorithm()
  pattern = pattern_of(algorithm, vector(NBYTES), config.workers)
  return cluster_clock.on(config, pattern, cluster, work_of(flop, NBYTES)), algorithm


def run_on(name, cluster, workers=4, steps=40, **settings):
  """Return a run on a cluster, and its algorithm, from their names."""
  return on(config_of(name, workers, steps, **settings), named(cluster))
