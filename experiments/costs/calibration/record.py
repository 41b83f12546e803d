"""The record of a calibration as plain JSON, and back with every value checked: people edit such files by hand."""

from typing import Any, NamedTuple

from ddl.perf.hardware import Cluster
from ddl.perf.hardware.device import Device, Efficiency
from ddl.perf.hardware.network import Link, Network
from ddl.perf.hardware.ranges import COUNT, RANGES
from ddl.ranges import Range, check


class Record(NamedTuple):
  """A calibration."""

  cluster: Cluster
  efficiencies: dict[str, Efficiency]  # by the kind of a model, see `microbench.KINDS`


def plain(value: Any) -> Any:
  """Return named tuples as dicts."""
  return {k: plain(v) for k, v in value._asdict().items()} if hasattr(value, "_asdict") else value


def read(found: Any) -> Record:
  """Return the calibration in a file's JSON.

  Raises:
    ValueError: one line, with the key that is missing, unknown or invalid, and what it must be.
  """
  cluster = _table(_table(found, "the file").get("cluster", {}), "cluster")
  network = _table(_key(cluster, "network", "cluster"), "cluster.network")
  between = _tuple(Link, _key(network, "between", "cluster.network"), "cluster.network.between")
  workers, overlap = _key(cluster, "workers", "cluster"), _key(cluster, "overlap", "cluster")
  check("cluster.workers", workers, COUNT)
  if not isinstance(overlap, bool):
    raise ValueError(f"cluster.overlap is {overlap!r}; invalid: must be true or false")
  made = Cluster(
    title=_text(_key(cluster, "title", "cluster"), "cluster.title"),
    device=_tuple(Device, _key(cluster, "device", "cluster"), "cluster.device"),
    efficiency=_tuple(Efficiency, _key(cluster, "efficiency", "cluster"), "cluster.efficiency"),
    network=Network(between),
    source=_text(_key(cluster, "source", "cluster"), "cluster.source"),
    workers=int(workers),
    overlap=overlap,
  )
  if "overhead" in found:
    check("overhead", found["overhead"], Range(0, 1e9))
  curves = _table(found.get("efficiencies", {}), "efficiencies")
  return Record(made, {kind: _tuple(Efficiency, curve, f"efficiencies.{kind}") for kind, curve in curves.items()})


def _tuple(kind: Any, found: Any, where: str) -> Any:
  """A named tuple whose fields are numbers and texts; those with defaults may be missing."""
  table = _table(found, where)
  if unknown := [key for key in table if key not in kind._fields]:
    raise ValueError(f"{where} has an unknown key '{unknown[0]}'; known are {', '.join(kind._fields)}")
  values = {}
  for name in kind._fields:
    if name in table or name not in kind._field_defaults:
      value = _key(table, name, where)
      if kind.__annotations__[name] is str:
        values[name] = _text(value, f"{where}.{name}")
      else:
        check(f"{where}.{name}", value, RANGES[kind][name])
        values[name] = value
  return kind(**values)


def _text(value: Any, where: str) -> str:
  if not isinstance(value, str):
    raise ValueError(f"{where} is {value!r}; invalid: must be a text")
  return value


def _table(value: Any, where: str) -> dict[str, Any]:
  if not isinstance(value, dict):
    raise ValueError(f"{where} is {value!r:.40}; invalid: must be a table of keys and values")
  return value


def _key(table: dict[str, Any], name: str, where: str) -> Any:
  if name not in table:
    raise ValueError(f"{where} has no key '{name}'")
  return table[name]
