"""The whole run as a schedule, computed before any training: event times depend on no parameter value."""

import numpy as np

from ddl import memory
from ddl.errors import OptionError
from ddl.events.barriers import Barrier, Quorum, asp
from ddl.events.cluster import Rule, Seconds, VirtualCluster, VisitOrder, draw_peers
from ddl.events.event_loop import first_come, quorum_rounds, round_robin
from ddl.events.operations import Operations, operations
from ddl.events.record import ROW, TYPES, Events, make_events
from ddl.events.times import Times

NOBODY_WAITS = asp()


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
    algorithm: a `ServerAlgorithm`, with its period, delay and arrivals.
    workers: number of workers.
    steps: of each worker, on average; at least 1.
    times: seconds of each step, and deaths, of so many workers: from `ddl.events.times`.
    barrier: from `ddl.events.barriers`; by default none.
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


EVENT_BYTES = sum(np.dtype(kind).itemsize for kind in TYPES.values()) + 8 * len(ROW)  # as an array and as a row


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
