"""Eight CPU devices and strict promotion for every test; `--slow` adds the slow ones, and all cases of sampled ones."""

import collections
import os
import shutil
import signal
import tempfile

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")  # read when Ray is imported, whichever test does first
# Tests and the commands that they start compile much alike: once is enough, for all processes of one session.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", f"{tempfile.gettempdir()}/ddl-compiled-{os.getpid()}")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.1")

import jax
import pytest
from absl import flags
from hypothesis import settings

jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")

# A loaded machine takes its time; each run has the same cases.
settings.register_profile("ddl", deadline=None, derandomize=True)
settings.load_profile("ddl")


def pytest_addoption(parser):
  parser.addoption("--slow", action="store_true", help="run the slow tests too")


def pytest_configure(config):
  if config.getoption("--slow"):
    os.environ["DDL_TESTS_DRAW"] = "1"  # in the commands that tests start
  # Half of the tests' time was XLA's: they compile with fewer optimizations, with `--slow` as users do. XLA ends the
  # process for a flag that it doesn't know, so another JAX than that of constraints.txt goes without.
  if not config.getoption("--slow") and jax.__version__.startswith("0.10."):
    os.environ.setdefault("XLA_FLAGS", "--xla_cpu_use_fusion_emitters=false --xla_backend_optimization_level=1")
  jax.config.update("jax_disable_most_optimizations", not config.getoption("--slow"))  # here, not in commands
  jax.devices()  # all eight, before a test that asks for fewer


def pytest_collection_modifyitems(config, items):
  if not config.getoption("--slow"):
    skip = pytest.mark.skip(reason="slow: run with --slow")
    cases = collections.Counter()
    for item in items:
      if "slow" in item.keywords:
        item.add_marker(skip)
      elif sample := item.get_closest_marker("sampled"):
        block, place = divmod(cases[item.location[0], item.originalname], sample.args[0])
        cases[item.location[0], item.originalname] += 1
        if place != block % sample.args[0]:  # one of each n in turn: every value of the slowest parameter has its case
          item.add_marker(skip)


def pytest_unconfigure(config):
  if (created := os.environ["JAX_COMPILATION_CACHE_DIR"]).endswith(f"ddl-compiled-{os.getpid()}"):
    shutil.rmtree(created, ignore_errors=True)


@pytest.fixture(autouse=True, scope="module")
def forget_compiled(request):
  """A compiled program keeps some of the 65,530 memory maps that Linux gives a process; without one, XLA ends it."""
  yield
  if request.config.getoption("--slow"):
    jax.clear_caches()


@pytest.fixture
def x64():
  """Float64 for one test: the mathematics is compared at rtol 1e-12."""
  with jax.enable_x64(True):
    yield


@pytest.fixture
def optimized():
  """One test with XLA's optimizations, without which its two programs differ by a rounding."""
  before = jax.config.values["jax_disable_most_optimizations"]
  jax.config.update("jax_disable_most_optimizations", False)
  yield
  jax.config.update("jax_disable_most_optimizations", before)


@pytest.fixture
def call(monkeypatch, capfd, tmp_path):
  """(command, arguments) -> (exit code, stdout, stderr), in this process, with fresh flags and empty pictures."""
  from helpers.commands import ROOT, last_of_each  # only now: most tests need no command
  from helpers.comparisons import undrawn

  from ddl import hosts
  from ddl.run import processes
  from experiments.command_line import cli

  monkeypatch.chdir(ROOT)
  monkeypatch.setattr(  # the devices of this process have been started
    processes, "start_devices", lambda n, options, *_: processes.check_processes(n, hosts.processes(), options)
  )

  def run(command, *arguments):
    for name in flags.FLAGS:
      flags.FLAGS[name].unparse()
    if command in ("train", "compare", "sweep", "scale") and not any(a.startswith("--workdir") for a in arguments):
      arguments = (*arguments, f"--workdir={tmp_path}/run")
    capfd.readouterr()
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"), undrawn():
      code = cli.run(command, last_of_each(arguments))
    return code, *capfd.readouterr()

  return run


@pytest.fixture
def wrong(call):
  """(arguments, words): a train command that is refused with one line that has these words."""

  def check(arguments, *words, command="train"):
    code, _, error = call(command, *arguments)
    assert code == 2 and error.count("\n") == 1 and error.startswith(f"{command}: "), (code, error)
    for word in words:
      assert word in error, f"{word!r} is not in: {error}"
    assert len(error) < 640 and "Traceback" not in error
    return error

  return check


@pytest.fixture
def at_once():
  """A call that would wait or compute for ever fails after a minute."""

  def late(*_):
    raise AssertionError("no answer within a minute")

  before = signal.signal(signal.SIGALRM, late)
  signal.alarm(60)
  yield
  signal.alarm(0)
  signal.signal(signal.SIGALRM, before)
