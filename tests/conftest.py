"""Eight CPU devices and strict type promotion for every test; `--slow` also runs slow tests and all sampled cases."""

import collections
import gc
import os
import shutil
import signal
import tempfile

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")  # Ray reads it at import
# Tests and the commands that they start compile many equal programs, so that all processes share one cache.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", f"{tempfile.gettempdir()}/ddl-compiled-{os.getpid()}")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # each command would compile all modules

import jax
import pytest
from absl import flags
from hypothesis import settings

jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")

# No deadline, as the machine may be busy; the same cases in every run.
settings.register_profile("ddl", deadline=None, derandomize=True)
settings.load_profile("ddl")


def pytest_addoption(parser):
  parser.addoption("--slow", action="store_true", help="run the slow tests too")


def pytest_configure(config):
  slow = config.getoption("--slow")
  if slow:
    os.environ["DDL_TESTS_DRAW"] = "1"  # for the commands that tests start
  else:
    # XLA's optimizations would take half of the time. XLA aborts on an unknown flag, and newer JAX lacks the first one.
    emitters = "--xla_cpu_use_fusion_emitters=false " if jax.__version__.startswith("0.10.") else ""
    flags = f"{emitters}--xla_backend_optimization_level=1 --xla_llvm_disable_expensive_passes=true"
    os.environ.setdefault("XLA_FLAGS", flags)
  jax.config.update("jax_disable_most_optimizations", not slow)  # in this process, not in the commands
  jax.devices()  # start all eight before a test asks for fewer


@pytest.hookimpl(tryfirst=True)  # before pytest selects by marks: `-m slow` runs what is skipped without --slow
def pytest_collection_modifyitems(config, items):
  skip = pytest.mark.skip(reason="slow: run with --slow")
  cases = collections.Counter()
  for item in items:
    if sample := item.get_closest_marker("sampled"):
      block, place = divmod(cases[item.location[0], item.originalname], sample.args[0])
      cases[item.location[0], item.originalname] += 1
      if place != block % sample.args[0]:  # one of each n, so that every value of the slowest parameter has a case
        item.add_marker("slow")
    if item.get_closest_marker("slow") and not config.getoption("--slow"):  # the keywords include names of folders
      item.add_marker(skip)


def pytest_collection_finish(session):
  gc.freeze()  # what the imports created is not garbage
  gc.set_threshold(50_000, 20, 20)  # tracing creates many objects, most of which remain


def pytest_unconfigure(config):
  if (created := os.environ["JAX_COMPILATION_CACHE_DIR"]).endswith(f"ddl-compiled-{os.getpid()}"):
    shutil.rmtree(created, ignore_errors=True)


@pytest.fixture(autouse=True, scope="module")
def forget_compiled(request):
  """Delete compiled programs after each module: each holds some of the 65,530 memory maps of a process."""
  yield
  if request.config.getoption("--slow"):
    jax.clear_caches()


@pytest.fixture
def x64():
  """Enable float64 for one test."""
  with jax.enable_x64(True):
    yield


@pytest.fixture
def optimized():
  """Enable XLA's optimizations for one test that compares two programs bit for bit."""
  before = jax.config.values["jax_disable_most_optimizations"]
  jax.config.update("jax_disable_most_optimizations", False)
  yield
  jax.config.update("jax_disable_most_optimizations", before)


@pytest.fixture
def call(monkeypatch, capfd, tmp_path):
  """Run a command in this process: (command, *arguments) -> (exit code, stdout, stderr). Pictures are empty files."""
  from helpers.commands import ROOT, last_of_each  # here, because most tests run no command
  from helpers.comparisons import undrawn

  from ddl import hosts
  from ddl.run import processes
  from experiments.command_line import cli

  monkeypatch.chdir(ROOT)
  monkeypatch.setattr(  # this process has started its devices
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
  """Check that a command with these arguments exits with code 2 and one line that contains these words."""

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
  """Fail after a minute, if a call does not return."""

  def late(*_):
    raise AssertionError("the call did not return within a minute")

  before = signal.signal(signal.SIGALRM, late)
  signal.alarm(60)
  yield
  signal.alarm(0)
  signal.signal(signal.SIGALRM, before)
