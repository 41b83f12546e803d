"""Map exceptions to exit codes: 2 and a one-line message for user errors, 128 + the signal's number for signals."""

import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import jax

from ddl import hosts
from ddl.engine.execution import exit_on_sigterm

FOLLOW_UP = "Event loop is closed"  # raised by threads of orbax and TensorStore after a checkpoint failed to save
EXHAUSTED = "RESOURCE_EXHAUSTED"  # XLA's status when a device is out of memory


class Failed(Exception):
  """Raised to end the command with an exit code. args: (code, message), or (code,) if a message has been printed."""


class Stopped(Exception):
  """Raised after a signal stopped a run; its state has been saved, except with runtime=threads.

  args: (step, signal number).
  """

  message = ""  # printed for the user


class _Terminated(BaseException):
  """Raised by SIGTERM outside the training loop, which handles the signal itself."""


def _terminate(_number: int, _frame: Any) -> None:
  raise _Terminated


_resume: ContextVar[list[str] | None] = ContextVar("resume", default=None)  # [command that resumes this one]


def resumable(command: str) -> None:
  """Register the shell command that resumes the running one; exit messages quote it."""
  if (commands := _resume.get()) is not None:
    commands[:] = [command]


def exit_code(command: str, call: Callable[[], int]) -> int:
  """Call a command's function with signal, warning and error handling; return the exit code."""
  form, resume = warnings.formatwarning, list[str]()
  token = _resume.set(resume)
  warnings.formatwarning = lambda message, *_, **__: f"{command}: warning: {' '.join(str(message).split())}\n"
  sys.excepthook, sys.unraisablehook, threading.excepthook = _excepthook, _unraisablehook, _thread_excepthook
  before = signal.signal(signal.SIGTERM, _terminate)

  def saved() -> str:
    return "saved files remain" + "".join(f"; resume with: {shell_command}" for shell_command in resume)

  exit_on_sigterm(lambda: hosts.print_error(f"{command}: stopped by SIGTERM while compiling; {saved()}"))
  hosts.format_exit(
    lambda reason, code: f"{command}: {reason}" + (f"; this process exits too; {saved()}" if code == 1 else "")
  )
  try:
    return _called(command, call)
  except _Terminated:
    hosts.exit_process(143, f"{command}: stopped by SIGTERM; {saved()}")
    return 143
  finally:
    _resume.reset(token)
    exit_on_sigterm(None)
    signal.signal(signal.SIGTERM, before)
    warnings.formatwarning = form


def _excepthook(kind: type[BaseException], error: BaseException, trace: Any) -> None:
  """Print an error, unless it is FOLLOW_UP."""
  if str(error) != FOLLOW_UP:
    sys.__excepthook__(kind, error, trace)


def _unraisablehook(args: Any) -> None:
  """Print an error that Python cannot raise, as in a callback of TensorStore, unless it is FOLLOW_UP."""
  if str(args.exc_value) != FOLLOW_UP:
    sys.__unraisablehook__(args)


def _thread_excepthook(args: threading.ExceptHookArgs) -> None:
  """Print an error in a thread, unless it is FOLLOW_UP."""
  if str(args.exc_value) != FOLLOW_UP:
    threading.__excepthook__(args)


def _text(error: Exception) -> str:
  """Return an error's message as one line, with the file name of an OSError."""
  if isinstance(error, OSError) and error.filename and error.strerror:
    return f"{error.filename}: {error.strerror.lower()}; use another path"
  return " ".join(str(error).split())


def _called(command: str, call: Callable[[], int]) -> int:
  try:
    return call()
  except Stopped as stopped:
    if hosts.is_main():
      print(stopped.message, flush=True)
    return 128 + stopped.args[1]
  except Failed as failed:
    code, *message = failed.args
    if message and hosts.is_main():
      hosts.print_error(f"{command}: {message[0]}")
    return code
  except KeyboardInterrupt:
    hosts.exit_process(130, f"{command}: interrupted")
    return 130
  except Exception as error:
    if hosts.is_loss(error):
      hosts.exit_for_loss(error)
    text = f"{command}: {_text(error)}"
    if isinstance(error, MemoryError) or (isinstance(error, jax.errors.JaxRuntimeError) and EXHAUSTED in str(error)):
      reason = str(error).strip().partition("\n")[0] or "out of memory"
      text = f"{command}: too large for this machine: {reason}"
    elif not isinstance(error, (ValueError, OSError)):
      if hosts.processes() > 1:
        hosts.exit_process(1, traceback.format_exc().strip())
      raise
    hosts.exit_process(2, text)
    return 2
