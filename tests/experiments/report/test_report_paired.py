"""Differences over paired seeds: what they tell apart, in the statistics and in the report."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from test_report import comparison, finding_of, rising, rows_of

from experiments.report import comparison, report, wording
from experiments.report.figures import line_data
from experiments.report.statistics import paired


def exact(values):
  return {f"seed {number}": (value, value) for number, value in enumerate(values)}


@pytest.mark.parametrize("size", [2, 3, 5, 20])
def test_the_interval_is_that_of_the_paired_t_test(size):
  rng = np.random.default_rng(size)
  first, second = rng.normal(3.0, 2.0, size), rng.normal(2.0, 1.0, size)
  found, wanted = paired(exact(first), exact(second)), stats.ttest_rel(first, second).confidence_interval(0.95)
  np.testing.assert_allclose((found.low, found.high), wanted, rtol=1e-12)
  np.testing.assert_allclose((found.mean - found.half, found.mean + found.half), wanted, rtol=1e-12)
  shuffled = dict(reversed(exact(second).items())) | {"seed 99": (1e9, 1e9)}
  assert paired(exact(first), shuffled) == found  # by the seeds' names, of those that both have


FIGURES = st.lists(st.tuples(st.floats(0, 100), st.floats(0, 100), st.floats(0, 5)), min_size=1, max_size=6)


@settings(deadline=None, max_examples=100)
@given(FIGURES)
def test_the_other_way_round_is_the_other_sign_and_brackets_only_widen(figures):
  a = {str(number): (value - gap, value) for number, (value, _, gap) in enumerate(figures)}
  b = {str(number): (value - gap, value) for number, (_, value, gap) in enumerate(figures)}
  found, back = paired(a, b), paired(b, a)
  assert found.sign == -back.sign and found.low <= found.mean <= found.high
  np.testing.assert_allclose((found.mean, found.low, found.high), (-back.mean, -back.high, -back.low), atol=1e-9)
  sharp = paired({n: (high, high) for n, (_, high) in a.items()}, {n: (high, high) for n, (_, high) in b.items()})
  assert found.low <= sharp.low + 1e-9 and sharp.high <= found.high + 1e-9 and found.sign in (0, sharp.sign)


def test_of_one_seed_and_of_none():
  one = paired(exact([2.0]), exact([1.0]))
  assert one == (1.0, None, 1.0, 1.0) and one.sign == 1
  assert paired(exact([1.0]), {"seed 7": (2.0, 2.0)}).sign == 0
  assert paired(exact([1.0, 2.0]), exact([1.0, 2.0])).sign == 0  # equal


def test_seeds_that_agree_tell_apart_what_intervals_do_not(tmp_path):
  easy, middle, hard = rising(0.1, 0.95, 0.96), rising(0.1, 0.2, 0.3, 0.95, 0.96), rising(*[0.1] * 6, 0.95, 0.96)
  late = [rising(0.1, 0.1, 0.1, *(line["test_accuracy"] for line in lines)) for lines in (easy, middle, hard)]
  folder = comparison(tmp_path, {"local_sgd": [easy, middle, hard], "easgd": late, "dasgd": late[::-1]})
  rows = rows_of(folder)
  means, halves = zip(*(rows[label].costs["step"][:2] for label in ("local_sgd", "easgd")), strict=True)
  assert means[1] - means[0] == 30 and halves[0] > 30  # each lies within the interval of the other
  marks = wording.marks(list(rows.values()), comparison.read(folder))
  assert marks["step"] == {"local_sgd": "best", "dasgd": "tied"}  # dasgd has the same figures for other seeds
  told = finding_of(folder)
  assert "Fewest examples to 95 %: not told apart are local_sgd (4,267 ± 8,002) and dasgd (8,107 ± 8,002)." in told


def test_those_that_are_not_told_apart_are_so_among_themselves(tmp_path):
  """The best mean spreads so much that nobody is told apart from it; but one of the others beats the other."""
  wide = [rising(*[0.1] * n, 0.95, 0.96) for n in (1, 2, 12)]
  near, far = ([rising(*[0.1] * n, 0.95, 0.96)] * 3 for n in (6, 8))
  told = finding_of(comparison(tmp_path, {"wide": wide, "near": near, "far": far}))
  assert "Fewest examples to 95 %: not told apart are wide (6,400 ± 19,341) and near (7,680 ± 0)." in told


def test_two_seeds_are_drawn_and_no_band(tmp_path):
  seeds = [rising(0.1, 0.5, 0.9), rising(0.1, 0.6, 0.94)]
  for count in (1, 2, 3):
    folder = comparison(tmp_path / str(count), {"easgd": (seeds + seeds)[:count]})
    (line,) = line_data.chart(comparison.read(folder), "examples", "test_accuracy").lines
    assert (line.band is not None, len(line.rest)) == (count == 3, 2 * (count == 2))
    text = report.write_report(folder).read_text()
    assert ("its two seeds" in text) == (count == 2) and ("over the seeds as a band" in text) == (count == 3)
    assert ("one seed shows no spread" in text) == (count == 1)


def test_a_log_axis_has_the_means_and_bands_of_the_logarithm(tmp_path):
  losses = ([2.0, 0.02], [2.0, 0.08], [2.0, 0.04])
  seeds = [rising(0.1, 0.5) for _ in losses]
  for seed, values in zip(seeds, losses, strict=True):
    for line, loss in zip(seed, values, strict=True):
      line["test_loss"] = loss
  chart = line_data.chart(comparison.read(comparison(tmp_path, {"easgd": seeds})), "examples", "test_loss")
  (line,) = chart.lines
  assert chart.log_y and "those of the logarithm" in chart.notes[0]
  np.testing.assert_allclose(line.mean, [2.0, 0.04])
  ratio = 2 ** (4.302652729911275 / math.sqrt(3))  # t(0.975, 2) s / sqrt(n) of the logarithms to base 2
  np.testing.assert_allclose([side[1] for side in line.band], [0.04 / ratio, 0.04 * ratio])


def test_costs_are_told_apart_by_their_ratio():
  """Each seed takes ten times the bytes with the second; how long a seed takes spreads more than that."""
  first, second = exact([1.0, 9.0, 3.0]), exact([10.0, 80.0, 33.0])
  assert paired(first, second).sign == 0 and paired(first, second, ratio=True).sign == -1
  assert paired(second, first, ratio=True).sign == 1
  assert paired(first, second, ratio=True)[:2] == paired(first, second)[:2]  # what is told stays in the cost's unit
  assert paired(exact([0.0, 9.0]), exact([10.0, 80.0]), ratio=True) == paired(exact([0.0, 9.0]), exact([10.0, 80.0]))
