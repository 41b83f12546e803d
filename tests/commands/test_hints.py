"""Error messages that suggest the flag, key or name that was probably meant."""

import pytest

CUSTOM = """
from ddl import COLLECTIVE
from ddl.api import Spec
SPEC = COLLECTIVE["local_sgd"]
def net(meta):
  return None
"""

DOTTED = """from ddl.config import base
def get_config():
  config = base()
  config.compare.algorithms = {"lr 0.1": {"algorithm": "sync_sgd"}}
"""


@pytest.mark.parametrize(
  ("arguments", "words"),
  [
    (("--steps=10",), ("--config.steps=10",)),
    (("--steps", "10"), ("--config.steps=VALUE",)),
    (("--learning_rate=0.1",), ("--config.optimizer.learning_rate=0.1",)),
    (("--fragments=4",), ("--config.algorithm.fragments=4",)),
    (("--devises=2",), ("devices",)),
    (
      ("--config.algorithm.name={custom}:SPEK",),
      (
        "SPEC, net",
        "got {custom}:SPEK. Did you mean 'SPEC'?",
      ),
    ),
    (
      ("--config.algorithm.name={custom}:mine",),
      (
        "SPEC, net",
        "got {custom}:mine",
      ),
    ),
    (
      ("--config.model.name={custom}:met", "--config.model.hidden=None"),
      (
        "SPEC, net",
        "got {custom}:met. Did you mean 'net'?",
      ),
    ),
    (("--config={custom}",), ("get_config in {custom}", "ddl.config.base()")),
    (("--config={broken}",), ("{broken}, line 3: AttributeError",)),
    (("--config={dotted}",), ("{dotted}, line 4: ", "dots", "lr 0.1")),
  ],
)
def test_a_hint(wrong, tmp_path, arguments, words):
  files = {name: tmp_path / f"{name}.py" for name in ("custom", "broken", "dotted")}
  files["custom"].write_text(CUSTOM)
  files["broken"].write_text("import math\ndef get_config():\n  return math.get_config()\n")
  files["dotted"].write_text(DOTTED)
  reported = wrong(
    ["--config=configs/digits.py", *(argument.format(**files) for argument in arguments)],
    *(word.format(**files) for word in words),
  )
  assert "Optimizer" not in reported and "'Spec'" not in reported
