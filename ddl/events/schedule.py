"""The whole run as a schedule, computed before any training: event times depend on no parameter value."""

import numpy as np

from ddl import memory
from ddl.events.barriers import Barrier, Quorum
from ddl.events.cluster import Cluster, Seconds, draw_peers
from ddl.events.event_loop import first_come, in_turn
from ddl.events.quorum import in_rounds
from ddl.events.record import TYPES, Events, known
from ddl.events.times import Times


def schedule(
  *,
  workers: int,
  turns_total: int,
  period: int,
  delay: int,
  times: Times,
  barrier: Barrier,
  message_seconds: Seconds,
  service_seconds: Seconds,
  seed: int,
  peers: str = "none",
  peer_probability: float = 1.0,
  round_robin: bool = False,
  lock_free: bool = False,
) -> Events:
  """Who computes, waits and is served when, until `turns_total` visits are served.

  Quorum barriers make whole rounds, until there are so many turns with the dropped ones.

  delay 0: period steps, message, queue, service, message back, barrier. delay d: the request leaves at the start; the
  worker waits for the answer after d steps; period - d more steps; barrier. The arguments determine all.

  Args:
    times: seconds of each step, and deaths.
    barrier: from `ddl.events.barriers`.
    message_seconds: one way, to or from the server: a number or a function of the worker.
    service_seconds: for which the server is busy with one message; likewise.
    seed: of peers and samples of a barrier; the times have their own.
    peers, peer_probability, round_robin: as in `ddl.api.ServerAlgorithm`.
    lock_free: nobody queues.

  Returns:
    `Events`; `check` holds. The last turn of a worker whom a barrier holds at the end is released there.

  Raises:
    ValueError: one line, for values that can't be or don't go together.
  """
  if turns_total < 1:
    raise ValueError(f"turns_total is {turns_total}; a schedule has at least one visit")
  memory.require(turns_total * EVENT_BYTES, f"a schedule of {turns_total} visits")
  if times.workers != workers:
    raise ValueError(f"times are those of {times.workers} workers, not of {workers}")
  cluster = Cluster(
    workers=workers,
    period=period,
    delay=delay,
    times=times,
    message_seconds=message_seconds,
    service_seconds=service_seconds,
  )
  with np.errstate(over="ignore"):  # told by `_check_clock`
    if isinstance(barrier, Quorum):
      _check_quorum(delay, peers, round_robin, lock_free)
      rows = in_rounds(cluster, barrier, turns_total=turns_total)
    elif round_robin:
      if barrier.bound != np.inf:
        raise ValueError('a round robin already says who waits for whom: use the barrier "asp"')
      rows = in_turn(cluster, turns_total=turns_total)
    else:
      rows = first_come(cluster, barrier, turns_total=turns_total, seed=seed, lock_free=lock_free)
  columns = {name: np.array([getattr(row, name) for row in rows], TYPES[name]) for name in _ROW}
  worker, turn, start, served = (columns[name] for name in ("worker", "turn", "start", "served"))
  _check_clock(columns["released"])
  seen = known(worker, start, served, columns["told"], columns["restarted"])
  staleness = np.zeros(len(rows)) if isinstance(barrier, Quorum) else np.arange(len(rows)) - seen
  peer = draw_peers(worker, turn, workers=workers, peers=peers, probability=peer_probability, seed=seed)
  return Events(**columns, staleness=staleness.astype(np.int32), peer=peer)


_ROW = ("worker", "turn", "start", "arrival", "served", "told", "released", "dropped", "restarted")
EVENT_BYTES = sum(np.dtype(kind).itemsize for kind in TYPES.values()) + 8 * len(_ROW)  # as an array and as a row


def _check_clock(seconds: np.ndarray) -> None:
  if not np.isfinite(seconds).all():
    raise ValueError("the seconds of steps, messages and services add up to more than a float holds: give smaller ones")


def _check_quorum(delay: int, peers: str, round_robin: bool, lock_free: bool) -> None:
  why = {
    f"delay {delay}, where messages leave before the steps": delay,
    f"{peers} peers": peers != "none",
    "a round robin": round_robin,
    "a lock-free server": lock_free,
  }
  for what, wrong in why.items():
    if wrong:
      raise ValueError(f"backup and cutoff barriers drop late messages, which doesn't go with {what}: use another one")
