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
Columns = dict[str, np.ndarray]  # column of metrics.jsonl -> values by line
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


class Result(NamedTuple):
  """The result of a compared algorithm: its entry in comparison.json and its runs with metrics."""

  info: dict[str, Any]
  runs: dict[int, Columns]  # by seed; each has COLUMNS, all other test metrics of the comparison, and PREDICTED_cluster
  layouts: list[dict[str, Any]]  # the numbers of workers, devices and processes of each run, where known


class ComparisonRecord(NamedTuple):
  info: dict[str, Any]  # comparison.json
  metric: str  # the target's metric, such as "test_accuracy"
  target: float
  higher_is_better: bool  # values of the target's metric
  stops: bool  # whether runs end when they meet the target, so that their final metrics cannot be compared
  seconds: str  # the column of time: "virtual_seconds", or "seconds" if no label has virtual time
  results: list[Result]
  whole: "ComparisonRecord | None" = None  # the comparison including seeds that only some labels have, if any
  folder: Path = Path()

  @property
  def infos(self) -> list[dict[str, Any]]:
    """The entries of the compared algorithms in comparison.json."""
    return [result.info for result in self.results]

  @property
  def layouts(self) -> list[dict[str, Any]]:
    """The layouts of all runs, where known."""
    return [layout for result in self.results for layout in result.layouts]

  @property
  def disjoint(self) -> bool:
    """Whether the algorithms cannot be compared, because no seed is common to all of them."""
    requested = [set(seeds) for seeds in self.seeds.values() if seeds]
    return bool(requested) and not set.intersection(*requested)

  @property
  def seeds(self) -> dict[str, list[int]]:
    """The seeds of the requested runs by algorithm label."""
    return {info["label"]: list(map(seed_of, info["runs"])) for info in self.infos}

  @property
  def different_seeds(self) -> dict[str, list[int]]:
    """The seeds of each algorithm label, with those that only some labels have; {} if all have the same."""
    return self.whole.seeds if self.whole else self.seeds if self.disjoint else {}

  @property
  def clusters(self) -> dict[str, dict[str, Any]]:
    """The entries of clusters in comparison.json, by name."""
    return {entry["name"]: entry for entry in self.info.get("clusters", [])}

  @property
  def measured(self) -> list[str]:
    """The columns with a value in any run."""
    runs = [columns for result in self.results for columns in result.runs.values()]
    names = runs[0] if runs else ()  # all runs have the same columns
    return [name for name in names if any(np.isfinite(columns[name]).any() for columns in runs)]

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


def read_run(path: Path) -> Columns:
  """Read `path`/metrics.jsonl; values are NaN where missing. Raises the errors of `metric_lines`."""
  lines = metric_lines(path / METRICS)
  names = dict.fromkeys([*COLUMNS, *(name for line in lines for name in line if is_score(name))])
  columns = np.array([list(map(line.get, names)) for line in lines], np.float64)  # None becomes NaN
  return dict(zip(names, columns.reshape(-1, len(names)).T, strict=True))


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
  target, virtual = info["target"], any(entry["virtual"] for entry in info["algorithms"])
  if not is_score(target["metric"]):
    raise ValueError(f"{path}: the target's metric must begin with {TEST}, got {target['metric']!r}.")
  results = []
  for entry in info["algorithms"]:
    paths = [folder / run for run in entry["runs"] if (folder / run / METRICS).is_file()]
    runs = {seed_of(path): columns for path in paths if len((columns := read_run(path))["step"])}
    for seed, columns in runs.items():
      if virtual and np.isnan(columns["virtual_seconds"]).any():
        run = f"{entry['label']} (seed {seed})"
        raise ValueError(f"{path}: the metrics of {run} lack virtual_seconds; run the comparison again")
    abouts = [read_json(path / ABOUT) for path in paths if (path / ABOUT).is_file()]
    layouts = [about["layout"] | {"workers": entry["settings"]["workers"]} for about in abouts if about.get("layout")]
    results.append(Result(entry, runs, layouts))
  every = [columns for result in results for columns in result.runs.values()]
  names = dict.fromkeys(name for columns in every for name in columns)
  for columns in every:
    columns |= {name: np.full(len(columns["step"]), np.nan) for name in names if name not in columns}
  _add_predicted_seconds(path, info, results)
  how = target["metric"], float(target["value"]), bool(target["higher_is_better"]), bool(target["stop"])
  seconds = "virtual_seconds" if virtual else "seconds"
  return _aligned(ComparisonRecord(info, *how, seconds, results, folder=folder))


