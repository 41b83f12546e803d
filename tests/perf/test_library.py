"""Costs of NCCL's collectives, network cards, oversubscribed and reducing switches, and tori."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddl.perf import collectives, neural_networks, scaling, server
from ddl.perf.cluster import LIBRARIES, NCCL, LinkModel, NetworkModel, Torus, Uplink
from ddl.perf.cluster_file import named
from ddl.perf.device import LayerWork
from ddl.perf.layers import params_bytes
from ddl.perf.patterns import Pattern, Visits
from ddl.perf.scaling import StepWork

KB, GB = 1e3, 1e9
H100 = named("h100_ib400").network
NVLINK, CARD = H100.inside or H100.between, H100.card or 0.0
ROUNDED = 1 - 1e-9  # tolerance for the rounding of sums
bytes_ = st.just(0.0) | st.floats(1, 1e10)
links = st.builds(LinkModel, st.floats(0, 1e-2), st.floats(1e5, 1e12), st.just(1.0))
with_library = st.builds(
  NetworkModel, links, st.none() | links, st.integers(1, 16), st.integers(1, 3), card=st.none() | st.floats(1e5, 1e12),
  uplink=st.none() | st.builds(Uplink, st.integers(1, 8), st.floats(0.05, 1)), torus=st.none(),
  reduces=st.sampled_from([(), ("inside",), ("between",), ("inside", "between")]),
  library=st.sampled_from([None, *LIBRARIES.values(), NCCL.instant()]),
)  # fmt: skip
in_torus = st.builds(
  NetworkModel, links, st.none(), st.just(1), st.just(1), card=st.none(), uplink=st.none(), reduces=st.just(()),
  torus=st.builds(Torus, st.integers(1, 3), st.sampled_from([4, 16])), library=st.none(),
)  # fmt: skip
any_network = with_library | in_torus


@given(bytes_, st.integers(1, 300), any_network)
@settings(max_examples=60)
def test_every_cost_is_at_least_its_bound(nbytes, p, network):
  bound = collectives.network_bound(nbytes, p, network)
  result = collectives.table(nbytes, p, network)
  best = collectives.all_reduce(nbytes, p, network)
  assert best == min(seconds for seconds, _ in result.values())
  if network.torus is None:  # the bound is not valid for a chip with several links
    assert best >= bound * ROUNDED
  for name, (seconds, _) in result.items():
    assert collectives.all_reduce(nbytes, p, network, name) == seconds >= 0


@given(bytes_, st.integers(1, 300), any_network, st.floats(1, 1e6))
@settings(max_examples=50)
def test_fewer_bytes_and_better_links_are_never_slower(nbytes, p, network, faster):
  now = collectives.all_reduce(nbytes, p, network)
  assert collectives.all_reduce(nbytes / faster, p, network) * ROUNDED <= now
  assert collectives.all_reduce(nbytes, p, network._replace(uplink=None)) * ROUNDED <= now
  assert collectives.all_reduce(nbytes, p, network._replace(card=None)) * ROUNDED <= now
  for kind in collectives.ONE_WAY:
    assert collectives.one_way(kind, nbytes / faster, p, network) * ROUNDED <= collectives.one_way(
      kind, nbytes, p, network
    )


@given(bytes_, any_network)
@settings(max_examples=30)
def test_a_single_worker_sends_nothing(nbytes, network):
  assert collectives.all_reduce(nbytes, 1, network) == 0
  assert all(collectives.one_way(kind, nbytes, 1, network) == 0 for kind in collectives.ONE_WAY)


@given(bytes_, st.integers(2, 300), with_library)
@settings(max_examples=50)
def test_an_all_gather_costs_at_most_an_all_reduce(nbytes, p, network):
  if network.library:
    ring = [
      s
      for name, s in collectives.library_all_reduces(nbytes, p, network, network.library).items()
      if name.startswith("ring")
    ]
    assert collectives.one_way("all_gather", nbytes, p, network) * ROUNDED <= min(ring)


def test_one_way_collectives_of_large_messages():
  """Half of a ring all-reduce sends n (p - 1) / p of its 2 n (p - 1) / p bytes; a tree broadcast sends n."""
  whole = collectives.library_all_reduces(1e13, 8, H100, NCCL)["ring/Simple"]
  for kind, factor in (("all_gather", 0.5), ("reduce_scatter", 0.5), ("broadcast", 4 / 7)):
    assert collectives.one_way(kind, 1e13, 8, H100) == pytest.approx(factor * whole, rel=1e-3), kind


@pytest.mark.parametrize("p, bandwidth", [(8, 1e13), (64, 4e11), (64, 1e11)])
def test_large_messages_reach_the_share_of_the_slower_level(p, bandwidth):
  ring = H100._replace(reduces=(), card=None, between=H100.between._replace(bandwidth=bandwidth))
  nbytes, reached = 1e13, min(NCCL.inside * NVLINK.bandwidth, NCCL.between * bandwidth)
  result = collectives.table(nbytes, p, ring)
  assert next(iter(result)) in ("ring/Simple", "tree/Simple")
  assert result["ring/Simple"][0] == pytest.approx(2 * nbytes * (p - 1) / p / reached, rel=1e-3)


def test_small_messages_cost_the_call_and_the_steps():
  result = collectives.table(8.0, 16, H100)
  assert next(iter(result)) == "tree/LL"
  hop = NCCL.protocols[0]
  steps = 2 * 7 * (hop.inside + NVLINK.latency) + 2 * (hop.between + hop.trips * H100.between.latency)
  assert result["tree/LL"][0] == pytest.approx(hop.call + steps, rel=1e-3)
  assert collectives.all_reduce(8.0, 16, H100) == pytest.approx(collectives.all_reduce(8 * KB, 16, H100), rel=0.02)


def test_the_cheapest_protocol_depends_on_the_message_size():
  options = [next(iter(collectives.table(n, 8, H100._replace(reduces=())))) for n in (KB, 1e6, GB)]
  assert [name.partition("/")[2] for name in options] == ["LL", "LL128", "Simple"]
  without = H100._replace(library=NCCL._replace(protocols=NCCL.protocols[::2]))
  assert not any("LL128" in name for name in collectives.table(1e6, 8, without))


@pytest.mark.parametrize("card, algorithm", [(12.5e9, "tree"), (25e9, "ring")])
def test_two_nodes_use_a_tree_on_slow_cards_and_a_ring_on_fast_ones(card, algorithm):
  """Two nodes of four A100 reached 21 GB/s with two cards of 25 GB/s, as a ring; a tree would reach 40."""
  network = NetworkModel(LinkModel(0.0, 2 * card), LinkModel(0.0, 300e9), 4, card=card, library=NCCL.instant())
  result = collectives.table(1e9, 8, network)
  assert next(iter(result)) == f"{algorithm}/Simple"
  assert result["ring/Simple"][0] == pytest.approx(1.75e9 / (NCCL.between * 2 * card))
  assert result["tree/Simple"][0] == pytest.approx(1e9 / min(NCCL.between * 2 * card, 2 * NCCL.tree * 300e9))


def test_a_large_domain_uses_some_of_its_network_cards():
  domain = NetworkModel(LinkModel(0.0, 72 * 50e9), LinkModel(0.0, 900e9), 72, card=50e9, library=NCCL.instant())
  ring = collectives.library_all_reduces(1e9, 144, domain, NCCL.instant())["ring/Simple"]
  assert ring == pytest.approx(2e9 * 143 / 144 / (NCCL.between * NCCL.cards * 50e9))


def test_sockets_have_a_largest_bandwidth():
  library = LIBRARIES["nccl_tcp"].instant()
  slow, fast = (collectives.all_reduce(1e9, 2, NetworkModel(LinkModel(0.0, x), library=library)) for x in (1e9, 1e11))
  assert slow == pytest.approx(1 / library.between) and fast == pytest.approx(1e9 / library.fastest)


def test_untested_numbers_of_workers_have_a_warning():
  assert not H100.untested(8 * NCCL.nodes) and "nccl" in H100.untested(8 * NCCL.nodes + 1)
  domain = H100._replace(per_node=72)
  assert not domain.untested(NCCL.devices) and domain.untested(NCCL.devices + 1)
  assert not NetworkModel(NVLINK).untested(64) and NetworkModel(NVLINK).untested(65)


def test_a_single_process_launches_on_its_devices_one_after_the_other():
  def seconds(nbytes, processes):
    return min(collectives.library_all_reduces(nbytes, 8, H100, NCCL, processes=processes).values())

  assert seconds(KB, processes=False) == 8 * NCCL.launch > seconds(KB, processes=True)
  assert seconds(GB, processes=False) == seconds(GB, processes=True)


def test_an_instant_library_costs_only_bandwidth():
  free = NetworkModel(LinkModel(0.0, 1e9), library=NCCL.instant())
  assert collectives.all_reduce(1e6, 4, free, "ring/Simple") == pytest.approx(1.5e-3 / NCCL.between)
  assert collectives.all_reduce(0.0, 4, free) == 0


def test_a_single_worker_uses_one_network_card():
  """A visit to a server takes eight times as long as with all cards of the node; all workers together use all cards."""
  nbytes = params_bytes(neural_networks.table("resnet50"))
  one_card, all_cards = H100.worker_link(16), H100._replace(card=None).worker_link(16)
  seconds = [server.visit_seconds(nbytes, nbytes, link, 1) for link in (one_card, all_cards)]
  assert seconds == pytest.approx([4.1e-3, 0.52e-3], rel=0.02)
  assert one_card.bandwidth * 8 == H100.between.bandwidth == H100.outgoing_link(16).bandwidth
  assert named("h100_ib400").server_link(16).bandwidth == one_card.bandwidth
  assert H100.worker_link(8) == H100.inside  # in one node
  assert H100.grouped(4).card == 4 * CARD > 0


def test_infinite_bandwidth_also_applies_to_network_cards():
  pattern, job = Pattern(visits=Visits(up=1e8, down=1e8, period=1)), StepWork((LayerWork(1e9),), (1e8,))
  (point,) = scaling.curve(lambda _: pattern, job, named("h100_ib400"), [16], batch=16, weak=True)
  assert point.losses["bandwidth"] == pytest.approx(point.seconds, rel=0.1)


def test_oversubscribed_switches_slow_messages_between_them():
  flat = NetworkModel(LinkModel(0.0, 1e9))
  under = flat._replace(uplink=Uplink(nodes=4, share=0.125))
  assert under.outgoing_link(4).bandwidth == 1e9
  assert under.outgoing_link(8).bandwidth == 0.5e9  # one of four nodes sends: 4 * 1 / 8
  assert under.outgoing_link(8, all_nodes=True).bandwidth == 0.125e9
  assert collectives.all_reduce(1e9, 8, under, "ring") == 2 * collectives.all_reduce(1e9, 8, flat, "ring")
  assert collectives.all_reduce(1e9, 8, under, "butterfly") == 8 * collectives.all_reduce(1e9, 8, flat, "butterfly")
  assert collectives.all_reduce(1e9, 4, under) == collectives.all_reduce(1e9, 4, flat)


@pytest.mark.parametrize(
  "axes, ring, chips, box, share",
  [
    (2, 16, 8, (2, 4), 0.5), (2, 16, 128, (8, 16), 0.75), (2, 16, 256, (16, 16), 1.0), (3, 4, 64, (4, 4, 4), 1.0),
    (3, 4, 2, (1, 1, 2), 1 / 6), (1, 4, 7, (7,), 0.5),
  ],
)  # fmt: skip
def test_slices_of_a_torus(axes, ring, chips, box, share):
  torus = Torus(axes, ring)
  assert torus.slice(chips) == box and torus.share(chips) == pytest.approx(share)
  assert torus.steps(chips) == sum(length - 1 for length in box)
  network = NetworkModel(LinkModel(0.0, 1e9), torus=torus)
  result = collectives.all_reduce(1e9, chips, network, "torus")
  assert result == pytest.approx(2 * (chips - 1) / chips / share)
  assert collectives.one_way("all_gather", 1e9, chips, network) == pytest.approx(result / 2)


def test_reducing_switches_halve_the_bytes():
  network = NetworkModel(LinkModel(0.0, 1e9), LinkModel(0.0, 1e10), 8, library=NCCL)
  sums = network._replace(reduces=("inside", "between"))
  assert collectives.all_reduce(1e9, 64, network) > 1.5 * collectives.all_reduce(1e9, 64, sums)
  assert math.isclose(collectives.network_bound(1e9, 64, sums), 1.0)
