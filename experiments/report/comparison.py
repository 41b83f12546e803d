"""A comparison's folder in memory: what was compared, and each run's metrics as columns."""

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from experiments.train.run_dir import read_json

COLUMNS = (
  "step", "examples", "train_loss", "test_loss", "test_accuracy", "distance", "bytes_sent", "seconds",
  "virtual_seconds",
)  # fmt: skip


class Run(NamedTuple):
  """One seed of one algorithm: `columns[name]` is [lines], NaN where a line lacks the figure."""

  name: str  # its folder's name with a space: "seed 0"
  columns: dict[str, np.ndarray]


class Result(NamedTuple):
  """One algorithm: its entry in comparison.json and the runs that have metrics."""

  info: dict[str, Any]
  runs: list[Run]
  missing: list[str]  # the runs that should have metrics and do not


class Comparison(NamedTuple):
  info: dict[str, Any]  # comparison.json, with None for "virtual" and "events" where an older one lacks them
  metric: str  # "test_accuracy" or "test_loss"
  target: float
  higher_is_better: bool
  seconds: str  # the column that counts as time: "virtual_seconds" where virtual time was kept, else "seconds"
  results: list[Result]
  layouts: list[tuple[int, int]]  # the (devices, processes) that the runs were spread over; [] where it is not known


def read_run(path: Path) -> Run:
  """Reads `path`/metrics.jsonl. Raises ValueError for a line that is not a JSON object of numbers."""
  lines = []
  for number, text in enumerate((path / "metrics.jsonl").read_text(encoding="utf-8").splitlines(), 1):
    try:
      line = json.loads(text)
      values = [float("nan") if line.get(name) is None else float(line[name]) for name in COLUMNS]
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
      raise ValueError(f"{path / 'metrics.jsonl'}: line {number} is not an object of numbers: {error}") from error
    lines.append(values)
  columns = np.array(lines, np.float64).reshape(-1, len(COLUMNS)).T
  return Run(path.name.replace("-", " "), dict(zip(COLUMNS, columns, strict=True)))


def read(folder: Path) -> Comparison:
  """Reads a folder that `python run.py compare` has written.

  Raises:
    FileNotFoundError: if it holds no comparison.json.
    ValueError: if the target's metric is unknown, a file is malformed, or virtual time is missing from a run.
  """
  path = Path(folder) / "comparison.json"
  if not path.is_file():
    raise FileNotFoundError(f"{path} does not exist; `python run.py compare` writes it")
  try:
    info = json.loads(path.read_text(encoding="utf-8"))
  except (ValueError, RecursionError) as error:
    raise ValueError(f"{path} is not JSON: {error}") from error
  metric = info["target"]["metric"]
  if metric not in ("test_accuracy", "test_loss"):
    raise ValueError(f"{path}: the target's metric is {metric!r}; it can be test_accuracy or test_loss")
  info["virtual"] = info.get("virtual")
  seconds = "virtual_seconds" if info["virtual"] else "seconds"
  results, layouts = [], set()
  for entry in info["algorithms"]:
    entry |= {name: entry.get(name) for name in ("events", "lockstep")}
    runs, missing = [], []
    for run in entry["runs"]:
      if (Path(folder) / run / "metrics.jsonl").is_file():
        runs.append(read_run(Path(folder) / run))
        layouts |= _layout(Path(folder) / run / "about.json")
      else:
        missing.append(Path(run).name.replace("-", " "))
    for run, columns in runs:
      if seconds == "virtual_seconds" and np.isnan(columns[seconds]).any():
        raise ValueError(f"{path}: {entry['label']}, {run} has lines without virtual_seconds; run the comparison anew")
    results.append(Result(entry, [run for run in runs if len(run.columns["step"])], missing))
    missing += [run.name for run in runs if not len(run.columns["step"])]
  return Comparison(
    info, metric, float(info["target"]["value"]), metric == "test_accuracy", seconds, results, sorted(layouts)
  )


def _layout(path: Path) -> set[tuple[int, int]]:
  """How a run was spread, as its folder says."""
  layout = read_json(path).get("layout") if path.is_file() else None
  known = isinstance(layout, dict) and {"devices", "processes"} <= layout.keys()
  return {(layout["devices"], layout["processes"])} if known else set()
