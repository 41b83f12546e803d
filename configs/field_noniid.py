"""Gossip and federated methods on workers with different data: digits with Dirichlet label skew, eight workers.

Gossip on a ring: Lian et al. 1705.09056 (D-PSGD), Pu and Nedic 1803.07741 (gradient tracking), Yuan et al. 1702.05122
(exact diffusion), Lin et al. 2102.04761 (quasi-global momentum), Koloskova et al. 1902.00340 (CHOCO-SGD), Chen et al.
2105.09080 (Gossip-PGA); on the one-peer exponential graph: Assran et al. 1811.10792 (SGP); on a binary tree: Vogels et
al. 2110.04175 (RelaySGD). Federated: McMahan et al. 1602.05629 (FedAvg), Reddi et al. 2003.00295 (FedAdam), Li et al.
1812.06127 (FedProx), Karimireddy et al. 1910.06378 (SCAFFOLD). FedNova is omitted, because it is FedAvg if all workers
take the same number of steps. The shards are drawn as in Hsu et al. 1909.06335; each seed has its own.

  python run.py compare --config=configs/field_noniid.py

Expected: about a minute on two cores. All except independent workers, the control, reach 90 %; FedAvg and FedAdam do so
with four of five seeds. Exact diffusion and gradient tracking need about as many steps as synchronous SGD.
"""

from ddl.config import base

RING, ROUNDS = {"graph": "ring"}, {"period": 10}
ALGORITHMS = {  # name -> (learning rate of the optimizer, settings that differ from the defaults)
  "sync_sgd": (0.1334, {}),
  "local_sgd": (0.1, ROUNDS),
  "fedavg": (0.05623, ROUNDS),
  "fedadam": (0.1778, ROUNDS),
  "fedprox": (0.1778, ROUNDS),
  "scaffold": (0.1334, ROUNDS),
  "d_psgd": (0.3162, RING),
  "sgp": (0.3162, {}),
  "gradient_tracking": (0.1, RING),
  "exact_diffusion": (0.1, RING),
  "quasi_global_momentum": (0.03162, RING),
  "choco_sgd": (0.1778, RING),
  "relay_sgd": (0.1778, {"tree": "binary_tree"}),
  "gossip_pga": (0.1334, RING),
  "independent": (0.1, {}),
}
NO_MOMENTUM = ("quasi_global_momentum", "scaffold")  # the first has its own; SCAFFOLD is defined with plain SGD


def get_config():
  config = base()
  config.model.hidden = (64, 64)
  config.partition.name = "dirichlet"
  config.partition.concentration = 0.1
  config.partition.repeat = True  # some shards are smaller than a batch
  config.workers = 8
  config.batch = 16
  config.steps = 400
  config.eval_every = 20
  config.compare.title = "Workers with different classes of digits"
  config.compare.target = 0.9
  config.compare.seeds = tuple(range(5))
  # Each learning rate is the best of nine, by the mean of three seeds on a validation split:
  # python run.py sweep --config=configs/field_noniid.py
  config.sweep.seeds = (0, 1, 2)
  config.compare.algorithms = {
    name: {
      "algorithm": {"name": name} | settings,
      "optimizer": {"learning_rate": rate, "momentum": 0.0 if name in NO_MOMENTUM else 0.9},
    }
    for name, (rate, settings) in ALGORITHMS.items()
  }
  return config
