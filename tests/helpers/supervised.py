"""A supervised job without JAX, in lockstep by files: words FOLDER PORT RANK COUNT SILENCE STEPS [WHAT ALL HAVE].

Each step adds 1 to its number, which only memory holds. Each generation and each end leaves a line in FOLDER/log-RANK.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

import numpy as np

from ddl.elastic.supervision import LOST, SupervisedJob, Supervisor
from ddl.hosts.process_info import ProcessInfo

PACE = 0.02  # seconds of a step


def main():
  """Supervise one process, as the words of the command line say; return the exit code."""
  folder, port, rank, count, silence, steps, *same = sys.argv[1:]
  folder, rank, steps = Path(folder), int(rank), int(steps)

  def note(*line):
    with (folder / f"log-{rank}").open("a") as file:
      file.write(json.dumps(line) + "\n")

  def run(order, memory):
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    step, number = max(order.step, 0), 0
    if rank in order.stay:
      [array] = memory.read(order.step)[1]
      number = int(array[0])
    note("begin", order.generation, [*order.ranks], [*order.stay], order.step, order.resume, number, os.getpid())
    while step < steps:
      (folder / f"at-{order.generation}-{step}-{rank}").touch()
      if rank == 0 and (folder / "fail").exists():
        return int((folder / "fail").read_text())
      until = time.monotonic() + 10
      while not all((folder / f"at-{order.generation}-{step}-{each}").exists() for each in order.ranks):
        if time.monotonic() > until:
          return LOST
        time.sleep(0.002)
      time.sleep(PACE)
      step, number = step + 1, number + 1
      memory.write(step, str(step), [np.array([number])])
      (folder / f"step-{rank}").write_text(str(step))
    note("end", number)
    return 0

  job = SupervisedJob(
    run=run,
    same="".join(same),
    differs=lambda here, there, rank, first: f"{here} of {first} differs from {there} of {rank}",
    check=lambda: None,
    begun=lambda: (folder / "begun").exists(),
    file=folder / "members.json",
    say=lambda text: print(text, file=sys.stderr, flush=True),
    join_timeout=8.0,
    silence=float(silence),
  )
  try:
    return Supervisor(ProcessInfo(rank, int(count), f"127.0.0.1:{port}"), job).supervise()
  except ValueError as error:
    print(error, file=sys.stderr)
    return 2
