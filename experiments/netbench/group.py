"""The processes of a measurement as their parent sees them: one on each host, asked together, within a bound."""

import contextlib
import itertools
import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any, NamedTuple

from ddl.hosts import JOINED
from experiments.netbench.network import NamespaceNetwork, address

ROOT = Path(__file__).parents[2]
PORTS = itertools.count(7701)  # of a group's coordinator, one after the other
START = 90.0  # seconds
CORES = "4"  # that XLA sees: with its one core, its one thread would not carry messages beside steps


@contextlib.contextmanager
def process_group(network: NamespaceNetwork, joined: bool) -> "Iterator[ProcessGroup]":
  """Run one `host_process` for each host. joined: to one group, of as many workers; otherwise each is alone.

  Raises:
    ValueError: if one of them does not start.
  """
  port, cores = next(PORTS), sorted(os.sched_getaffinity(0))
  with contextlib.ExitStack() as stack:
    group = ProcessGroup([], [stack.enter_context(tempfile.TemporaryFile()) for _ in range(network.hosts)])
    for host in range(network.hosts):
      env = {"JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT), "NPROC": CORES, "TF_CPP_MIN_LOG_LEVEL": "2"}
      if joined:
        env[JOINED] = f"{host}/{network.hosts}@{address(0)}:{port}"
      words = [sys.executable, "-m", "experiments.netbench.host_process", str(network.hosts if joined else 1)]
      process = network.start(
        host, words, cores[host % len(cores)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=group.errors[host],
        env=os.environ | env,
      )  # fmt: skip
      group.processes.append(process)
      stack.callback(process.wait)
      stack.callback(process.kill)
    group.answers("its start", START)
    yield group


class ProcessGroup(NamedTuple):
  """The processes of all hosts, and the files that have their errors."""

  processes: list[subprocess.Popen[str]]
  errors: list[IO[bytes]]

  def ask(self, question: Mapping[str, Any], what: str, seconds: float) -> list[dict[str, Any]]:
    """Return the answers of all hosts; ValueError, which says what was asked, for none within so many seconds."""
    line = json.dumps(question) + "\n"
    for process in self.processes:
      assert process.stdin
      with contextlib.suppress(BrokenPipeError):  # it has ended, which the answer tells
        process.stdin.write(line)
        process.stdin.flush()
    return self.answers(what, seconds)

  def seconds(self, steps: int, what: str, bound: float) -> float:
    """Return the seconds of so many steps, of the slowest host."""
    return max(answer["seconds"] for answer in self.ask({"steps": steps}, what, bound))

  def answers(self, what: str, seconds: float) -> list[dict[str, Any]]:
    """Return a line of each host as JSON; ValueError for none within so many seconds."""
    end, answers = time.monotonic() + seconds, []
    for host, process in enumerate(self.processes):
      assert process.stdout
      ready, _, _ = select.select([process.stdout], [], [], max(0.0, end - time.monotonic()))
      if not ready:
        raise ValueError(f"host {host} gave no answer within {seconds:.0f} s at {what}; the hosts were stopped")
      line = process.stdout.readline()
      if not line:
        self.errors[host].seek(0)
        errors = self.errors[host].read().decode(errors="replace").strip().splitlines()
        raise ValueError(f"host {host} ended at {what}: {errors[-1] if errors else 'it said nothing'}")
      answers.append(json.loads(line))
    return answers
