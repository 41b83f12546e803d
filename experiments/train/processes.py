"""Devices of this process, local processes beside it, and output of the main process alone."""

import pickle
import sys
import tempfile
from pathlib import Path
from typing import Any, NoReturn

import jax

from ddl.runtime import hosts
from ddl.runtime.execution import check_threads, cpu_devices
from ddl.runtime.workers import divisors
from experiments.config.options import RunOptions
from experiments.train.exit_codes import Failed, exit_code

ROOT = Path(__file__).parents[2]
CHILD = (
  "import sys; sys.path.insert(0, sys.argv[1]); from experiments.train import processes as p; p.child(sys.argv[2])"
)


def start_devices(workers: int, options: RunOptions) -> None:
  """Sets the CPU devices and joins the other processes, before any other use of JAX; afterwards they stay as they are.

  Raises:
    ValueError: if the processes do not divide the workers or the devices.
  """
  processes = check_processes(workers, hosts.processes(), options.devices)
  mine = options.devices // processes or cpu_devices(workers, processes)
  try:
    jax.config.update("jax_num_cpu_devices", mine)
  except RuntimeError:  # an earlier call of this process started them
    return
  hosts.join()


def check_processes(workers: int, processes: int, devices: int) -> int:
  """The number of processes, if it divides the workers and the devices (0: any number of these).

  Raises:
    ValueError: if it does not, or for more devices than a process can have.
  """
  check_threads(devices // processes, f"--devices={devices}: CPU devices")
  if workers % processes or devices % processes:
    fits = [n for n in divisors(workers) if devices % n == 0]
    if devices and workers % devices:
      raise ValueError(
        f"{workers} workers do not spread evenly over {devices} devices; "
        f"--devices can be {', '.join(map(str, divisors(workers)))}"
      )
    raise ValueError(
      f"{processes} processes cannot share {workers} workers{f' on {devices} devices' * bool(devices)} evenly; "
      f"--processes can be {', '.join(map(str, fits))}"
    )
  return processes


def launch(function: Any, value: Any, options: RunOptions, workers: int) -> None:
  """Calls `function(value, options)` in `options.processes` processes on this machine. Raises Failed if one did."""
  check_processes(workers, options.processes, options.devices)
  with tempfile.NamedTemporaryFile(suffix=".pickle") as file:
    pickle.dump((function, value, options), file)
    file.flush()
    code = hosts.launch(options.processes, [sys.executable, "-c", CHILD, str(ROOT), file.name])
  if code:
    raise Failed(code)


def child(file: str) -> NoReturn:
  """Call the pickled function, in a process of `launch`; end with the exit code."""
  function, value, options = pickle.loads(Path(file).read_bytes())

  def call() -> int:
    function(value, options)
    return 0

  sys.exit(exit_code(function.__name__, call))


def say(text: str) -> None:
  """Prints in the main process."""
  if hosts.is_main():
    print(text, flush=True)
