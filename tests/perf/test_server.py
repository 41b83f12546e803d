"""Parameter servers: closed forms against the simulated queue, and their monotonicity."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddl.perf import collectives, server
from ddl.perf.cluster import LinkModel, NetworkModel
from experiments.papers.sc17 import round_robin_seconds

links = st.builds(LinkModel, st.just(0.0) | st.floats(1e-9, 1e-2), st.floats(1e5, 1e12), st.floats(0, 1))
HALF, FULL = LinkModel(0.5, 100.0, 0.0), LinkModel(0.5, 100.0, 1.0)


def test_a_tree_is_faster_than_round_robin_by_p_over_log_p():
  """arXiv 1708.02983: P (alpha + |W| beta) becomes log2 P (alpha + |W| beta)."""
  link = LinkModel(0.7e-6, 1 / 0.2e-9)
  for p, ratio in ((8, 8 / 3), (64, 64 / 6)):
    tree = collectives.BROADCAST["tree"](249e6, p, link)
    assert round_robin_seconds(249e6, p, link) / tree == pytest.approx(ratio, rel=1e-12)
  assert round_robin_seconds(249e6, 8, link) == pytest.approx(0.398, abs=5e-4)  # ungrouped AlexNet on FDR
  assert collectives.BROADCAST["tree"](249e6, 8, link) == pytest.approx(0.149, abs=5e-4)


@given(st.floats(4e3, 1e9), st.integers(1, 64), links, st.integers(1, 64), st.floats(1, 1e3))
@settings(max_examples=50)
def test_more_servers_and_better_links_are_never_slower(nbytes, p, link, servers, faster):
  better, network = link._replace(bandwidth=link.bandwidth * faster), NetworkModel(link)

  def service(link, network, servers):
    return server.visit_parts(nbytes, nbytes, p, link, network, servers).service

  served = service(link, network, servers) * (1 + 1e-9)
  assert service(better, NetworkModel(better), servers) <= served and service(link, network, servers + 1) <= served
  assert server.visit_seconds(nbytes, nbytes, better) <= server.visit_seconds(nbytes, nbytes, link)


def test_the_service_of_a_visit_counts_its_bytes():
  for link, seconds in ((HALF, 4), (FULL, 2)):  # 200 bytes up and down
    network = NetworkModel(link, LinkModel(0.0, 1e9), per_node=8)
    assert server.visit_parts(200.0, 200.0, 5, link, network).service == seconds
    assert server.visit_parts(200.0, 200.0, 5, link, network, 2).service == seconds / 2
    assert server.visit_seconds(200.0, 200.0, link) == 5


@pytest.mark.parametrize(("servers", "crowd"), [(1, 60), (4, 200)])
def test_latency_does_not_occupy_a_link(servers, crowd):
  """In the simulated queue a crowd of workers waits only for the bytes, a single worker also for the latency."""
  link, nbytes = LinkModel(0.02, 1e8), 1e5

  def simulated(workers):
    visit = server.visit_parts(nbytes, nbytes, workers, link, NetworkModel(link), servers)
    return server.mean_round(np.zeros((1, workers)), np.full((1, workers), 1e-6), visit)

  visit = server.visit_seconds(nbytes, nbytes, link, servers)
  assert visit == pytest.approx(2 * 0.021) == pytest.approx(simulated(1), rel=1e-3)
  assert simulated(crowd) == pytest.approx(crowd * 1e-3 / servers, rel=1e-3)


def test_invalid_arguments_are_rejected_in_one_line():
  for call, key in (
    (lambda: server.visit_seconds(400.0, 400.0, HALF, servers=101), "servers must be at most 100.*got 101"),
  ):
    with pytest.raises(ValueError, match=key) as error:
      call()
    assert "\n" not in str(error.value)


def test_node_seconds_count_all_workers_of_a_node():
  link = LinkModel(0.0, 1e9, 0.5)
  nodes = NetworkModel(link, LinkModel(0.0, 1e12), per_node=4)
  assert server.node_seconds(2e9, 1e9, 4, nodes) == 0  # one node holds all workers
  assert server.node_seconds(2e9, 1e9, 8, nodes) == pytest.approx(4 * (2 + 0.5 * 1))
  assert server.node_seconds(1e9, 0.0, 8, nodes, peers=True) == pytest.approx(4 * 4 / 7 * 1.5)
  assert server.node_seconds(1e9, 1e9, 8, NetworkModel(link)) == pytest.approx(1.5)
