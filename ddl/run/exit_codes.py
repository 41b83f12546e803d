"""The end of a command: a user's mistake is one line and exit code 2, a stop by a signal is 128 + its number."""

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
from ddl.engine.execution import end_by_sigterm

EXHAUSTED = "RESOURCE_EXHAUSTED"  # XLA's word for no memory left on a device


class Failed(Exception):
  """Ends with an exit code. args: the code, and a message unless it has been printed."""


class Stopped(Exception):
  """A run that was asked to stop and has saved itself. args: the step, the signal's number."""

  message = ""  # to the user


class _Terminated(BaseException):
  """SIGTERM outside of the steps of a run, which would save itself."""


def _terminate(_number: int, _frame: Any) -> None:
  raise _Terminated


_resume: ContextVar[list[str] | None] = ContextVar("resume", default=None)  # of the running command


def resumable(command: str) -> None:
  """Set the command that resumes the work of the running command, for the line that it may end with."""
  if (commands := _resume.get()) is not None:
    commands[:] = [command]


def exit_code(command: str, call: Callable[[], int]) -> int:
  """Call the function and return the exit code."""
  form, resume = warnings.formatwarning, list[str]()
  token = _resume.set(resume)
  warnings.formatwarning = lambda message, *_, **__: f"{command}: warning: {' '.join(str(message).split())}\n"
  sys.excepthook, threading.excepthook = _excepthook, _thread_excepthook
  before = signal.signal(signal.SIGTERM, _terminate)

  def saved() -> str:
    return "what was saved is kept" + "".join(f"; resume with: {each}" for each in resume)

  end_by_sigterm(lambda: hosts.tell(f"{command}: stopped by SIGTERM while compiling; {saved()}"))
  hosts.format_exit(
    lambda reason, code: f"{command}: {reason}" + (f"; this process exits too; {saved()}" if code == 1 else "")
  )
  try:
    return _called(command, call)
  except _Terminated:
    hosts.leave(143, f"{command}: stopped by SIGTERM; {saved()}")
    return 143
  finally:
    _resume.reset(token)
    end_by_sigterm(None)
    signal.signal(signal.SIGTERM, before)
    warnings.formatwarning = form


def _excepthook(kind: type[BaseException], error: BaseException, trace: Any) -> None:
  """Print an error, but not what orbax's threads repeat after that of a checkpoint that could not be written."""
  if str(error) != "Event loop is closed":
    sys.__excepthook__(kind, error, trace)


def _thread_excepthook(args: threading.ExceptHookArgs) -> None:
  """Do the same in a thread."""
  if str(args.exc_value) != "Event loop is closed":
    threading.__excepthook__(args)


def _text(error: Exception) -> str:
  """Return one line for a user's mistake, with the file that is at fault."""
  if isinstance(error, OSError) and error.filename and error.strerror:
    return f"{error.filename}: {error.strerror.lower()}; give another path"
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
      hosts.tell(f"{command}: {message[0]}")
    return code
  except KeyboardInterrupt:
    hosts.leave(130, f"{command}: interrupted")
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
        hosts.leave(1, traceback.format_exc().strip())
      raise
    hosts.leave(2, text)
    return 2
