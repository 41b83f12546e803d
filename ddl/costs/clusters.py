"""Clusters from TOML files (docs/howto/clusters.md), and `measured`, the calibration of this machine."""

import difflib
import json
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ddl import files
from ddl.costs.calibration import Record, plain, read
from ddl.costs.workloads import kind_of
from ddl.files import read_json
from ddl.perf import hardware
from ddl.perf.devices.sheets import SHEETS
from ddl.perf.hardware import CLUSTERS, Cluster
from ddl.perf.hardware.cluster import COUNT, NCCL, RANGES, Link, Network, Torus, Uplink
from ddl.perf.hardware.device import Device, Efficiency
from ddl.ranges import Range, check

LIBRARIES = {"": None, "NCCL": NCCL}
LEVELS = ("inside", "between")  # a node; nodes


def network(nodes: Mapping[str, Any], link: Mapping[str, Link], values: Mapping[str, Mapping[str, Any]]) -> Network:
  """Return the network. nodes: of [nodes]; link: by the name behind "link."; values: of [uplink] and [torus].

  Raises:
    ValueError: one line, for a link that is missing, or figures that cannot be or do not go together.
  """
  per_node, count, sites = (nodes[key] for key in ("devices", "count", "sites"))
  if count and sites > count:
    raise ValueError(f"nodes.sites is {sites}; invalid: must be at most nodes.count, {count}")
  if per_node > 1 and "device" not in link:
    raise ValueError(f"[link.device] is missing, as a node has {per_node} devices; it has latency and bandwidth")
  if "node" not in link and (count != 1 or per_node == 1):
    raise ValueError("[link.node] is missing; it has latency and bandwidth between nodes")
  if nodes["library"] not in LIBRARIES:
    raise ValueError(f"nodes.library is '{nodes['library']}'; invalid: must be NCCL, or left out")
  if not all(level in LEVELS for level in nodes["reduces"]):
    raise ValueError(f"nodes.reduces is {nodes['reduces']!r:.80}; invalid: must have of {', '.join(LEVELS)} alone")
  found = Network(
    link.get("node") or link["device"],
    link["device"] if per_node > 1 else None,
    per_node,
    sites,
    card=float(nodes["card"]) or None,
    uplink=_uplink(values.get("uplink")),
    torus=_torus(values.get("torus"), per_node),
    reduces=tuple(nodes["reduces"]),
    library=LIBRARIES[nodes["library"]],
  )
  return _in_sites(found, count, link["site"]) if "site" in link else found


def _uplink(values: Mapping[str, Any] | None) -> Uplink | None:
  if values is None:
    return None
  return Uplink(values["nodes"], values["share"])


def _torus(values: Mapping[str, Any] | None, per_node: int) -> Torus | None:
  if values is None:
    return None
  if per_node > 1:
    raise ValueError(f"[torus] is of single devices, and nodes.devices is {per_node}; leave one of them out")
  return Torus(values["axes"], values["ring"])


def _in_sites(network: Network, count: int, site: Link) -> Network:
  """Return the network whose nodes are the sites, each with the devices of all its nodes.

  A ring of a site's D = d m devices then takes as long as one in its nodes of d and one between its m nodes:
  (D - 1) L = (d - 1) L_d + (m - 1) L_n, and (D - 1) / (D B) = (d - 1) / (d B_d) + (m - 1) / (m B_n).
  """
  m, rest = divmod(count, network.sites)
  if network.sites == 1 or not count or rest:
    raise ValueError(
      f"[link.site] is between sites, and nodes.count is {count}, nodes.sites {network.sites}; give two or more sites "
      "of as many nodes each"
    )
  if network.library or network.uplink or network.torus or network.reduces:
    raise ValueError("[link.site] goes with neither nodes.library, nodes.reduces, [uplink] nor [torus]")
  d, near, nodes = network.per_node, network.inside or network.between, network.between
  steps = d * m - 1
  if not steps:
    return network._replace(between=site)
  latency = ((d - 1) * near.latency + (m - 1) * nodes.latency) / steps
  per_byte = (d - 1) / (d * near.bandwidth) + (m - 1) / (m * nodes.bandwidth)
  inside = Link(latency, steps / (d * m) / per_byte, min(near.duplex, nodes.duplex) if m > 1 else near.duplex)
  return network._replace(between=site, inside=inside, per_node=d * m)


SUFFIX = ".toml"
MOST_BYTES = 2**20  # of a file
WIDTHS = {"float32": 4, "bfloat16": 2, "float16": 2}  # bytes of a value


