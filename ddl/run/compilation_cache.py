"""JAX's persistent compilation cache, in the user's cache folder: what one command compiled, the next ones load.

`bench` and `calibrate` go without it: they measure compilation.
"""

import contextlib
import functools
import os
import tempfile
import warnings
from pathlib import Path

import jax

from ddl import files

AUTO, OFF = "auto", ("off", "")
LIMIT = 2**29  # bytes; JAX's own limit reads a file of each entry for each new one: 0.3 s at 5,000 entries
HIT = "/jax/compilation_cache/cache_hits"  # JAX's name of the event


def start(where: str = AUTO) -> None:
  """Turn the cache on, before anything is compiled; warn if its folder cannot be used, and go without."""
  _hits()
  if where in OFF:
    jax.config.update("jax_enable_compilation_cache", False)
    return
  if where == AUTO and jax.config.values["jax_compilation_cache_dir"]:
    return
  try:
    folder = files.cache_folder() / "jax" if where == AUTO else Path(where)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # who can write there can have any code run
    with tempfile.TemporaryFile(dir=folder):
      pass
  except (OSError, ValueError) as error:  # ValueError: there is no home
    warnings.warn(
      f"no compilation cache ({error}); compilation_cache=DIR gives it another folder, compilation_cache=off none",
      stacklevel=2,
    )
    return
  with contextlib.suppress(OSError):
    _prune(folder)
  jax.config.update("jax_compilation_cache_dir", str(folder))
  jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
  # An entry that another process is just writing, or did not finish before it was killed: compiled again.
  warnings.filterwarnings("ignore", "Error (reading|writing) persistent compilation cache entry")


def note() -> str:
  """Number of this process's programs that came from the cache, as a note after the seconds of compilation."""
  return f" ({len(_hits())} programs from the cache)" if _hits() else ""


@functools.cache
def _hits() -> list[str]:
  """JAX's events of programs that were in the cache, from the first call on."""
  found: list[str] = []
  jax.monitoring.register_event_listener(lambda event, **_: found.append(event) if event == HIT else None)
  return found


def _prune(folder: Path) -> None:
  """Deletes what was used longest ago, down to half of LIMIT, where there is more than LIMIT."""
  found = [(entry.stat(), entry.path) for entry in os.scandir(folder) if entry.name.endswith("-cache")]
  total = sum(stat.st_size for stat, _ in found)
  if total <= LIMIT:
    return
  for stat, path in sorted(found, key=lambda each: max(each[0].st_atime, each[0].st_mtime)):
    if total > LIMIT // 2:
      os.unlink(path)
      total -= stat.st_size
