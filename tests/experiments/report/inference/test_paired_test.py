"""The paired test of all pairs of labels, Holm's correction, the effect size and the seeds that a difference needs."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from ddl.report.paired_test import MOST, hedges_gz, holm, more_seeds, paired_tests, power, share_resolution


def seeds(values):
  return {f"seed {number}": float(value) for number, value in enumerate(values)}


def pair(first, second, ratio=False):
  """Of two labels alone, which need no correction."""
  return paired_tests({"a": seeds(first), "b": seeds(second)}, ratio)["a", "b"]


@pytest.mark.parametrize("size", [2, 3, 5, 20])
def test_the_test_is_scipys_of_the_figures_or_of_their_logarithms(size):
  rng = np.random.default_rng(size)
  first, second = rng.normal(3.0, 2.0, size), rng.normal(2.0, 1.0, size)
  found, wanted = pair(first, second), stats.ttest_rel(first, second)
  np.testing.assert_allclose(found.interval, wanted.confidence_interval(0.95), rtol=1e-10)
  np.testing.assert_allclose((found.mean, found.p, found.p_holm), (np.mean(first - second), *[wanted.pvalue] * 2))
  assert found.seeds == size and found.sign == (np.sign(found.mean) if wanted.pvalue < 0.05 else 0)
  ratio = pair(np.exp(first), np.exp(second), ratio=True)
  np.testing.assert_allclose(np.log([ratio.mean, *ratio.interval]), [found.mean, *found.interval], rtol=1e-10)
  assert ratio.ratio and ratio.p == pytest.approx(found.p) and ratio.sign == found.sign
  shuffled = dict(reversed(seeds(second).items())) | {"seed 99": 1e9}
  again = paired_tests({"a": seeds(first), "b": shuffled}, ratio=False)["a", "b"]
  assert again == found  # by the seeds' names, of those that both have


def by_hand(values):
  """Holm's correction as its paper has it: multiply the smallest by m, the next by m - 1, ...; never decreasing."""
  adjusted, least = dict.fromkeys(range(len(values)), 0.0), 0.0
  for rank, (value, place) in enumerate(sorted(zip(values, itertools.count(), strict=False))):
    least = max(least, (len(values) - rank) * value)
    adjusted[place] = min(1.0, least)
  return list(adjusted.values())


def test_holm_against_the_procedure_by_hand():
  assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
  rng = np.random.default_rng(0)
  for size in (0, 1, 2, 28):
    values = rng.beta(0.3, 2.0, size)
    np.testing.assert_allclose(holm(values), by_hand(values), rtol=1e-12)


def test_all_pairs_are_one_family():
  """a and b would be significantly different by themselves."""
  noise = np.random.default_rng(2).normal(size=(4, 5))
  figures = {label: seeds(gap + each) for label, gap, each in zip("abcd", (0.0, 2.2, 1.1, 60.0), noise, strict=True)}
  found = paired_tests(figures, ratio=False)
  assert len(found) == 12
  names = list(itertools.combinations("abcd", 2))
  plain = [stats.ttest_rel(*(list(figures[label].values()) for label in each)).pvalue for each in names]
  np.testing.assert_allclose([found[each].p for each in names], plain, rtol=1e-9)
  np.testing.assert_allclose([found[each].p_holm for each in names], by_hand(plain), rtol=1e-9)
  for each in names:
    assert abs(found[each].sign) == (found[each].p_holm < 0.05)
    assert found[each[::-1]] == found[each].reversed() and found[each].reversed().sign == -found[each].sign
  alone = paired_tests({label: figures[label] for label in "ab"}, ratio=False)["a", "b"]
  assert alone.p == found["a", "b"].p < 0.05 < found["a", "b"].p_holm
  assert alone.sign == -1 and found["a", "b"].sign == 0
  assert alone.more_seeds is None and found["a", "b"].more_seeds >= 1  # by the rule of the marks: none, or some


def test_one_of_equals_is_told_apart_in_at_most_five_percent_of_comparisons():
  rng, wrong = np.random.default_rng(5), 0
  for _ in range(400):
    figures = {label: seeds(values) for label, values in zip("abcde", rng.normal(size=(5, 4)), strict=True)}
    wrong += any(each.sign for each in paired_tests(figures, ratio=False).values())
  assert wrong / 400 < 0.05 + 3 * math.sqrt(0.05 * 0.95 / 400)  # without the correction it is about 0.25


def test_the_effect_size_is_that_of_hedges_and_unbiased():
  first, second = [3.0, 5.0, 4.0, 7.0], [1.0, 4.0, 1.0, 3.0]
  d_z = 2.5 / math.sqrt(5 / 3)  # differences 2, 1, 3, 4
  assert pair(first, second).effect == pytest.approx(d_z * math.gamma(1.5) / (math.sqrt(1.5) * math.gamma(1.0)))
  assert hedges_gz(1.0, 50) == pytest.approx(1 - 3 / (4 * 49 - 1), rel=1e-4)  # the usual approximation
  samples = np.random.default_rng(1).normal(0.8, 1.0, (20_000, 5))
  sizes = samples.mean(axis=1) / samples.std(axis=1, ddof=1)
  assert np.mean([hedges_gz(size, 5) for size in sizes]) == pytest.approx(0.8, abs=0.02) != pytest.approx(sizes.mean())
  assert hedges_gz(1.0, 2) is None


