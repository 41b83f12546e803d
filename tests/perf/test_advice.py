"""The rows of a plan about exchanges agree with the cost model."""

import pytest

from ddl.perf import collectives, hybrid, neural_networks, plan_rows
from ddl.perf.cluster import LinkModel, NetworkModel
from ddl.perf.cluster_file import named
from ddl.perf.units import seconds_text

FLAT = NetworkModel(LinkModel(1e-3, 1e9))


@pytest.mark.parametrize("network", [FLAT, named("h100_ib400").network])
def test_the_recommended_all_reduce_is_the_cheapest(network):
  _, value, why, limit = plan_rows.all_reduce(1e8, 16, network)
  result = collectives.table(1e8, 16, network)
  assert collectives.all_reduce(1e8, 16, network, value) == pytest.approx(collectives.all_reduce(1e8, 16, network))
  assert all(name in why for name in result) and "(1" in why
  nodes, link = network.nodes(16), network.between
  bound = (nodes - 1).bit_length() * link.latency + 2 * 1e8 / link.bandwidth * (nodes - 1) / nodes
  assert limit.endswith(f"= {seconds_text(bound)} with p = {nodes} nodes")


def test_packing_is_recommended_only_for_small_messages():
  small, large = [1e3] * 50, [1e8] * 3
  assert plan_rows.messages(small, 8, FLAT)[1] == "packed" and plan_rows.messages(large, 8, FLAT)[1] == "by layer"
  saved = float(plan_rows.messages(small, 8, FLAT)[3].split("saves ")[1].split(" %")[0]) / 100
  separate, packed = (sum(collectives.all_reduce(n, 8, FLAT) for n in sizes) for sizes in (small, [5e4]))
  assert saved == pytest.approx(1 - packed / separate, rel=1e-2)


def test_hybrid_parallelism_is_recommended_for_dense_layers():
  _, value, why, _ = plan_rows.groups(neural_networks.table("vgg_a"), 256, 64, 1.0)
  choices = hybrid.choices(neural_networks.table("vgg_a"), 256, 64, 1.0)
  assert value == f"{sum(c.kind != 'data' for c in choices)} of {len(choices)} layers" and value.startswith("3 of")
  fc6 = next(c for c in choices if c.layer == "fc6")
  assert f"fc6 {fc6.kind} G = {fc6.groups}" in why and "conv" not in why
  assert plan_rows.groups(neural_networks.table("nin"), 4096, 2, 1.0)[1].startswith("0 of")
