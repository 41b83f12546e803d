"""Shares of devices: the fit, its errors on held-out steps, and ranges for unknown combinations."""

import statistics
from collections import defaultdict

import numpy as np
import pytest

from ddl.perf import neural_networks
from ddl.perf.cluster_file import named
from ddl.perf.device import WIDTHS, Device, chips, device_data, step_seconds
from ddl.perf.device_step import Shares, cost, device_step, extra, fastest, find, flop, kind_of, known
from ddl.perf.layers import Layer, StepMemory, params
from ddl.perf.placement import Job, place, with_shares
from experiments.papers import published_steps
from experiments.papers.published_steps import convolution_shares, network, predict, shares_of, sources

GOAL = 0.15  # goal of the median error
V100 = chips()["v100"].device("float32")._replace(chip="v100")


@pytest.fixture(scope="module")
def results():
  return published_steps.results()


def test_the_held_out_steps_are_within_the_goal(results):
  errors = defaultdict(list)
  for result in results:
    errors[result.point.use].append(abs(result.error))
  assert {use: len(values) for use, values in errors.items()} == {
    "fitted": 106,
    "network": 152,
    "device": 127,
    "run": 42,
  }
  for use in ("network", "device", "run"):
    assert statistics.median(errors[use]) < 0.6 * GOAL, use
  assert max(map(max, errors.values())) < 0.55


def test_the_errors_in_devices_toml_are_those_of_the_held_out_steps(results):
  errors = defaultdict(list)
  for result in results:
    if result.point.use != "fitted":
      errors[kind_of(network(result.point.network)), result.point.form].append(abs(result.error))
  stored = {(kind, form): row for kind, forms in device_data()["errors"].items() for form, row in forms.items()}
  assert errors.keys() == stored.keys()
  for key, values in errors.items():
    assert [len(values), round(statistics.median(values), 3), round(max(values), 2)] == stored[key], key


def test_points_are_unique_and_have_a_source(results):
  keys = [(r.point.device, r.point.form, r.point.network, r.point.source, r.point.examples, r.point.recomputed,
           r.point.devices) for r in results]  # fmt: skip
  assert len(set(keys)) == len(keys)
  assert all(result.point.source in sources() and result.point.seconds > 0 for result in results)
  devices = {r.point.device for r in results if r.point.use == "fitted" and r.point.form == "float32"}
  assert not devices & {r.point.device for r in results if r.point.use == "device" and r.point.source != "torch_5.0"}


def total(points, shares):
  """Return the soft L1 loss that the shares minimize; errors above 10 % count as outliers."""
  logs = np.log([predict(point, shares(point)) / point.seconds for point in points]) / 0.1
  return float(np.sum(np.sqrt(1 + logs**2) - 1))


def assert_minimum(points, *names, changed=lambda point: True, factors=(0.98, 1.02)):
  """Check that a change of any of the named shares by 2 %, at the points to change, increases the loss."""
  fitted = total(points, shares_of)
  for name in names:
    for factor in factors:

      def other(point, name=name, factor=factor):
        shares = shares_of(point)
        return shares._replace(**{name: factor * getattr(shares, name)}) if changed(point) else shares

      assert fitted < total(points, other), (name, factor)


@pytest.mark.parametrize("generation", ["kepler", "maxwell", "pascal", "volta"])
def test_shares_of_a_generation_minimize_the_loss(generation):
  fitted = [
    p for p in published_steps.points()
    if p.form == "float32" and " " not in p.network and p.use == "fitted"
    and chips()[p.device].generation == generation
  ]  # fmt: skip
  assert_minimum(fitted, "product", "winograd")


def transformers(form):
  """Return the fitted steps of transformers in a number format by generation, from Ampere on."""
  groups = defaultdict(list)
  for p in published_steps.points():
    if (p.use, p.form, kind_of(network(p.network))) == ("fitted", form, "attention"):
      groups[chips()[p.device].generation].append(p)
  groups.pop("volta", None)
  return groups


