"""Start the processes of a measurement, one per host, send them requests and read their replies with a timeout."""

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
PORTS = itertools.count(7701)  # coordinator port of each group
START = 90.0  # timeout of the startup in seconds
CORES = "4"  # number of cores that XLA assumes: with one thread, messages would not overlap steps


@contextlib.contextmanager
def process_group(network: NamespaceNetwork, joined: bool) -> "Iterator[ProcessGroup]":
  """Run one `host_process` per host, yield the group, and stop it at exit.

  joined: whether the processes form one JAX job; otherwise each is a job with a single worker.

  Raises:
    ValueError: if a process exits or does not start within START seconds.
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
    group.replies("startup", START)
    yield group


class ProcessGroup(NamedTuple):
  """The processes of all hosts, and the files with their standard error."""

  processes: list[subprocess.Popen[str]]
  errors: list[IO[bytes]]

  def request(self, request: Mapping[str, Any], what: str, seconds: float) -> list[dict[str, Any]]:
    """Send a request to all hosts; return their replies. what: name of the request in errors; seconds: timeout."""
    line = json.dumps(request) + "\n"
    for process in self.processes:
      assert process.stdin
      with contextlib.suppress(BrokenPipeError):  # the process has exited; `replies` raises the error
        process.stdin.write(line)
        process.stdin.flush()
    return self.replies(what, seconds)

  def seconds(self, steps: int, what: str, bound: float) -> float:
    """Run `steps` steps on all hosts; return the seconds of the slowest host. what, bound: as in `request`."""
    return max(reply["seconds"] for reply in self.request({"steps": steps}, what, bound))

  def replies(self, what: str, seconds: float) -> list[dict[str, Any]]:
    """Read one line of JSON from each host. Raises ValueError if a host exits or does not reply in time."""
    end, replies = time.monotonic() + seconds, []
    for host, process in enumerate(self.processes):
      assert process.stdout
      ready, _, _ = select.select([process.stdout], [], [], max(0.0, end - time.monotonic()))
      if not ready:
        raise ValueError(
          f"timed out after {seconds:.0f} s waiting for host {host} during {what}; all hosts were stopped"
        )
      line = process.stdout.readline()
      if not line:
        self.errors[host].seek(0)
        errors = self.errors[host].read().decode(errors="replace").strip().splitlines()
        raise ValueError(f"host {host} exited during {what}: {errors[-1] if errors else 'no error message'}")
      replies.append(json.loads(line))
    return replies
