"""Published throughput of synchronous training on several devices, compared with predictions from the fewest devices.

  python run.py reproduce

The runs are in experiments/papers/published_scaling.csv. Nothing is fitted: the throughput with the fewest devices is
an input, and the costs of all-reduces are those of ddl/perf/libraries.toml. Expected: a median error under 15 %. It
takes a few seconds.
"""

import ml_collections


def get_config():
  config = ml_collections.ConfigDict()
  config.bucket = 25e6  # bytes of gradients per message, as in PyTorch's DDP
  config.ethernet = 50e-6  # latency (s) between nodes on EC2: assumed
  config.rounds = 5  # fixed-point iterations for the step time, if the first point has exchanges
  config.hard = 0.95  # points below this efficiency form the harder set
  config.pieces = 24  # equal layers for a network without a layer table
  return config.lock()
