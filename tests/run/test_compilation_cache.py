"""The compilation cache: reuse between commands, location, size limit, and folders that cannot be used."""

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
  """Start a command with this folder in place of ~/.cache, and without the tests' shared cache."""
  return Command(*QUICK, *more, XDG_CACHE_HOME=str(cache), JAX_COMPILATION_CACHE_DIR="")


def loaded(done):
  assert done.code == 0, done
  result = re.search(r"compiled in [\d.]+ s \((\d+) programs from the cache\); ", done.out)
  return int(result[1]) if result else 0


@pytest.mark.slow
def test_commands_load_the_programs_of_earlier_commands(tmp_path):
  writers = [command(tmp_path, f"--workdir={tmp_path}/{i}") for i in range(2)]  # concurrent
  first = [writer.end() for writer in writers]
  files = {path: path.stat().st_mtime_ns for path in (tmp_path / "ddl" / "jax").iterdir()}
  done = command(tmp_path, f"--workdir={tmp_path}/again").end()
  assert loaded(done) == len(files) > 3
  assert files == {path: path.stat().st_mtime_ns for path in (tmp_path / "ddl" / "jax").iterdir()}
  for ended in (*first, done):
    assert ended.code == 0 and not ended.error, ended
  assert metrics(tmp_path / "again") == metrics(tmp_path / "0") == metrics(tmp_path / "1")


@pytest.mark.slow
def test_the_flag_moves_the_cache_and_a_torn_entry_is_compiled_again(tmp_path):
  target = f"--compilation_cache={tmp_path}/cache"
  assert loaded(command(tmp_path, target, f"--workdir={tmp_path}/0").end()) == 0
  files = list((tmp_path / "cache").iterdir())
  files[0].write_bytes(files[0].read_bytes()[:50])
  files[1].write_bytes(b"")
  done = command(tmp_path, target, f"--workdir={tmp_path}/1").end()
  assert loaded(done) == len(files) - 2 > 1 and not done.error
  assert not (tmp_path / "ddl").exists()


@pytest.mark.slow
def test_an_unusable_folder_gives_a_one_line_warning(tmp_path):
  (tmp_path / "file").write_text("")
  done = command(tmp_path / "file", f"--workdir={tmp_path}/0").end()
  assert loaded(done) == 0 and len(done.error.splitlines()) == 1
  assert done.error.startswith("train: warning: ") and "compilation_cache=off" in done.error


@pytest.fixture
def no_folder():
  """Remove the cache folder of this process for one test."""
  before = jax.config.values["jax_compilation_cache_dir"]
  jax.config.update("jax_compilation_cache_dir", None)
  yield
  jax.config.update("jax_compilation_cache_dir", before)


def test_a_user_without_a_home_folder_gets_a_warning(no_folder, monkeypatch):
  def no_home(path):
    raise RuntimeError("Could not determine home directory.")

  monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
  monkeypatch.setattr(Path, "expanduser", no_home)
  with warnings.catch_warnings(record=True) as log:
    warnings.simplefilter("always")
    with compilation_cache.active():
      assert jax.config.values["jax_compilation_cache_dir"] is None
  assert len(log) == 1 and "compilation cache" in str(log[0].message)


def test_the_folder_of_the_environment_is_used(tmp_path, monkeypatch, no_folder):
  monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
  jax.config.update("jax_compilation_cache_dir", "/of/the/environment")
  with compilation_cache.active():
    assert jax.config.values["jax_compilation_cache_dir"] == "/of/the/environment" and not list(tmp_path.iterdir())


def test_runs_of_a_process_share_no_cache_settings(tmp_path, no_folder):
  before = {name: jax.config.values[name] for name in compilation_cache.NAMES}
  hits = []
  for folder in ("a", "off", "b", "a"):
    with compilation_cache.active(str(tmp_path / folder) if folder != "off" else folder) as result:
      jax.jit(lambda x: x * 3 + 1)(1.0).block_until_ready()
    hits.append(len(result) > 0)
    assert {name: jax.config.values[name] for name in compilation_cache.NAMES} == before
  assert hits == [False, False, False, True] and list((tmp_path / "b").iterdir()) and not (tmp_path / "off").exists()


def test_the_oldest_entries_are_removed_above_the_limit(tmp_path, monkeypatch):
  monkeypatch.setattr(compilation_cache, "LIMIT", 1000)

  def remaining(count):
    for i in range(count):
      (tmp_path / f"{i}-cache").write_bytes(b"x" * 100)
      os.utime(tmp_path / f"{i}-cache", (1000 - i, 1000 - i))
    (tmp_path / "other").write_bytes(b"x" * 5000)
    compilation_cache._prune(tmp_path)
    assert (tmp_path / "other").exists()
    return sorted(int(path.name.partition("-")[0]) for path in tmp_path.glob("*-cache"))

  assert remaining(10) == list(range(10))
  assert remaining(11) == list(range(5))


def test_ray_processes_on_this_machine_share_the_cache(no_folder):
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
