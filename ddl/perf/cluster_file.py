"""Clusters by name: those of the folder clusters/, a user's TOML file, and `measured`, the calibration of this machine.

All are in the format of docs/howto/clusters.md; the calibration is JSON, with further figures beside the cluster.
"""

import difflib
import json
import tomllib
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from ddl import files
from ddl.perf.cluster import NCCL, Cluster, LinkModel, NetworkModel, Torus, Uplink
from ddl.perf.device import Device, Efficiency, chips, device_data
from ddl.perf.device_step import kind_of_model
from ddl.ranges import Range, check, integers

FOLDER = Path(__file__).with_name("clusters")
MEASURED = "measured"
SUFFIX = ".toml"
MOST_BYTES = 2**20  # of a file
LIBRARIES = {"": None, "NCCL": NCCL}
LEVELS = ("inside", "between")  # a node; nodes
WIDTHS = {"float32": 4, "bfloat16": 2, "float16": 2}  # bytes of a value

SECONDS = Range(0, 3600, unit="seconds")
BYTES = Range(1e3, 1e18, unit="bytes")
RATE = Range(1e3, 1e21, unit="bytes per second")
SHARE = Range(1e-4, 1)
COUNT = integers(1, 2**20)


class FileKey(NamedTuple):
  """A key of a table of the file."""

  meaning: str  # with the unit and an example
  kind: type = float  # float takes integers too
  default: Any = None  # None: it has to be there
  valid: Range | None = None  # of a number


HALF = FileKey("examples with which half of that efficiency is reached", float, 0.0, Range(0, 1e6, unit="examples"))
LINK = {
  "latency": FileKey("seconds of a message, such as 30e-6", valid=SECONDS),
  "bandwidth": FileKey("bytes per second one way, such as 1.25e9 for 10 Gbit/s", valid=RATE),
  "duplex": FileKey("share of receiving that overlaps sending", default=1.0, valid=Range(0, 1)),
}
TABLES: dict[str, dict[str, FileKey]] = {
  "": {
    "title": FileKey("what the cluster is, in a line", str),
    "source": FileKey("where the figures are from, and what is assumed", str),
    "overlap": FileKey("whether an exchange runs while the devices compute", bool, True),
  },
  "device": {
    "format": FileKey(f"number format of the peak: {', '.join(WIDTHS)}", str),
    "peak": FileKey(
      "FLOP per second in that format, such as 165e12", valid=Range(1e9, 1e21, unit="FLOP per second")
    ),
    "memory_bandwidth": FileKey("bytes per second, such as 1008e9", valid=RATE._replace(low=1e8)),
    "memory": FileKey("bytes, such as 24e9", valid=BYTES),
    "efficiency": FileKey("share of the peak that a step of many examples reaches, such as 0.4", valid=SHARE),
    "half": HALF,
    "chip": FileKey("a device of `list`'s data sheets, whose published steps then tell the efficiency", str, ""),
    "start": FileKey("seconds of every step, whatever it computes, such as 100e-6", default=0.0, valid=SECONDS),
  },
  "nodes": {
    "devices": FileKey("devices of a node", int, 1, COUNT),
    "count": FileKey("nodes that there are; 0: no limit known", int, 0, COUNT._replace(zero=True)),
    "card": FileKey(
      "bytes per second of a device's own network card; 0: all of a node share its link",
      default=0.0, valid=RATE._replace(zero=True),
    ),
    "library": FileKey("of the collectives: NCCL, or empty for the costs of textbooks", str, ""),
    "sites": FileKey(
      "sites over which the nodes are spread, each with one of them unless there is a [link.site]", int, 1, COUNT
    ),
    "reduces": FileKey('levels whose switches add up what they are sent, of "inside" and "between"', list, []),
  },
  "link.device": LINK,  # between the devices of a node, of each
  "link.node": LINK,  # between nodes, of each node
  "link.site": LINK,  # between sites, of each site
  "link.host": LINK,  # between a device and its host
  "uplink": {  # of oversubscribed switches
    "nodes": FileKey("nodes under one switch", int, valid=COUNT),
    "share": FileKey("of the nodes' bandwidth that leads to other switches, such as 0.333 for 3 to 1", valid=SHARE),
  },
  "torus": {  # of devices that are wired only to neighbours
    "axes": FileKey("axes of the torus, such as 3", int, valid=integers(1, 6)),
    "ring": FileKey(
      "an axis of a slice is a ring if its length is a multiple of this, and a line otherwise", int, valid=COUNT
    ),
  },
}  # fmt: skip
TOP = ("device", "nodes", "link", "uplink", "torus")
EFFICIENCY = {"best": TABLES["device"]["efficiency"], "half": HALF}  # of a kind of model, in a calibration
TYPES = {float: "a number", int: "an integer", str: "a text in quotes", bool: "true or false", list: "a list"}


