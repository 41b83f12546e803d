"""Read a comparison's folder: comparison.json, and the metrics of each run as columns."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ddl.files import read_json
from ddl.report import formats
from ddl.run.folder import ABOUT, COMPARISON, METRICS, metric_lines

DataFrame = Any  # pandas.DataFrame; pyright cannot infer the types of its indexing
TEST = "test_"  # prefix of the columns that are scores, which are reported at the end of training
COLUMNS = (
  "step", "examples", "train_loss", "test_loss", "test_perplexity", "test_accuracy", "distance", "grad_norm2",
  "grad_noise", "noise_scale", "bytes_sent", "seconds", "virtual_seconds", "present",
)  # fmt: skip
PREDICTED = "predicted_seconds"  # the prefix of each cluster's column

NEEDED = (
  "title", "command", "config", "target", "versions", "device", "git", "data", "model", "seeds", "expected", "grid",
  "algorithms",
)  # fmt: skip
ENTRY = (  # of an algorithm label
  "label", "name", "title", "citation", "taxonomy", "sends", "hyper", "settings", "virtual", "tuned", "events",
  "lockstep", "group", "point", "failed", "runs",
)  # fmt: skip
BUDGET = "workers", "batch", "steps"  # their product is the number of examples


class RunRecord(NamedTuple):
  """The metrics of one run, which is one seed of an algorithm label."""

  name: str  # such as "seed 0"
  columns: dict[str, np.ndarray]  # column -> values by line of metrics.jsonl, NaN where missing: COLUMNS, other test
  # metrics, and PREDICTED_cluster

  @property
  def seed(self) -> int:
    return seed_of(self.name)


class Layout(NamedTuple):
  """The execution of a run: its numbers of workers, devices and processes, and of seeds in its compiled program."""

  workers: int
  devices: int
  processes: int
  seeds: int = 1  # trained in one program


class Result(NamedTuple):
  """The result of a compared algorithm: its entry in comparison.json and its runs with metrics."""

  info: dict[str, Any]
  runs: list[RunRecord]
  layouts: set[Layout]  # the distinct layouts of the runs; empty if unknown


class ComparisonRecord(NamedTuple):
  info: dict[str, Any]  # comparison.json
  metric: str  # the target's metric, such as "test_accuracy"
  target: float
  seconds: str  # the column of time: "virtual_seconds", or "seconds" if no label has virtual time
  results: list[Result]
  whole: "ComparisonRecord | None" = None  # the comparison including seeds that only some labels have, if any
  folder: Path = Path()

  @property
  def infos(self) -> list[dict[str, Any]]:
    """The entries of the compared algorithms in comparison.json."""
    return [result.info for result in self.results]

  @property
  def layouts(self) -> list[Layout]:
    """The distinct layouts of each algorithm's runs, in one list."""
    return [layout for result in self.results for layout in result.layouts]

  @property
  def disjoint(self) -> bool:
    """Whether the algorithms cannot be compared, because no seed is common to all of them."""
    runs = [names for names in self.seeds.values() if names]
    return bool(runs) and not set.intersection(*map(set, runs))

  @property
  def seeds(self) -> dict[str, list[str]]:
    """The names of the requested runs, such as "seed 0", by algorithm label."""
    return {result.info["label"]: list(map(run_name, result.info["runs"])) for result in self.results}

  @property
  def clusters(self) -> dict[str, dict[str, Any]]:
    """The entries of clusters in comparison.json, by name."""
    return {entry["name"]: entry for entry in self.info.get("clusters", [])}

  @property
  def higher_is_better(self) -> bool:
    """Whether higher values of the target's metric are better."""
    return bool(self.info["target"]["higher_is_better"])

  @property
  def stops(self) -> bool:
    """Whether runs end when they meet the target, so that their final metrics cannot be compared."""
    return bool(self.info["target"]["stop"])

  @property
  def measured(self) -> list[str]:
    """The columns with a value in any run."""
    runs = [run for result in self.results for run in result.runs]
    columns = runs[0].columns if runs else {}  # all runs have the same
    return [name for name in columns if any(np.isfinite(run.columns[name]).any() for run in runs)]

  @property
  def goal(self) -> str:
    """The target as text."""
    return formats.target(self.metric, self.target)

  @property
  def virtual(self) -> bool:
    return self.seconds == "virtual_seconds"


def is_score(metric: str) -> bool:
  """Return whether a column is a score, a metric on a test set."""
  return metric.startswith(TEST)


def read_run(path: Path) -> RunRecord:
  """Read `path`/metrics.jsonl. Raises the errors of `metric_lines`."""
  lines = metric_lines(path / METRICS)
  names = dict.fromkeys([*COLUMNS, *(name for line in lines for name in line if is_score(name))])
  columns = np.array([list(map(line.get, names)) for line in lines], np.float64)  # None becomes NaN
  return RunRecord(run_name(path), dict(zip(names, columns.reshape(-1, len(names)).T, strict=True)))


