"""Hooks for errors outside the main thread: the follow-up errors of a failed checkpoint are not printed."""

import sys
import threading

import pytest

from ddl.run import exit_codes


@pytest.mark.parametrize("text, printed", [("Event loop is closed", False), ("division by zero", True)])
def test_follow_up_errors_of_a_failed_checkpoint_are_not_printed(monkeypatch, capsys, text, printed):
  for module, name in ((sys, "excepthook"), (sys, "unraisablehook"), (threading, "excepthook")):
    monkeypatch.setattr(module, name, getattr(module, name))  # is restored after the test
  assert exit_codes.exit_code("test", lambda: 0) == 0

  class Callback:
    def __del__(self):
      fail()

  def fail():
    raise RuntimeError(text)

  def in_thread():
    thread = threading.Thread(target=fail)
    thread.start()
    thread.join()

  for call in (Callback, in_thread, lambda: sys.excepthook(RuntimeError, RuntimeError(text), None)):
    call()  # the callback is deleted at once
    assert (text in capsys.readouterr().err) == printed, call