def built_in() -> list[str]:
  """Return the names of the clusters of the folder clusters/."""
  return sorted(path.stem for path in FOLDER.glob(f"*{SUFFIX}"))


def names() -> list[str]:
  """Return the names of all clusters, with `measured` if this machine was calibrated."""
  return [*built_in(), *([MEASURED] if path().exists() else [])]


def named(name: str) -> Cluster:
  """Return the cluster of a name, or that of a file for a name in .toml.

  Raises:
    ValueError: one line, for an unknown name, `measured` before a calibration, or a file that describes no cluster.
    FileNotFoundError: for a file that does not exist.
  """
  if name in built_in():
    return _built_in(name)
  if name.endswith(SUFFIX):
    return read_cluster(name)
  if name == MEASURED:
    calibration = load()
    if not calibration:
      raise ValueError(f"no cluster named '{MEASURED}' yet: run `python run.py calibrate` first")
    return calibration[0]
  raise ValueError(f"no cluster named '{name}': {_hint(name, names())}known are {', '.join(names())}")


def _hint(name: str, known: list[str]) -> str:
  near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
  return f"did you mean '{near[0]}'? " if near else ""


@cache
def _built_in(name: str) -> Cluster:
  return read_cluster(str(FOLDER / f"{name}{SUFFIX}"))


def display_name(name: str) -> str:
  """Return the name of a cluster in reports: of a file its name without the folder."""
  return Path(name).name if name.endswith(SUFFIX) else name


def absolute(names: Iterable[str]) -> list[str]:
  """Return names of clusters that hold in any working directory."""
  return [str(files.local(each).absolute()) if each.endswith(SUFFIX) else each for each in names]


def read_cluster(name: str) -> Cluster:
  """Return the cluster of a TOML file.

  Raises:
    ValueError: one line that names the file and the key, for one that is missing, unknown or out of its range.
    FileNotFoundError: if there is no such file.
  """
  path = files.regular(name)
  if path.stat().st_size > MOST_BYTES:
    raise ValueError(f"{name} has {path.stat().st_size} bytes and is no cluster; docs/howto/clusters.md has an example")
  try:
    tables = tomllib.loads(path.read_text(encoding="utf-8"))
  except (ValueError, RecursionError) as error:  # ValueError: no TOML, no UTF-8, or an integer of thousands of digits
    raise ValueError(f"{name} is not valid TOML ({error}); docs/howto/clusters.md has an example") from error
  try:
    return parse(tables)
  except ValueError as error:
    raise ValueError(f"{name}: {error}") from error


def parse(tables: Mapping[str, Any]) -> Cluster:
  """Return the cluster of a file's tables; ValueError, one line, for an invalid key."""
  links = tables.get("link", {})
  if not isinstance(links, Mapping):
    raise ValueError("link must be a table, [link.node] with latency and bandwidth")
  by_name = {"": {key: value for key, value in tables.items() if key not in TOP}}
  by_name |= {name: tables.get(name, {}) for name in ("device", "nodes")}
  by_name |= {name: tables[name] for name in ("uplink", "torus") if name in tables}
  by_name |= {f"link.{name}": table for name, table in links.items()}
  values = {name: _values(name, table, TABLES.get(name)) for name, table in by_name.items()}
  device, nodes = values["device"], values["nodes"]
  link = {name: LinkModel(*map(float, values[f"link.{name}"].values())) for name in links}
  network = _network(nodes, link, values)
  _check_choice("device.format", device["format"], WIDTHS)
  _check_choice("device.chip", device["chip"], ["", *sorted([*chips(), *device_data()["without_sheet"]])])
  workers = nodes["count"] * nodes["devices"]
  if workers > COUNT.high:
    raise ValueError(f"nodes.count x nodes.devices must be at most {COUNT.high}, got {workers}.")
  rates = (float(device[key]) for key in ("peak", "memory_bandwidth", "memory", "start"))
  return Cluster(
    title=values[""]["title"],
    device=Device(*rates, width=WIDTHS[device["format"]], chip=device["chip"]),
    efficiency=Efficiency(float(device["efficiency"]), float(device["half"])),
    network=network,
    source=values[""]["source"],
    host=link.get("host"),
    workers=workers or None,
    overlap=values[""]["overlap"],
  )


