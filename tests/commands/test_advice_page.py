"""docs/reference/advice.md: each of the ten commands recommends what the page says."""

import json
import re
import shlex

import pytest
from helpers.pages import ROOT

PAGE = (ROOT / "docs" / "reference" / "advice.md").read_text()
ROWS = re.findall(r"^\| [^|]+ \| `python run.py (plan [^`]+)` \| `([\w ]+)` \|", PAGE, re.MULTILINE)


def test_there_are_ten():
  assert len(ROWS) == 10 and len({command for command, _ in ROWS}) == 10


@pytest.mark.parametrize(("command", "answer"), ROWS, ids=[command.split("=", 1)[1] for command, _ in ROWS])
@pytest.mark.sampled(3)
def test_the_recommendation_is_the_answer_of_the_page(call, command, answer, tmp_path):
  code, _, error = call(*shlex.split(command), f"--json={tmp_path / 'plan.json'}")
  assert code == 0, error
  record = json.loads((tmp_path / "plan.json").read_text())
  recommended = record["recommended"]
  assert ("one worker" if record["one_worker"] else recommended["algorithm"]) == answer
  assert record["one_worker"] or recommended["efficiency"] > 0.4
