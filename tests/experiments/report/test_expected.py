"""Which of a paper's orderings came out: the verdicts of the report."""

import pytest

from experiments.report.comparison import Comparison
from experiments.report.expected import expected
from experiments.report.statistics import summary
from experiments.report.table_rows import Estimate, Row


def row(label, *seconds, grid=0.0, seeds=3):
  """An algorithm that met the target after so many seconds, one figure a seed, known up to `grid` seconds."""
  spans = {f"seed {number}": (value - grid, value) for number, value in enumerate(seconds)}
  costs = {"virtual_seconds": Estimate(*summary(seconds), spans)} if seconds else {}
  return Row(label, seeds, seeds, len(seconds), None, costs, False, [])


def comparison(*pairs, seeds=3):
  info = {"expected": [list(pair) for pair in pairs], "virtual": "steps of 10 ms", "seeds": list(range(seeds))}
  return Comparison(info, "test_accuracy", 0.95, True, "virtual_seconds", [], [])


TABLE = [
  row("a", 1.0, 1.1, 0.9), row("b", 2.0, 2.1, 2.0), row("c", 1.9, 2.2, 2.0), row("never"), row("some", 0.1, 0.1),
]  # fmt: skip


@pytest.mark.parametrize(
  "pair, verdict",
  [
    (("a", "b"), "a before b."),
    (("b", "a"), "the other way round: b before a."),
    (("c", "b"), "not told apart: c before b."),
    (("a", "never"), "a before never."),
    (("never", "a"), "the other way round: never before a."),
    (("some", "a"), "not told apart: some before a."),
    (("some", "never"), "not told apart: some before never."),
    (("a", "missing"), "not told apart: a before missing."),
  ],
)
def test_verdicts(pair, verdict):
  ((subject, text),) = expected(comparison(pair), TABLE)
  assert text == verdict and subject.startswith(f"{int(verdict[:7] in ('a befor',))} of 1 expected")


def test_the_seeds_are_paired():
  easy_and_hard = row("first", 1.0, 5.0, 3.0), row("second", 1.5, 7.7, 4.4)
  ((_, text),) = expected(comparison(("first", "second"), ("second", "first")), easy_and_hard)
  assert text == "first before second; the other way round: second before first."
  coarse = row("first", 1.0, 5.0, 3.0, grid=1.0), row("second", 1.5, 7.7, 4.4, grid=1.0)
  ((_, text),) = expected(comparison(("first", "second")), coarse)
  assert text == "not told apart: first before second."


def test_one_seed_is_said_to_be_one():
  alone = row("a", 1.0, seeds=1), row("b", 2.0, seeds=1)
  ((subject, text),) = expected(comparison(("a", "b"), seeds=1), alone)
  assert subject.endswith("came out in the one seed, which shows no spread") and text == "a before b."


def test_they_are_counted_and_silent_without_expectations():
  ((subject, text),) = expected(comparison(("a", "b"), ("b", "a"), ("a", "c")), TABLE)
  assert subject == "2 of 3 expected orderings in virtual seconds came out"
  assert text == "a before b and a before c; the other way round: b before a."
  assert expected(comparison(), TABLE) == []
