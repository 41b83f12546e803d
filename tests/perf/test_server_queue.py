"""The queue of parameter servers: closed forms without and with full queues, and a second simulation."""

import bisect
import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddl.perf import bounds
from ddl.perf.server import simulate

some = st.floats(0.01, 10)
BASE = {"workers": 8, "nbytes": 1e8, "bandwidth": 1e9, "compute_seconds": 0.2}


def mean_rounds(turns, line, service, latency, full_duplex, overlap, rounds):
  """Simulate queues of the two lines and the processor; return the mean seconds of a round of each worker."""
  workers = turns.shape[1]
  names = ["in", "processor", "out" if full_duplex else "in"]
  queues = {name: [] for name in names}  # of (worker, stage); the first is being served
  clocks = {}  # activity -> its end
  begun = [[] for _ in range(workers)]
  away, early = [False] * workers, [False] * workers

  def duration(w):
    return turns[(len(begun[w]) - 1) % len(turns), w]

  def begin(w, now):
    begun[w].append(now)
    away[w] = early[w] = True
    clocks["way", w, 0] = now + latency
    clocks["early", w] = now + overlap * duration(w)

  def late(w, now):
    if not away[w] and not early[w]:
      clocks["late", w] = now + (1 - overlap) * duration(w)

  for w in range(workers):
    begin(w, 0.0)
  while min(len(b) for b in begun) <= rounds:
    activity = min(clocks, key=clocks.get)
    now = clocks.pop(activity)
    match activity:
      case ("early", w):
        early[w] = False
        late(w, now)
      case ("way", w, 3):
        away[w] = False
        late(w, now)
      case ("late", w):
        begin(w, now)
      case ("way", w, stage):
        queues[names[stage]].append((w, stage))
      case ("part", name):
        w, stage = queues[name].pop(0)
        clocks["way", w, stage + 1] = now + (latency if stage == 2 else 0)
    for name, queue in queues.items():
      if queue and ("part", name) not in clocks:
        clocks["part", name] = now + (service if queue[0][1] == 1 else line)
  since = max(b[rounds // 2] for b in begun)
  return [np.mean(np.diff([t for t in b if t >= since])) for b in begun]


@settings(max_examples=60)
@given(st.integers(1, 5), some, some, some, st.booleans(), st.sampled_from([0, 0.3, 1]), st.integers(0, 2**20))
def test_simulation_equals_a_simulation_of_queues(workers, line, service, latency, full_duplex, overlap, seed):
  turns = np.random.default_rng(seed).lognormal(1.0, 0.5, (12, workers))
  simulated = simulate(
    workers=workers, servers=4, nbytes=4 * line * 1e3, bandwidth=1e3, compute_seconds=turns, service_seconds=service,
    latency=latency, full_duplex=full_duplex, overlap=overlap, rounds=12,
  )  # fmt: skip
  expected = mean_rounds(turns, line, service, latency, full_duplex, overlap, 12)
  assert simulated.round_seconds == pytest.approx(np.mean(expected), rel=1e-9)


@settings(max_examples=40)
@given(some, some, some, some, st.booleans())
def test_a_single_worker_never_queues(compute, line, service, latency, full_duplex):
  simulated = simulate(
    workers=1, servers=2, nbytes=2e6 * line, bandwidth=1e6, compute_seconds=compute, service_seconds=service,
    latency=latency, full_duplex=full_duplex, rounds=4,
  )  # fmt: skip
  assert simulated.wait_seconds == pytest.approx(2 * line + service + 2 * latency)
  assert simulated.round_seconds == pytest.approx(compute + simulated.wait_seconds)


@settings(max_examples=20)
@given(st.integers(2, 8), some, some, st.booleans())
def test_a_round_with_overlapped_messages_is_bound_by_computation_or_line(workers, compute, line, full_duplex):
  """max(T_C, N_w (2 - ov) S_p / (N_ps B_ps)): the two sides of the lemma."""
  simulated = simulate(
    workers=workers, servers=1, nbytes=1e6 * line, bandwidth=1e6, compute_seconds=compute, full_duplex=full_duplex,
    overlap=True, rounds=400,  # if both sides are nearly equal, it takes long until the line is never idle
  )  # fmt: skip
  busy = workers * line * (1 if full_duplex else 2)
  trip = 2 * line  # one message up and down, with one or two lines
  assert simulated.round_seconds >= max(compute, busy) * (1 - 1e-9)
  assert simulated.round_seconds == pytest.approx(max(compute, busy, trip), rel=0.02)


def knee(most, **settings):
  """Return the fewest servers with which a round takes at most 1 % longer than with `most`."""
  goal = 1.01 * simulate(servers=most, **settings).round_seconds
  return bisect.bisect_left(range(1, most), -goal, key=lambda s: -simulate(servers=s, **settings).round_seconds) + 1


@pytest.mark.parametrize("full_duplex", [False, True])
@pytest.mark.parametrize("compute", [0.2, 0.13, 0.05])
def test_the_knee_of_the_simulation_is_that_of_the_lemma(full_duplex, compute):
  settings = BASE | {"compute_seconds": compute, "full_duplex": full_duplex, "overlap": True}
  predicted = bounds.servers_for(1e8, 8, 1e9, compute, duplex=float(full_duplex))
  assert knee(128, **settings) == predicted
  assert simulate(servers=predicted, **settings).wait_seconds == pytest.approx(0, abs=1e-9)
  assert simulate(servers=predicted - 1, **settings).wait_seconds > 0.01 * compute


def test_more_servers_shorten_the_queue():
  waits = [simulate(servers=s, **BASE).wait_seconds for s in (1, 2, 4, 8, 16, 32)]
  assert all(a > b for a, b in pairwise(waits))
  assert waits[0] == pytest.approx(8 * 2 * 0.1 - 0.2, rel=1e-3)  # the line is never idle once all workers wait


def test_invalid_arguments_are_rejected_in_one_line():
  for change, text in (
    ({"workers": 0}, "number of workers"),
    ({"servers": 0}, "number of servers"),
    ({"bandwidth": 0}, "bandwidth"),
    ({"nbytes": 3, "servers": 4}, "servers must be at most 3 .one per byte"),
    ({"nbytes": math.nan}, "bytes"),
    ({"latency": -1}, "latency"),
    ({"overlap": 2}, "overlap"),
    ({"compute_seconds": 0}, "compute_seconds must be .*> 0"),
    ({"compute_seconds": np.ones((3, 2))}, r"\[rounds, 8\]"),
  ):
    with pytest.raises(ValueError, match=text) as error:
      simulate(**{"servers": 2} | BASE | change)
    assert "\n" not in str(error.value)
