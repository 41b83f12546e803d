"""The end of a command: a user's mistake is one line and exit code 2, a stop by a signal is 128 + its number."""

import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable
from typing import Any

import jax

from ddl import hosts
from ddl.engine.execution import end_by_sigterm

EXHAUSTED = "RESOURCE_EXHAUSTED"  # XLA's word for no memory left on a device


class Failed(Exception):
  """Ends with an exit code. args: it, and what is to be said, or nothing where that has been said."""


class Stopped(Exception):
  """The run was asked to stop and has saved itself. args: the step, the signal's number."""

  message = ""  # to the user


class _Terminated(BaseException):
  """SIGTERM where no run is at its steps, which would save itself."""


def _terminate(_number: int, _frame: Any) -> None:
  raise _Terminated


_goes_on: list[str] = []  # the command that resumes what this process does


def resumable(command: str) -> None:
  """Set the command that goes on with the work of this process, for the line that it may end with."""
  _goes_on[:] = [command]


def exit_code(command: str, call: Callable[[], int], *, words: Callable[[Exception], str] = str) -> int:
  """Calls; returns the exit code. words: of a user's mistake."""
  form = warnings.formatwarning
  warnings.formatwarning = lambda message, *_, **__: f"{command}: warning: {' '.join(str(message).split())}\n"
  sys.excepthook, threading.excepthook = _excepthook, _thread_excepthook
  before = signal.signal(signal.SIGTERM, _terminate)

  def kept() -> str:
    return "what was saved is kept" + "".join(f"; resume with: {command}" for command in _goes_on)

  end_by_sigterm(lambda: hosts.tell(f"{command}: stopped by SIGTERM while compiling; {kept()}"))
  hosts.in_words(lambda lost: f"{command}: {lost}, so that this process ends too; {kept()}")
  try:
    return _called(command, call, words)
  except _Terminated:
    hosts.tell(f"{command}: stopped by SIGTERM; {kept()}")
    hosts.leave(143)
    return 143
  finally:
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


def _called(command: str, call: Callable[[], int], words: Callable[[Exception], str]) -> int:
  try:
    return call()
  except Stopped as stopped:
    if hosts.is_main():
      print(stopped.message, flush=True)
    return 128 + stopped.args[1]
  except Failed as failed:
    code, *told = failed.args
    if told and hosts.is_main():
      hosts.tell(f"{command}: {told[0]}")
    return code
  except (ValueError, OSError) as error:
    _end_if_lost(error)
    hosts.tell(f"{command}: {' '.join(words(error).split())}")
    hosts.leave(2)
    return 2
  except KeyboardInterrupt:
    hosts.tell(f"{command}: interrupted")
    hosts.leave(130)
    return 130
  except Exception as error:
    if isinstance(error, MemoryError) or (isinstance(error, jax.errors.JaxRuntimeError) and EXHAUSTED in str(error)):
      told = str(error).strip().partition("\n")[0] or "out of memory"
      hosts.tell(f"{command}: too large for this machine: {told}")
      hosts.leave(2)
      return 2
    if hosts.processes() == 1:
      raise
    _end_if_lost(error)
    hosts.tell(traceback.format_exc().strip())
    hosts.leave(1)
    raise


def _end_if_lost(error: Exception) -> None:
  """End with the line that names the lost process, if a collective failed because of one."""
  failed = isinstance(error, RuntimeError) or "Gloo" in str(error)
  if hosts.processes() > 1 and hosts.lost(hosts.GRACE if failed else 0.0):
    hosts.end()
