"""A comparison's folder in memory: comparison.json and each run's metrics as columns."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ddl.files import read_json
from ddl.report import formats
from ddl.run.folder import ABOUT, COMPARISON, METRICS, metric_lines

DataFrame = Any  # pandas', of which pyright does not know what indexing returns
SCORES = ("test_accuracy", "test_loss", "test_perplexity")  # of the end of training; others are costs of the target
COLUMNS = (
  "step", "examples", "train_loss", "test_loss", "test_perplexity", "test_accuracy", "distance", "grad_norm2",
  "grad_noise", "noise_scale", "bytes_sent", "seconds", "virtual_seconds", "present",
)  # fmt: skip
PREDICTED = "predicted_seconds"  # the prefix of a column for each cluster

NEEDED = ("title", "command", "config", "target", "versions", "device", "git", "data", "model", "seeds", "algorithms")
ENTRY = ("label", "name", "title", "citation", "taxonomy", "hyper", "settings", "failed", "runs")  # of an algorithm
BUDGET = "workers", "batch", "steps"  # their product is the number of examples


class RunRecord(NamedTuple):
  """One seed of one algorithm: `columns[name]` is [lines], NaN where a line lacks the figure."""

  name: str  # its folder's name with a space: "seed 0"
  columns: dict[str, np.ndarray]  # COLUMNS, and PREDICTED_cluster

  @property
  def seed(self) -> int:
    return seed_of(self.name)


class Layout(NamedTuple):
  """Numbers of workers, of the devices and processes that ran them, and of the seeds that ran side by side."""

  workers: int
  devices: int
  processes: int
  together: int = 1


class Result(NamedTuple):
  """One algorithm: its entry in comparison.json and the runs that have metrics."""

  info: dict[str, Any]
  runs: list[RunRecord]
  layouts: set[Layout]  # of its runs; empty where it is not known


class ComparisonRecord(NamedTuple):
  info: dict[str, Any]  # comparison.json
  metric: str  # "test_accuracy" or "test_loss"
  target: float
  seconds: str  # the column that counts as time: "virtual_seconds", or "seconds" if nothing has virtual time
  results: list[Result]
  whole: "ComparisonRecord | None" = None  # with the seeds that only some labels have, if there are any
  folder: Path = Path()

  @property
  def infos(self) -> list[dict[str, Any]]:
    """The entries of the algorithms in comparison.json."""
    return [result.info for result in self.results]

  @property
  def layouts(self) -> list[Layout]:
    """The distinct layouts of each label's runs."""
    return [layout for result in self.results for layout in result.layouts]

  @property
  def disjoint(self) -> bool:
    """Whether no seed is common to all labels, so that they cannot be compared."""
    runs = [names for names in self.seeds.values() if names]
    return bool(runs) and not set.intersection(*map(set, runs))

  @property
  def seeds(self) -> dict[str, list[str]]:
    """By label, the names of the requested runs."""
    return {result.info["label"]: list(map(run_name, result.info["runs"])) for result in self.results}

  @property
  def clusters(self) -> dict[str, dict[str, Any]]:
    """By name, the clusters of `compare --cluster` as in comparison.json."""
    return {entry["name"]: entry for entry in self.info.get("clusters", [])}

  @property
  def higher_is_better(self) -> bool:
    return self.metric == "test_accuracy"

  @property
  def goal(self) -> str:
    """The target as text."""
    return formats.target(self.metric, self.target)

  @property
  def virtual(self) -> bool:
    return self.seconds == "virtual_seconds"


def read_run(path: Path) -> RunRecord:
  """Read `path`/metrics.jsonl. Raises as `metric_lines`."""
  lines = [list(map(line.get, COLUMNS)) for line in metric_lines(path / METRICS)]
  columns = np.array(lines, np.float64).reshape(-1, len(COLUMNS)).T  # None becomes NaN
  return RunRecord(run_name(path), dict(zip(COLUMNS, columns, strict=True)))


def read(folder: Path) -> ComparisonRecord:
  """Read a folder that `python run.py compare` has written.

  Where some labels have seeds that others lack, as after `compare --resume --only=...`, it is of the seeds that all
  have, so that means and tests are of the same; `whole` has the others too. Without any common seed it is of all.

  Raises FileNotFoundError if there is no comparison.json; ValueError for an unknown metric, a malformed file, or runs
  without virtual time.
  """
  path = folder / COMPARISON
  if not path.is_file():
    raise FileNotFoundError(f"{path} does not exist; `python run.py compare` writes it")
  info = _completed(path, read_json(path, f"; `python run.py compare --resume --workdir={folder}` regenerates it"))
  metric = info["target"]["metric"]
  if metric not in SCORES:
    raise ValueError(f"{path}: the target's metric is {metric!r}; must be {' or '.join(SCORES)}")
  seconds = "virtual_seconds" if any(entry["virtual"] for entry in info["algorithms"]) else "seconds"
  results = []
  for entry in info["algorithms"]:
    paths = [folder / run for run in entry["runs"] if (folder / run / METRICS).is_file()]
    runs = [run for run in map(read_run, paths) if len(run.columns["step"])]
    for run, columns in runs:
      if seconds == "virtual_seconds" and np.isnan(columns[seconds]).any():
        raise ValueError(f"{path}: {entry['label']}, {run} has lines without virtual_seconds; run the comparison again")
    results.append(Result(entry, runs, _layouts(entry["settings"]["workers"], paths)))
  _add_predicted_seconds(path, info, results)
  return _aligned(ComparisonRecord(info, metric, float(info["target"]["value"]), seconds, results, folder=folder))


