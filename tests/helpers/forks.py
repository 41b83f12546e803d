"""`python run.py ...` as a fork of a process that has imported the libraries, which saves seconds per command.

Figures are empty unless the tests run with `--slow`.
"""

import atexit
import contextlib
import functools
import importlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
LIBRARIES = (
  "flax.linen", "ml_collections.config_flags", "orbax.checkpoint", "scipy.stats", "tensorboardX", "jinja2", "tqdm",
  "pandas", "experiments.command_line.cli",
)  # fmt: skip


def environment() -> dict[str, str]:
  """Return a user's environment variables, and those of the tests' compilation cache."""
  variables = {k: v for k, v in os.environ.items() if not k.startswith("JAX_") or "CACHE" in k}
  return variables | {"JAX_PLATFORMS": "cpu"}


class Fork:
  """A started command with the interface of `subprocess.Popen`."""

  def __init__(
    self,
    arguments: list[str],
    folder: Path | str,
    out: Path,
    error: Path,
    module: str = "run",
    without: Sequence[str] = (),
  ):
    """Start the command in its own process group.

    Args:
      arguments: its command line.
      folder: its working directory.
      out, error: files for stdout and stderr.
      module: the module with its `main`.
      without: environment variables to remove.
    """
    self._files = out, error
    files = {"folder": str(folder), "out": str(out), "error": str(error)}
    self.pid = ask({"arguments": arguments, **files, "module": module, "without": [*without]})
    self.returncode: int | None = None

  def poll(self) -> int | None:
    """Return the exit code, None while the command runs."""
    if self.returncode is None:
      self.returncode = ask({"wait": self.pid})
    return self.returncode

  def wait(self, timeout: float = 60) -> int:
    """Wait and return the exit code. Raises subprocess.TimeoutExpired."""
    until = time.monotonic() + timeout
    while (code := self.poll()) is None:
      if time.monotonic() > until:
        raise subprocess.TimeoutExpired("run.py", timeout)
      time.sleep(0.01)
    return code

  def communicate(self, timeout: float = 60) -> tuple[str, str]:
    """Wait and return stdout and stderr. Raises subprocess.TimeoutExpired."""
    self.wait(timeout)
    out, error = (file.read_text(errors="replace") for file in self._files)
    return out, error


@functools.cache
def server() -> subprocess.Popen[str]:
  """Return the process that forks, one per test process."""
  pipe = subprocess.PIPE
  started = subprocess.Popen([sys.executable, __file__], stdin=pipe, stdout=pipe, text=True, env=environment())
  atexit.register(started.kill)
  return started


def ask(question: dict[str, Any]) -> Any:
  """Send a line to the server and return its answer."""
  process = server()
  assert process.stdin and process.stdout
  process.stdin.write(json.dumps(question) + "\n")
  process.stdin.flush()
  return json.loads(process.stdout.readline())


def serve() -> None:
  """Import the libraries, then answer questions; fork before JAX starts any threads."""
  for library in LIBRARIES:
    importlib.import_module(library)
  drawn = "DDL_TESTS_DRAW" in os.environ
  with contextlib.nullcontext() if drawn else importlib.import_module("helpers.comparisons").undrawn():
    answer_all()


def answer_all() -> None:
  """Answer each line of stdin: start a command, or return the exit code of one."""
  for line in sys.stdin:
    question = json.loads(line)
    if "wait" in question:
      pid, status = os.waitpid(question["wait"], os.WNOHANG)
      answer = os.waitstatus_to_exitcode(status) if pid else None
    else:
      answer = os.fork()
      if not answer:
        sys.exit(command(question))
    print(json.dumps(answer), flush=True)


def command(question: dict[str, Any]) -> int:
  """Run the command in the fork; return its exit code."""
  os.setpgid(0, 0)
  for name in question["without"]:
    os.environ.pop(name, None)
  os.chdir(question["folder"])
  for descriptor, file in ((0, os.devnull), (1, question["out"]), (2, question["error"])):
    os.dup2(os.open(file, os.O_RDWR | os.O_CREAT | os.O_APPEND), descriptor)
  sys.argv = [str(ROOT / "run.py"), *question["arguments"]]
  return importlib.import_module(question["module"]).main()


if __name__ == "__main__":
  sys.path[:1] = [str(ROOT), str(ROOT / "tests")]
  serve()
