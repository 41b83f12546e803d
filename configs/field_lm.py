"""Twelve low-communication methods and synchronous SGD on a byte-level language model, four workers.

Exchange every step: Liu et al. 2404.00438 (Distributed Lion), Ahn et al. 2504.05295 (Dion). Exchange every ten steps:
local SGD with AdamW, Zhou et al. 2006.00441 (DaSGD), Douillard et al. 2311.08105 (DiLoCo) and 2501.18512 (Streaming
DiLoCo), Therien et al. 2505.23725 (MuLoCo), Kolehmainen et al. 2506.10911 (NoLoCo), Cheng et al. 2412.07210 (EDiT),
Iacob et al. 2505.22549 (DES-LOC), Sarfi et al. 2508.15706 (SparseLoCo). Exchange every five steps or more, depending on
the learning rate: local SGD with AdamW and the periods of Gu et al. 2310.14423 (QSR). The text is the language
reference that Python ships, or a file of tokens or text (config.data.name, config.data.path).
docs/reference/low_communication.md reports the results.

  python run.py compare --config=configs/field_lm.py \
      --cluster=configs/clusters/rtx4090_10g.toml,configs/clusters/rtx4090_1g.toml,configs/clusters/volunteers_100m.toml
"""

from ddl.config import base

ROUNDS = {"period": 10}
ADAMW = {"name": "adamw", "b2": 0.99, "weight_decay": 0.01}
ALGORITHMS = {  # label -> (learning rate, algorithm, optimizer, other sections)
  "sync SGD": (7.499e-3, {"name": "sync_sgd"}, ADAMW, {}),
  "Distributed Lion": (3.162e-3, {"name": "distributed_lion"}, {"name": "sgd"}, {}),
  "Dion": (1.778e-2, {"name": "dion"}, {"name": "sgd_adamw"}, {}),
  "local AdamW": (7.499e-3, {"name": "local_sgd"} | ROUNDS, ADAMW, {}),
  "QSR": (7.499e-3, {"name": "local_sgd", "period": 5}, ADAMW, {"period_schedule": {"name": "qsr", "alpha": 0.006}}),
  "DaSGD": (7.499e-3, {"name": "dasgd", "delay": 2} | ROUNDS, ADAMW, {}),
  "DiLoCo": (3.162e-3, {"name": "diloco"} | ROUNDS, ADAMW, {}),
  "Streaming DiLoCo": (7.499e-3, {"name": "streaming_diloco", "fragments": 2, "delay": 2} | ROUNDS, ADAMW, {}),
  "MuLoCo": (1.778e-2, {"name": "muloco"} | ROUNDS, {"name": "muon"}, {}),
  "NoLoCo": (7.499e-3, {"name": "noloco"} | ROUNDS, ADAMW, {}),
  "EDiT": (3.162e-3, {"name": "edit"} | ROUNDS, ADAMW, {}),
  "DES-LOC": (7.499e-3, {"name": "des_loc"} | ROUNDS, ADAMW, {}),
  "SparseLoCo": (3.162e-3, {"name": "sparseloco"} | ROUNDS, ADAMW, {}),
}


def get_config():
  config = base()
  config.data.name = "text"
  config.data.length = 64
  config.model.name = "transformer"
  config.model.layers = 2
  config.model.width = 64
  config.model.heads = 4
  config.partition.name = "sharded"
  config.workers = 4
  config.batch = 8
  config.steps = 400
  config.eval_every = 40
  config.schedule.name = "cosine"
  config.schedule.warmup = 40
  config.compare.title = "Low-communication methods on a byte-level language model"
  config.compare.metric = "loss"
  config.compare.target = 2.4
  config.compare.seeds = tuple(range(5))
  # Each learning rate is the best of seven on a validation split: python run.py sweep --config=configs/field_lm.py
  config.sweep.learning_rate = (1e-4, 0.1)
  config.sweep.trials = 7
  config.compare.algorithms = {
    label: {"algorithm": algorithm, "optimizer": optimizer | {"learning_rate": rate}} | sections
    for label, (rate, algorithm, optimizer, sections) in ALGORITHMS.items()
  }
  return config
