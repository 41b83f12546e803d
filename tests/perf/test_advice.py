"""The rows of a plan about exchanges agree with the cost model."""

import pytest

from ddl.perf import collectives, plan_rows
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
  assert f"= {seconds_text(bound)} with p = {nodes} nodes" in limit