@pytest.mark.parametrize(("size", "level"), [(1.2, 0.05), (0.5, 0.05), (1.0, 0.05 / 28)])
def test_so_many_more_seeds_have_the_power_in_a_simulation_and_one_fewer_has_not(size, level):
  count, rng = 3 + more_seeds(size, 3, level), np.random.default_rng(7)

  def simulated(seeds, trials=20_000):
    samples = rng.normal(size, 1.0, (trials, seeds))
    return float(np.mean(stats.ttest_1samp(samples, 0.0, axis=1).pvalue < level))

  error = 4 * math.sqrt(0.8 * 0.2 / 20_000)
  assert simulated(count) == pytest.approx(power(size, count, level), abs=error)
  assert power(size, count, level) >= 0.8 > power(size, count - 1, level)


def test_seeds_for_tabulated_effects_and_for_none():
  assert 2 + more_seeds(0.5, 2, 0.05) == 34 and 2 + more_seeds(0.8, 2, 0.05) == 15  # G*Power, two-sided paired t-test
  assert more_seeds(1e-6, 3, 0.05) == MOST + 1
  assert pair([1.0, 2.0, 3.0], [1.0, 2.0, 3.0]).more_seeds is None  # equal
  assert pair([1.0, 2.0, 3.0], [2.0, 1.0, 3.0]).more_seeds is None  # no difference on average
  assert pair([9.0, 9.1, 9.2], [1.0, 1.2, 1.1]).more_seeds is None  # separate already
  assert pair([2.0, 1.0, 3.0], [1.0, 2.0, 1.0]).more_seeds == more_seeds(2 / 3 / math.sqrt(7 / 3), 3, 0.05)


@pytest.mark.parametrize("level", [0.05, 0.05 / 780])
def test_the_power_grows_to_one_and_the_search_finds_where_it_is_enough(level):
  for size in (0.1, 0.4, 1.0, 3.0, 6.35, 50.0):  # SciPy has NaN for the tails of some of these
    powers = np.array([power(size, 3 + more, level) for more in range(1, MOST + 1)])
    assert np.all(np.diff(powers) > -1e-9) and np.all((powers >= 0) & (powers <= 1 + 1e-9))
    enough = np.flatnonzero(powers >= 0.8)
    assert more_seeds(size, 3, level) == (enough[0] + 1 if len(enough) else MOST + 1)


def test_accuracies_on_few_examples_do_not_spread_less_than_their_rounding():
  """One example more with each of three seeds: a t-test of 0 spread would have p = 0."""
  first, second = ({f"seed {n}": (count + more) / 360 for n, count in enumerate((340, 345, 349))} for more in (1, 0))
  values = [*first.values(), *second.values()]
  assert share_resolution(values) == 1 / 360
  found = paired_tests({"a": first, "b": second}, ratio=False, resolution=1 / 360)["a", "b"]
  assert found.p == pytest.approx(2 * stats.t.sf(math.sqrt(6) * math.sqrt(3), 2)) and found.sign == 0
  many = paired_tests({"a": first, "b": second}, ratio=False)["a", "b"]
  assert many.p < 1e-6 and many.sign == 1
  assert share_resolution([*values, 0.123456789]) == 0.0 and share_resolution([1.0, 0.0]) == 1.0
  assert share_resolution([]) == 1.0  # of nothing


FIGURES = st.lists(st.tuples(st.floats(0, 100), st.floats(0, 100)), min_size=1, max_size=6)


@settings(deadline=None, max_examples=100)
@given(FIGURES, st.booleans())
def test_the_other_way_round_is_the_other_sign(figures, ratio):
  first, second = zip(*figures, strict=True)
  found, back = pair(first, second, ratio), pair(second, first, ratio)
  assert (found.sign, found.p, found.more_seeds) == (-back.sign, back.p, back.more_seeds)
  assert found.reversed().ratio == back.ratio and found.reversed().mean == pytest.approx(back.mean, rel=1e-9, abs=1e-12)
  if found.interval:
    low, high = found.interval
    slack = 1e-9 * (1 + abs(found.mean))
    assert low <= found.mean + slack and found.mean <= high + slack


def test_of_one_seed_and_of_none():
  one = pair([2.0], [1.0])
  assert (one.mean, one.seeds, one.sign) == (1.0, 1, 1)  # the order, without a test
  assert one.interval is one.p is one.p_holm is one.effect is one.more_seeds is None
  none = paired_tests({"a": seeds([1.0]), "b": {"seed 7": 2.0}, "c": {}}, ratio=True)
  assert {(each.seeds, each.sign, each.p) for each in none.values()} == {(0, 0, None)}


def test_the_same_difference_with_every_seed_is_significant_unless_it_is_rounding():
  found = pair([1.0, 2.0, 3.0], [2.0, 3.0, 4.0])
  assert (found.p, found.sign, found.effect, found.more_seeds) == (0.0, -1, None, None)
  for ratio in (False, True):
    equal = pair([0.3, 0.6, 0.9], [0.1 * 3, 0.2 * 3, 0.3 * 3], ratio)
    assert (equal.p, equal.sign, equal.more_seeds) == (1.0, 0, None)


def test_pairs_without_two_common_seeds_do_not_count_as_tests():
  figures = {"a": seeds([1.0, 1.1, 1.3]), "b": seeds([2.0, 2.2, 2.1]), "never": {}, "once": seeds([5.0])}
  found = paired_tests(figures, ratio=True)
  assert found["a", "b"].p_holm == found["a", "b"].p
  assert found["a", "never"].seeds == 0 and found["a", "once"].seeds == 1 and found["a", "once"].p is None


def test_costs_that_scale_with_the_seed_are_compared_by_their_ratio():
  """Each seed takes ten times the bytes with the second; how long a seed takes spreads more than that."""
  first, second = [1.0, 9.0, 3.0], [10.0, 80.0, 33.0]
  assert pair(first, second).sign == 0 and pair(first, second, ratio=True).sign == -1
  zero = pair([0.0, 9.0, 3.0], second, ratio=True)
  assert zero == pair([0.0, 9.0, 3.0], second) and not zero.ratio
