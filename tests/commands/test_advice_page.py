"""docs/reference/advice.md: each of the ten commands recommends what the page says."""

import json
import re
import shlex

import pytest
from helpers.pages import ROOT

from ddl.perf.plan import HALF, IMAGES, SHOWN

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
  if recommended["setting"] == "bfloat16 gradients":  # is preferred if it has half of the best rate
    others = [x for x in record["speeds"] if x["algorithm"] in SHOWN and x["algorithm"] not in IMAGES]
    published = [x["rate"] for x in others if x["steps"] <= SHOWN[x["algorithm"]][0]]
    assert recommended["rate"] >= HALF * max(published, default=0)
  else:
    assert record["one_worker"] or recommended["efficiency"] > 0.5
