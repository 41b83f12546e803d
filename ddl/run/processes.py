"""Devices and local processes of a run, output of the main process, and what all processes must have in common."""

import dataclasses
import hashlib
import importlib
import json
import logging
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NoReturn

import jax
import numpy as np

from ddl import hosts
from ddl.api import Data
from ddl.config.options import RunOptions
from ddl.engine.execution import check_threads, cpu_devices
from ddl.engine.workers import divisors
from ddl.errors import OptionError
from ddl.run import folder
from ddl.run.exit_codes import Failed, exit_code

ROOT = Path(__file__).parents[2]
TYPE = "type of a dataclass or tuple"  # a key in JSON that no mapping has
RESTART = 6.0  # seconds after which the processes of the other hosts have ended too, before any of them resumes
CHILD = "import sys; sys.path.insert(0, sys.argv[1]); from ddl.run import processes as p; p.child(sys.argv[2])"


def start_devices(workers: int, options: RunOptions, count: int | None = None) -> None:
  """Set the CPU devices and join the other processes, before any other use of JAX; later calls change nothing.

  A number of devices set by JAX's own option stays, unless the options have one.

  count: number of processes when all of them run; None: those that run now.

  Raises:
    ValueError: if the processes do not divide the workers or the devices.
  """
  processes = check_processes(workers, count or hosts.processes(), options)
  configured = jax.config.values["jax_num_cpu_devices"]  # -1: not set
  default = configured if configured > 0 else cpu_devices(workers, processes, options.members)
  try:
    jax.config.update("jax_num_cpu_devices", options.devices // processes or default)
  except RuntimeError:  # an earlier call of this process started them
    return
  hosts.join(options.join_timeout, options.peer_timeout)


def check_processes(workers: int, processes: int, options: RunOptions) -> int:
  """Return the number of processes, if it divides the devices, and these can carry the workers evenly.

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
  """Return whether this process starts others that run: several, or those that are restarted."""
  several = options.runtime == "simulator" and options.processes > 1 and hosts.processes() == 1
  return options.max_restarts > 0 or several


def launch(function: Any, value: Any, options: RunOptions, workers: int, begun: Callable[[], bool]) -> None:
  """Call `function(value, options)` in `options.processes` processes on this machine; one if it is one of several.

  If one is killed or lost, all start again, up to `options.max_restarts` times.

  Args:
    function: of a module, such as `train`.
    value: its first argument, of dataclasses, collections and numbers.
    options: its second argument.
    workers: the largest number of workers.
    begun: returns whether a restart has something to resume.

  Raises:
    Failed: if the processes failed.
  """
  check_processes(workers, options.processes, options)
  for restart in range(options.max_restarts + 1):
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
      file.write(to_json([_address(function), value, replace(options, max_restarts=0)]))
      file.flush()
      code = hosts.launch(options.processes, [sys.executable, "-c", CHILD, str(ROOT), file.name])
    if code in (0, 2, 128 + signal.SIGTERM, 128 + signal.SIGINT) or restart == options.max_restarts:
      break
    if hosts.processes() > 1:
      time.sleep(RESTART)
    options = replace(options, resume=begun())
    print(f"{function.__name__}: restart {restart + 1} of {options.max_restarts}", file=sys.stderr, flush=True)
  if code:
    raise Failed(code)


def child(file: str) -> NoReturn:
  """Call the function in a file of `launch`, in one of its processes; exit with the code."""
  hosts.follow_launcher()
  logging.getLogger("absl").setLevel(logging.CRITICAL)  # what libraries log as errors comes as exceptions too
  address, value, options = from_json(Path(file).read_text())
  function = _load(address)

  def call() -> int:
    function(value, options)
    return 0

  sys.exit(exit_code(function.__name__, call))


def to_json(value: Any) -> str:
  """Return dataclasses, named tuples, collections, numbers and functions of modules as JSON; see `from_json`."""
  return json.dumps(_encoded(value))


def from_json(text: str) -> Any:
  """Return what `to_json` was given, with functions as MODULE:NAME."""

  def decoded(fields: dict[str, Any]) -> Any:
    if TYPE not in fields:
      return fields
    cls = _load(fields.pop(TYPE))
    return tuple(fields["items"]) if cls is tuple else cls(**fields)

  return json.loads(text, object_hook=decoded)


def _encoded(value: Any) -> Any:
  if dataclasses.is_dataclass(value):
    fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return {TYPE: _address(type(value))} | _encoded(fields)
  if isinstance(value, tuple):
    named: Any = value
    fields = named._asdict() if hasattr(value, "_asdict") else {"items": [*value]}
    return {TYPE: _address(type(value))} | _encoded(fields)
  if isinstance(value, Mapping):
    return {key: _encoded(each) for key, each in value.items()}
  if isinstance(value, list):
    return [_encoded(each) for each in value]
  return _address(value) if callable(value) else value.item() if isinstance(value, np.generic) else value


def _address(value: Any) -> str:
  """Return MODULE:NAME of a class or function."""
  if "<" in value.__qualname__ or value.__module__ == "__main__":
    raise OptionError("hooks", "functions of a module with several processes", value.__qualname__)
  return f"{value.__module__}:{value.__qualname__}"


def _load(address: str) -> Any:
  module, _, name = address.partition(":")
  return getattr(importlib.import_module(module), name)


def say(text: str) -> None:
  """Print in the main process."""
  if hosts.is_main():
    print(text, flush=True)


PER_PROCESS = (
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
)  # options that may differ between processes


def check(
  config: Mapping[str, Any], options: RunOptions, data: Data, inputs: Mapping[str, str], first: int | None = None
) -> None:
  """Compare config, options, versions, code and data of all processes, which each call this once.

  inputs: fingerprints of the data and of files, see `ddl.run.inputs`.
  first: the process that the others must equal, where only those that differ fail; None: process 0, and all fail.

  Raises:
    ValueError: with the first difference.
  """
  if hosts.processes() == 1:
    return
  texts = hosts.exchange(text(config, options, data, inputs))
  reference = texts[first or 0]
  for rank, other in enumerate(texts):
    if other != reference and (first is None or rank == hosts.member().rank):
      raise ValueError(difference(reference, other, rank, first or 0))


def text(
  config: Mapping[str, Any], options: RunOptions, data: Data | None = None, inputs: Mapping[str, str] | None = None
) -> str:
  """Return what all processes must have in common, as JSON."""
  common = {name: value for name, value in asdict(options).items() if name not in PER_PROCESS}
  values = {"config": config, "options": common, "versions": folder.about(())["versions"], "code": _code()}
  values["num_processes"] = hosts.processes()
  if data:
    values |= {"data": {"description": data.meta["description"]}, "inputs": inputs}
  return json.dumps(values, sort_keys=True, default=str)


def difference(reference: str, other: str, rank: int, first: int = 0) -> str:
  """Return a line with the first difference between the texts of the processes `first` and `rank`."""
  values, others = (folder.flat(json.loads(json_text)) for json_text in (reference, other))
  key = next(key for key in sorted({*values, *others}) if values.get(key) != others.get(key))
  differ = f"{key} is {values.get(key)} in process {first} and {others.get(key)} in process {rank}"
  return f"all processes must run the same: {differ}"


def _code() -> str:
  """Return a digest of this code."""
  files = sorted(file for part in ("ddl", "experiments") for file in (ROOT / part).rglob("*.py"))
  return hashlib.sha256(b"\0".join(file.read_bytes() for file in files)).hexdigest()[:12]
