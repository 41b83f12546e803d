"""Set up a run's devices, start its local processes, print in the main process, and check that all processes agree."""

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
TYPE = "type of a dataclass or tuple"  # a JSON key that does not occur in other mappings
RESTART = 6.0  # seconds to wait before a restart, so that the processes on other hosts exit too
CHILD = "import sys; sys.path.insert(0, sys.argv[1]); from ddl.run import processes as p; p.child(sys.argv[2])"


def start_devices(workers: int, options: RunOptions, count: int | None = None) -> None:
  """Configure the CPU devices and join the other processes; call it before any use of JAX devices.

  A nonzero options.devices overrides a `jax_num_cpu_devices` that is already set; the default does not. Once JAX has
  initialized its devices, a call has no effect.

  Args:
    count: the number of processes including those that have failed; None: the current number.

  Raises:
    ValueError: as `check_processes` and `hosts.join` do.
  """
  processes = check_processes(workers, count or hosts.processes(), options)
  configured = jax.config.values["jax_num_cpu_devices"]  # -1: not set
  default = configured if configured > 0 else cpu_devices(workers, processes, options.members)
  try:
    jax.config.update("jax_num_cpu_devices", options.devices // processes or default)
  except RuntimeError:  # an earlier call has initialized the devices
    return
  hosts.join(options.join_timeout, options.peer_timeout)


def check_processes(workers: int, processes: int, options: RunOptions) -> int:
  """Check that the number of processes divides the number of devices; return the number of processes.

  The number of devices divided by `options.members` (devices per worker) must divide the number of workers.

  Raises:
    ValueError: if a condition does not hold, or if a process would have more devices than it may have threads.
  """
  devices, members = options.devices, options.members
  check_threads("devices" if devices >= members else "members", max(devices, members), processes)
  possible = [members * rows for rows in divisors(workers)]
  what = f"{workers} workers" + f" of {members} members (devices) each" * (members > 1)
  if devices and devices not in possible:
    raise ValueError(f"devices must be one of {', '.join(map(str, possible))} with {what}, got {devices}.")
  if all(n % processes for n in ([devices] if devices else possible)):
    fits = divisors(devices or possible[-1])
    what += f" and devices={devices}" * bool(devices)
    raise ValueError(f"processes must be one of {', '.join(map(str, fits))} with {what}, got {processes}.")
  return processes


def launches(options: RunOptions) -> bool:
  """Return whether to train in child processes, as needed for several local processes or for restarts."""
  several = options.runtime == "simulator" and options.processes > 1 and hosts.processes() == 1
  return options.max_restarts > 0 or several


def launch(function: Any, value: Any, options: RunOptions, workers: int, begun: Callable[[], bool]) -> None:
  """Call `function(value, options)` in `options.processes` processes on this machine.

  If a process fails, restart all of them, up to `options.max_restarts` times. User errors, SIGTERM and Ctrl-C cause no
  restart.

  Args:
    function: a module-level function, such as `train`.
    value: the function's first argument, which `to_json` can serialize.
    options: the function's second argument.
    begun: a function that returns whether a restart can resume a run.

  Raises:
    Failed: with the exit code of the last attempt, unless it is 0.
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
  """Call the function whose import path and arguments `launch` has written to a file; exit with its exit code."""
  hosts.follow_launcher()
  logging.getLogger("absl").setLevel(logging.CRITICAL)  # the libraries also raise the errors that they log
  address, value, options = from_json(Path(file).read_text())
  function = _load(address)

  def call() -> int:
    function(value, options)
    return 0

  sys.exit(exit_code(function.__name__, call))


def to_json(value: Any) -> str:
  """Serialize dataclasses, named tuples, collections, numbers and module-level functions to JSON."""
  return json.dumps(_encoded(value))


def from_json(text: str) -> Any:
  """Deserialize the output of `to_json`; functions become strings "MODULE:NAME"."""

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
    return {key: _encoded(item) for key, item in value.items()}
  if isinstance(value, list):
    return [_encoded(item) for item in value]
  return _address(value) if callable(value) else value.item() if isinstance(value, np.generic) else value


def _address(value: Any) -> str:
  """Return the import path MODULE:NAME of a class or function."""
  name = getattr(value, "__qualname__", repr(value))  # the repr of a callable object contains "<"
  if "<" in name or value.__module__ == "__main__":
    condition = "module-level functions of an importable module if processes > 1 or max_restarts > 0"
    advice = "Child processes cannot import lambdas, local functions or functions in __main__."
    raise OptionError("hooks", condition, name, advice)
  return f"{value.__module__}:{name}"


def _load(address: str) -> Any:
  module, _, name = address.partition(":")
  return getattr(importlib.import_module(module), name)


def say(text: str) -> None:
  """Print a line to stdout in the main process."""
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
  """Check that config, options, versions, code and data are equal in all processes.

  Collective: all processes must call it.

  Args:
    config: the command's config as JSON.
    inputs: fingerprints of the data and of files, see `ddl.run.inputs`.
    first: the process to compare with; only processes that differ from it fail. None: compare with process 0; if any
      process differs, all fail.

  Raises:
    ValueError: if there is a difference; the message contains the first one.
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
  """Return, as JSON, the config, options, versions, code hash and inputs, which must be equal in all processes."""
  common = {name: value for name, value in asdict(options).items() if name not in PER_PROCESS}
  values = {"config": config, "options": common, "versions": folder.about(())["versions"], "code": _code()}
  values["num_processes"] = hosts.processes()
  if data:
    values |= {"data": {"description": data.meta["description"]}, "inputs": inputs}
  return json.dumps(values, sort_keys=True, default=str)


def difference(reference: str, other: str, rank: int, first: int = 0) -> str:
  """Describe the first difference between the `text` of process `first` and of process `rank`."""
  values, others = (folder.flat(json.loads(json_text)) for json_text in (reference, other))
  key = next(key for key in sorted({*values, *others}) if values.get(key) != others.get(key))
  differ = f"{key} is {values.get(key)} in process {first} and {others.get(key)} in process {rank}"
  return f"all processes must have the same config, options, versions, code and data, but {differ}"


def _code() -> str:
  """Return a hash of ddl's source code."""
  files = sorted(file for part in ("ddl", "experiments") for file in (ROOT / part).rglob("*.py"))
  return hashlib.sha256(b"\0".join(file.read_bytes() for file in files)).hexdigest()[:12]
