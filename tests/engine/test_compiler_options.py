"""SIGTERM during a compilation, which runs in C++ and blocks Python's handlers."""

import signal
import subprocess
import sys

SCRIPT = """
import hashlib, signal
from ddl.engine import execution

class Lowered:
  def compile(self):  # like XLA: releases the GIL and is not interrupted by signals
    print("compiling", flush=True)
    hashlib.pbkdf2_hmac("sha256", b"", b"", rounds)

signal.signal(signal.SIGTERM, lambda *_: print("handled", flush=True))
execution.exit_on_sigterm(lambda: print("exiting", flush=True))
rounds, execution.GRACE = 10**6, 60.0
execution.compiled(Lowered())
print("compiled", signal.set_wakeup_fd(-1), flush=True)
rounds, execution.GRACE = 10**9, 0.2
execution.compiled(Lowered())
"""


def test_sigterm_exits_only_if_the_compilation_takes_longer_than_the_grace_period():
  with subprocess.Popen([sys.executable, "-c", SCRIPT], stdout=subprocess.PIPE, text=True) as process:
    assert process.stdout

    def terminate_while_compiling():
      assert process.stdout and process.stdout.readline() == "compiling\n"
      process.send_signal(signal.SIGTERM)

    terminate_while_compiling()
    assert {process.stdout.readline(), process.stdout.readline()} == {"handled\n", "compiled -1\n"}
    terminate_while_compiling()
    assert process.stdout.read().split("\n")[-2] == "exiting"
    assert process.wait(30) == 143
