"""What one command compiled, the next ones load: where, and what happens where there is no such place."""

import os
import re
import warnings
from pathlib import Path

import jax
import numpy as np
import pytest
from helpers.commands import Command, metrics

from ddl.asynchronous.ray_cluster import process_environment
from ddl.run import compilation_cache

QUICK = ("train", "--config=configs/digits.py", "--config.steps=4", "--config.eval_every=2", "--devices=2")


def command(cache, *more):
  """With this folder in place of ~/.cache, and without the cache that the tests share."""
  return Command(*QUICK, *more, XDG_CACHE_HOME=str(cache), JAX_COMPILATION_CACHE_DIR="")


def loaded(done):
  assert done.code == 0, done
  result = re.search(r"compiled in [\d.]+ s \((\d+) programs from the cache\); ", done.out)
  return int(result[1]) if result else 0


@pytest.mark.parametrize(
  "more", [(), pytest.param(("--processes=2",), marks=pytest.mark.slow)], ids=["one process", "two processes"]
)
@pytest.mark.slow
def test_the_second_command_loads_what_the_first_ones_compiled(tmp_path, more):
  both = [command(tmp_path, *more, f"--workdir={tmp_path}/{i}") for i in range(2)]  # that write at once
  first = [each.end() for each in both]
  files = {path: path.stat().st_mtime_ns for path in (tmp_path / "ddl" / "jax").iterdir()}
  done = command(tmp_path, *more, f"--workdir={tmp_path}/again").end()
  assert loaded(done) == len(files) > 3
  assert files == {path: path.stat().st_mtime_ns for path in (tmp_path / "ddl" / "jax").iterdir()}
  for each in (*first, done):
    assert each.code == 0 and not [line for line in each.error.splitlines() if "Gloo" not in line], each
  assert metrics(tmp_path / "again") == metrics(tmp_path / "0") == metrics(tmp_path / "1")


@pytest.mark.slow
def test_the_flag_turns_it_off(tmp_path):
  done = command(tmp_path, "--compilation_cache=off", f"--workdir={tmp_path}/0").end()
  assert loaded(done) == 0 and not done.error and not (tmp_path / "ddl").exists()


@pytest.mark.slow
def test_the_flag_moves_it_and_a_torn_entry_is_compiled_anew(tmp_path):
  target = f"--compilation_cache={tmp_path}/there"
  assert loaded(command(tmp_path, target, f"--workdir={tmp_path}/0").end()) == 0
  files = list((tmp_path / "there").iterdir())
  files[0].write_bytes(files[0].read_bytes()[:50])
  files[1].write_bytes(b"")
  done = command(tmp_path, target, f"--workdir={tmp_path}/1").end()
  assert loaded(done) == len(files) - 2 > 1 and not done.error
  assert not (tmp_path / "ddl").exists()


@pytest.mark.slow
def test_a_folder_that_cannot_be_written_is_one_line(tmp_path):
  (tmp_path / "file").write_text("")
  done = command(tmp_path / "file", f"--workdir={tmp_path}/0").end()
  assert loaded(done) == 0 and len(done.error.splitlines()) == 1
  assert (
    done.error.startswith("train: warning: the compilation cache is disabled (")
    and "compilation_cache=off" in done.error
  )


@pytest.fixture
def no_folder():
  """This process has none either, for one test."""
  before = jax.config.values["jax_compilation_cache_dir"]
  jax.config.update("jax_compilation_cache_dir", None)
  yield
  jax.config.update("jax_compilation_cache_dir", before)


def test_a_user_without_a_home(no_folder, monkeypatch):
  def no_home(path):
    raise RuntimeError("Could not determine home directory.")

  monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
  monkeypatch.setattr(Path, "expanduser", no_home)
  with warnings.catch_warnings(record=True) as reported:
    warnings.simplefilter("always")
    with compilation_cache.active():
      assert jax.config.values["jax_compilation_cache_dir"] is None
  assert len(reported) == 1 and "the compilation cache is disabled (" in str(reported[0].message)


def test_the_folder_of_the_environment_stays(tmp_path, monkeypatch, no_folder):
  monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
  jax.config.update("jax_compilation_cache_dir", "/of/the/environment")
  with compilation_cache.active():
    assert jax.config.values["jax_compilation_cache_dir"] == "/of/the/environment" and not list(tmp_path.iterdir())


def test_two_runs_of_a_process_share_no_setting(tmp_path, no_folder):
  before = {name: jax.config.values[name] for name in compilation_cache.NAMES}
  hits = []
  for folder in ("a", "off", "b", "a"):
    with compilation_cache.active(str(tmp_path / folder) if folder != "off" else folder) as result:
      jax.jit(lambda x: x * 3 + 1)(1.0).block_until_ready()
    hits.append(len(result) > 0)
    assert {name: jax.config.values[name] for name in compilation_cache.NAMES} == before
  assert hits == [False, False, False, True] and list((tmp_path / "b").iterdir())


def test_it_is_bounded_and_the_oldest_go_first(tmp_path, monkeypatch):
  monkeypatch.setattr(compilation_cache, "LIMIT", 1000)

  def kept(count):
    for i in range(count):
      (tmp_path / f"{i}-cache").write_bytes(b"x" * 100)
      os.utime(tmp_path / f"{i}-cache", (1000 - i, 1000 - i))
    (tmp_path / "other").write_bytes(b"x" * 5000)
    compilation_cache._prune(tmp_path)
    assert (tmp_path / "other").exists()
    return sorted(int(path.name.partition("-")[0]) for path in tmp_path.glob("*-cache"))

  assert kept(10) == list(range(10))
  assert kept(11) == list(range(5))


def test_processes_of_ray_on_this_machine_share_it(no_folder):
  def variables(local):
    result = process_environment(np.dtype(np.float32), 0, local)["env_vars"]
    return {name: value for name, value in result.items() if "CACHE" in name}

  assert variables(True) == variables(False) == {}
  jax.config.update("jax_compilation_cache_dir", "/a/b")
  assert variables(True) == {
    "JAX_ENABLE_COMPILATION_CACHE": "True",
    "JAX_COMPILATION_CACHE_DIR": "/a/b",
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": str(jax.config.values["jax_persistent_cache_min_compile_time_secs"]),
  }
  assert variables(False) == {}
