"""What `compare` says on its way: once, and of each label."""

import json

import pytest
from helpers.commands import Command

CONFIG = """
from experiments.config import base

def get_config():
  config = base()
  config.model.hidden = (4,)
  config.optimizer.momentum = 0.9
  config.workers, config.batch, config.steps, config.eval_every = 2, 4, 2, 2
  config.compare.seeds, config.compare.target = (0, 1, 2), 0.5
  config.compare.algorithms = {
    "slow, heavy": {"algorithm": {"name": "sma", "period": 1}},
    "sync": {"algorithm": "sync_sgd"},
    "few": {"algorithm": {"name": "local_sgd", "period": 1}, "wrapper": {"name": "topk"}},
    "tuned": {"algorithm": {"name": "local_sgd", "period": 1}},
  }
  return config
"""


@pytest.mark.slow
def test_a_warning_once_per_label_and_what_a_sweep_did_not_tune(tmp_path):
  (tmp_path / "config.py").write_text(CONFIG)
  best = {"tuned": {"best": {"optimizer": {"learning_rate": 0.03}}, "trials": []}}
  (tmp_path / "tuned.json").write_text(json.dumps({"algorithms": best}))
  done = Command(
    "compare", f"--config={tmp_path}/config.py", f"--tuned={tmp_path}/tuned.json", f"--workdir={tmp_path}/c"
  ).end()
  assert done.code == 0, done.error
  assert done.error.count("config.optimizer.momentum adds a second one") == 1, done.error
  assert done.error.count("topk is made for gradients") == 1, done.error
  (told,) = [line for line in done.out.splitlines() if "sets nothing for" in line]
  assert '"slow, heavy", sync and few:' in told and "tuned.json" in told.partition("sets")[0]
