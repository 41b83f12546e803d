"""A parameter server's queue in time: workers compute, send a message and get a reply; first come, first served.

A message is spread evenly over the servers and its parts leave together, so that all servers see the same: one is
simulated, with its line in, its processor and its line out. The knee is what the lemma of arXiv 1709.06622 predicts.
"""

import heapq
import math
from itertools import count
from typing import NamedTuple

import numpy as np

SHARE, TURN = -1, -2


class Queue(NamedTuple):
  """Means over the workers in the steady state."""

  round_seconds: float  # a worker's turn: compute, send, be served, receive
  wait_seconds: float  # of it without computing
  utilisation: float  # share of the time in which a server's busiest part (a line or its processor) works
  rounds_per_second: float  # of all workers together


def simulate(
  *,
  workers: int,
  servers: int,
  nbytes: float,
  bandwidth: float,
  compute_seconds: float | np.ndarray,
  service_seconds: float = 0.0,
  latency: float = 0.0,
  full_duplex: bool = False,
  overlap: float = 0.0,
  rounds: int = 40,
) -> Queue:
  """Turns of `workers` at `servers`, until the slowest has made `rounds`; the second half is measured.

  Args:
    nbytes: up and as many down, per worker and turn (S_p); each server's share is nbytes / servers.
    bandwidth: of one server's line, bytes per second (B_ps); the workers' own lines do not limit.
    compute_seconds: of a turn (T_C), or [turns, workers] of each, over and over.
    service_seconds: of a server's processor per message, before the reply.
    latency: seconds of a message on its way, while the line is free for others.
    full_duplex: requests and replies have a line each; otherwise they share one.
    overlap: share of a turn, 0..1, that a worker computes from when its message leaves until it waits for the reply.
    rounds: at least 4.

  Raises:
    ValueError: one line, for invalid values, such as more servers than bytes.
  """
  turns = np.asarray(compute_seconds, np.float64)
  turns = np.full((1, workers), turns) if not turns.ndim else turns
  _check(workers, servers, nbytes, bandwidth, turns, service_seconds, latency, rounds, overlap)
  line = nbytes / servers / bandwidth
  stages = (("in", line), ("processor", service_seconds), ("out" if full_duplex else "in", line))
  free = {part: 0.0 for part, _ in stages}
  worked: dict[str, list[tuple[float, float]]] = {part: [] for part in free}
  begun: list[list[float]] = [[] for _ in range(workers)]  # when the message of each turn of each worker left
  missing = [0] * workers  # of two: the reply, and the share of the turn that does not need it
  order, heap = count(), []  # (time, who came first, worker, stage); before the stages SHARE and TURN are computed

  def at(time: float, worker: int, stage: int) -> None:
    heapq.heappush(heap, (time, next(order), worker, stage))

  for worker in range(workers):
    at(0.0, worker, TURN)
  while min(map(len, begun)) <= rounds:
    now, _, worker, stage = heapq.heappop(heap)
    if stage == TURN:
      begun[worker].append(now)
      missing[worker] = 2
    seconds = turns[(len(begun[worker]) - 1) % len(turns), worker]
    if stage == TURN:
      at(now + latency, worker, 0)
      at(now + overlap * seconds, worker, SHARE)
    elif stage == SHARE or stage == len(stages):
      missing[worker] -= 1
      if not missing[worker]:
        at(now + (1 - overlap) * seconds, worker, TURN)
    else:
      part, takes = stages[stage]
      worked[part].append((max(now, free[part]), max(now, free[part]) + takes))
      free[part] = worked[part][-1][1]
      at(free[part] + (latency if stage == len(stages) - 1 else 0.0), worker, stage + 1)
  return _measured(begun, turns, worked, rounds // 2)


def knee(*, most: int, tolerance: float = 0.01, **settings) -> int:
  """The smallest number of servers with which a round takes at most 1 + tolerance times what it takes with `most`.

  Args:
    settings: those of `simulate`, without the servers.

  Raises:
    ValueError: as `simulate`.
  """
  goal = (1 + tolerance) * simulate(servers=most, **settings).round_seconds
  low, high = 1, most
  while low < high:
    middle = (low + high) // 2
    if simulate(servers=middle, **settings).round_seconds <= goal:
      high = middle
    else:
      low = middle + 1
  return low


def _measured(begun: list[list[float]], turns: np.ndarray, worked: dict, first: int) -> Queue:
  since, until = max(b[first] for b in begun), min(b[-1] for b in begun)
  rounds, computing = [], []
  for worker, times in enumerate(begun):
    kept = [i for i, time in enumerate(times) if time >= since]
    rounds.append((times[kept[-1]] - times[kept[0]]) / (len(kept) - 1))
    computing.append(np.mean([turns[i % len(turns), worker] for i in kept[:-1]]))
  busy = [sum(max(0.0, min(b, until) - max(a, since)) for a, b in spans) for spans in worked.values()]
  return Queue(
    round_seconds=float(np.mean(rounds)),
    wait_seconds=float(np.mean(rounds) - np.mean(computing)),
    utilisation=float(max(busy) / (until - since)),
    rounds_per_second=float(np.sum(1 / np.array(rounds))),
  )


def _check(
  workers: int, servers: int, nbytes: float, bandwidth: float, turns: np.ndarray, service: float, latency: float,
  rounds: int, overlap: float,
) -> None:  # fmt: skip
  if workers < 1 or servers < 1 or rounds < 4:
    raise ValueError(f"{workers} workers, {servers} servers, {rounds} rounds; at least one each, and four rounds")
  if not (math.isfinite(nbytes) and nbytes > 0) or servers > nbytes:
    raise ValueError(f"{nbytes:g} bytes can't be spread over {servers} servers; take at most one server per byte")
  if not bandwidth > 0:
    raise ValueError(f"a bandwidth of {bandwidth:g} bytes per second is invalid: must be one above 0")
  if not (math.isfinite(service) and service >= 0 and math.isfinite(latency) and latency >= 0):
    raise ValueError(f"{service:g} s of service and {latency:g} s of latency; both are finite and not negative")
  if not 0 <= overlap <= 1:
    raise ValueError(f"overlap is {overlap:g}; it is a share of a turn, from 0 to 1")
  if turns.ndim != 2 or turns.shape[1] != workers or not (np.isfinite(turns) & (turns > 0)).all():
    raise ValueError(f"compute_seconds are one number or [turns, {workers}], all above 0; got {list(turns.shape)}")
