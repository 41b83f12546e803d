"""A comparison's folder in memory: comparison.json and each run's metrics as columns."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from experiments.report import formats
from experiments.train.run_dir import ABOUT, COMPARISON, METRICS, read_json

SCORES = ("test_accuracy", "test_loss")  # of the end of training; other columns are costs of the target
COLUMNS = (
  "step", "examples", "train_loss", "test_loss", "test_accuracy", "distance", "grad_norm2", "grad_noise", "noise_scale",
  "bytes_sent", "seconds", "virtual_seconds",
)  # fmt: skip


NEEDED = ("title", "command", "config", "target", "versions", "device", "git", "data", "model", "seeds", "algorithms")
ENTRY = ("label", "name", "title", "citation", "taxonomy", "hyper", "settings", "failed", "runs")  # of an algorithm


class Run(NamedTuple):
  """One seed of one algorithm: `columns[name]` is [lines], NaN where a line lacks the figure."""

  name: str  # its folder's name with a space: "seed 0"
  columns: dict[str, np.ndarray]


class Layout(NamedTuple):
  """Numbers of workers, of the devices and processes that ran them, and of the seeds that ran side by side."""

  workers: int
  devices: int
  processes: int
  together: int = 1


class Result(NamedTuple):
  """One algorithm: its entry in comparison.json and the runs that have metrics."""

  info: dict[str, Any]
  runs: list[Run]
  missing: list[str]  # the runs that should have metrics and do not
  layouts: set[Layout]  # of its runs; empty where it is not known


class Comparison(NamedTuple):
  info: dict[str, Any]  # comparison.json
  metric: str  # "test_accuracy" or "test_loss"
  target: float
  seconds: str  # the column that counts as time: "virtual_seconds" where virtual time was kept, else "seconds"
  results: list[Result]

  @property
  def higher_is_better(self) -> bool:
    """Of the metric."""
    return self.metric == "test_accuracy"

  @property
  def goal(self) -> str:
    """The target as text."""
    return formats.target(self.metric, self.target)

  @property
  def virtual(self) -> bool:
    """Whether time is virtual."""
    return self.seconds == "virtual_seconds"


def read_run(path: Path) -> Run:
  """Read `path`/metrics.jsonl. Raises ValueError for a line that is not a JSON object of numbers."""
  lines, file = [], path / METRICS
  for number, text in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
    try:
      line = json.loads(text)
      lines.append([float("nan") if line.get(name) is None else float(line[name]) for name in COLUMNS])
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
      raise ValueError(f"{file}: line {number} is not an object of numbers: {error}") from error
  columns = np.array(lines, np.float64).reshape(-1, len(COLUMNS)).T
  return Run(run_name(path), dict(zip(COLUMNS, columns, strict=True)))


def read(folder: Path) -> Comparison:
  """Read a folder that `python run.py compare` has written.

  Raises:
    FileNotFoundError: if it holds no comparison.json.
    ValueError: if the target's metric is unknown, a file is malformed, or virtual time is missing from a run.
  """
  path = folder / COMPARISON
  if not path.is_file():
    raise FileNotFoundError(f"{path} does not exist; `python run.py compare` writes it")
  try:
    info = json.loads(path.read_text(encoding="utf-8"))
  except (ValueError, RecursionError) as error:
    raise ValueError(f"{path} is not JSON: {error}") from error
  info = _completed(path, info)
  metric = info["target"]["metric"]
  if metric not in SCORES:
    raise ValueError(f"{path}: the target's metric is {metric!r}; must be {' or '.join(SCORES)}")
  seconds = "virtual_seconds" if any(entry["virtual"] for entry in info["algorithms"]) else "seconds"
  results = []
  for entry in info["algorithms"]:
    paths = [at for run in entry["runs"] if ((at := folder / run) / METRICS).is_file()]
    runs = [run for run in map(read_run, paths) if len(run.columns["step"])]
    for run, columns in runs:
      if seconds == "virtual_seconds" and np.isnan(columns[seconds]).any():
        raise ValueError(f"{path}: {entry['label']}, {run} has lines without virtual_seconds; run the comparison again")
    names = [run.name for run in runs]
    missing = [name for name in map(run_name, entry["runs"]) if name not in names]
    results.append(Result(entry, runs, missing, _layouts(entry["settings"]["workers"], paths)))
  return Comparison(info, metric, float(info["target"]["value"]), seconds, results)


def _completed(path: Path, info: Any) -> dict[str, Any]:
  """The content with what files of older versions lack. ValueError where that cannot be known from the file alone."""
  lacking = [key for key in NEEDED if not isinstance(info, dict) or key not in info]
  if not lacking:
    lacking = sorted({f"algorithms.{key}" for each in info["algorithms"] for key in ENTRY if key not in each})
  if not lacking and any(not {"workers", "batch", "steps"} <= each["settings"].keys() for each in info["algorithms"]):
    lacking = ["algorithms.settings of workers, batch and steps"]
  if lacking:
    raise ValueError(
      f"{path} lacks {', '.join(lacking)}, as of an older version; `python run.py compare --resume "
      f"--workdir={path.parent}` writes it anew from the runs"
    )
  info = {"expected": [], "grid": {}} | info
  blank = {"virtual": None, "tuned": None, "events": None, "lockstep": None, "point": {}, "sends": ""}
  return info | {"algorithms": [blank | {"group": each["label"]} | each for each in info["algorithms"]]}


def run_name(path: str | Path) -> str:
  """easgd/seed-0 as "seed 0"."""
  return Path(path).name.replace("-", " ")


def _layouts(workers: int, paths: Sequence[Path]) -> set[Layout]:
  """The layouts of an algorithm's runs, from their folders."""
  found = [read_json(path / ABOUT).get("layout") for path in paths if (path / ABOUT).is_file()]
  known = [each for each in found if isinstance(each, dict) and {"devices", "processes"} <= each.keys()]
  return {Layout(workers, each["devices"], each["processes"], each.get("together", 1)) for each in known}
