"""The collective algorithms published up to 2024 on handwritten digits, eight workers, the same number of examples.

docs/reference/algorithms.md lists their papers. Algorithms with a period exchange every ten steps, unless set below.
sharded_sync_sgd is omitted, because its results are those of sync_sgd. Later algorithms are in field_lm.py and
field_noniid.py.

  python run.py compare --config=configs/digits_field.py

Expected: two to four minutes on two cores. All except independent workers, the control, reach 95 %. SCAFFOLD does so
only with some seeds: at the learning rate that is best for one seed, it diverges with another.
"""

from ddl.config import base

P = {"period": 10}
ALGORITHMS = {  # name -> (learning rate of the optimizer, settings that differ from the defaults)
  "sync_sgd": (0.3162, {}),
  "pipe_sgd": (0.05623, {}),
  "local_sgd": (0.1334, P),
  "post_local_sgd": (0.1778, P | {"start": 100}),
  "adaptive_local_sgd": (0.1778, {"periods": ((0, 20), (200, 10), (300, 5))}),
  "hierarchical_sgd": (0.1778, {"group_size": 2, "period": 5, "outer_period": 20}),
  "fedavg": (0.1778, P | {"share": 0.5}),
  "scaffold": (0.3162, P | {"share": 0.5}),
  "dasgd": (0.1778, P | {"delay": 2, "keep": 0.25}),
  "cocod": (0.05623, P),
  "overlap_local_sgd": (0.1334, P),
  "slowmo": (0.1778, P),
  "bmuf": (0.01778, P),
  "diloco": (0.03162, P),
  "streaming_diloco": (0.1778, P | {"fragments": 2, "delay": 2}),
  "eager_diloco": (0.1778, P | {"outer_momentum": 0.0}),  # 0.9 diverges within forty rounds
  "noloco": (0.1, P),
  "easgd": (0.1, P),
  "eamsgd": (0.1334, P | {"momentum": 0.9}),
  "sma": (0.3162, P),
  "round_robin_easgd": (0.1334, {}),
  "d_psgd": (0.1778, {"graph": "exponential"}),
  "sgp": (0.3162, {}),
  "overlap_sgp": (0.1778, {}),
  "independent": (0.01334, {}),
}
NO_MOMENTUM = ("eamsgd", "sma", "scaffold")  # eamsgd and sma have momentum built in; SCAFFOLD is defined with plain SGD


def get_config():
  config = base()
  config.model.hidden = (64, 64)
  config.partition.name = "sharded"  # disjoint shards, one per worker
  config.workers = 8
  config.batch = 16
  config.steps = 400
  config.eval_every = 10
  config.compare.title = "Twenty-five algorithms on handwritten digits"
  config.compare.target = 0.95
  config.compare.seeds = tuple(range(5))
  # Each learning rate is the best of nine on a validation split: python run.py sweep --config=configs/digits_field.py
  config.compare.algorithms = {
    name: {
      "algorithm": {"name": name} | settings,
      "optimizer": {"learning_rate": rate, "momentum": 0.0 if name in NO_MOMENTUM else 0.9},
    }
    for name, (rate, settings) in ALGORITHMS.items()
  }
  return config
