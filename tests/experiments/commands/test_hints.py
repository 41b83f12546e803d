"""What almost fits: the line that refuses it names what would."""

import pytest

OWN = """
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
    (("--config.algorithm.name={own}:SPEK",), ("has no SPEK; did you mean 'SPEC'? it has SPEC, net",)),
    (("--config.algorithm.name={own}:mine",), ("it has SPEC, net",)),
    (("--config.model.name={own}:met", "--config.model.hidden=None"), ("did you mean 'net'? it has net",)),
    (("--config={own}",), ("{own} has no get_config(): ", "ddl.config.base()")),
    (("--config={broken}",), ("{broken}, line 3: AttributeError",)),
    (("--config={dotted}",), ("{dotted}, line 4: the label 'lr 0.1' has a dot",)),
  ],
)
def test_a_hint(wrong, tmp_path, arguments, words):
  files = {name: tmp_path / f"{name}.py" for name in ("own", "broken", "dotted")}
  files["own"].write_text(OWN)
  files["broken"].write_text("import math\ndef get_config():\n  return math.get_config()\n")
  files["dotted"].write_text(DOTTED)
  told = wrong(
    ["--config=configs/digits.py", *(each.format(**files) for each in arguments)],
    *(word.format(**files) for word in words),
  )
  assert "Optimizer" not in told and "'Spec'" not in told
