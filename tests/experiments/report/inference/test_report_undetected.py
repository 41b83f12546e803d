"""What few seeds cannot show: the difference that a test would have found, and the pair that is nearest to it."""

import numpy as np
import pytest
from helpers.comparisons import comparison, finding_of, rising
from helpers.grids import grid

from ddl.report import grid_page, reader, undetected
from ddl.report import table as table_rows
from ddl.report.paired_test import LEVEL, POWER, detectable, power


@pytest.mark.parametrize("seeds, pairs", [(3, 1), (3, 60), (5, 28), (10, 28), (100, 3)])
def test_the_detectable_difference_has_the_power_that_is_claimed(seeds, pairs):
  size = detectable(seeds, LEVEL / pairs)
  assert power(size, seeds, LEVEL / pairs) == pytest.approx(POWER, abs=2e-3)
  assert power(0.9 * size, seeds, LEVEL / pairs) < POWER - 0.01


@pytest.mark.parametrize("seeds, pairs", [(2, 3), (3, 60), (5, 28)])
def test_it_is_found_as_often_in_drawn_samples(seeds, pairs):
  """Also of two seeds, where Student's t has its widest tails."""
  from scipy import stats

  drawn = np.random.default_rng(0).normal(detectable(seeds, LEVEL / pairs), 1.0, (20_000, seeds))
  found = stats.ttest_1samp(drawn, 0.0, axis=1).pvalue < LEVEL / pairs
  assert found.mean() == pytest.approx(POWER, abs=0.012)


def noisy(seed, number):
  return rising(0.1, 0.5 + 0.001 * number, 0.96 + 0.002 * ((seed * 7 + number * 3) % 5))


def test_few_seeds_and_many_pairs_say_what_they_could_not_show(tmp_path):
  labels = [f"a{number}" for number in range(8)]
  runs = {label: [noisy(seed, number) for seed in range(3)] for number, label in enumerate(labels)}
  folder = comparison(tmp_path, runs)
  told = finding_of(folder)["What 3 seeds can show"]
  assert "28 pairs" in told and f"{detectable(3, LEVEL / 28):.2g} times" in told
  found = reader.read(folder)
  family = table_rows.pairs(table_rows.rows(found), "test_accuracy")
  if least := [pair.more_seeds for pair in family.values() if pair.more_seeds]:
    assert "more seed" in told and int(told.partition("; ")[2].split()[0]) <= min(least)


def test_nothing_is_told_where_all_pairs_are_separate_or_one_seed_tests_none(tmp_path):
  runs = {"easgd": [rising(0.1, 0.5 + 0.01 * n, 0.96) for n in range(3)], "dasgd": [rising(0.1, 0.2, 0.99)] * 3}
  assert (
    undetected.sentence(*_of(comparison(tmp_path / "one", {label: each[:1] for label, each in runs.items()}))) is None
  )
  alone = comparison(tmp_path / "alone", {"easgd": runs["easgd"]})
  assert undetected.sentence(*_of(alone)) is None


def _of(folder):
  found = reader.read(folder)
  return found, table_rows.rows(found)


def test_a_grid_says_it_too(tmp_path):
  loss = lambda group, point, seed: 0.01 * (1 + 0.1 * ((seed * 5 + point["workers"]) % 3))  # noqa: E731
  found, table = _of(grid(tmp_path, {"workers": (2, 4, 8)}, loss, seeds=3))
  assert "What 3 seeds can show" in dict(grid_page.finding(found, table))