def _add_predicted_seconds(path: Path, info: dict[str, Any], results: Sequence[Result]) -> None:
  """Add the seconds predicted for each cluster to the runs; NaN for seeds that not all labels have."""
  paths = {entry["label"]: entry["runs"] for entry in info["algorithms"]}
  common = common_runs(paths)
  for cluster in info.get("clusters", []):
    for result in results:
      label = result.info["label"]
      clocks = cluster["algorithms"][label]["seconds"]
      predicted = paths[label] if len(clocks) == len(paths[label]) else common[label]
      clock_of = dict(zip(map(run_name, predicted), clocks, strict=True))
      for run in result.runs:
        count = len(run.columns["step"])
        clock = np.array(clock_of.get(run.name, [math.nan] * count), np.float64)
        if len(clock) != count:
          text = f"{path}: {cluster['name']} has {len(clock)} times of {label}, {run.name}, which has {count} lines"
          raise ValueError(f"{text}; run compare --cluster again")
        run.columns[f"{PREDICTED}_{cluster['name']}"] = clock


def common_runs(runs: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
  """Return by label the folders of the runs whose seeds all labels with any runs have."""
  names = [set(map(run_name, paths)) for paths in runs.values() if paths]
  common = set.intersection(*names) if names else set()
  return {label: [path for path in paths if run_name(path) in common] for label, paths in runs.items()}


def _aligned(whole: ComparisonRecord) -> ComparisonRecord:
  """Return the comparison of the seeds that all labels have; the same where all have the same, or none is common."""
  names = {tuple(runs) for runs in whole.seeds.values() if runs}
  if len(names) < 2:
    return whole
  if whole.disjoint:
    return whole._replace(info=whole.info | {"seeds": sorted({seed_of(name) for runs in names for name in runs})})
  common = common_runs({entry["label"]: entry["runs"] for entry in whole.info["algorithms"]})
  results = []
  for result in whole.results:
    paths = common[result.info["label"]]
    runs = [run for run in result.runs if run.name in map(run_name, paths)]
    results.append(result._replace(info=result.info | {"runs": paths}, runs=runs))
  seeds = next([seed_of(path) for path in paths] for paths in common.values() if paths)
  info = whole.info | {"seeds": seeds, "algorithms": [result.info for result in results]}
  return whole._replace(info=info, results=results, whole=whole)


def seed_of(run: str) -> int:
  """Return the seed of a run by its folder or name."""
  return int(run_name(run).rpartition(" ")[2])


def _completed(path: Path, info: dict[str, Any]) -> dict[str, Any]:
  """Return the content with what files of older versions lack; ValueError where the file does not determine it."""
  missing, entries = set(NEEDED) - info.keys(), info.get("algorithms", [])
  missing = missing or {f"algorithms.{key}" for entry in entries for key in ENTRY if key not in entry}
  missing = missing or {f"algorithms.settings.{key}" for entry in entries for key in BUDGET
                        if key not in entry["settings"]}  # fmt: skip
  if missing:
    command = f"python run.py compare --resume --workdir={path.parent}"
    text = f"{path} lacks {', '.join(sorted(missing))}, as of an older version"
    raise ValueError(f"{text}; `{command}` regenerates it from the runs")
  info = {"expected": [], "grid": {}} | info
  blank = {"virtual": None, "tuned": None, "events": None, "lockstep": None, "point": {}, "sends": ""}
  return info | {"algorithms": [blank | {"group": entry["label"]} | entry for entry in info["algorithms"]]}


def run_name(path: str | Path) -> str:
  """Return easgd/seed-0 as "seed 0"."""
  return Path(path).name.replace("-", " ")


def _layouts(workers: int, paths: Sequence[Path]) -> set[Layout]:
  """Return the layouts of an algorithm's runs, from their folders."""
  layouts = [read_json(path / ABOUT).get("layout") for path in paths if (path / ABOUT).is_file()]
  known = [layout for layout in layouts if isinstance(layout, dict) and {"devices", "processes"} <= layout.keys()]
  return {Layout(workers, layout["devices"], layout["processes"], layout.get("together", 1)) for layout in known}
