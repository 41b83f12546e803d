"""Event schedules of whole asynchronous runs, computed before training, as event times do not depend on the model."""

import heapq
from collections import deque

import numpy as np

from ddl import memory
from ddl.errors import OptionError
from ddl.events.barriers import Barrier, Bounded, LiveBarrier, Quorum, Round, asp, check_round_robin, describe
from ddl.events.cluster import Rule, Seconds, VirtualCluster, VisitOrder, Work, draw_peers, worker_periods
from ddl.events.operations import Operations, operations
from ddl.events.record import ROW, TYPES, Events, VisitRow, make_events
from ddl.events.times import Times

NOBODY_WAITS = asp()
EVENT_BYTES = sum(np.dtype(kind).itemsize for kind in TYPES.values()) + 8 * len(ROW)  # in the arrays and in a row
ARRIVE, DONE, FINISH = range(3)  # a request reaches the server; it is served; its worker finishes the round


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
  """Compute the schedule of a whole run for a `Simulator`: its events and server operations.

  Example without a barrier or network costs:
  make_schedule(algorithm, workers=4, steps=100, times=lognormal(workers=4, seed=0)).

  Args:
    algorithm: a `ServerAlgorithm`.
    steps: the average number of steps per worker, enough for at least one exchange.
    times: step times and deaths of the same number of workers, from `ddl.events.times`.
    barrier: when a worker may start its next round, from `ddl.events.barriers`.
    message_seconds: seconds of a message to or from the server: a number, or a function of the worker.
    service_seconds: seconds for which a message occupies the server: a number, or a function of the worker.
    seed: seed of the peers, the barrier's samples and the order of lock-free blocks; the times have their own seed.

  Raises:
    ValueError: with a one-line message, for values that are invalid or inconsistent.
  """
  num_visits = visits(algorithm, workers, steps)
  if num_visits < 1:
    condition = f"enough for at least one exchange ({workers} workers, period of {algorithm.period} steps)"
    raise OptionError("steps", condition, steps)
  if times.workers != workers:
    raise OptionError("times.workers", f"equal to the number of workers ({workers})", times.workers)
  costs = {"message_seconds": message_seconds, "service_seconds": service_seconds}
  periods = worker_periods(algorithm, times.means)
  cluster = VirtualCluster(times, period=algorithm.period, delay=algorithm.delay, periods=periods, **costs)
  if min(periods) < algorithm.period:  # the number of visits depends on their order
    most = num_visits * algorithm.period // min(periods)
    longest = schedule(cluster, algorithm.arrivals, num_visits=most, barrier=barrier, seed=seed)
    num_visits = visits_until(algorithm, longest, workers, steps)
  events = schedule(cluster, algorithm.arrivals, num_visits=num_visits, barrier=barrier, seed=seed)
  return events, operations(algorithm, events, workers=workers, barrier=barrier, seed=seed)


def visits(algorithm: Rule, workers: int, step: int) -> int:
  """Return the number of visits after which the workers have finished `step` steps on average.

  With a delay each worker makes one additional visit before its first step. The result assumes that all rounds have
  `period` steps; if workers have different periods, use `visits_until`, which counts the visits of a schedule.
  """
  return step * workers // algorithm.period + (workers if algorithm.delay and step else 0)


def visits_until(algorithm: Rule, events: Events, workers: int, step: int) -> int:
  """Return the number of visits of a schedule after which the workers have finished `step` steps on average.

  If workers have different periods, this is the first visit after which the steps of all finished rounds, divided by
  `period` and rounded up, reach `visits(algorithm, workers, step)`. Runs in real time stop and evaluate by the same
  rule, which does not depend on later visits.

  Raises OptionError if the schedule has too few visits.
  """
  nominal, scheduled = visits(algorithm, workers, step), len(events.worker)
  before = np.cumsum(events.period, dtype=np.int64) <= (nominal - 1) * algorithm.period
  count = int(before.sum()) + 1 if nominal else 0
  if count > scheduled:
    raise OptionError(
      "the number of visits of the schedule", f"at least {max(nominal, count)} for step {step}", scheduled
    )
  return count


def check_schedule(algorithm: Rule, events: Events, operations: Operations, workers: int) -> None:
  """Raise a one-line ValueError if a schedule does not fit the algorithm or the number of workers.

  If the algorithm has peers, each visit has one with probability `peer_probability`. A schedule without any peer is
  then invalid if its probability is below 1e-9.
  """
  count = max(operations.workers, int(events.worker.max(initial=-1)) + 1, int(events.peer.max(initial=-1)) + 1)
  if count != workers:
    raise OptionError("the number of workers of the schedule", f"{workers}", count)
  shortest = 1 if algorithm.periods else algorithm.period
  if not ((events.period >= shortest) & (events.period <= algorithm.period)).all():
    condition = f"from {shortest} to {algorithm.period}" if algorithm.periods else f"{algorithm.period}"
    raise OptionError("the periods of the schedule", condition, np.unique(events.period).tolist())
  peers, chance = algorithm.arrivals.peers, algorithm.arrivals.peer_probability
  if peers != "none" and not (events.peer >= 0).any() and (1 - chance) ** len(events.peer) < 1e-9:
    advice = f"Replay a run of a gossip algorithm: with this algorithm, a visit has a peer with probability {chance:g}."
    raise OptionError("the schedule", "one in which workers exchange with peers", "one without peers", advice)