def test_shares_of_all_transformers_minimize_the_loss():
  """One share of the memory bandwidth, and one of attention for each age of the libraries, of all generations."""
  fitted = [p for points in transformers("bfloat16").values() for p in points]
  assert len(fitted) == 30
  assert_minimum(fitted, "memory")
  for newest in (True, False):
    changed = [p for p in fitted if (sources()[p.source]["libraries"] == "2024") == newest]
    assert_minimum(fitted, "attention", changed=changed.__contains__)


@pytest.mark.parametrize("form", ["bfloat16", "tf32"])
def test_products_of_transformers_minimize_the_loss_of_their_generation(form):
  for generation, fitted in transformers(form).items():
    product = known(generation, "attention", form).product
    assert product <= (1.0 if generation.endswith("rtx") else 0.9)
    assert_minimum(fitted, "product", factors=(0.98,) if product in (0.9, 1.0) else (0.98, 1.02))


def test_generations_without_fitted_products_have_those_of_the_same_chip():
  for form in ("bfloat16", "tf32"):
    assert known("hopper_pcie", "attention", form) == known("hopper", "attention", form)
  for form, generations in device_data()["shares"]["convolution"].items():
    for generation in generations:
      assert ("winograd" in generations[generation]) == (form == "float32")  # tensor cores run direct convolutions
      if form != "float32" and generation != "volta":
        assert generations[generation]["product"] == known(generation, "attention", form).product
  assert all(
    known(x, "attention", "bfloat16").fused == (x != "volta") for x in device_data()["shares"]["attention"]["bfloat16"]
  )


def test_steps_with_cudnn_5_0_on_kepler_are_predicted_without_winograd(results):
  """The errors are small with direct convolutions; with the algorithms of cuDNN 5.1 steps would take half as long."""
  points = [r.point for r in results if r.point.source == "torch_5.0" and r.point.device == "k40c"]
  direct = [predict(p) / p.seconds - 1 for p in points]
  fast = [predict(p, convolution_shares("kepler", "2016")) / p.seconds - 1 for p in points]
  assert abs(statistics.median(direct)) < 0.15 and statistics.median(fast) < -0.4 and len(points) == 8


def test_flop_in_tiles_and_extra_traffic_by_hand():
  eighty = Layer("c", 64, 80, (1, 1), (73, 73), (73, 73))
  assert flop(eighty, first=False) == pytest.approx(eighty.forward_flop * (2 * 128 / 80 + 128 / 64))
  assert flop(eighty, first=True) == pytest.approx(eighty.forward_flop * 2 * 128 / 80)
  assert extra(eighty) == 8 * eighty.activations and extra(eighty._replace(normalized=True)) == 13 * eighty.activations
  scale = Layer("n", 80, 80, (1, 1), (73, 73), (73, 73), groups=80)
  assert extra(scale) == 13 * scale.activations and flop(scale, first=False) == 0
  dense = Layer("d", 100, 10)
  assert extra(dense) == 0 and flop(dense, first=False) == dense.train_flop


def test_the_fastest_algorithm_that_applies():
  shares = Shares(0.5, winograd=0.4)
  three, strided = Layer("a", 64, 64, (3, 3), (28, 28), (28, 28)), Layer("b", 64, 64, (3, 3), (28, 28), (14, 14))
  five = Layer("c", 64, 64, (5, 5), (28, 28), (28, 28))
  assert [fastest(x, shares) for x in (three, strided, five)] == ["winograd", "direct", "fft"]
  assert cost("winograd", shares) == pytest.approx(0.5 / 0.4 * 16 / 36) and cost("fft", shares) == 0.5
  assert fastest(three, Shares(0.5)) == fastest(five, Shares(0.5)) == "direct"
  assert fastest(three, Shares(0.5, winograd=0.2)) == "direct"  # too slow in spite of fewer products


