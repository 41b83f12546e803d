"""The mean round with a queue at the parameter servers: closed forms without and with full queues."""

import bisect
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddl.perf import bounds
from ddl.perf.cluster import LinkModel, NetworkModel
from ddl.perf.server import VisitSeconds, mean_round, visit_parts

some = st.floats(0.01, 10)
shares = st.sampled_from([0.0, 0.3, 1.0])


def simulated(workers, computing, visit, overlap=0.0, rounds=40):
  whole = np.broadcast_to(computing, (1, workers))
  return mean_round(overlap * whole, (1 - overlap) * whole, visit, rounds)


def parts(servers, duplex=0.0):
  """Return a visit of 100 MB in each direction; the workers' own links of any bandwidth are no limit."""
  return VisitSeconds(0.0, LinkModel(0.0, 1e9, duplex).busy_seconds(1e8, 1e8) / servers)


@settings(max_examples=40)
@given(some, some, some, shares)
def test_a_single_worker_never_queues(computing, message, service, overlap):
  whole = (1 - overlap) * computing + max(overlap * computing, 2 * message + service)
  assert simulated(1, computing, VisitSeconds(message, service), overlap) == pytest.approx(whole)


@settings(max_examples=40)
@given(st.integers(2, 8), some, some, some, shares)
def test_a_round_is_bound_by_computation_or_the_server(workers, computing, message, service, overlap):
  """max((1 - overlap) T_C + max(overlap T_C, T_visit), p T_service): the two sides of the lemma."""
  whole = (1 - overlap) * computing + max(overlap * computing, 2 * message + service)
  result = simulated(workers, computing, VisitSeconds(message, service), overlap, rounds=400)
  assert result >= max(whole, workers * service) * (1 - 1e-9)
  if not overlap:  # equal workers without overlap never wait for each other once they are out of phase
    assert result == pytest.approx(max(whole, workers * service), rel=0.02)


@settings(max_examples=20)
@given(st.integers(1, 5), some, some, st.integers(0, 2**20))
def test_unequal_rounds_wait_at_least_for_their_own_visit(workers, message, service, seed):
  computing = np.random.default_rng(seed).lognormal(1.0, 0.5, (12, workers))
  result = mean_round(0 * computing, computing, VisitSeconds(message, service))
  assert result >= max(computing.mean(axis=0).min() + 2 * message + service, workers * service) * 0.9


def knee(most, duplex, computing):
  """Return the fewest servers with which a round takes at most 1 % longer than with `most`."""

  def seconds(servers):
    return simulated(8, computing, parts(servers, duplex), overlap=1.0)

  return bisect.bisect_left(range(1, most), -1.01 * seconds(most), key=lambda servers: -seconds(servers)) + 1


@pytest.mark.parametrize("duplex", [0.0, 1.0])
@pytest.mark.parametrize("computing", [0.3, 0.22])
def test_the_knee_of_the_simulation_is_that_of_the_lemma(duplex, computing):
  predicted = bounds.servers_for(1e8, 8, 1e9, computing, duplex=duplex)
  assert knee(128, duplex, computing) == predicted
  assert simulated(8, computing, parts(predicted, duplex), 1.0) == pytest.approx(computing)
  assert simulated(8, computing, parts(predicted - 1, duplex), 1.0) > 1.01 * computing


def test_more_servers_shorten_the_queue():
  waits = [simulated(8, 0.2, parts(servers)) - 0.2 for servers in (1, 2, 4, 8, 16)]
  assert all(a > b for a, b in pairwise(waits))
  assert waits[0] == pytest.approx(8 * 2 * 0.1 - 0.2, rel=1e-3)  # the link is never idle once all workers wait


def test_a_node_s_link_limits_its_workers():
  """Eight workers of a node share 1e9 bytes per second, while a server has ten times as much."""
  inside, between = LinkModel(0.0, 1e11), LinkModel(0.0, 1e9)
  network = NetworkModel(between, inside, per_node=8)
  visit = visit_parts(1e8, 1e8, 16, LinkModel(0.0, 1e10), network)
  assert simulated(16, 0.01, visit) == pytest.approx(8 * 1e8 / 1e9)
