"""Devices and local processes of a run, output of the main process, and what all processes must have in common."""

import hashlib
import json
import logging
import pickle
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NoReturn

import jax

from ddl import hosts
from ddl.api import Data
from ddl.config.options import RunOptions
from ddl.engine.execution import check_threads, cpu_devices
from ddl.engine.workers import divisors
from ddl.run import folder
from ddl.run.exit_codes import Failed, exit_code

ROOT = Path(__file__).parents[2]
CHILD = "import sys; sys.path.insert(0, sys.argv[1]); from ddl.run import processes as p; p.child(sys.argv[2])"


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
  check_threads("devices" if devices else "members", max(devices, members) // processes)
  possible = [members * rows for rows in divisors(workers)]
  what = f"{workers} workers" + f" of {members} members" * (members > 1)
  if devices and devices not in possible:
    raise ValueError(
      f"{what} do not spread evenly over {devices} devices; devices can be {', '.join(map(str, possible))}"
    )
  if all(n % processes for n in ([devices] if devices else possible)):
    fits = divisors(devices or possible[-1])
    raise ValueError(
      f"{processes} processes cannot share {what}{f' on {devices} devices' * bool(devices)} evenly; "
      f"processes can be {', '.join(map(str, fits))}"
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


OWN = (
  "workdir",
  "command",
  "recorded",
  "processes",
  "join_timeout",
  "peer_timeout",
  "max_restarts",
  "compilation_cache",
  "print_table",
  "hooks",
)  # may be each process's own


def check(
  config: Mapping[str, Any], options: RunOptions, data: Data, inputs: Mapping[str, str], first: int | None = None
) -> None:
  """Compare config, options, versions, code and data of all processes, which each call this once.

  inputs: fingerprints of the data and of files, see `ddl.run.inputs`.
  first: the process that the others are compared with, where those that differ from it are to end alone; else 0.

  Raises:
    ValueError: with the first difference, or if another process does not come to this within a minute.
  """
  if hosts.processes() == 1:
    return
  said = hosts.exchange(text(config, options, data, inputs))
  for rank, other in enumerate(said):
    if other != said[first or 0] and (first is None or rank == hosts.member().rank):
      raise ValueError(difference(said[first or 0], other, rank, first or 0))


def text(
  config: Mapping[str, Any], options: RunOptions, data: Data | None = None, inputs: Mapping[str, str] | None = None
) -> str:
  """Return what all processes must have in common, as JSON."""
  chosen = {name: value for name, value in asdict(options).items() if name not in OWN}
  mine = {"config": config, "options": chosen, "versions": folder.about(())["versions"], "code": _code()}
  if data:
    mine |= {"data": {"description": data.meta["description"]}, "inputs": inputs}
  return json.dumps(mine, sort_keys=True, default=str)


def difference(here: str, there: str, rank: int, first: int = 0) -> str:
  """Return the first difference of two such texts, of the process `first` and of another one, in words."""
  one, other = (folder.flat(json.loads(each)) for each in (here, there))
  key = next(key for key in sorted({*one, *other}) if one.get(key) != other.get(key))
  differ = f"{key} is {one.get(key)} in process {first} and {other.get(key)} in process {rank}"
  return f"all processes must run the same: {differ}"


def _code() -> str:
  """Return a digest of this code."""
  files = sorted(file for part in ("ddl", "experiments") for file in (ROOT / part).rglob("*.py"))
  return hashlib.sha256(b"\0".join(file.read_bytes() for file in files)).hexdigest()[:12]
