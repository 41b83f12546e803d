"""docs/reference/advice.md: each of the ten commands recommends what the page says."""

import json
import re
import shlex

import pytest
from helpers.commands import Command
from helpers.pages import ROOT

PAGE = (ROOT / "docs" / "reference" / "advice.md").read_text()
ROWS = re.findall(r"^\| [^|]+ \| `python run.py (plan [^`]+)` \| `([\w ]+)` \|", PAGE, re.MULTILINE)


def test_there_are_ten():
  assert len(ROWS) == 10 and len({command for command, _ in ROWS}) == 10


@pytest.mark.parametrize(("command", "answer"), ROWS, ids=[command.split("=", 1)[1] for command, _ in ROWS])
@pytest.mark.sampled(3)
def test_the_answer_is_the_plans(command, answer, tmp_path):
  done = Command(*shlex.split(command), f"--json={tmp_path / 'plan.json'}").end()
  assert done.code == 0, done.error
  if answer == "one worker":
    assert "Recommended: one worker." in done.out
    return
  record = json.loads((tmp_path / "plan.json").read_text())
  assert record["recommended"]["algorithm"] == answer
  assert record["recommended"]["efficiency"] > 0.9