def _check_choice(key: str, value: str, choices: Iterable[str]) -> None:
  if value not in choices:
    raise ValueError(f"{key} must be one of {', '.join(filter(None, choices))}, got '{value}'.")


def _values(name: str, table: Any, keys: Mapping[str, FileKey] | None) -> dict[str, Any]:
  """Return the values of a table, with defaults. name: "" for the keys above all tables."""
  prefix = f"[{name}] " if name else ""
  if keys is None:
    raise ValueError(f"[{name}] is unknown; tables are {', '.join(f'[{each}]' for each in TABLES if each)}")
  if not isinstance(table, Mapping):
    raise ValueError(f"{name} must be a table, [{name}] with {', '.join(keys)}, got {table!r:.40}.")
  for key in table:
    if key not in keys:
      known = [*keys, *([] if name else TOP)]
      raise ValueError(f"{prefix}has no key '{key}': {_hint(key, known)}keys are {', '.join(known)}")
  values = {}
  for key, (meaning, kind, default, valid) in keys.items():
    value = table.get(key, default)
    if value is None:
      raise ValueError(f"{prefix}lacks '{key}': {meaning}")
    wanted = (int, float) if kind is float else kind
    if not isinstance(value, wanted) or (isinstance(value, bool) and kind is not bool):
      raise ValueError(f"{prefix}{key} must be {TYPES[kind]}, {meaning}; got {value!r:.80}.")
    if isinstance(value, str) and not value.isprintable():
      raise ValueError(f"{prefix}{key} must be one printable line, got {value!r:.80}.")
    if valid:
      check(f"{name}.{key}", value, valid)
    values[key] = value
  return values


def _network(
  nodes: Mapping[str, Any], link: Mapping[str, LinkModel], values: Mapping[str, Mapping[str, Any]]
) -> NetworkModel:
  """Return the network. nodes: of [nodes]; link: by the name behind "link."; values: of [uplink] and [torus]."""
  per_node, count, sites = (nodes[key] for key in ("devices", "count", "sites"))
  if count and sites > count:
    raise ValueError(f"nodes.sites must be at most nodes.count, {count}, got {sites}.")
  if per_node > 1 and "device" not in link:
    raise ValueError(f"[link.device] is missing, as a node has {per_node} devices; it has latency and bandwidth")
  if "node" not in link and (count != 1 or per_node == 1):
    raise ValueError("[link.node] is missing; it has latency and bandwidth between nodes")
  _check_choice("nodes.library", nodes["library"], LIBRARIES)
  if not all(level in LEVELS for level in nodes["reduces"]):
    raise ValueError(f"nodes.reduces must have only {', '.join(LEVELS)}, got {nodes['reduces']!r:.80}.")
  if "torus" in values and per_node > 1:
    raise ValueError(f"[torus] is for single devices, and nodes.devices is {per_node}; leave one of them out")
  network = NetworkModel(
    link.get("node") or link["device"],
    link["device"] if per_node > 1 else None,
    per_node,
    sites,
    card=float(nodes["card"]) or None,
    uplink=Uplink(**values["uplink"]) if "uplink" in values else None,
    torus=Torus(**values["torus"]) if "torus" in values else None,
    reduces=tuple(nodes["reduces"]),
    library=LIBRARIES[nodes["library"]],
  )
  return _in_sites(network, count, link["site"]) if "site" in link else network


