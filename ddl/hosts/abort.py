"""One line and an exit code where JAX's C++ layer would print pages of log and abort the process.

Once a process is lost, JAX's coordination client logs to stderr and calls abort() in all others, also in those that
wait in a collective. So C++'s stderr is redirected to a temporary file, and a handler of SIGABRT reports from it.
"""

import contextlib
import ctypes
import logging
import os
import re
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from typing import Any, NoReturn

import jax

from ddl.hosts.process_info import member

GRACE = 1.0  # seconds that a process which fails gives the others to report their own error
COORDINATION = "JAX distributed service detected fatal errors"  # in the log if it is JAX that aborts, not XLA
COLLECTIVE = re.compile("Gloo|NCCL|RCCL|coordination ?service", re.IGNORECASE)

_exiting = threading.Lock()  # held by the thread that reports, which ends the process
_format: list[Callable[[str, int], str]] = [lambda reason, _: reason]
_handlers: list[Any] = []  # of SIGABRT, for the life of the process


def tell(text: str) -> None:
  """Print a line on stderr, after what stdout has; nothing if the process that read them was killed."""
  with contextlib.suppress(OSError):
    sys.stdout.flush()
  with contextlib.suppress(OSError):
    print(text, file=sys.stderr, flush=True)


def format_exit(line: Callable[[str, int], str]) -> None:
  """Set the line that this process prints before it exits, from the reason and the exit code."""
  _format[:] = [line]


def leave(code: int, text: str = "") -> None:
  """Exit at once if this is one of several processes: an ordinary exit would wait for all others.

  text: printed first, unless another thread already reports why this process exits.
  """
  joined = jax.distributed.is_initialized()
  if joined:
    _exiting.acquire()  # never released
  if text:
    tell(text)
  if joined:
    with contextlib.suppress(OSError):
      sys.stdout.flush()
    time.sleep(2 * GRACE if member().rank == 0 else GRACE)  # JAX aborts the others once process 0 has exited
    os._exit(code)


def is_loss(error: BaseException) -> bool:
  """Return whether this is the error of a collective of several processes."""
  failed = isinstance(error, (ValueError, RuntimeError)) and COLLECTIVE.search(str(error))
  return jax.distributed.is_initialized() and bool(failed)


def exit_for_loss(error: BaseException) -> NoReturn:
  """Exit after the failure of a collective, with a line that names the process if JAX detects its loss in time."""
  time.sleep(GRACE)
  reason = str(error).strip().partition("\n")[0].rpartition("] ")[2]  # Gloo: [pair.cc:538] Read error [ADDRESS]: WHY
  _exit(f"another process exited or cannot be reached ({reason})", 1)


def report_aborts(explain: Callable[[str], tuple[str, int]]) -> None:
  """Have JAX's aborts reported in one line, with the reason and the exit code that `explain` finds in the log."""
  log = _redirect()

  def on_abort(_: int) -> None:
    text = os.pread(log, 2**20, 0).decode(errors="replace")
    if COORDINATION in text:
      _exit(*explain(text))
    tell(text)  # of a failed check in XLA; abort() ends the process after this handler

  _handlers.append(ctypes.CFUNCTYPE(None, ctypes.c_int)(on_abort))
  ctypes.CDLL(None).signal(signal.SIGABRT, _handlers[-1])  # Python's own handlers wait for its main thread


def _exit(reason: str, code: int) -> NoReturn:
  _exiting.acquire()
  tell(_format[0](reason, code))
  os._exit(code)


def _redirect() -> int:
  """Discard what C++ prints on stdout, and send its stderr to a file, whose descriptor is returned; Python's stay.

  Gloo prints a line on stdout for each group that it connects.
  """
  log, path = tempfile.mkstemp()
  os.unlink(path)  # the file exists until this process ends
  for number, name, target in ((1, "stdout", os.open(os.devnull, os.O_WRONLY)), (2, "stderr", log)):
    before = getattr(sys, name)
    before.flush()
    after = os.fdopen(os.dup(number), "w", encoding=before.encoding, errors=before.errors, buffering=1)
    os.dup2(target, number)
    setattr(sys, name, after)
    for handler in logging.root.handlers:
      if isinstance(handler, logging.StreamHandler) and handler.stream is before:
        handler.setStream(after)
  return log