def schedule(cluster: VirtualCluster, arrivals: VisitOrder, *, num_visits: int, barrier: Barrier, seed: int) -> Events:
  """Simulate events until `num_visits` visits are served, as a pure function of the arguments (see `make_schedule`).

  With delay 0 a round is: period steps, message, queue, service, barrier, reply. With delay d: the request leaves at
  the start, the worker waits for the reply after d steps, computes period - d more steps, and reaches the barrier.
  Quorum barriers produce whole rounds, and dropped messages count as visits. Workers that still wait at a barrier are
  released at the end. The result passes `record.check`.

  Raises:
    ValueError: with a one-line message, for values that are invalid or inconsistent.
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
      _check_quorum(barrier, cluster.delay, arrivals)
      rows = quorum_rounds(cluster, barrier, num_visits=num_visits)
    elif arrivals.order == "round_robin":
      check_round_robin(barrier)
      rows = round_robin(cluster, num_visits=num_visits)
    else:
      rows = first_come(cluster, barrier, num_visits=num_visits, seed=seed, lock_free=arrivals.blocks > 0)
  events = make_events(rows, quorum=isinstance(barrier, Quorum))
  if not np.isfinite(events.released).all():
    raise ValueError(
      "the total time of steps, messages and services must be a finite float, got an overflow. "
      "Decrease the step times, config.network.message_seconds or config.network.service_seconds."
    )
  return events._replace(peer=draw_peers(events.worker, events.round, workers=workers, arrivals=arrivals, seed=seed))


def _check_quorum(barrier: Quorum, delay: int, arrivals: VisitOrder) -> None:
  conflicts = {
    f"a delay of {delay}": delay,
    "exchanges between peers": arrivals.peers != "none",
    "visits in round-robin order": arrivals.order == "round_robin",
    "a lock-free server": arrivals.blocks,
  }
  for conflict, present in conflicts.items():
    if present:
      raise OptionError("config.barrier.name", f"asp, bsp, ssp or psp with {conflict}", describe(barrier))


def first_come(
  cluster: VirtualCluster, barrier: Bounded, *, num_visits: int, seed: int, lock_free: bool
) -> list[VisitRow]:
  """Simulate a server that serves requests in order of arrival until `num_visits` visits are served.

  Simultaneous events are ordered by worker. With delay 0 the barrier is at the server, which replies when the worker
  may continue: a round is finished when its request has been served. With a delay the worker reaches the barrier after
  the last step of its round. The barrier's own messages take no time.

  lock_free: whether the server serves visits concurrently, without a queue.
  """
  message, service = cluster.message, cluster.service
  members = LiveBarrier(barrier, workers=cluster.workers, seed=seed)
  clocks = [0] * cluster.workers  # finished rounds
  rounds: dict[int, Work] = {}  # worker -> its current round
  arrivals: dict[int, float] = {}
  latest: dict[int, VisitRow] = {}
  rows: list[VisitRow] = []
  queue: deque[int] = deque()
  heap: list[tuple[float, int, int]] = []  # (time, worker, action): at most one pending event per worker

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
    for released in members.finish(worker):
      begin(released, time if cluster.delay else answer(released, time))

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
      queue.popleft()  # this worker; if lock-free, any worker
      if queue and not lock_free:
        heapq.heappush(heap, (time + service[queue[0]], queue[0], DONE))
      died, period = bool(work.downs), cluster.periods[worker]
      row = VisitRow(worker, clocks[worker], work.start, arrivals[worker], time, 0, 0.0, False, died, period)
      rows.append(row)
      latest[worker] = row
      if cluster.delay:
        heapq.heappush(heap, (answer(worker, time) + work.rest, worker, FINISH))
      else:
        finish(worker, time)
    else:
      finish(worker, time)
  if not cluster.delay:
    for worker in members.waiting_for:
      answer(worker, rows[-1].served)  # the end releases all workers
  return rows


def round_robin(cluster: VirtualCluster, *, num_visits: int) -> list[VisitRow]:
  """Simulate round-robin arrivals: worker t mod p makes visit t, and its round starts when that of visit t - 1 ends."""
  rows: list[VisitRow] = []
  time = 0.0
  for index in range(num_visits):
    round_, worker = divmod(index, cluster.workers)
    work = cluster.work(worker, round_, time)
    arrival = work.leaves + cluster.message[worker]
    served = arrival + cluster.service[worker]
    released = max(work.ready, served + cluster.message[worker])
    died, period = bool(work.downs), cluster.periods[worker]
    rows.append(VisitRow(worker, round_, work.start, arrival, served, index + 1, released, False, died, period))
    time = released + work.rest
  return rows


def quorum_rounds(cluster: VirtualCluster, barrier: Quorum, *, num_visits: int) -> list[VisitRow]:
  """Simulate whole quorum rounds until there are at least `num_visits` worker rounds, including dropped ones.

  Messages are served in order of arrival. Once the last message that a quorum round waits for has been served, the
  reply is sent to all workers. Workers that are still computing abandon their work when they receive it, so a death
  scheduled later in that work does not occur. `restarted` marks the first round in which a worker is served after it
  has died.
  """
  everyone = range(cluster.workers)
  free = [0.0] * cluster.workers  # when each worker may start a round
  died = [False] * cluster.workers  # whether the worker has died since it was last served
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
      start = min(begun, released)  # a worker that is still down has not started
      times = (start, arrival, done.get(worker, closed), (round_ + 1) * cluster.workers, released)
      restarted = died[worker] and not dropped
      rows.append(VisitRow(worker, round_, *times, dropped, restarted, cluster.periods[worker]))
      died[worker] &= dropped
      free[worker] = max(released, begun)
    seen = np.isin(everyone, order[:count])
    past.append(Round(np.minimum(arrivals, arrivals[order[count - 1]]) - opened, seen))
  return rows
