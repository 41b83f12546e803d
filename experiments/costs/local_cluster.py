"""The cluster `measured`: the result of `python run.py calibrate` on this machine, in a file of the user's."""

import json
import os
from pathlib import Path
from typing import Any

from ddl import files
from ddl.perf import hardware
from ddl.perf.hardware import CLUSTERS, Cluster
from ddl.perf.hardware.device import Device, Efficiency
from ddl.perf.hardware.network import Link, Network, check_link
from experiments.costs import cluster_file
from experiments.train.run_dir import read_json

NAME = "measured"


def path() -> Path:
  """~/.cache/ddl/measured.json, or where XDG_CACHE_HOME has the cache."""
  return files.local(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "ddl" / "measured.json"


def save(cluster: Cluster, figures: dict[str, Any]) -> None:
  """Replace the calibration. figures: of the measurement, beside the cluster."""
  path().parent.mkdir(parents=True, exist_ok=True)
  new = path().with_suffix(".tmp")
  new.write_text(json.dumps({"cluster": _plain(cluster), **figures}, indent=2) + "\n")
  new.replace(path())


def load() -> tuple[Cluster, dict[str, Any]] | None:
  """Return (the cluster, the figures beside it), or None without a calibration; ValueError for a damaged file."""
  if not path().exists():
    return None
  figures = read_json(path(), "; `python run.py calibrate` writes a new one")
  try:
    c = figures.pop("cluster")
    link = check_link(NAME, Link(**c["network"]["between"]))
    cluster = Cluster(
      c["title"],
      Device(**c["device"]),
      Efficiency(**c["efficiency"]),
      Network(link),
      c["source"],
      workers=c["workers"],
      overlap=c["overlap"],
    )
  except (ValueError, TypeError, KeyError, AttributeError) as error:
    raise ValueError(f"{path()} is no calibration ({error}); `python run.py calibrate` writes a new one") from error
  return cluster, figures


def clusters() -> dict[str, Cluster]:
  """Return the known clusters, and `measured` if this machine was calibrated."""
  found = load()
  return CLUSTERS | ({NAME: found[0]} if found else {})


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


def _plain(value: Any) -> Any:
  return {k: _plain(v) for k, v in value._asdict().items()} if hasattr(value, "_asdict") else value
