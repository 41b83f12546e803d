"""Which of a paper's orderings came out: the verdicts of the report."""

import pytest

from experiments.report_data import Comparison
from experiments.report_expected import expected
from experiments.report_rows import Estimate, Row


def row(label, seconds, half, reached=3):
  costs = {"virtual_seconds": Estimate(seconds, half, seconds - half, seconds + half)} if reached else {}
  return Row(label, 3, 3, reached, None, costs, False, [])


def comparison(*pairs):
  info = {"expected": [list(pair) for pair in pairs], "virtual": "steps of 10 ms"}
  return Comparison(info, "test_accuracy", 0.95, True, "virtual_seconds", [])


TABLE = [row("a", 1.0, 0.1), row("b", 2.0, 0.1), row("c", 1.9, 0.2), row("never", 0, 0, reached=0)]


@pytest.mark.parametrize(
  "pair, verdict",
  [
    (("a", "b"), "a before b came out."),
    (("b", "a"), "b before a came out the other way round."),
    (("c", "b"), "c before b can't be told apart."),
    (("a", "never"), "a before never came out."),
    (("never", "a"), "never before a came out the other way round."),
    (("a", "missing"), "a before missing can't be told apart."),
  ],
)
def test_verdicts(pair, verdict):
  assert [text for _, text in expected(comparison(pair), TABLE)] == [verdict]


def test_they_are_counted_and_silent_without_expectations():
  ((subject, text),) = expected(comparison(("a", "b"), ("b", "a"), ("a", "c")), TABLE)
  assert subject.startswith("2 of 3 expected orderings")
  assert "a before b and a before c came out" in text
  assert expected(comparison(), TABLE) == []
