"""Costs of collectives: against simulated rounds of messages, against bounds, and as functions."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddl.perf import collectives
from ddl.perf.cluster import LinkModel, NetworkModel, Uplink
from ddl.perf.collectives import ALL_GATHER, ALL_REDUCE, BROADCAST, REDUCE, REDUCE_SCATTER

NAMES = [*ALL_REDUCE, "hierarchical", "best"]
LINK = LinkModel(2e-3, 1000.0, 0.75)
NODES = NetworkModel(LINK, LinkModel(1e-3, 16000.0, 0.25), per_node=4)

# ---- rounds of messages: lists of (sender, receiver, chunks), executed on vectors of p chunks


def execute(rounds, x, network, adds):
  """Update x: [workers, chunks, values] in place and return the seconds; the busiest link determines a round's."""
  total, chunk = 0.0, x[0, 0].nbytes
  for messages in rounds:
    load = {}
    copies = [(receiver, chunks, x[sender, chunks].copy()) for sender, receiver, chunks in messages]
    for receiver, chunks, values in copies:
      x[receiver, chunks] = x[receiver, chunks] + values if adds else values
    for sender, receiver, chunks in messages:
      near = sender // network.per_node == receiver // network.per_node
      for way, worker in enumerate((sender, receiver)):
        owner = ("worker", worker) if near else ("node", worker // network.per_node)
        load.setdefault(owner, [0, 0])[way] += len(chunks) * chunk
    seconds = []
    for (owner, _), (out, into) in load.items():
      link = network.between if owner == "node" or not network.inside else network.inside
      busy = max(out, into) + (1 - link.duplex) * min(out, into)
      seconds.append(link.latency + busy / link.bandwidth)
    total += max(seconds)
  return total


def reverse(rounds):
  """Turn an all-gather into a reduce-scatter, or a broadcast into a reduction."""
  return [[(receiver, sender, chunks) for sender, receiver, chunks in messages] for messages in reversed(rounds)]


def ring_gather(p):
  return [[(i, (i + 1) % p, [(i - k) % p]) for i in range(p)] for k in range(p - 1)]


def doubling_gather(p):
  """Partners have distances p/2, ..., 2, 1, so that the reversed rounds start with the nearest."""
  held, rounds = [[i] for i in range(p)], []
  for bit in reversed(range(p.bit_length() - 1)):
    rounds.append([(i, i ^ (1 << bit), held[i]) for i in range(p)])
    held = [held[i] + held[i ^ (1 << bit)] for i in range(p)]
  return rounds


def bruck_gather(p):
  rounds, count = [], 1
  while count < p:
    more = min(count, p - count)
    rounds.append([(i, (i - count) % p, [(i + j) % p for j in range(more)]) for i in range(p)])
    count += more
  return rounds


def tree_broadcast(p):
  everything, rounds = list(range(p)), []
  for bit in reversed(range((p - 1).bit_length())):
    d = 1 << bit
    rounds.append([(i, i + d, everything) for i in range(0, p, 2 * d) if i + d < p])
  return rounds


def butterfly(p):
  return [[(i, i ^ (1 << bit), list(range(p))) for i in range(p)] for bit in range(p.bit_length() - 1)]


def start(p):
  x = np.random.default_rng(p).integers(0, 100, (p, p, 3)).astype(float)
  return x, x.sum(axis=0)


def all_reduce_rounds(name, p):
  """Return [(rounds, whether they add)], for p that the algorithm supports without additional rounds."""
  if name == "butterfly":
    return [(butterfly(p), True)]
  last = {"ring": ring_gather, "tree": tree_broadcast, "halving_doubling": doubling_gather}[name](p)
  return [(reverse(last), True), (last, False)]


def simulate(name, p, network):
  x, total = start(p)
  seconds = sum(execute(rounds, x, network, adds) for rounds, adds in all_reduce_rounds(name, p))
  np.testing.assert_array_equal(x, np.broadcast_to(total, x.shape))
  return x[0].nbytes, seconds


@pytest.mark.parametrize("name", ALL_REDUCE)
def test_an_all_reduce_costs_the_sum_of_its_rounds(name):
  sizes = [(p, duplex) for p in (1, 2, 4, 8, 16) for duplex in (0.0, 0.4, 1.0)]
  if name in ("ring", "tree"):
    sizes += [(p, LINK.duplex) for p in (3, 5, 6, 7, 11)]  # not powers of two
  for p, duplex in sizes:
    link = LINK._replace(duplex=duplex)
    nbytes, seconds = simulate(name, p, NetworkModel(link))
    assert ALL_REDUCE[name](nbytes, p, link) == pytest.approx(seconds, rel=1e-12), (p, duplex)


@pytest.mark.parametrize("p", [3, 7, 8, 13])
def test_a_butterfly_of_any_number_of_workers(p):
  """near[i] is the sum of w workers before i; w = 0, then 2 w or 2 w + 1 by the binary digits of p - 1."""
  x = np.random.default_rng(p).integers(0, 100, (p, 12)).astype(float)
  near, w, seconds = np.zeros_like(x), 0, 0.0
  for digit in bin(p - 1)[2:]:
    odd = digit == "1"
    sent = near + x if odd else near
    near = near + np.roll(sent, w + odd, axis=0)
    w = 2 * w + odd
    seconds += LINK.latency + (2 - LINK.duplex) * x[0].nbytes / LINK.bandwidth
  np.testing.assert_array_equal(near + x, np.broadcast_to(x.sum(axis=0), x.shape))
  assert ALL_REDUCE["butterfly"](x[0].nbytes, p, LINK) == pytest.approx(seconds, rel=1e-12)


@pytest.mark.parametrize("p", [3, 6, 12])
def test_halving_doubling_folds_the_workers_beyond_a_power_of_two(p):
  power = 1 << (p.bit_length() - 1)
  x = np.random.default_rng(p).integers(0, 100, (p, power, 3)).astype(float)
  total, chunks = x.sum(axis=0), list(range(power))
  fold = [[(power + i, i, chunks) for i in range(p - power)]]
  gather, one = doubling_gather(power), NetworkModel(LINK)
  seconds = execute([*fold, *reverse(gather)], x, one, adds=True)
  seconds += execute([*gather, *reverse(fold)], x, one, adds=False)
  np.testing.assert_array_equal(x, np.broadcast_to(total, x.shape))
  assert ALL_REDUCE["halving_doubling"](x[0].nbytes, p, LINK) == pytest.approx(seconds, rel=1e-12)


@pytest.mark.parametrize("p", [1, 2, 6, 8, 13])
@pytest.mark.parametrize("name, rounds", [("ring", ring_gather), ("halving_doubling", bruck_gather)])
def test_all_gather_and_reduce_scatter_cost_the_sum_of_their_rounds(name, rounds, p):
  x, total = start(p)
  scatter = execute(reverse(rounds(p)), x, NetworkModel(LINK), adds=True)
  ranks = np.arange(p)
  np.testing.assert_array_equal(x[ranks, ranks], total)
  gather = execute(rounds(p), x, NetworkModel(LINK), adds=False)
  np.testing.assert_array_equal(x, np.broadcast_to(total, x.shape))
  assert REDUCE_SCATTER[name](x[0].nbytes, p, LINK) == pytest.approx(scatter, rel=1e-12)
  assert ALL_GATHER[name](x[0].nbytes, p, LINK) == pytest.approx(gather, rel=1e-12)


@pytest.mark.parametrize("p", [1, 5, 8])
def test_reduce_and_broadcast_cost_the_sum_of_their_rounds(p):
  x, total = start(p)
  reduced = execute(reverse(tree_broadcast(p)), x, NetworkModel(LINK), adds=True)
  np.testing.assert_array_equal(x[0], total)
  assert REDUCE["tree"](x[0].nbytes, p, LINK) == pytest.approx(reduced, rel=1e-12)
  assert BROADCAST["tree"](x[0].nbytes, p, LINK) == pytest.approx(
    execute(tree_broadcast(p), x, NetworkModel(LINK), adds=False), rel=1e-12
  )


@pytest.mark.parametrize("name", ALL_REDUCE)
def test_an_all_reduce_between_nodes_costs_the_sum_of_its_rounds(name):
  for p, per_node in ((8, 4), (16, 4), (16, 2), (4, 4), (8, 16)):
    network = NODES._replace(per_node=per_node)
    nbytes, seconds = simulate(name, p, network)
    assert collectives.all_reduce(nbytes, p, network, name) == pytest.approx(seconds, rel=1e-12), (p, per_node)


def test_a_hierarchical_all_reduce_of_rings_costs_the_sum_of_its_rounds():
  """Reduce-scatter on a ring in each of 3 nodes, all-reduce of the strips on rings between nodes, all-gather inside."""
  m, q = 4, 3
  inside = [[(n * m + i, n * m + j, c) for n in range(q) for i, j, c in rnd] for rnd in ring_gather(m)]
  inside = [[(i, j, [c * q + s for c in cs for s in range(q)]) for i, j, cs in rnd] for rnd in inside]
  between = [
    [(a * m + i, b * m + i, [i * q + c for c in cs]) for i in range(m) for a, b, cs in rnd] for rnd in ring_gather(q)
  ]
  x = np.random.default_rng(0).integers(0, 100, (m * q, m * q, 2)).astype(float)
  total = x.sum(axis=0)
  seconds = execute([*reverse(inside), *reverse(between)], x, NODES, adds=True)
  seconds += execute([*between, *inside], x, NODES, adds=False)
  np.testing.assert_array_equal(x, np.broadcast_to(total, x.shape))
  assert collectives.hierarchical(x[0].nbytes, m * q, NODES)["ring", "ring"] == pytest.approx(seconds, rel=1e-12)


# ---- as functions

bytes_ = st.just(0.0) | st.floats(1, 1e10)
workers_ = st.integers(1, 600)
links = st.builds(LinkModel, st.just(0.0) | st.floats(1e-9, 1e-2), st.floats(1e5, 1e12), st.floats(0, 1))
uplinks = st.builds(Uplink, st.integers(1, 8), st.floats(0.05, 1))
networks = st.builds(
  NetworkModel, links, st.none() | links, st.integers(1, 20), st.integers(1, 3), card=st.none() | st.floats(1e5, 1e12),
  uplink=st.none() | uplinks, torus=st.none(), reduces=st.just(()), library=st.none(),
)  # fmt: skip
names = st.sampled_from(NAMES)
ROUNDED = 1 - 1e-9  # tolerance for the rounding of sums


@given(bytes_, workers_, networks)
@settings(max_examples=60)
def test_every_cost_is_at_least_its_bound(nbytes, p, network):
  bound = collectives.network_bound(nbytes, p, network)
  for name in NAMES:
    assert collectives.all_reduce(nbytes, p, network, name) >= bound * ROUNDED
  for cost in ALL_REDUCE.values():
    assert cost(nbytes, p, network.between) >= collectives.lower_bound(nbytes, p, network.between) * ROUNDED
  best = collectives.all_reduce(nbytes, p, network)
  table = collectives.table(nbytes, p, network)
  assert best == min(seconds for seconds, _ in table.values())
  assert all(seconds == pytest.approx(ratio * bound) or bound == 0 for seconds, ratio in table.values())
  assert list(table.values()) == sorted(table.values())


@given(bytes_, workers_, networks, names, st.floats(1, 1e6), st.floats(0, 1), st.floats(0, 1))
@settings(max_examples=60)
def test_a_better_link_is_never_slower(nbytes, p, network, name, faster, sooner, overlap):
  now = collectives.all_reduce(nbytes, p, network, name)
  for part in ("between", "inside"):
    link = getattr(network, part)
    if link is None:
      continue
    for better in (
      link._replace(bandwidth=link.bandwidth * faster),
      link._replace(latency=link.latency * sooner),
      link._replace(duplex=link.duplex + (1 - link.duplex) * overlap),
    ):
      assert collectives.all_reduce(nbytes, p, network._replace(**{part: better}), name) * ROUNDED <= now
  assert collectives.all_reduce(nbytes / faster, p, network, name) * ROUNDED <= now


def test_workers_are_spread_over_all_sites():
  packed, spread = (
    NetworkModel(LINK, LinkModel(0.0, 1e9), per_node=8),
    NetworkModel(LINK, LinkModel(0.0, 1e9), per_node=8, sites=2),
  )
  assert [packed.nodes(p) for p in (1, 2, 8, 9, 16, 17)] == [1, 1, 1, 2, 2, 3]
  assert [spread.nodes(p) for p in (1, 2, 8, 9, 16, 17)] == [1, 2, 2, 2, 2, 3]
  assert [spread.workers_per_node(p) for p in (1, 2, 3, 8, 16, 20)] == [1, 1, 2, 4, 8, 8]
  four = NetworkModel(LINK, LinkModel(0.0, 1e9), per_node=4)
  assert (
    collectives.all_reduce(1e6, 8, spread)
    == collectives.all_reduce(1e6, 8, four)
    > 100 * collectives.all_reduce(1e6, 8, packed)
  )


@given(bytes_, networks, names)
@settings(max_examples=30)
def test_a_single_worker_sends_nothing(nbytes, network, name):
  assert collectives.all_reduce(nbytes, 1, network, name) == 0
  assert collectives.network_bound(nbytes, 1, network) == 0
  for kind in collectives.ONE_WAY:
    assert collectives.one_way(kind, nbytes, 1, network) == 0


@given(bytes_, workers_, links, st.none() | links)
@settings(max_examples=40)
def test_nodes_of_one_worker_use_the_flat_algorithms(nbytes, p, link, inside):
  network = NetworkModel(link, inside, per_node=1)
  for name, cost in ALL_REDUCE.items():
    assert collectives.all_reduce(nbytes, p, network, name) == cost(nbytes, p, link)
    assert collectives.hierarchical(nbytes, p, network)["ring", name] == cost(nbytes, p, link)


@given(bytes_, workers_, networks)
@settings(max_examples=60)
def test_reduce_scatter_and_all_gather_cost_at_most_a_ring_all_reduce(nbytes, p, network):
  both = sum(collectives.one_way(kind, nbytes, p, network) for kind in ("reduce_scatter", "all_gather"))
  assert both * ROUNDED <= collectives.all_reduce(nbytes, p, network, "ring")
  assert both * ROUNDED <= collectives.hierarchical(nbytes, p, network)["ring", "ring"]


def test_the_cheapest_algorithm_depends_on_the_message_size():
  link = LinkModel(1e-6, 1e10)
  assert min(ALL_REDUCE, key=lambda name: ALL_REDUCE[name](1e3, 64, link)) == "butterfly"
  assert ALL_REDUCE["ring"](1e9, 64, link) == pytest.approx(collectives.lower_bound(1e9, 64, link), rel=1e-3)
  assert ALL_REDUCE["tree"](1e9, 64, link) > 6 * ALL_REDUCE["ring"](1e9, 64, link)


def test_fast_links_inside_nodes_make_an_all_reduce_faster():
  slow, fast = LinkModel(1e-6, 1e9), LinkModel(1e-6, 3e11)
  flat = collectives.all_reduce(1e9, 64, NetworkModel(slow))
  assert flat > 1.1 * collectives.all_reduce(1e9, 64, NetworkModel(slow, fast, per_node=8))
