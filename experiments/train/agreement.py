"""What all processes of a run must have in common: compared before the first step, where a difference ends them all."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ddl.api import Data
from ddl.runtime import hosts
from experiments.config.options import RunOptions
from experiments.train.folder import run_dir

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
  "hooks",
)  # may be each process's own


def check(
  config: Mapping[str, Any], options: RunOptions, data: Data, inputs: Mapping[str, str], first: int | None = None
) -> None:
  """Compare config, options, versions, code and data of all processes, which each call this once.

  inputs: fingerprints of the data and of files, see `experiments.train.folder.inputs`.
  first: the process that the others are compared with, where those that differ from it are to end alone; else 0.

  Raises:
    ValueError: with the first difference, or if another process does not come to this within a minute.
  """
  if hosts.processes() == 1:
    return
  said = hosts.exchange(text(config, options, data, inputs))
  for rank, other in enumerate(said):
    if other != said[first or 0] and (first is None or rank == hosts.member().rank):
      raise ValueError(difference(said[first or 0], other, rank, first or 0))


def text(
  config: Mapping[str, Any], options: RunOptions, data: Data | None = None, inputs: Mapping[str, str] | None = None
) -> str:
  """Return what all processes must have in common, as JSON."""
  chosen = {name: value for name, value in asdict(options).items() if name not in OWN}
  mine = {"config": config, "options": chosen, "versions": run_dir.about(())["versions"], "code": _code()}
  if data:
    mine |= {"data": {"description": data.meta["description"]}, "inputs": inputs}
  return json.dumps(mine, sort_keys=True, default=str)


def difference(here: str, there: str, rank: int, first: int = 0) -> str:
  """Return the first difference of two such texts, of the process `first` and of another one, in words."""
  one, other = (run_dir.flat(json.loads(each)) for each in (here, there))
  key = next(key for key in sorted({*one, *other}) if one.get(key) != other.get(key))
  differ = f"{key} is {one.get(key)} in process {first} and {other.get(key)} in process {rank}"
  return f"all processes must run the same: {differ}"


def _code() -> str:
  """Return a digest of this code."""
  files = sorted(file for part in ("ddl", "experiments") for file in (ROOT / part).rglob("*.py"))
  return hashlib.sha256(b"\0".join(file.read_bytes() for file in files)).hexdigest()[:12]
