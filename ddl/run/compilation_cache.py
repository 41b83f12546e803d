"""JAX's persistent compilation cache; `bench` and `calibrate`, which measure compilation, do not use it."""

import contextlib
import os
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path

import jax
from jax.experimental.compilation_cache import compilation_cache

from ddl import files

AUTO, OFF = "auto", ("off", "")  # values of the option, in place of a folder
LIMIT = 2**29  # bytes; JAX's own limit reads a file of each entry for each new one: 0.3 s at 5,000 entries
HIT = "/jax/compilation_cache/cache_hits"  # JAX's name of the event
NAMES = ("jax_enable_compilation_cache", "jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")


@contextlib.contextmanager
def active(where: str = AUTO) -> Iterator[list[str]]:
  """Use the cache in a context, before anything is compiled there; yield the list of its hits, which grows.

  A folder that cannot be used is warned of, and nothing is cached. JAX's settings are restored at the end.
  """
  hits, before = list[str](), {name: jax.config.values[name] for name in NAMES}

  def listen(event: str, **_: object) -> None:
    if event == HIT:
      hits.append(event)

  jax.monitoring.register_event_listener(listen)
  try:
    _start(where)
    yield hits
  finally:
    jax.monitoring.unregister_event_listener(listen)
    changed = jax.config.values["jax_compilation_cache_dir"] != before["jax_compilation_cache_dir"]
    for name, value in before.items():
      jax.config.update(name, value)
    if changed:
      compilation_cache.reset_cache()  # JAX keeps the first folder otherwise


def _start(where: str) -> None:
  jax.config.update("jax_enable_compilation_cache", where not in OFF)
  if where in OFF or (where == AUTO and jax.config.values["jax_compilation_cache_dir"]):
    return
  try:
    folder = files.cache_folder() / "jax" if where == AUTO else Path(where)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # who can write there can have any code run
    with tempfile.TemporaryFile(dir=folder):
      pass
  except (OSError, ValueError) as error:  # ValueError: there is no home
    advice = "compilation_cache=DIR gives it another folder, compilation_cache=off none"
    warnings.warn(f"no compilation cache ({error}); {advice}", stacklevel=2)
    return
  with contextlib.suppress(OSError):
    _prune(folder)
  compilation_cache.reset_cache()
  jax.config.update("jax_compilation_cache_dir", str(folder))
  jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
  # An entry that another process is just writing, or did not finish before it was killed: compiled again.
  warnings.filterwarnings("ignore", "Error (reading|writing) persistent compilation cache entry")


def _prune(folder: Path) -> None:
  """Delete the least recently used programs, down to half of LIMIT, if there is more than LIMIT."""
  entries = [(entry.stat(), entry.path) for entry in os.scandir(folder) if entry.name.endswith("-cache")]
  total = sum(stat.st_size for stat, _ in entries)
  if total <= LIMIT:
    return
  for stat, path in sorted(entries, key=lambda each: max(each[0].st_atime, each[0].st_mtime)):
    if total > LIMIT // 2:
      os.unlink(path)
      total -= stat.st_size
