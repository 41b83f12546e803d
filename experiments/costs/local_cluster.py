"""The cluster `measured`: the result of `python run.py calibrate` on this machine, in a file of the user's."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ddl import files
from ddl.files import read_json
from ddl.perf import hardware
from ddl.perf.hardware import CLUSTERS, Cluster
from experiments.costs import cluster_file
from experiments.costs.calibration.model_kinds import kind_of
from experiments.costs.calibration.record import Record, plain, read

NAME = "measured"


def path() -> Path:
  """~/.cache/ddl/measured.json, or where XDG_CACHE_HOME has the cache."""
  return files.cache_folder() / "measured.json"


def save(cluster: Cluster, figures: dict[str, Any]) -> None:
  """Replace the calibration. figures: of the measurement, beside the cluster."""
  path().parent.mkdir(parents=True, exist_ok=True)
  new = path().with_suffix(".tmp")
  new.write_text(json.dumps({"cluster": plain(cluster), **figures}, indent=2) + "\n")
  new.replace(path())


def load() -> tuple[Cluster, dict[str, Any]] | None:
  """Return (the cluster, the figures beside it), or None without a calibration; ValueError for a damaged file."""
  record = _record()
  return record and (record[0].cluster, record[1])


def for_model(name: str, cluster: Cluster, model: str) -> Cluster:
  """Return `measured` with the efficiency curve of the model's kind, where one was fitted; any other as it is."""
  record = _record() if name == NAME else None
  curve = record and record[0].efficiencies.get(kind_of(model))
  return cluster._replace(efficiency=curve) if curve else cluster


def _record() -> tuple[Record, dict[str, Any]] | None:
  if not path().exists():
    return None
  figures = read_json(path(), "; `python run.py calibrate` writes a new one")
  try:
    record = read(figures)
  except ValueError as error:
    raise ValueError(f"{path()} is no calibration ({error}); `python run.py calibrate` writes a new one") from error
  figures.pop("cluster")
  return record, figures


def clusters() -> dict[str, Cluster]:
  """Return the known clusters, and `measured` if this machine was calibrated."""
  found = load()
  return CLUSTERS | ({NAME: found[0]} if found else {})


def shown(name: str) -> str:
  """Return what reports call a cluster: of a file its name without the folder."""
  return Path(name).name if name.endswith(cluster_file.SUFFIX) else name


def absolute(names: Iterable[str]) -> list[str]:
  """Return names of clusters that hold in any working directory."""
  return [str(files.local(each).absolute()) if each.endswith(cluster_file.SUFFIX) else each for each in names]


def named(name: str) -> Cluster:
  """Return the cluster, that of a file for a name in .toml.

  Raises:
    ValueError: one line, for an unknown name, `measured` before a calibration, or a file that describes no cluster.
    FileNotFoundError: for a file that is not there.
  """
  if name in CLUSTERS:
    return CLUSTERS[name]
  if name.endswith(cluster_file.SUFFIX):
    return cluster_file.read(name)
  found = load()
  if name != NAME:
    return hardware.named(name, [NAME] if found else [])
  if not found:
    raise ValueError(f"no cluster named '{NAME}' yet: run `python run.py calibrate` first")
  return found[0]
