"""SIGTERM during a compilation, which runs in C++ and keeps Python's handlers waiting."""

import signal
import subprocess
import sys

import pytest

SCRIPT = """
import hashlib, signal, sys
from ddl.engine import execution as compiler_options

class Lowered:
  def compile(self):  # not interrupted by signals, without the lock, as XLA
    print("compiling", flush=True)
    hashlib.pbkdf2_hmac("sha256", b"", b"", {rounds})

compiler_options.GRACE = {grace}
signal.signal(signal.SIGTERM, lambda *_: print("handled", flush=True))
compiler_options.exit_on_sigterm(lambda: print("ended", flush=True))
compiler_options.compiled(Lowered())
print("compiled", signal.set_wakeup_fd(-1), flush=True)
"""


@pytest.mark.parametrize("rounds, grace, last, code", [(10**9, 0.2, "ended", 143), (10**6, 60.0, "compiled -1", 0)])
def test_a_compilation_is_ended_where_it_goes_on(rounds, grace, last, code):
  script = SCRIPT.format(rounds=rounds, grace=grace)
  with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as process:
    assert process.stdout and process.stdout.readline() == "compiling\n"
    process.send_signal(signal.SIGTERM)
    assert process.stdout.read().split("\n")[-2] == last
    assert process.wait(30) == code