def _add_predicted_seconds(path: Path, info: dict[str, Any], results: Sequence[Result]) -> None:
  """Add the predicted seconds on each cluster to the runs' columns; NaN for seeds without a prediction."""
  paths = {entry["label"]: entry["runs"] for entry in info["algorithms"]}
  common = common_runs(paths)
  for cluster in info.get("clusters", []):
    for result in results:
      label = result.info["label"]
      clocks = cluster["algorithms"][label]["seconds"]
      predicted = paths[label] if len(clocks) == len(paths[label]) else common[label]
      clock_of = dict(zip(map(seed_of, predicted), clocks, strict=True))
      for seed, columns in result.runs.items():
        count = len(columns["step"])
        clock = np.array(clock_of.get(seed, [math.nan] * count), np.float64)
        if len(clock) != count:
          raise ValueError(
            f"{path}: the {len(clock)} predicted times on {cluster['name']} do not match the {count} lines of metrics "
            f"of {label}, seed {seed}; run compare --cluster again"
          )
        columns[f"{PREDICTED}_{cluster['name']}"] = clock


def common_runs(runs: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
  """Map each algorithm label to its run folders, for the seeds shared by all labels that have runs."""
  seeds = [set(map(seed_of, paths)) for paths in runs.values() if paths]
  common = set.intersection(*seeds) if seeds else set()
  return {label: [path for path in paths if seed_of(path) in common] for label, paths in runs.items()}


def _aligned(whole: ComparisonRecord) -> ComparisonRecord:
  """Restrict a comparison to the seeds common to all algorithms.

  If all have the same seeds, return it unchanged; if no seed is common, keep all runs and list all seeds in its info.
  """
  requested = {tuple(seeds) for seeds in whole.seeds.values() if seeds}
  if len(requested) < 2:
    return whole
  if whole.disjoint:
    return whole._replace(info=whole.info | {"seeds": sorted(set().union(*requested))})
  common = common_runs({info["label"]: info["runs"] for info in whole.infos})
  results = []
  for result in whole.results:
    paths = common[result.info["label"]]
    runs = {seed: result.runs[seed] for seed in map(seed_of, paths) if seed in result.runs}
    results.append(result._replace(info=result.info | {"runs": paths}, runs=runs))
  seeds = next(list(map(seed_of, paths)) for paths in common.values() if paths)
  info = whole.info | {"seeds": seeds, "algorithms": [result.info for result in results]}
  return whole._replace(info=info, results=results, whole=whole)


def seed_of(run: str | Path) -> int:
  """Return the seed of a run from its folder: 0 for easgd/seed-0."""
  return int(Path(run).name.rpartition("-")[2])


def _check(path: Path, info: Mapping[str, Any]) -> None:
  """Raise ValueError if comparison.json lacks a key, for example because an older version of ddl wrote it."""
  missing = set(NEEDED) - info.keys()
  for entry in info.get("algorithms", []):
    missing |= {f"algorithms.{key}" for key in ENTRY if key not in entry}
    missing |= {f"algorithms.settings.{key}" for key in BUDGET if key not in entry.get("settings", {})}
  if missing:
    command = f"python run.py compare --resume --workdir={path.parent}"
    text = f"{path} lacks {', '.join(sorted(missing))}, probably because an older version of ddl wrote it"
    raise ValueError(f"{text}; regenerate it with `{command}`")
