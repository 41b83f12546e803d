"""Whether a disturbed run is the same as one that was not, or as a run in virtual time with the same losses."""

import json
import math
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ddl import hosts
from ddl.run.folder import METRICS, PRESENCE
from ddl.run.processes import ROOT
from ddl.run.workdir import without

PROCESSES = ("processes", "peer_timeout", "join_timeout", "checkpoint_every", "max_restarts")  # flags of theirs
RELATIVE, ABSOLUTE = 0.05, 0.01  # by which rounding on other layouts moves losses, accuracies and distances at most
MODEL, CLOCK = "model.msgpack", "seconds"  # the tested model, and the figure that is measured by the clock


def difference(run: Path, undisturbed: Path) -> str:
  """Return what differs, or "": lines of metrics, the tested model, the state of all workers at the end."""
  here, there = _metrics(run), _metrics(undisturbed)
  if here != there:
    first = next((i for i, pair in enumerate(zip(here, there, strict=False)) if pair[0] != pair[1]), len(here))
    return f"its {METRICS} from line {first + 1} on ({len(here)} lines, {len(there)} in the other)"
  if (run / MODEL).read_bytes() != (undisturbed / MODEL).read_bytes():
    return f"its {MODEL}"
  mine, other = _state(run), _state(undisturbed)
  leaves = sorted(name for name in {*mine, *other} if mine.get(name) != other.get(name))
  return f"its workers' state at the end ({', '.join(leaves[:3])})" if leaves else ""


def difference_from_replay(run: Path, words: Sequence[str]) -> str:
  """Return how a run whose processes came and went differs from its replay in virtual time, or "".

  Steps, examples, bytes and who was present are to be the same, the rest is up to rounding. words: flags of `train`.
  """
  other = run.with_name(f"{run.name}-replay")
  flags = [*without(words, PROCESSES), f"--replay={run / PRESENCE}", f"--workdir={other}"]
  done = subprocess.run(
    [sys.executable, str(ROOT / "run.py"), "train", *flags],
    capture_output=True,
    text=True,
    check=False,
    env=hosts.launched(),
  )
  if done.returncode:
    return f"its replay fails: {(done.stderr.strip() or 'without a word').splitlines()[-1]}"
  here, there = _metrics(run), _metrics(other)
  if len(here) != len(there):
    return f"its {METRICS} has {len(here)} lines, and {len(there)} in virtual time"
  for number, (one, another) in enumerate(zip(here, there, strict=True), 1):
    for key in one:
      exact = not key.startswith(("train_", "test_")) and key != "distance"
      near = math.isclose(one[key], another[key], rel_tol=RELATIVE, abs_tol=ABSOLUTE)
      if one[key] != another[key] if exact else not near:
        return f"line {number} of its {METRICS}: {key} is {one[key]}, and {another[key]} in virtual time"
  return ""


def _metrics(folder: Path) -> list[dict[str, Any]]:
  lines = (folder / METRICS).read_text().splitlines()
  return [{key: value for key, value in json.loads(line).items() if key != CLOCK} for line in lines]


def _state(folder: Path) -> dict[str, int]:
  """Return the checksums of the last checkpoint's arrays."""
  last = max((each for each in (folder / "checkpoints").iterdir() if each.name.isdigit()), key=lambda x: int(x.name))
  return {"step": int(last.name)} | json.loads(next((last / "checksums").rglob("metadata")).read_text())
