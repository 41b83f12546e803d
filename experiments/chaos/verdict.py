"""Whether a run that was disturbed is the same as one that was not, to the last bit."""

import json
from pathlib import Path
from typing import Any

from experiments.train.run_dir import METRICS

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


def _metrics(folder: Path) -> list[dict[str, Any]]:
  lines = (folder / METRICS).read_text().splitlines()
  return [{key: value for key, value in json.loads(line).items() if key != CLOCK} for line in lines]


def _state(folder: Path) -> dict[str, int]:
  """Return the checksums of the last checkpoint's arrays."""
  last = max((each for each in (folder / "checkpoints").iterdir() if each.name.isdigit()), key=lambda x: int(x.name))
  return {"step": int(last.name)} | json.loads(next((last / "checksums").rglob("metadata")).read_text())
