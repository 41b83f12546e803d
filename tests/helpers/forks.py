"""`python run.py ...` in a fork of one process that has imported the libraries, which saves seconds each time.

Its pictures are empty, but with `--slow`.
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
  "flax.linen", "ml_collections.config_flags", "orbax.checkpoint", "sklearn.datasets",
  "sklearn.model_selection", "scipy.stats", "tensorboardX", "jinja2", "tqdm", "pandas", "experiments.command_line.cli",
)  # fmt: skip


def environment() -> dict[str, str]:
  """A user's, but for the cache of compiled programs."""
  kept = {k: v for k, v in os.environ.items() if not k.startswith("JAX_") or "CACHE" in k}
  return kept | {"JAX_PLATFORMS": "cpu"}


class Fork:
  """A started command, with the names of `subprocess.Popen`."""

  def __init__(
    self,
    arguments: list[str],
    folder: Path | str,
    out: Path,
    error: Path,
    module: str = "run",
    without: Sequence[str] = (),
  ):
    """Start it in its own process group.

    Args:
      arguments: of the command.
      folder: in which it runs.
      out, error: the files that it prints into.
      module: that has its `main`.
      without: environment variables that it does not have.
    """
    self._files = out, error
    files = {"folder": str(folder), "out": str(out), "error": str(error)}
    self.pid = ask({"arguments": arguments, **files, "module": module, "without": [*without]})
    self.returncode: int | None = None

  def poll(self) -> int | None:
    """The exit code, if it has ended."""
    if self.returncode is None:
      self.returncode = ask({"wait": self.pid})
    return self.returncode

  def wait(self, timeout: float = 60) -> int:
    """The exit code. Raises subprocess.TimeoutExpired."""
    until = time.monotonic() + timeout
    while (code := self.poll()) is None:
      if time.monotonic() > until:
        raise subprocess.TimeoutExpired("run.py", timeout)
      time.sleep(0.01)
    return code

  def communicate(self, timeout: float = 60) -> tuple[str, str]:
    """What it printed, once it has ended. Raises subprocess.TimeoutExpired."""
    self.wait(timeout)
    out, error = (file.read_text(errors="replace") for file in self._files)
    return out, error


@functools.cache
def server() -> subprocess.Popen[str]:
  """The process that forks, one for all tests of this process."""
  pipe = subprocess.PIPE
  started = subprocess.Popen([sys.executable, __file__], stdin=pipe, stdout=pipe, text=True, env=environment())
  atexit.register(started.kill)
  return started


def ask(question: dict[str, Any]) -> Any:
  """One line to the server, and its answer."""
  process = server()
  assert process.stdin and process.stdout
  process.stdin.write(json.dumps(question) + "\n")
  process.stdin.flush()
  return json.loads(process.stdout.readline())


def serve() -> None:
  """Answer line by line: start a fork before any of JAX's threads, or say how one has ended."""
  for library in LIBRARIES:
    importlib.import_module(library)
  drawn = "DDL_TESTS_DRAW" in os.environ
  with contextlib.nullcontext() if drawn else importlib.import_module("helpers.comparisons").undrawn():
    answer_all()


def answer_all() -> None:
  """Answer until there are no more questions."""
  for line in sys.stdin:
    asked = json.loads(line)
    if "wait" in asked:
      pid, status = os.waitpid(asked["wait"], os.WNOHANG)
      answer = os.waitstatus_to_exitcode(status) if pid else None
    else:
      answer = os.fork()
      if not answer:
        sys.exit(command(asked))
    print(json.dumps(answer), flush=True)


def command(asked: dict[str, Any]) -> int:
  """The command, in the fork."""
  os.setpgid(0, 0)
  for name in asked["without"]:
    os.environ.pop(name, None)
  os.chdir(asked["folder"])
  for descriptor, file in ((0, os.devnull), (1, asked["out"]), (2, asked["error"])):
    os.dup2(os.open(file, os.O_RDWR | os.O_CREAT | os.O_APPEND), descriptor)
  sys.argv = [str(ROOT / "run.py"), *asked["arguments"]]
  return importlib.import_module(asked["module"]).main()


if __name__ == "__main__":
  sys.path[:1] = [str(ROOT), str(ROOT / "tests")]
  serve()
