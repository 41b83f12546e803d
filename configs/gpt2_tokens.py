"""GPT-2 124M on token files: DiLoCo, DaSGD, and synchronous AdamW as in nanoGPT, on the same number of examples.

nanoGPT's recipe (github.com/karpathy/nanoGPT, config/train_gpt2.py): 480 sequences of 1,024 tokens per step (here 60
per worker, in 5 microbatches of 12, with 8 workers), 600,000 steps; AdamW with betas 0.9 and 0.95, weight decay 0.1 for
matrices and embeddings, but not for biases and norms, gradients clipped to norm 1; learning rate 6e-4 after 2,000 steps
of warm-up, then cosine decay to a tenth. DiLoCo (Douillard et al. 2023, arXiv 2311.08105): an outer step every 500
steps, with Nesterov momentum 0.9 and learning rate 0.7; inner learning rate 4e-4. DaSGD (Zhou et al. 2020, arXiv
2006.00441): the paper has no settings for language models; period, delay and keep are a starting point for a sweep.

  python run.py tokenize --text=corpus.txt --out=tokens --level=bpe --vocabulary=4096
  python run.py compare --config=configs/gpt2_tokens.py --config.data.path=tokens

Requires GPUs. For a folder written by nanoGPT's data/openwebtext/prepare.py, also pass --config.data.vocabulary=50257.
"""

from ddl.config import base


def get_config():
  config = base()
  config.data.name = "tokens"
  config.data.length = 1024
  config.data.test_windows = 1024
  config.model.name = "gpt2"
  config.partition.name = "sharded"
  config.precision = "bfloat16"
  config.workers = 8
  config.batch = 60
  config.microbatches = 5
  config.steps = 600_000
  config.eval_every = 1000  # a multiple of DiLoCo's period, so that evaluation follows an outer step
  config.optimizer.name = "adamw"
  config.optimizer.learning_rate = 6e-4
  config.optimizer.b1 = 0.9
  config.optimizer.b2 = 0.95
  config.optimizer.weight_decay = 0.1  # applies to parameters with two axes or more
  config.optimizer.clip_norm = 1.0
  config.schedule.name = "cosine"
  config.schedule.warmup = 2000
  config.schedule.floor = 0.1
  config.compare.title = "GPT-2 on token files"
  config.compare.metric = "perplexity"
  config.compare.target = 30.0
  config.compare.seeds = (0,)
  config.compare.algorithms = {
    "sync AdamW": {"algorithm": {"name": "sync_sgd"}},
    "DiLoCo": {
      "algorithm": {"name": "diloco", "period": 500, "outer_learning_rate": 0.7, "outer_momentum": 0.9},
      "optimizer": {"learning_rate": 4e-4},
    },
    "DaSGD": {"algorithm": {"name": "dasgd", "period": 8, "delay": 2, "keep": 0.25}},
  }
  return config
