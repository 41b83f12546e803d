"""The interval of rates that published runs of synchronous SGD reached."""

import re

import pytest

from ddl.costs import scale
from ddl.perf import neural_networks, scaling
from ddl.perf.cluster_file import named
from ddl.perf.scaling import ONE_NODE, SEVERAL_NODES, Transport, expected_rates, rate_interval


@pytest.mark.parametrize("reached", [ONE_NODE, SEVERAL_NODES])
def test_the_interval_contains_both_predictions(reached):
  for exposed in (0.01, 50.0, 99.9, 100.0):
    low, high = rate_interval(100.0, exposed, reached)
    assert low == reached.low * exposed < exposed < high and high >= 100.0
  assert rate_interval(100.0, 100.0, reached)[1] == reached.high * 100.0


def test_the_text_has_the_rates():
  rates = expected_rates(1000.0, 500.0, several=True)
  assert (rates.low, rates.high) == rate_interval(1000.0, 500.0, SEVERAL_NODES) and rates.high == 1000
  assert rates.range == f"{SEVERAL_NODES.low * 500:.4g} to 1,000" and " without overlap (500)." in rates.text
  assert f" {ONE_NODE.points} published runs" in expected_rates(1000.0, 500.0, several=False).text


def test_only_overlapped_synchronous_sgd_has_an_interval():
  """The rate without overlap is that of the same curve without overlap, on the largest number of workers."""
  work, cluster = scaling.work(neural_networks.table("vgg16")), named("h100_ib400")
  settings = {"batch": 64, "weak": True, "jitter": 0.0}
  for name, overlap in (("sync_sgd", True), ("sync_sgd", False), ("local_sgd", True), ("dasgd", True)):
    (curve,) = scale.curves(work, cluster, [8, 16], {name: {}}, Transport(overlap=overlap), **settings)
    text = scale.reached(curve, cluster.network)
    assert bool(text) == (name == "sync_sgd" and overlap)
    if text:
      (plain,) = scale.curves(work, cluster, [8, 16], {name: {}}, Transport(overlap=False), **settings)
      assert curve.exposed == plain.points[-1] and " on 16 workers: " in text
      assert curve.exposed.seconds > curve.points[-1].seconds


@pytest.mark.parametrize("workers, several", [(1, False), (8, True), (16, True)])
def test_a_plan_for_several_workers_has_the_interval(call, workers, several):
  _, out, _ = call("plan", "--model=resnet50", "--cluster=h100_ib400", f"--workers={workers}", "--examples=1e8")
  interval = re.search(r"Expect ([\d,]+) to ([\d,]+) examples/s", out)
  assert bool(interval) == several == ("at the lower end" in out)
  if interval:
    low, high = (int(number.replace(",", "")) for number in interval.groups())
    rate = int(re.search(r"With overlap: ([\d,]+) examples/s", out)[1].replace(",", ""))
    assert low < rate <= high
    late = float(re.search(r"([\d.]+) hours at the lower end", " ".join(out.split()))[1])
    assert late == pytest.approx(1e8 / low / 3600, rel=0.01)
