"""Schedules of four workers, their time spans, and comparisons in virtual time, for tests of reports."""

import json

import numpy as np
from helpers.comparisons import comparison

from ddl.api import Arrivals
from ddl.events.barriers import asp
from ddl.events.cluster import VirtualCluster
from ddl.events.record import save
from ddl.events.schedule import schedule
from ddl.events.times import TIMES

VIRTUAL = "steps of 10 ms, messages of 1 ms, service 0.5 ms, barrier asp"
WORKERS, MESSAGE, SERVICE = 4, 0.25, 0.125  # seconds


def visit_events(*, times, num_visits, barrier, seed, arrivals, workers=None, **costs):
  """Return the events of a virtual cluster. workers: None or the number of workers of the times."""
  cluster = VirtualCluster(times, **costs)
  assert workers in (None, cluster.workers)
  return schedule(cluster, arrivals, num_visits=num_visits, barrier=barrier, seed=seed)


def events_of(barrier=None, delay=0, period=1, step=1.0, visits=20, service=SERVICE, workers=WORKERS, **changes):
  arrivals = changes.pop("arrivals", Arrivals())
  times = TIMES["lognormal"](workers=workers, **{"seed": 0, "seconds": step, "jitter": 0.3} | changes)
  return visit_events(
    num_visits=visits, period=period, delay=delay, times=times, barrier=barrier or asp(), message_seconds=MESSAGE,
    service_seconds=service, seed=0, arrivals=arrivals,
  )  # fmt: skip


def total(spans, kind, beneath=False):
  selected = (spans.kind == kind) & (spans.beneath == beneath)
  return float((spans.end - spans.begin)[selected].sum())


def tiles(spans, worker, end):
  """Return whether a worker's spans cover 0 to `end` seconds without gaps and overlaps."""
  selected = (spans.worker == worker) & ~spans.beneath
  begin, until = np.sort(spans.begin[selected]), np.sort(spans.end[selected])
  return np.allclose(begin, np.append(0.0, until[:-1]), atol=1e-6) and np.isclose(until[-1], end)


def virtual(folder, runs, events=None, **info):
  """Write a comparison in virtual time, with 0.25 s per step. events: label -> schedule."""
  for line in (line for seeds in runs.values() for lines in seeds for line in lines):
    line["virtual_seconds"] = 0.25 * line["step"]
  comparison(folder, runs, **info)
  record = json.loads((folder / "comparison.json").read_text())
  for entry in record["algorithms"]:
    entry["virtual"] = VIRTUAL
    if entry["label"] in (events or {}):
      entry["events"] = f"{entry['runs'][0]}/events.npz"
      save(folder / entry["events"], events[entry["label"]])
  (folder / "comparison.json").write_text(json.dumps(record))
  return folder
