"""The event loop of quorum barriers: rounds that close when enough messages have been served."""

import numpy as np

from ddl.events.barriers import Quorum, Round
from ddl.events.cluster import Cluster, Row


def in_rounds(cluster: Cluster, barrier: Quorum, *, turns_total: int) -> list[Row]:
  """The events of whole rounds until the workers have made `turns_total` turns, those that are dropped too.

  A round's messages are served first come, first served. When the last one that it waits for is, the answer goes to
  all and ends the turns of those that still compute. A worker that is down sleeps through rounds; `restarted` is then
  its first served turn.
  """
  everyone = range(cluster.workers)
  free = [0.0] * cluster.workers  # when each may begin
  died = [False] * cluster.workers  # since it was last served
  rows: list[Row] = []
  past: list[Round] = []
  closed = 0.0
  while len(rows) < turns_total:
    turn, opened = len(past), closed
    works = [cluster.work(worker, turn, free[worker]) for worker in everyone]
    arrivals = [works[worker].leaves + cluster.message[worker] for worker in everyone]
    order = sorted(everyone, key=lambda worker, arrivals=arrivals: (arrivals[worker], worker))
    count = barrier.take(cluster.workers, past)
    done = {}
    for worker in order[:count]:
      closed = done[worker] = max(closed, arrivals[worker]) + cluster.service[worker]
    for worker in [*order[:count], *sorted(order[count:])]:
      work, dropped = works[worker], worker not in done
      died[worker] |= work.restarted
      released = closed + cluster.message[worker]
      arrival = released if dropped else arrivals[worker]
      start = min(work.start, released)  # one that is down has not begun
      times = (start, arrival, done.get(worker, closed), (turn + 1) * cluster.workers, released)
      rows.append(Row(worker, turn, *times, dropped, died[worker] and not dropped))
      died[worker] &= dropped
      free[worker] = max(released, work.start)
    seen = np.isin(everyone, order[:count])
    past.append(Round(np.minimum(arrivals, arrivals[order[count - 1]]) - opened, seen))
  return rows
