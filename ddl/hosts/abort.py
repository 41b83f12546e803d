"""Report lost processes as one-line errors with exit codes, instead of pages of C++ log and an abort by JAX.

When a process is lost, JAX's coordination client logs to stderr and calls abort() in all other processes, even while
they wait in a collective. So the stderr of C++ code is redirected to a temporary file, which a SIGABRT handler reads.
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

GRACE = 1.0  # seconds for the other processes to report their own errors before a failed process exits
COORDINATION = "JAX distributed service detected fatal errors"  # in the log if the client aborts, but not if XLA does
COLLECTIVE = re.compile("Gloo|NCCL|RCCL|coordination ?service", re.IGNORECASE)

_exiting = threading.Lock()  # held by the thread that reports the error and exits
_format: list[Callable[[str, int], str]] = [lambda reason, _: reason]
_handlers: list[Any] = []  # SIGABRT handlers, referenced until the process exits


def print_error(text: str) -> None:
  """Print a line to stderr, after flushing stdout; ignore closed pipes."""
  with contextlib.suppress(OSError):
    sys.stdout.flush()
  with contextlib.suppress(OSError):
    print(text, file=sys.stderr, flush=True)


def format_exit(line: Callable[[str, int], str]) -> None:
  """Set the format of the last line of a process that exits: (reason, exit code) -> line."""
  _format[:] = [line]


def exit_process(code: int, text: str = "") -> None:
  """Print `text`, if any; with several processes, then exit with `code` without waiting for the others.

  An ordinary exit would wait, so this function calls `os._exit`. With one process, return after printing. If another
  thread is already reporting an error, print nothing and wait until that thread ends this process.
  """
  joined = jax.distributed.is_initialized()
  if joined:
    _exiting.acquire()  # never released
  if text:
    print_error(text)
  if joined:
    with contextlib.suppress(OSError):
      sys.stdout.flush()
    time.sleep(2 * GRACE if member().rank == 0 else GRACE)  # JAX aborts the other processes once process 0 has exited
    os._exit(code)


def is_loss(error: BaseException) -> bool:
  """Return whether an error comes from a failed collective or barrier of several processes."""
  failed = isinstance(error, (ValueError, RuntimeError)) and bool(COLLECTIVE.search(str(error)))
  failed |= isinstance(error, TimeoutError) and "barrier" in str(error)  # of orbax, while it writes a checkpoint
  return jax.distributed.is_initialized() and failed


def exit_for_loss(error: BaseException) -> NoReturn:
  """Exit with one line after a failed collective; the line names the lost process if JAX detects the loss in time."""
  time.sleep(GRACE)
  reason = str(error).strip().partition("\n")[0].rpartition("] ")[2]  # Gloo: [pair.cc:538] Read error [ADDRESS]: WHY
  _exit(f"another process exited or cannot be reached ({reason})", 1)


def report_aborts(explain: Callable[[str], tuple[str, int]]) -> None:
  """Install a handler that reports an abort by JAX in one line. explain: log -> (reason, exit code)."""
  log = _redirect()

  def on_abort(_: int) -> None:
    text = os.pread(log, 2**20, 0).decode(errors="replace")
    if COORDINATION in text:
      _exit(*explain(text))
    print_error(text)  # the log of a failed check in XLA; abort() then ends the process

  _handlers.append(ctypes.CFUNCTYPE(None, ctypes.c_int)(on_abort))
  ctypes.CDLL(None).signal(signal.SIGABRT, _handlers[-1])  # Python's handlers would wait for the main thread


def _exit(reason: str, code: int) -> NoReturn:
  _exiting.acquire()
  print_error(_format[0](reason, code))
  os._exit(code)


def _redirect() -> int:
  """Discard the stdout of C++ code and redirect its stderr to a file; return the file's descriptor.

  Python's sys.stdout and sys.stderr still work. Gloo prints a line to stdout for each group that it connects.
  """
  log, path = tempfile.mkstemp()
  os.unlink(path)  # the open file exists until this process exits
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