def read(folder: Path) -> ComparisonRecord:
  """Read a folder written by `python run.py compare`.

  If algorithms have different seeds, as after `compare --resume --only=...`, the result has only the seeds common to
  all algorithms, and `whole` has all seeds. Without a common seed, the result has all seeds.

  Raises FileNotFoundError if there is no comparison.json; ValueError for an unknown metric, a malformed file, or a run
  without virtual seconds in a comparison in virtual time.
  """
  path = folder / COMPARISON
  if not path.is_file():
    raise FileNotFoundError(f"{path} does not exist; create it with `python run.py compare`")
  info = read_json(path, f"; `python run.py compare --resume --workdir={folder}` regenerates it")
  _check(path, info)
  metric = info["target"]["metric"]
  if not is_score(metric):
    raise ValueError(f"{path}: the target's metric must begin with {TEST}, got {metric!r}.")
  seconds = "virtual_seconds" if any(entry["virtual"] for entry in info["algorithms"]) else "seconds"
  results = []
  for entry in info["algorithms"]:
    paths = [folder / run for run in entry["runs"] if (folder / run / METRICS).is_file()]
    runs = [run for run in map(read_run, paths) if len(run.columns["step"])]
    for run, columns in runs:
      if seconds == "virtual_seconds" and np.isnan(columns[seconds]).any():
        raise ValueError(
          f"{path}: the metrics of {entry['label']} ({run}) lack virtual_seconds; run the comparison again"
        )
    results.append(Result(entry, runs, _layouts(entry["settings"]["workers"], paths)))
  names = dict.fromkeys(name for result in results for run in result.runs for name in run.columns)
  for run in [run for result in results for run in result.runs]:
    run.columns.update({name: np.full(len(run.columns["step"]), np.nan) for name in names if name not in run.columns})
  _add_predicted_seconds(path, info, results)
  return _aligned(ComparisonRecord(info, metric, float(info["target"]["value"]), seconds, results, folder=folder))


def _add_predicted_seconds(path: Path, info: dict[str, Any], results: Sequence[Result]) -> None:
  """Add the predicted seconds on each cluster to the runs' columns; NaN for seeds without a prediction."""
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
          text = (
            f"{path}: the {len(clock)} predicted times on {cluster['name']} do not match the {count} lines of metrics"
          )
          raise ValueError(f"{text} of {label}, {run.name}; run compare --cluster again")
        run.columns[f"{PREDICTED}_{cluster['name']}"] = clock


def common_runs(runs: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
  """Map each algorithm label to its run folders, for the seeds shared by all labels that have runs."""
  names = [set(map(run_name, paths)) for paths in runs.values() if paths]
  common = set.intersection(*names) if names else set()
  return {label: [path for path in paths if run_name(path) in common] for label, paths in runs.items()}


def _aligned(whole: ComparisonRecord) -> ComparisonRecord:
  """Restrict a comparison to the seeds common to all algorithms.

  If all have the same seeds, return it unchanged; if no seed is common, keep all runs and list all seeds in its info.
  """
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
  """Return the seed of a run from its folder or name."""
  return int(run_name(run).rpartition(" ")[2])


def _check(path: Path, info: Mapping[str, Any]) -> None:
  """Raise ValueError if comparison.json lacks a key, for example because an older version of ddl wrote it."""
  missing, entries = set(NEEDED) - info.keys(), info.get("algorithms", [])
  missing |= {f"algorithms.{key}" for entry in entries for key in ENTRY if key not in entry}
  missing |= {
    f"algorithms.settings.{key}" for entry in entries for key in BUDGET if key not in entry.get("settings", {})
  }
  if missing:
    command = f"python run.py compare --resume --workdir={path.parent}"
    text = f"{path} lacks {', '.join(sorted(missing))}, probably because an older version of ddl wrote it"
    raise ValueError(f"{text}; regenerate it with `{command}`")


def run_name(path: str | Path) -> str:
  """Return the name of a run from its folder: "seed 0" for easgd/seed-0."""
  return Path(path).name.replace("-", " ")


def _layouts(workers: int, paths: Sequence[Path]) -> set[Layout]:
  """Read the distinct layouts of an algorithm's runs from their folders."""
  layouts = [read_json(path / ABOUT).get("layout") for path in paths if (path / ABOUT).is_file()]
  known = [layout for layout in layouts if isinstance(layout, dict) and {"devices", "processes"} <= layout.keys()]
  return {Layout(workers, layout["devices"], layout["processes"], layout.get("together", 1)) for layout in known}
