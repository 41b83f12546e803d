"""What all processes of a run must have in common: compared before the first step, where a difference ends them all."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from ddl.api import Data, Source
from ddl.runtime import hosts
from experiments.config.options import RunOptions
from experiments.train import run_dir

ROOT = Path(__file__).parents[2]
OWN = (
  "workdir",
  "command",
  "recorded",
  "processes",
  "join_timeout",
  "peer_timeout",
  "max_restarts",
  "compilation_cache",
  "print_table",
)  # may be each process's own
EXAMPLES = 16  # of each source, evenly spread, that the fingerprint is of


def check(config: Mapping[str, Any], options: RunOptions, data: Data) -> None:
  """Compare config, options, versions, code and data of all processes, which each call this once.

  Raises:
    ValueError: in each of them, with the first difference, or if another process does not come to this within a minute.
  """
  if hosts.processes() == 1:
    return
  chosen = {name: value for name, value in asdict(options).items() if name not in OWN}
  mine = {"config": config, "options": chosen, "versions": run_dir.about(())["versions"], "code": _code()}
  mine |= {"data": {"description": data.meta["description"], "train": _print(data.train), "test": _print(data.test)}}
  said = hosts.exchange(json.dumps(mine, sort_keys=True, default=str))
  for rank, other in enumerate(said):
    if other != said[0]:
      here, there = (run_dir.flat(json.loads(each)) for each in (said[0], other))
      key = next(key for key in sorted({*here, *there}) if here.get(key) != there.get(key))
      raise ValueError(
        f"all processes must run the same: {key} is {here.get(key)} in process 0 and {there.get(key)} in process {rank}"
      )


def _code() -> str:
  """Return a digest of this code."""
  files = sorted(file for part in ("ddl", "experiments") for file in (ROOT / part).rglob("*.py"))
  return hashlib.sha256(b"\0".join(file.read_bytes() for file in files)).hexdigest()[:12]


def _print(source: Source) -> str:
  """Return the number of examples, and a digest of some."""
  chosen = np.unique(np.linspace(0, source.size - 1, EXAMPLES).astype(np.int64))
  digest = hashlib.sha256()
  for name, values in sorted(source.take(chosen).items()):
    digest.update(name.encode() + np.ascontiguousarray(values).tobytes())
  return f"{source.size} examples, digest {digest.hexdigest()[:12]}"
