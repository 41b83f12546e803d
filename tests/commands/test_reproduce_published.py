"""The sections of published all-reduces, rates and slow links: their data sets, errors and limits."""

import math
import re
import statistics

import pytest

from configs import reproduce_scaling, reproduce_sites
from ddl.perf.cluster import LIBRARIES
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


def test_errors_of_rates_with_messages_are_below_10_percent():
  """Read the errors from the page, which test_pages_are_current compares with the code."""
  result = re.findall(r"\| messages .* \| all \| 53 \| ([\d.]+) % \|", PAGE)
  assert len(result) == 2 and all(float(error) < 10 for error in result)


@pytest.mark.parametrize("name", ["VGG-16, DGX-1", "BART-large, DGX A100"])
def test_exposed_exchanges_cost_more_than_hidden_ones(name):
  for point in scaling.points(RATES, RATES.systems[name]):
    assert point.after < 0.99 * point.hidden <= 0.9900001 * point.ideal


@pytest.mark.parametrize("name", ["ResNet-50, OCI A100", "BERT-large, DGX A100", "ResNet-50, EC2"])
@pytest.mark.parametrize("overlap", [True, False])
def test_predicted_rate_of_the_base_is_the_published_one(name, overlap):
  system = RATES.systems[name]
  step = scaling._step(RATES, system, overlap)
  seconds = scaling.seconds(RATES, system, 0, step, overlap)
  assert system.devices[0] * system.batch * system.each[0] / seconds == pytest.approx(system.rates[0], rel=1e-4)


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
