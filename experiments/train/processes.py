"""Devices of this process, local processes beside it, and output of the main process alone."""

import logging
import pickle
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import jax

from ddl.runtime import hosts
from ddl.runtime.execution import check_threads, cpu_devices
from ddl.runtime.layout.workers import divisors
from experiments.config.options import RunOptions
from experiments.train.exit_codes import Failed, exit_code

ROOT = Path(__file__).parents[2]
CHILD = (
  "import sys; sys.path.insert(0, sys.argv[1]); from experiments.train import processes as p; p.child(sys.argv[2])"
)


def start_devices(workers: int, options: RunOptions, job: int = 0) -> None:
  """Sets the CPU devices and joins the other processes, before any other use of JAX; afterwards they stay as they are.

  Devices that a caller chose by JAX's own setting stay too, unless the options name a number.

  job: processes of a job of which some are lost, and that a supervisor watches; 0: all are here.

  Raises:
    ValueError: if the processes do not divide the workers or the devices.
  """
  processes = check_processes(workers, job or hosts.processes(), options)
  chosen = jax.config.values["jax_num_cpu_devices"]  # -1: by nobody
  mine = options.devices // processes or (chosen if chosen > 0 else cpu_devices(workers, processes, options.members))
  try:
    jax.config.update("jax_num_cpu_devices", mine)
  except RuntimeError:  # an earlier call of this process started them
    return
  hosts.join(options.join_timeout, None if job else options.peer_timeout)


def check_processes(workers: int, processes: int, options: RunOptions) -> int:
  """The number of processes, if it divides the devices, and these can carry the workers evenly.

  Raises:
    ValueError: if it does not, or for more devices than a process can have.
  """
  devices, members = options.devices, options.members
  check_threads(max(devices, members) // processes, f"--devices={devices or members}: CPU devices")
  possible = [members * rows for rows in divisors(workers)]
  what = f"{workers} workers" + f" of {members} members" * (members > 1)
  if devices and devices not in possible:
    raise ValueError(
      f"{what} do not spread evenly over {devices} devices; --devices can be {', '.join(map(str, possible))}"
    )
  if all(n % processes for n in ([devices] if devices else possible)):
    fits = divisors(devices or possible[-1])
    raise ValueError(
      f"{processes} processes cannot share {what}{f' on {devices} devices' * bool(devices)} evenly; "
      f"--processes can be {', '.join(map(str, fits))}"
    )
  return processes


def launches(options: RunOptions) -> bool:
  """Return whether the run is for processes that this one starts: several, or those that are restarted."""
  several = options.runtime == "simulator" and options.processes > 1 and hosts.processes() == 1
  return options.max_restarts > 0 or several


def launch(
  function: Any, value: Any, options: RunOptions, workers: int, begun: Callable[[], bool], apart: bool = False
) -> None:
  """Calls `function(value, options)` in `options.processes` processes on this machine; one if it is one of several.

  Where one is killed or lost, all start again, up to `options.max_restarts` times; apart: that one does, and the others
  go on. begun: whether there is something to resume then. Raises Failed if they ended otherwise than well.
  """
  check_processes(workers, options.processes, options)
  if apart:
    if code := _launched(function, value, replace(options, max_restarts=0), options.max_restarts):
      raise Failed(code)
    return
  for restart in range(options.max_restarts + 1):
    code = _launched(function, value, replace(options, max_restarts=0))
    if code in (0, 2, 128 + signal.SIGTERM, 128 + signal.SIGINT) or restart == options.max_restarts:
      break
    if hosts.processes() > 1:
      time.sleep(2 * hosts.GRACE)  # the others' processes end before any of them looks at what has begun
    options = replace(options, resume=begun())
    print(f"{function.__name__}: restart {restart + 1} of {options.max_restarts}", file=sys.stderr, flush=True)
  if code:
    raise Failed(code)


def _launched(function: Any, value: Any, options: RunOptions, apart: int | None = None) -> int:
  with tempfile.NamedTemporaryFile(suffix=".pickle") as file:
    pickle.dump((function, value, options), file)
    file.flush()
    return hosts.launch(options.processes, [sys.executable, "-c", CHILD, str(ROOT), file.name], apart)


def child(file: str) -> NoReturn:
  """Call the pickled function, in a process of `launch`; end with the exit code."""
  hosts.follow_launcher()
  logging.getLogger("absl").setLevel(logging.CRITICAL)  # what libraries log as errors comes as exceptions too
  function, value, options = pickle.loads(Path(file).read_bytes())

  def call() -> int:
    function(value, options)
    return 0

  sys.exit(exit_code(function.__name__, call))


def say(text: str) -> None:
  """Prints in the main process."""
  if hosts.is_main():
    print(text, flush=True)