def test_a_step_is_the_sum_of_its_parts():
  table, shares = neural_networks.table("vgg16"), convolution_shares("volta")
  step = device_step(table, V100, shares)
  assert step.seconds(32) == pytest.approx(step_seconds(step.parts, 32, step.device, step.efficiency))
  assert step.device.start == pytest.approx(16 * shares.start)
  assert step.seconds(32) < device_step(table, V100, shares._replace(winograd=0.0)).seconds(32)
  whole = device_step(table, V100, Shares(0.5, whole=True))
  assert sum(part.flop for part in whole.parts) == sum(layer.train_flop for layer in table)
  net = neural_networks.table("gpt2_124m")
  once, again = (device_step(net, V100, Shares(0.5), recomputed=x) for x in (0.0, 1.0))
  more = sum(p.flop for p in again.parts) - sum(p.flop for p in once.parts)
  assert more == pytest.approx(sum(layer.forward_flop for layer in net))
  assert (
    once.parts[0].update == 28 / 4 * params(net) == 8 * device_step(net, V100, Shares(0.5), split=8).parts[0].update
  )


def test_fitted_shares_have_one_end_and_unknown_shares_have_two():
  known, unknown = (
    find(V100, "convolution"),
    find(chips()["h100"].device("bfloat16")._replace(chip="h100"), "convolution"),
  )
  assert len(known.ends) == 1 and known.middle == known.ends[0] == convolution_shares("volta")
  low, high = unknown.ends
  assert low.product < unknown.middle.product < high.product and low.memory < unknown.middle.memory < high.memory
  assert find(Device(1e12, 1e11, 1e9), "convolution") is None
  node = find(Device(1e12, 1e11, 1e9, chip="haswell"), "convolution")
  assert all(end.whole for end in node.ends) and node.ends[0].product < node.middle.product < node.ends[1].product
  for device in ("knl", "m40", "tpu_v5p"):
    for kind in ("convolution", "attention", ""):
      assert find(V100._replace(chip=device), kind).source


@pytest.mark.parametrize("name", chips())
def test_every_device_has_plausible_figures_and_shares_for_every_network(name):
  """A device without published steps gets a range that contains those of all devices, so that nothing is assumed."""
  chip = chips()[name]
  assert 1e9 < chip.memory < 2e11 and 1e11 < chip.memory_bandwidth < 1e13 and chip.peaks
  assert [chip.peaks[form] for form in WIDTHS if form in chip.peaks] == sorted(chip.peaks.values())
  measured = any(chip.generation in forms for kinds in device_data()["shares"].values() for forms in kinds.values())
  whole = device_data()["whole_step"].get(name)
  for form in chip.peaks:
    for kind in ("attention", "convolution", "dense", ""):
      known = find(chip.device(form)._replace(chip=name), kind)
      low, high = known.ends[0], known.ends[-1]
      assert known.source and 0 < low.product <= known.middle.product <= high.product <= 1
      if not measured:
        assert low.product < high.product
        assert low.whole or (low.product <= 0.31 and high.product >= 0.85 and low.memory < 0.45)
        assert low.whole == bool(whole and kind == whole["kind"])


def test_with_shares_sets_efficiency_and_source():
  target = with_shares(named("dasgd_v100_10g"), "lenet")
  shares = find(target.device, "convolution").middle
  assert (target.efficiency.best, target.efficiency.memory) == (shares.product, shares.memory)
  assert target.source.startswith(named("dasgd_v100_10g").source) and "a step reaches" in target.source
  ranged = with_shares(named("h100_ib400"), "a model")
  assert "middle of a range" in ranged.source and ranged.efficiency != named("h100_ib400").efficiency
  unnamed = named("h100_ib400")._replace(device=named("h100_ib400").device._replace(chip=""))
  assert with_shares(unnamed, "lenet") is unnamed


def test_a_job_without_a_table_uses_the_shares_of_its_kind():
  cluster = named("dasgd_v100_10g")
  job = Job("a job", 4e8, 1e9, StepMemory(1e6, 1.2e9))
  models = {"a model": "", "lenet": "convolution"}
  placed = {name: place(job._replace(kind=kind), cluster).cluster.efficiency for name, kind in models.items()}
  assert placed == {name: with_shares(cluster, name).efficiency for name in models} and len(set(placed.values())) == 2
