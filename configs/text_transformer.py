"""A small decoder-only byte-level language model; without a path it trains on CPython's language reference.

python run.py train --config=configs/text_transformer.py --config.algorithm.name=dasgd
python run.py train --config=configs/text_transformer.py --config.data.path=corpus.txt --config.data.level=char
"""

from ddl.config import base


def get_config():
  config = base()
  config.data.name = "text"
  config.data.length = 64
  config.model.name = "transformer"
  config.model.layers = 2
  config.model.width = 128
  config.model.heads = 4
  config.partition.name = "sharded"
  config.workers = 4
  config.batch = 8
  config.steps = 400
  config.eval_every = 100
  config.optimizer.name = "adamw"
  config.optimizer.learning_rate = 1e-3
  config.schedule.name = "cosine"
  config.schedule.warmup = 40
  return config
