"""The event loops: workers served first come, first served, by rank, or in the rounds of a quorum; one server."""

import heapq
from collections import deque

import numpy as np

from ddl.events.barriers import Bounded, LiveBarrier, Quorum, Round
from ddl.events.cluster import VirtualCluster, Work
from ddl.events.record import VisitRow

ARRIVE, DONE, FINISH = range(3)  # a request reaches the server; is served; the worker finishes its round


def first_come(
  cluster: VirtualCluster, barrier: Bounded, *, num_visits: int, seed: int, lock_free: bool
) -> list[VisitRow]:
  """Return the events until `num_visits` visits are served. Simultaneous events are ordered by worker.

  With delay 0 the barrier is at the server, which replies when the worker may go on: a round is finished when it is
  served. With a delay the worker comes to the barrier after the last step of its round. The barrier's own messages cost
  nothing. lock_free: the server is a shared memory, at which no request queues.
  """
  message, service = cluster.message, cluster.service
  members = LiveBarrier(barrier, workers=cluster.workers, seed=seed)
  clocks = [0] * cluster.workers  # finished rounds
  rounds: dict[int, Work] = {}  # under way
  arrivals: dict[int, float] = {}
  latest: dict[int, VisitRow] = {}
  rows: list[VisitRow] = []
  queue: deque[int] = deque()
  heap: list[tuple[float, int, int]] = []  # the next events: at most one for each worker

  def begin(worker: int, time: float) -> None:
    if len(rows) == num_visits:
      return
    rounds[worker] = work = cluster.work(worker, clocks[worker], time)
    heapq.heappush(heap, (work.leaves + message[worker], worker, ARRIVE))

  def answer(worker: int, time: float) -> float:
    row = latest[worker]
    row.answered, row.released = len(rows), max(rounds[worker].ready, time + message[worker])
    return row.released

  def finish(worker: int, time: float) -> None:
    clocks[worker] += 1
    for each in members.finish(worker):
      begin(each, time if cluster.delay else answer(each, time))

  for worker in range(cluster.workers):
    begin(worker, 0.0)
  while len(rows) < num_visits:
    time, worker, action = heapq.heappop(heap)
    work = rounds[worker]
    if action == ARRIVE:
      arrivals[worker] = time
      queue.append(worker)
      if lock_free or len(queue) == 1:
        heapq.heappush(heap, (time + service[worker], worker, DONE))
    elif action == DONE:
      queue.popleft()  # this worker; any, if lock-free
      if queue and not lock_free:
        heapq.heappush(heap, (time + service[queue[0]], queue[0], DONE))
      row = VisitRow(worker, clocks[worker], work.start, arrivals[worker], time, 0, 0.0, False, bool(work.downs))
      rows.append(row)
      latest[worker] = row
      if cluster.delay:
        heapq.heappush(heap, (answer(worker, time) + work.rest, worker, FINISH))
      else:
        finish(worker, time)
    else:
      finish(worker, time)
  if not cluster.delay:
    for worker in members.held:
      answer(worker, rows[-1].served)  # the end releases all workers
  return rows


def round_robin(cluster: VirtualCluster, *, num_visits: int) -> list[VisitRow]:
  """Return the events where worker t mod p begins its round when round t - 1 is over altogether."""
  rows: list[VisitRow] = []
  time = 0.0
  for index in range(num_visits):
    round_, worker = divmod(index, cluster.workers)
    work = cluster.work(worker, round_, time)
    arrival = work.leaves + cluster.message[worker]
    served = arrival + cluster.service[worker]
    released = max(work.ready, served + cluster.message[worker])
    rows.append(VisitRow(worker, round_, work.start, arrival, served, index + 1, released, False, bool(work.downs)))
    time = released + work.rest
  return rows


def quorum_rounds(cluster: VirtualCluster, barrier: Quorum, *, num_visits: int) -> list[VisitRow]:
  """Return the events of whole rounds until there are `num_visits` worker rounds, the dropped ones included.

  A round's messages are served first come, first served. After the last one that it waits for, the reply goes to all
  workers and ends the rounds of those that still compute, which do not come to the deaths after that. A worker that is
  down misses rounds; `restarted` is its first served round after that.
  """
  everyone = range(cluster.workers)
  free = [0.0] * cluster.workers  # when each may begin
  died = [False] * cluster.workers  # since it was last served
  rows: list[VisitRow] = []
  past: list[Round] = []
  closed = 0.0
  while len(rows) < num_visits:
    round_, opened = len(past), closed
    works = [cluster.work(worker, round_, free[worker]) for worker in everyone]
    arrivals = [works[worker].leaves + cluster.message[worker] for worker in everyone]
    order = sorted(everyone, key=lambda worker, arrivals=arrivals: (arrivals[worker], worker))
    count = barrier.take(cluster.workers, past)
    done = {}
    for worker in order[:count]:
      closed = done[worker] = max(closed, arrivals[worker]) + cluster.service[worker]
    for worker in [*order[:count], *sorted(order[count:])]:
      work, dropped = works[worker], worker not in done
      released = closed + cluster.message[worker]
      arrival = released if dropped else arrivals[worker]
      ups = [up for fall, up in work.downs if fall < released]
      died[worker] |= bool(ups)
      begun = ups[-1] if ups else free[worker]
      start = min(begun, released)  # a worker that is down has not begun
      times = (start, arrival, done.get(worker, closed), (round_ + 1) * cluster.workers, released)
      rows.append(VisitRow(worker, round_, *times, dropped, died[worker] and not dropped))
      died[worker] &= dropped
      free[worker] = max(released, begun)
    seen = np.isin(everyone, order[:count])
    past.append(Round(np.minimum(arrivals, arrivals[order[count - 1]]) - opened, seen))
  return rows