def _in_sites(network: NetworkModel, count: int, site: LinkModel) -> NetworkModel:
  """Return the network whose nodes are the sites, each with the devices of all its nodes.

  A ring of a site's D = d m devices then takes as long as one in its nodes of d and one between its m nodes:
  (D - 1) L = (d - 1) L_d + (m - 1) L_n, and (D - 1) / (D B) = (d - 1) / (d B_d) + (m - 1) / (m B_n).
  """
  m, rest = divmod(count, network.sites)
  if network.sites == 1 or not count or rest:
    raise ValueError(
      f"[link.site] needs two or more sites of as many nodes each, got nodes.count {count}, "
      f"nodes.sites {network.sites}."
    )
  if network.library or network.uplink or network.torus or network.reduces:
    raise ValueError("[link.site] goes with neither nodes.library, nodes.reduces, [uplink] nor [torus]")
  d, near, nodes = network.per_node, network.inside or network.between, network.between
  steps = d * m - 1
  if not steps:
    return network._replace(between=site)
  latency = ((d - 1) * near.latency + (m - 1) * nodes.latency) / steps
  per_byte = (d - 1) / (d * near.bandwidth) + (m - 1) / (m * nodes.bandwidth)
  inside = LinkModel(latency, steps / (d * m) / per_byte, min(near.duplex, nodes.duplex) if m > 1 else near.duplex)
  return network._replace(between=site, inside=inside, per_node=d * m)


def path() -> Path:
  """Return ~/.cache/ddl/measured.json, or its place in XDG_CACHE_HOME."""
  return files.cache_folder() / "measured.json"


def save(cluster: Cluster, figures: dict[str, Any]) -> None:
  """Replace the calibration of this machine.

  Args:
    cluster: of one worker per node, its network a single link.
    figures: further figures of the measurement, saved beside the cluster.
  """
  device, link = cluster.device, cluster.network.between
  rates = {key: getattr(device, key) for key in ("peak", "memory_bandwidth", "memory", "start")}
  tables = {
    "title": cluster.title,
    "source": cluster.source,
    "overlap": cluster.overlap,
    "device": {"format": "float32", "efficiency": cluster.efficiency.best, "half": cluster.efficiency.half, **rates},
    "nodes": {"count": cluster.workers},
    "link": {"node": link._asdict()},
  }
  path().parent.mkdir(parents=True, exist_ok=True)
  new = path().with_suffix(".tmp")
  new.write_text(json.dumps({"cluster": tables, **figures}, indent=2) + "\n")
  new.replace(path())


def load() -> tuple[Cluster, dict[str, Any]] | None:
  """Return the calibrated cluster and the figures beside it, None without a calibration; ValueError if damaged."""
  if not path().exists():
    return None
  advice = "; `python run.py calibrate` writes a new one"
  figures = files.read_json(path(), advice)
  try:
    tables = figures.pop("cluster", None)
    if not isinstance(tables, dict):
      raise ValueError("cluster must be a table")
    cluster = parse(tables)
    check("overhead", figures.get("overhead", 0.0), Range(0, 1e9))
    _efficiencies(figures)
  except ValueError as error:
    raise ValueError(f"{path()} is no calibration ({error}){advice}") from error
  return cluster, figures


def _efficiencies(figures: Mapping[str, Any]) -> dict[str, Efficiency]:
  """Return the efficiency curves of a calibration, by the kind of a model."""
  curves = figures.get("efficiencies", {})
  if not isinstance(curves, dict):
    raise ValueError(f"efficiencies must be a table, got {curves!r:.40}.")
  return {kind: Efficiency(**_values(f"efficiencies.{kind}", curve, EFFICIENCY)) for kind, curve in curves.items()}


def for_model(name: str, cluster: Cluster, model: str) -> Cluster:
  """Return `measured` with the efficiency curve of the model's kind, where one was fitted; any other as it is."""
  calibration = load() if name == MEASURED else None
  curve = calibration and _efficiencies(calibration[1]).get(kind_of_model(model))
  return cluster._replace(efficiency=curve) if curve else cluster
