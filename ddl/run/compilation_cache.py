"""JAX's persistent compilation cache, used by train, compare and sweep."""

import contextlib
import os
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path

import jax
from jax.experimental.compilation_cache import compilation_cache

from ddl import files

AUTO, OFF = "auto", ("off", "")  # option values that are not a folder
LIMIT = 2**29  # bytes; not enforced by JAX, which would read all entries when it adds one (0.3 s for 5,000 entries)
HIT = "/jax/compilation_cache/cache_hits"  # the name of JAX's monitoring event
NAMES = ("jax_enable_compilation_cache", "jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")


@contextlib.contextmanager
def active(where: str = AUTO) -> Iterator[list[str]]:
  """Enable the cache within a context; yield a list to which each cache hit adds an item.

  where: a folder; AUTO, for JAX's configured folder or else the default one; or a value in OFF, to disable the cache.

  If the folder cannot be used, warn and do not cache. JAX's settings are restored on exit.
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
      compilation_cache.reset_cache()  # otherwise JAX keeps using the first folder


def _start(where: str) -> None:
  jax.config.update("jax_enable_compilation_cache", where not in OFF)
  if where in OFF or (where == AUTO and jax.config.values["jax_compilation_cache_dir"]):
    return
  try:
    folder = files.cache_folder() / "jax" if where == AUTO else Path(where)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # write access permits executing arbitrary code
    with tempfile.TemporaryFile(dir=folder):
      pass
  except (OSError, ValueError) as error:  # ValueError: no home directory
    advice = "set compilation_cache=DIR to use another folder, or compilation_cache=off"
    warnings.warn(f"the compilation cache is disabled ({error}); {advice}", stacklevel=2)
    return
  with contextlib.suppress(OSError):
    _prune(folder)
  compilation_cache.reset_cache()
  jax.config.update("jax_compilation_cache_dir", str(folder))
  jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
  # JAX recompiles an entry that another process is still writing or left incomplete.
  warnings.filterwarnings("ignore", "Error (reading|writing) persistent compilation cache entry")


def _prune(folder: Path) -> None:
  """Shrink a cache larger than LIMIT to LIMIT / 2, deleting the least recently used programs first."""
  entries = [(entry.stat(), entry.path) for entry in os.scandir(folder) if entry.name.endswith("-cache")]
  total = sum(stat.st_size for stat, _ in entries)
  if total <= LIMIT:
    return
  for stat, path in sorted(entries, key=lambda entry: max(entry[0].st_atime, entry[0].st_mtime)):
    if total > LIMIT // 2:
      os.unlink(path)
      total -= stat.st_size