class Key(NamedTuple):
  """A key of a table of the file."""

  meaning: str  # with the unit and an example
  kind: type = float  # float takes integers too
  default: Any = None  # None: it has to be there
  valid: Range | None = None  # of a number


DEVICE, EFFICIENCY, LINK, NETWORK = (RANGES[each] for each in (Device, Efficiency, Link, Network))
REQUIRED_LINK = {
  "latency": Key("seconds of a message, such as 30e-6", valid=LINK["latency"]),
  "bandwidth": Key("bytes per second one way, such as 1.25e9 for 10 Gbit/s", valid=LINK["bandwidth"]),
  "duplex": Key("share of receiving that overlaps sending", default=1.0, valid=LINK["duplex"]),
}
TABLES: dict[str, dict[str, Key]] = {
  "": {
    "title": Key("what the cluster is, in a line", str),
    "source": Key("where the figures are from, and what is assumed", str),
    "overlap": Key("whether an exchange runs while the devices compute", bool, True),
  },
  "device": {
    "format": Key(f"number format of the peak: {', '.join(WIDTHS)}", str),
    "peak": Key("FLOP per second in that format, such as 165e12", valid=DEVICE["peak"]),
    "memory_bandwidth": Key("bytes per second, such as 1008e9", valid=DEVICE["memory_bandwidth"]),
    "memory": Key("bytes, such as 24e9", valid=DEVICE["memory"]),
    "efficiency": Key("share of the peak that a step of many examples reaches, such as 0.4", valid=EFFICIENCY["best"]),
    "half": Key("examples with which half of that efficiency is reached", default=0.0, valid=EFFICIENCY["half"]),
    "chip": Key(f"one of {', '.join(sorted(SHEETS))}, whose published steps then tell the efficiency", str, ""),
    "start": Key("seconds of every step, whatever it computes, such as 100e-6", default=0.0, valid=DEVICE["start"]),
  },
  "nodes": {
    "devices": Key("devices of a node", int, 1, NETWORK["per_node"]),
    "count": Key("nodes that there are; 0: no limit known", int, 0, COUNT._replace(zero=True)),
    "card": Key(
      "bytes per second of a device's own network card; 0: all of a node share its link",
      default=0.0,
      valid=NETWORK["card"],
    ),
    "library": Key("of the collectives: NCCL, or empty for the costs of textbooks", str, ""),
    "sites": Key(
      "sites over which the nodes are spread, each with one of them unless there is a [link.site]",
      int,
      1,
      NETWORK["sites"],
    ),
    "reduces": Key('levels whose switches add up what they are sent, of "inside" and "between"', list, []),
  },
  "link.device": REQUIRED_LINK,  # between the devices of a node, of each
  "link.node": REQUIRED_LINK,  # between nodes, of each node
  "link.site": REQUIRED_LINK,  # between sites, of each site
  "link.host": REQUIRED_LINK,  # between a device and its host
  "uplink": {  # of oversubscribed switches
    "nodes": Key("nodes under one switch", int, valid=RANGES[Uplink]["nodes"]),
    "share": Key(
      "of the nodes' bandwidth that leads to other switches, such as 0.333 for 3 to 1", valid=RANGES[Uplink]["share"]
    ),
  },
  "torus": {  # of devices that are wired to neighbours alone
    "axes": Key("axes of the torus, such as 3", int, valid=RANGES[Torus]["axes"]),
    "ring": Key(
      "an axis of a slice is a ring if its length is a multiple of this, and a line otherwise",
      int,
      valid=RANGES[Torus]["ring"],
    ),
  },
}
TOP = ("device", "nodes", "link", "uplink", "torus")


def read_cluster(name: str) -> Cluster:
  """Return the cluster.

  Raises:
    ValueError: one line that names the file and the key, for one that is missing, unknown or out of its range.
    FileNotFoundError: if there is no such file.
  """
  path = files.regular(name)
  if path.stat().st_size > MOST_BYTES:
    raise ValueError(f"{name} has {path.stat().st_size} bytes and is no cluster; docs/howto/clusters.md has an example")
  try:
    found = tomllib.loads(path.read_text(encoding="utf-8"))
  except (ValueError, RecursionError) as error:  # ValueError: no TOML, no UTF-8, or an integer of thousands of digits
    raise ValueError(f"{name} is no TOML ({error}); docs/howto/clusters.md has an example") from error
  try:
    return _cluster(found)
  except ValueError as error:
    raise ValueError(f"{name}: {error}") from error


