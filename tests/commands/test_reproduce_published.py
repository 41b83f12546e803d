"""The sections of published all-reduces, rates and slow links: their data sets, errors and limits."""

import math
import statistics

import pytest

from configs import reproduce_scaling, reproduce_sites
from ddl.perf.cluster import LIBRARIES
from ddl.perf.scaling import ONE_NODE, SEVERAL_NODES
from experiments.commands import reproduce
from experiments.papers import allreduce, scaling, sites
from experiments.papers.page import Config, summed

RATES: Config = reproduce_scaling.get_config()
SLOW: Config = reproduce_sites.get_config()
PAGE = (reproduce.FOLDER / "reproduction.md").read_text()


def median(selected, cost=allreduce.seconds):
  return statistics.median(allreduce.errors(selected, cost))


def test_all_reduces_match_held_out_curves():
  assert median(allreduce.SETS["held out"]) < 0.15
  assert median(allreduce.SETS["held out"], allreduce.plain) > 0.5


def test_no_curve_is_both_fitted_and_held_out():
  curves = allreduce.curves()
  systems = {(c.source, c.nodes * c.per_node, tuple(c.seconds.items())) for c in curves.values()}
  assert len(systems) == len(curves) == 106 and not any(c.fitted and c.older for c in curves.values())


@pytest.mark.parametrize("library", sorted({curve.library for curve in allreduce.curves().values()}))
def test_a_library_has_the_range_and_the_error_of_its_curves(library):
  expected, curves = LIBRARIES[library], [c for c in allreduce.curves().values() if c.library == library]
  assert expected.devices == max(c.nodes * c.per_node for c in curves)
  assert expected.nodes == max(c.nodes for c in curves)
  assert expected.sizes == (min(min(c.seconds) for c in curves), max(max(c.seconds) for c in curves))
  if all(c.fitted for c in curves):
    assert math.isnan(expected.error)
  else:
    assert expected.error == pytest.approx(median(lambda c, _: c.library == library and not c.fitted), abs=5e-4)


@pytest.mark.parametrize("name", ["8 H100", "16 H100, Nebius", "16 A100, AWS p4d", "8 A100, Perlmutter"])
def test_seconds_increase_with_bytes(name):
  curve = allreduce.curves()[name]
  result = [allreduce.seconds(curve, 2**power) for power in range(10, 31)]
  assert result == sorted(result) and result[0] < result[-1] / 50


def test_page_has_the_errors_of_each_set():
  for name, selected in allreduce.SETS.items():
    assert summed(allreduce.errors(selected)) in PAGE, name


@pytest.fixture(scope="module")
def rates():
  return [point for run in scaling.runs() for point in scaling.points(RATES, run)]


@pytest.mark.slow
def test_median_errors_of_rates_are_below_15_percent(rates):
  for several in (False, True):
    points = [point for point in rates if point.several == several]
    assert statistics.median(scaling.errors(points, "hidden")) < 0.15
    assert statistics.median(scaling.errors([p for p in points if p.efficiency < RATES.hard], "after")) < 0.12


@pytest.mark.parametrize("reached, several", [(ONE_NODE, False), (SEVERAL_NODES, True)])
def test_the_printed_interval_is_that_of_the_published_rates(reached, several, rates):
  points = [point for point in rates if point.several == several]
  computed = scaling.reached(points)
  assert (round(computed.low, 2), round(computed.high, 2)) == reached[:2] and computed[2:] == reached[2:]
  assert scaling.covers(rates, [point for point in points if point.efficiency < RATES.hard]) > 0.8


def test_exposed_exchanges_cost_more_than_hidden_ones(rates):
  one = [run for run in scaling.runs() if min(run.rates) == 1 and scaling.systems()[run.system].library]
  assert len(one) > 200
  for run in one[::10]:
    for point in scaling.points(RATES, run):
      assert point.after < point.hidden <= 1.0000001 * point.ideal


@pytest.mark.parametrize("name", ["oci", "dgx_a100", "ec2"])
@pytest.mark.parametrize("overlap", [True, False])
def test_predicted_rate_of_the_base_is_the_published_one(name, overlap):
  run = next(run for run in scaling.runs() if run.system == name)
  (first, rate), step = next(iter(run.rates.items())), scaling._step(RATES, run, overlap)
  examples = first * run.examples * run.accumulated.get(first, 1)
  assert examples / scaling.seconds(RATES, run, first, step, overlap) == pytest.approx(rate, rel=1e-4)


def test_slow_links_match_published_times():
  for points in (sites.site_points(SLOW.google), *sites.shaped_link_points(SLOW.shaped).values()):
    assert statistics.median(abs(point.error) for point in points) < 0.15
  without_links = [
    point.baseline / point.published - 1 for point in sites.site_points(SLOW.google) if "RoBERTa" in point.name
  ]
  assert min(without_links) > 0.15


def test_bandwidths_of_a_sites_streams_add_up():
  """The slowest of three sites sends 4 / 3 of a message with 0.13 + 0.08 Gbit/s; within a site it has 6.9 Gbit/s."""
  bits = 16 * 560.1e6
  seconds = 4 / 3 * bits / 0.21e9 - 4 / 3 * bits / 6.9e9
  assert sites.extra_seconds(SLOW.google, "RoBERTa-XLM", 3, 1) == pytest.approx(seconds, rel=0.02)
