"""Parameter servers against messages taken one at a time at each end, and packing against messages in a row."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddl.perf.comm import collectives, packing, server, server_queue
from ddl.perf.hardware.network import Link, Network

links = st.builds(Link, st.just(0.0) | st.floats(1e-9, 1e-2), st.floats(1e5, 1e12), st.floats(0, 1))
HALF, FULL = Link(0.5, 100.0, 0.0), Link(0.5, 100.0, 1.0)


def simulate(p, servers, parts, link, message):
  """Greedy slots of one message: an end takes one at a time, with full duplex one each way.

  A part is pulled as soon as every worker has pushed all of it.
  """
  pushes = [(w, s, k) for k in range(parts) for w in range(p) for s in range(servers)]
  wide = max(p, servers)
  pushes.sort(key=lambda job: (job[2], (job[0] + job[1]) % wide))  # a schedule in which no end has two at once
  pulls = list(pushes)
  pushed, slot = {}, 0
  while pushes or pulls:
    busy, done = set(), []
    for jobs, push in ((pushes, True), (pulls, False)):
      for job in list(jobs):
        w, s, k = job
        way = push if link.duplex else None  # half duplex: both ways use the one line
        if (way, "w", w) in busy or (way, "s", s) in busy:
          continue
        if not push and sum(pushed.get((a, b, k), slot) < slot for a in range(p) for b in range(servers)) < p * servers:
          continue
        busy |= {(way, "w", w), (way, "s", s)}
        jobs.remove(job)
        done.append((job, push))
    for job, push in done:
      if push:
        pushed[job] = slot
    slot += 1
  return slot * link.seconds(message)


@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("p, servers", [(1, 1), (4, 1), (2, 2), (5, 2), (4, 4), (2, 6)])
@pytest.mark.parametrize("link", [HALF, FULL])
def test_a_round_takes_what_its_messages_take(p, servers, parts, link):
  nbytes = 720.0
  expected = simulate(p, servers, parts, link, nbytes / servers / parts)
  assert server.exchange_seconds(nbytes, p, link, servers, parts) == pytest.approx(expected, rel=1e-12)


def test_a_tree_beats_the_round_robin_by_p_over_log_p():
  """arXiv 1708.02983: P (alpha + |W| beta) becomes log2 P (alpha + |W| beta)."""
  link = Link(0.7e-6, 1 / 0.2e-9)
  for p, ratio in ((8, 8 / 3), (64, 64 / 6)):
    tree = collectives.BROADCAST["tree"](249e6, p, link)
    assert server.round_robin_seconds(249e6, p, link) / tree == pytest.approx(ratio, rel=1e-12)
  assert server.round_robin_seconds(249e6, 8, link) == pytest.approx(0.398, abs=5e-4)  # ungrouped AlexNet on FDR
  assert collectives.BROADCAST["tree"](249e6, 8, link) == pytest.approx(0.149, abs=5e-4)


@given(st.floats(4e3, 1e9), st.integers(1, 64), links, st.integers(1, 64), st.floats(0, 10), st.floats(1, 1e3))
@settings(deadline=None)
def test_what_more_servers_and_better_links_do(nbytes, p, link, servers, turn, faster):
  better = link._replace(bandwidth=link.bandwidth * faster)
  round_ = server.exchange_seconds(nbytes, p, link, servers)
  assert server.exchange_seconds(nbytes, p, better, servers) <= round_
  assert server.exchange_seconds(nbytes, p, link._replace(latency=0.0), servers) <= round_
  assert round_ * (1 + 1e-9) >= server.visit_seconds(nbytes, nbytes, link, servers)  # a worker's own messages
  rate = server.throughput(nbytes, p, link, turn, servers)
  assert rate <= server.limit(nbytes, link, servers)
  assert rate <= server.throughput(nbytes, p + 1, link, turn, servers)
  assert rate <= server.throughput(nbytes, p, better, turn, servers)
  assert 0 <= server.utilisation(nbytes, p, link, turn, servers) <= 1
  if not link.latency:  # else a message to each of more servers costs more latencies than it saves
    assert server.exchange_seconds(nbytes, p, link, servers + 1) <= round_ * (1 + 1e-9)


def test_throughput_rises_with_the_workers_until_the_limit():
  """One exchange keeps the server for 2 s each way, and a worker for 5 s after 15 s of its own."""
  half, full = Link(0.5, 100.0, 0.0), Link(0.5, 100.0, 1.0)
  assert server.limit(200.0, half) == 1 / 4
  assert server.limit(200.0, full) == 1 / 2
  for p, half_rate, full_rate in ((1, 0.05, 0.05), (5, 0.25, 0.25), (6, 0.25, 0.3), (10, 0.25, 0.5), (11, 0.25, 0.5)):
    assert server.throughput(200.0, p, half, 15.0) == pytest.approx(half_rate)
    assert server.throughput(200.0, p, full, 15.0) == pytest.approx(full_rate)
  assert server.utilisation(200.0, 2, half, 15.0) == pytest.approx(0.4)
  assert server.limit(200.0, half, 2) == 1 / 2


@pytest.mark.parametrize("servers", [1, 4])
def test_what_is_on_its_way_holds_no_link(servers):
  """The simulated queue with a latency of many messages: a crowd waits for the bytes alone, one worker for both."""
  link, nbytes = Link(0.02, 1e8), 1e5

  def simulated(workers):
    return server_queue.simulate(
      workers=workers, servers=servers, nbytes=nbytes, bandwidth=link.bandwidth, compute_seconds=1e-6,
      latency=link.latency + nbytes / link.bandwidth * (1 - 1 / servers), full_duplex=True,
    ).round_seconds  # fmt: skip

  visit = server.visit_seconds(nbytes, nbytes, link, servers)
  assert visit == pytest.approx(2 * 0.021) == pytest.approx(simulated(1), rel=1e-3)
  served = server.served_seconds(nbytes, 400, link, Network(link), servers)
  assert served == pytest.approx(400 * 1e-3 / servers) == pytest.approx(simulated(400), rel=1e-3)


# ---- packing

layers_ = st.lists(st.just(0.0) | st.floats(1, 1e8), min_size=1, max_size=30)


@given(layers_, links, st.floats(1, 1e9))
@settings(deadline=None)
def test_packing_saves_a_latency_per_message(layers, link, size):
  packed, unpacked = packing.packed_seconds(layers, link.seconds), packing.unpacked_seconds(layers, link.seconds)
  assert unpacked - packed == pytest.approx((len(layers) - 1) * link.latency, rel=1e-6, abs=1e-9 * (1 + unpacked))
  count = len(packing.buckets(layers, size))
  bucketed = packing.bucketed_seconds(layers, size, link.seconds)
  assert bucketed == pytest.approx(packed + (count - 1) * link.latency, rel=1e-9)
  assert packed * (1 - 1e-9) <= bucketed <= unpacked * (1 + 1e-9)


@given(layers_, st.floats(1, 1e9))
def test_buckets_hold_all_layers_in_order_and_are_full(layers, size):
  found = packing.buckets(layers, size)
  assert [index for bucket in found for index in bucket] == list(range(len(layers)))
  sums = [sum(layers[index] for index in bucket) for bucket in found]
  assert all(total <= size * (1 + 1e-9) or len(bucket) == 1 for total, bucket in zip(sums, found, strict=True))
  for total, after in zip(sums, found[1:], strict=False):  # the next layer would not have fitted
    assert total + layers[after[0]] > size * (1 - 1e-9)


def test_packing_a_collective():
  network = Network(Link(1e-5, 1e9))
  layers = [1e3, 2e3, 5e6]

  def cost(nbytes):
    return collectives.all_reduce(nbytes, 8, network, "ring")

  assert packing.unpacked_seconds(layers, cost) - packing.packed_seconds(layers, cost) == pytest.approx(2 * 14 * 1e-5)
  assert packing.buckets(layers, 4e3) == [[0, 1], [2]]


@pytest.mark.parametrize(
  "call, says",
  [
    (lambda: server.exchange_seconds(400.0, 2, HALF, servers=101), "101 servers are more than the 100 parameters"),
    (lambda: server.exchange_seconds(400.0, 2, HALF, servers=0), "servers is 0"),
    (lambda: server.exchange_seconds(400.0, 0, HALF), "0 workers"),
    (lambda: server.exchange_seconds(400.0, 2, HALF, parts=0), "parts is 0"),
    (lambda: server.exchange_seconds(math.inf, 2, HALF), "inf bytes"),
    (lambda: server.limit(4.0, Link(0.0, 0.0)), "bandwidth"),
    (lambda: server.throughput(4.0, 2, HALF, turn=math.nan), "turn of nan"),
    (lambda: packing.buckets([1.0], 0.0), "buckets of 0 bytes"),
    (lambda: packing.packed_seconds([], HALF.seconds), "no layers"),
    (lambda: packing.unpacked_seconds([1.0, -1.0], HALF.seconds), "-1 bytes"),
  ],
)
def test_what_can_t_be_gets_one_line(call, says):
  with pytest.raises(ValueError, match=says) as error:
    call()
  assert "\n" not in str(error.value)


def test_a_nodes_link_carries_all_its_workers():
  link = Link(0.0, 1e9, 0.5)
  nodes = Network(link, Link(0.0, 1e12), per_node=4)
  assert server.node_seconds(2e9, 1e9, 4, nodes) == 0  # one node, and nobody outside
  assert server.node_seconds(2e9, 1e9, 8, nodes) == pytest.approx(4 * (2 + 0.5 * 1))
  assert server.node_seconds(1e9, 0.0, 8, nodes, peers=True) == pytest.approx(4 * 4 / 7 * 1.5)
  assert server.node_seconds(1e9, 1e9, 8, Network(link)) == pytest.approx(1.5)
