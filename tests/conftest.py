"""Eight CPU devices and strict promotion for every test; `--slow` adds the slow ones."""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import pytest
from hypothesis import settings

jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")

# A loaded machine takes its time; each run has the same cases.
settings.register_profile("ddl", deadline=None, derandomize=True)
settings.load_profile("ddl")


def pytest_addoption(parser):
  parser.addoption("--slow", action="store_true", help="run the slow tests too")


def pytest_collection_modifyitems(config, items):
  if not config.getoption("--slow"):
    skip = pytest.mark.skip(reason="slow: run with --slow")
    for item in items:
      if "slow" in item.keywords:
        item.add_marker(skip)


@pytest.fixture
def x64():
  """Float64 for one test: the mathematics is compared at rtol 1e-12."""
  with jax.enable_x64(True):
    yield
