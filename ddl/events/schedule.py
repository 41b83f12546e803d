"""The whole run as a schedule, computed before any training: event times depend on no parameter value."""

import heapq
from collections import deque

import numpy as np

from ddl import memory
from ddl.errors import OptionError
from ddl.events.barriers import Barrier, Bounded, LiveBarrier, Quorum, Round, asp
from ddl.events.cluster import Rule, Seconds, VirtualCluster, VisitOrder, Work, draw_peers
from ddl.events.operations import Operations, operations
from ddl.events.record import ROW, TYPES, Events, VisitRow, make_events
from ddl.events.times import Times

NOBODY_WAITS = asp()
EVENT_BYTES = sum(np.dtype(kind).itemsize for kind in TYPES.values()) + 8 * len(ROW)  # as an array and as a row
ARRIVE, DONE, FINISH = range(3)  # a request reaches the server; is served; the worker finishes its round


def make_schedule(
  algorithm: Rule,
  *,
  workers: int,
  steps: int,
  times: Times,
  barrier: Barrier = NOBODY_WAITS,
  message_seconds: Seconds = 0.0,
  service_seconds: Seconds = 0.0,
  seed: int = 0,
) -> tuple[Events, Operations]:
  """Return the events of an algorithm's whole run and the server's operations: what a `Simulator` follows.

  make_schedule(algorithm, workers=4, steps=100, times=lognormal(workers=4, seed=0)) is one without barrier or network.

  Args:
    algorithm: a `ServerAlgorithm`.
    steps: of each worker, on average; at least 1.
    times: seconds of each step, and deaths, of so many workers: from `ddl.events.times`.
    message_seconds: one way, to or from the server: a number or a function of the worker.
    service_seconds: for which the server is busy with one message; likewise.
    seed: of peers, samples of a barrier, and the order of blocks without a lock; the times have their own.

  Raises:
    ValueError: one line, for values that are invalid or do not fit each other.
  """
  num_visits = visits(algorithm, workers, steps)
  if num_visits < 1:
    condition = f"enough for one visit of {workers} workers with a period of {algorithm.period} steps"
    raise OptionError("steps", condition, steps)
  if times.workers != workers:
    raise OptionError("the number of workers of the times", f"{workers}", times.workers)
  costs = {"message_seconds": message_seconds, "service_seconds": service_seconds}
  cluster = VirtualCluster(times, period=algorithm.period, delay=algorithm.delay, **costs)
  events = schedule(cluster, algorithm.arrivals, num_visits=num_visits, barrier=barrier, seed=seed)
  return events, operations(algorithm, events, workers=workers, barrier=barrier, seed=seed)


def visits(algorithm: Rule, workers: int, step: int) -> int:
  """Return the visits after which workers have made `step` steps on average; with a delay each one's first precedes."""
  return step * workers // algorithm.period + (workers if algorithm.delay and step else 0)


def check_schedule(algorithm: Rule, events: Events, operations: Operations, workers: int) -> None:
  """Raise ValueError, one line, if a schedule is not one of this algorithm and number of workers.

  A visit has a peer with `peer_probability`, so that a short schedule may lack peers; one whose chance of that is below
  1e-9 is refused.
  """
  count = max(operations.workers, int(events.worker.max(initial=-1)) + 1, int(events.peer.max(initial=-1)) + 1)
  if count != workers:
    raise OptionError("the number of workers of the schedule", f"{workers}", count)
  peers, chance = algorithm.arrivals.peers, algorithm.arrivals.peer_probability
  if peers != "none" and not (events.peer >= 0).any() and (1 - chance) ** len(events.peer) < 1e-9:
    condition = f"with {peers} peers with probability {chance:g}, as the arrivals of the algorithm say"
    raise OptionError("the visits of the schedule", condition, "none with a peer")


def schedule(cluster: VirtualCluster, arrivals: VisitOrder, *, num_visits: int, barrier: Barrier, seed: int) -> Events:
  """Return the events until `num_visits` visits are served, a pure function of the arguments (see `make_schedule`).

  delay 0: period steps, message, queue, service, message back, barrier. delay d: the request leaves at the start; the
  worker waits for the reply after d steps; period - d more steps; barrier. Quorum barriers make whole rounds, whose
  dropped messages count as visits. The end releases a worker that a barrier still holds. `record.check` holds.

  Raises:
    ValueError: one line, for values that are invalid or do not fit each other.
  """
  workers = cluster.workers
  if num_visits < 1:
    raise OptionError("num_visits", ">= 1", num_visits)
  memory.require(num_visits * EVENT_BYTES, f"a schedule of {num_visits} visits")
  memory.require(8 * workers * cluster.period, f"a round of {cluster.period} steps of {workers} workers")
  if arrivals.order not in ("first_come", "round_robin"):
    raise OptionError("arrivals.order", "one of first_come, round_robin", repr(arrivals.order))
  if arrivals.blocks < 0:
    raise OptionError("arrivals.blocks", ">= 0", arrivals.blocks)
  with np.errstate(over="ignore"):  # checked below
    if isinstance(barrier, Quorum):
      _check_quorum(cluster.delay, arrivals)
      rows = quorum_rounds(cluster, barrier, num_visits=num_visits)
    elif arrivals.order == "round_robin":
      if barrier.bound != np.inf:
        raise OptionError("barrier", "asp with a round robin")
      rows = round_robin(cluster, num_visits=num_visits)
    else:
      rows = first_come(cluster, barrier, num_visits=num_visits, seed=seed, lock_free=arrivals.blocks > 0)
  events = make_events(rows, quorum=isinstance(barrier, Quorum))
  if not np.isfinite(events.released).all():
    raise ValueError("the seconds of steps, messages and services overflow a float: give smaller ones")
  return events._replace(peer=draw_peers(events.worker, events.round, workers=workers, arrivals=arrivals, seed=seed))


def _check_quorum(delay: int, arrivals: VisitOrder) -> None:
  why = {
    f"delay {delay}, where messages leave before the steps": delay,
    f"{arrivals.peers} peers": arrivals.peers != "none",
    "a round robin": arrivals.order == "round_robin",
    "a lock-free server": arrivals.blocks,
  }
  for what, wrong in why.items():
    if wrong:
      raise OptionError("barrier", f"one that drops no late messages, unlike backup and cutoff, with {what}")


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
