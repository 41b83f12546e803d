"""The sections of published curves and rates: their sets, their errors, and the limits of their predictions."""

import re
import statistics

import pytest

from configs import reproduce_allreduce, reproduce_scaling, reproduce_sites
from ddl.perf.cluster import NCCL
from experiments.commands import reproduce
from experiments.papers import allreduce, scaling, sites
from experiments.papers.page import Config, median_percent, summed

CURVES: Config = reproduce_allreduce.get_config()
RATES: Config = reproduce_scaling.get_config()
SLOW: Config = reproduce_sites.get_config()


def median(keep, cost=allreduce.seconds):
  return float(median_percent(allreduce.errors(CURVES, keep, cost)).removesuffix(" %"))


def test_the_all_reduce_is_near_curves_that_were_not_fitted():
  assert median(allreduce.SETS["held out"]) < 15 and median(allreduce.SETS["held out, looked up after the fit"]) < 15
  assert median(allreduce.SETS["held out"], allreduce.plain) > 50


def test_no_system_is_on_both_sides():
  """Curves of one source: other systems. Nothing that was looked up after the fit is fitted."""
  systems = {name: (each.source, each.nodes * each.per_node, tuple(each.us)) for name, each in CURVES.curves.items()}
  assert len(set(systems.values())) == len(systems) == 27
  assert sum(each.fitted for each in CURVES.curves.values()) == 9
  assert not any(each.fitted and (each.late or each.older) for each in CURVES.curves.values())


def test_the_constants_that_were_fitted_are_counted():
  set_ones = {("LL", "trips"), ("LL128", "trips"), ("Simple", "share"), ("switch", "inside"), ("switch", "trips")}
  ways = {**{each.name: each for each in NCCL.protocols}, "switch": NCCL.switch}
  figures = [(name, field) for name, each in ways.items() for field in each._fields if field != "name"]
  assert 3 + len(set(figures) - set_ones) == CURVES.constants
  assert NCCL.switch.trips == NCCL.protocols[-1].trips


@pytest.mark.parametrize("name", ["8 H100", "16 H100, Nebius", "16 A100, AWS p4d"])
def test_a_curve_rises_with_its_bytes(name):
  result = [allreduce.seconds(CURVES.curves[name], size) for size in CURVES.sizes]
  assert result == sorted(result) and result[0] < result[-1] / 50


def test_the_page_has_the_figures_of_the_sets():
  page = reproduce.PAGE.read_text()
  for name, keep in allreduce.SETS.items():
    assert summed(allreduce.errors(CURVES, keep)) in page, name


def test_rates_are_predicted_from_the_fewest_devices():
  """As on the page, which is the output of the code (test_the_page_is_current)."""
  result = re.findall(r"\| messages .* \| all \| 53 \| ([\d.]+) % \|", reproduce.PAGE.read_text())
  assert len(result) == 2 and all(float(error) < 10 for error in result)


@pytest.mark.parametrize("name", ["VGG-16, DGX-1", "BART-large, DGX A100"])
def test_an_exchange_costs_and_more_where_it_is_not_hidden(name):
  for point in scaling.points(RATES, RATES.systems[name]):
    assert point.after < 0.99 * point.hidden <= 0.9900001 * point.ideal


@pytest.mark.parametrize("name", ["ResNet-50, OCI A100", "BERT-large, DGX A100", "ResNet-50, EC2"])
@pytest.mark.parametrize("overlap", [True, False])
def test_the_base_has_its_rate(name, overlap):
  system = RATES.systems[name]
  step = scaling._step(RATES, system, overlap)
  seconds = scaling.seconds(RATES, system, 0, step, overlap)
  assert system.devices[0] * system.batch * system.each[0] / seconds == pytest.approx(system.rates[0], rel=1e-4)


def test_slow_links_are_near_what_was_published():
  for points in (sites.across(SLOW.google), *sites.on_a_link(SLOW.shaped).values()):
    assert statistics.median(abs(point.error) for point in points) < 0.15
  alone = [point.baseline / point.published - 1 for point in sites.across(SLOW.google) if "RoBERTa" in point.name]
  assert min(alone) > 0.15


def test_a_site_sends_over_its_streams_at_once():
  """Three sites: the slowest has 0.13 + 0.08 Gbit/s for 4 / 3 of the message; in one site 6.9 Gbit/s."""
  bits = 16 * 560.1e6
  seconds = 4 / 3 * bits / 0.21e9 - 4 / 3 * bits / 6.9e9
  assert sites.extra_seconds(SLOW.google, "RoBERTa-XLM", 3, 1) == pytest.approx(seconds, rel=0.02)