def _cluster(found: Mapping[str, Any]) -> Cluster:
  links = found.get("link", {})
  tables = {"": {key: value for key, value in found.items() if key not in TOP}}
  tables |= {name: found.get(name, {}) for name in ("device", "nodes")}
  tables |= {name: found[name] for name in ("uplink", "torus") if name in found}
  if not isinstance(links, Mapping):
    raise ValueError("link is no table; write [link.node] with latency and bandwidth")
  tables |= {f"link.{name}": table for name, table in links.items()}
  values = {name: _values(name, table) for name, table in tables.items()}
  device, nodes, head = values["device"], values["nodes"], values[""]
  link = {name.removeprefix("link."): _link(values[name]) for name in values if name.startswith("link.")}
  on = network(nodes, link, values)
  if device["format"] not in WIDTHS:
    raise ValueError(f"device.format is '{device['format']}'; invalid: must be one of {', '.join(WIDTHS)}")
  if device["chip"] and device["chip"] not in SHEETS:
    raise ValueError(f"device.chip is '{device['chip']}'; invalid: must be one of {', '.join(sorted(SHEETS))}")
  workers = nodes["count"] * nodes["devices"]
  if workers > COUNT.high:
    raise ValueError(f"nodes.count x nodes.devices must be at most {COUNT.high}, got {workers}.")
  return Cluster(
    title=head["title"],
    device=Device(
      peak=float(device["peak"]),
      memory_bandwidth=float(device["memory_bandwidth"]),
      memory=float(device["memory"]),
      start=float(device["start"]),
      width=WIDTHS[device["format"]],
      chip=device["chip"],
    ),
    efficiency=Efficiency(float(device["efficiency"]), float(device["half"])),
    network=on,
    source=head["source"],
    host=link.get("host"),
    workers=workers or None,
    overlap=head["overlap"],
  )


def _values(name: str, table: Any) -> dict[str, Any]:
  """Return the values of a table, with defaults. name: "" for the keys above all tables."""
  keys, shown = TABLES.get(name), f"[{name}] " if name else ""
  if keys is None:
    raise ValueError(f"[{name}] is unknown; tables are {', '.join(f'[{each}]' for each in TABLES if each)}")
  if not isinstance(table, Mapping):
    raise ValueError(f"{name} is no table; write [{name}] with {', '.join(keys)}")
  for key in table:
    if key not in keys:
      known = [*keys, *([] if name else TOP)]
      near = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
      hint = f"did you mean '{near[0]}'? " if near else ""
      raise ValueError(f"{shown}has no key '{key}': {hint}keys are {', '.join(known)}")
  out = {}
  for key, (meaning, kind, default, valid) in keys.items():
    value = table.get(key, default)
    if value is None:
      raise ValueError(f"{shown}lacks '{key}': {meaning}")
    wanted = (int, float) if kind is float else kind
    if not isinstance(value, wanted) or (isinstance(value, bool) and kind is not bool):
      raise ValueError(f"{shown}{key} is {value!r:.80}; invalid: must be {_TYPES[kind]}: {meaning}")
    if isinstance(value, str) and not value.isprintable():
      raise ValueError(f"{shown}{key} must be one printable line, got {value!r:.80}.")
    if valid:
      check(f"{name}.{key}", value, valid)
    out[key] = value
  return out


_TYPES = {float: "a number", int: "an integer", str: "a text in quotes", bool: "true or false", list: "a list"}


def _link(values: Mapping[str, Any]) -> Link:
  return Link(*(float(values[key]) for key in Link._fields))


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
  return Path(name).name if name.endswith(SUFFIX) else name


def absolute(names: Iterable[str]) -> list[str]:
  """Return names of clusters that hold in any working directory."""
  return [str(files.local(each).absolute()) if each.endswith(SUFFIX) else each for each in names]


def named(name: str) -> Cluster:
  """Return the cluster, that of a file for a name in .toml.

  Raises:
    ValueError: one line, for an unknown name, `measured` before a calibration, or a file that describes no cluster.
    FileNotFoundError: for a file that is not there.
  """
  if name in CLUSTERS:
    return CLUSTERS[name]
  if name.endswith(SUFFIX):
    return read_cluster(name)
  found = load()
  if name != NAME:
    return hardware.named(name, [NAME] if found else [])
  if not found:
    raise ValueError(f"no cluster named '{NAME}' yet: run `python run.py calibrate` first")
  return found[0]
