"""Load clusters by name: built-in clusters, a user's TOML file, or `measured`, the calibration of this machine.

docs/howto/clusters.md describes the TOML format. The calibration is a JSON file with additional measurements.
"""

import json
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ddl import files
from ddl.errors import OptionError
from ddl.perf import units
from ddl.perf.cluster import LIBRARIES, Cluster, LinkModel, NetworkModel, Torus, Uplink
from ddl.perf.device import Device, Efficiency, chips, device_data
from ddl.perf.device_step import find, kind_of_model
from ddl.ranges import Range, check

FOLDER = Path(__file__).with_name("clusters")
MEASURED = "measured"
SUFFIX = ".toml"
EXAMPLE = "docs/howto/clusters.md has an example."
MOST_BYTES = 2**20  # largest cluster file
MOST_WORKERS = 2**20
LEVELS = ("inside", "between")  # links inside a node, links between nodes
WIDTHS = {"float32": 4, "bfloat16": 2, "float16": 2}  # bytes of a value
KINDS = {
  "a number": (int, float), "an integer": int, "a text in quotes": str, "true or false": bool, "a list": list,
}  # fmt: skip


class FileKey(NamedTuple):
  """The definition of a key of a cluster file, from cluster_keys.toml."""

  meaning: str  # with the unit and an example
  kind: str = "a number"  # one of KINDS
  default: Any = None  # None: the key is required
  valid: Range | None = None  # valid range of a number


def _file_key(range: tuple[float, float] | None = None, unit: str = "", zero: bool = False, **key: Any) -> FileKey:
  integer = key.get("kind") == "an integer"
  return FileKey(**key, valid=Range(*range, unit=unit, zero=zero, integer=integer) if range else None)


def _tables() -> dict[str, dict[str, FileKey]]:
  """Return the keys of each table; "" stands for the top-level keys."""
  schema = tomllib.loads(Path(__file__).with_name("cluster_keys.toml").read_text(encoding="utf-8"))
  names, tables = {"cluster": [""], "link": ["link.device", "link.node", "link.host"]}, {}
  for table, entries in schema.items():
    keys = {key: _file_key(**entry) for key, entry in entries.items()}
    tables |= {name: keys for name in names.get(table, [table])}
  return tables


TABLES = _tables()
TOP = ("device", "nodes", "link", "uplink", "torus")
EFFICIENCY = {"best": TABLES["device"]["efficiency"], "half": TABLES["device"]["half"]}  # keys of a calibrated curve


def built_in() -> list[str]:
  """Return the names of the built-in clusters, the files in clusters/."""
  return sorted(path.stem for path in FOLDER.glob(f"*{SUFFIX}"))


def names() -> list[str]:
  """Return the names of the built-in clusters, and `measured` if this machine was calibrated."""
  return [*built_in(), *([MEASURED] if path().exists() else [])]


def named(name: str, model: str = "") -> Cluster:
  """Load a cluster by its name or the path of a .toml file.

  `measured` uses the efficiency curve of the model's kind of network if one was fitted.

  Raises:
    ValueError: with a one-line message, if the name is unknown, `measured` has no calibration, or the file is invalid.
    FileNotFoundError: if the file does not exist.
  """
  if name.endswith(SUFFIX):
    return read_cluster(name)
  if name == MEASURED and (calibration := load()):
    cluster, figures = calibration
    return cluster._replace(efficiency=_efficiencies(figures).get(kind_of_model(model), cluster.efficiency))
  advice = "A path that ends with .toml describes a cluster of your own; see docs/howto/clusters.md."
  if name == MEASURED:
    advice = f"`python run.py calibrate` adds '{MEASURED}'."
  return read_cluster(str(FOLDER / f"{units.choice('cluster', name, names(), advice)}{SUFFIX}"))


def display_name(name: str) -> str:
  """Return the name of a cluster for reports; for a file, its name without the folder."""
  return Path(name).name if name.endswith(SUFFIX) else name


def absolute(names: Iterable[str]) -> list[str]:
  """Replace paths of files by absolute paths, which are valid in any working directory; keep other names."""
  return [str(files.local(name).absolute()) if name.endswith(SUFFIX) else name for name in names]


def read_cluster(name: str) -> Cluster:
  """Read a cluster from a TOML file."""
  path = files.regular(name)
  if (size := path.stat().st_size) > MOST_BYTES:
    raise OptionError(name, f"a file of at most {MOST_BYTES} bytes", f"{size} bytes", EXAMPLE)
  try:
    tables = tomllib.loads(path.read_text(encoding="utf-8"))
  except (ValueError, RecursionError) as error:  # ValueError: not TOML or UTF-8, or an integer of thousands of digits
    raise OptionError(name, f"valid TOML ({error})", advice=EXAMPLE) from error
  try:
    return parse(tables)
  except ValueError as error:
    raise ValueError(f"{name}: {error}") from error


def parse(tables: Mapping[str, Any]) -> Cluster:
  """Build a cluster from a file's tables. Raises a one-line ValueError that names an invalid key."""
  links = tables.get("link", {})
  if not isinstance(links, Mapping):
    raise OptionError("link", "a table of links, such as [link.node] with latency and bandwidth", f"{links!r:.40}")
  by_name = {"": {key: value for key, value in tables.items() if key not in TOP}}
  by_name |= {name: tables.get(name, {}) for name in ("device", "nodes")}
  by_name |= {name: tables[name] for name in ("uplink", "torus") if name in tables}
  by_name |= {f"link.{name}": table for name, table in links.items()}
  for name in by_name:
    units.choice("table", f"[{name}]" if name else "", ["", *(f"[{known}]" for known in TABLES if known)])
  if isinstance(by_name["device"], Mapping):
    by_name["device"] = _data_sheet(by_name["device"]) | dict(by_name["device"])
  values = {name: _values(name, table, TABLES[name]) for name, table in by_name.items()}
  device, nodes = values["device"], values["nodes"]
  link = {name: LinkModel(**values[f"link.{name}"]) for name in links}
  network = _network(nodes, link, values)
  units.choice("device.format", device["format"], WIDTHS)
  units.choice("device.chip", device["chip"], ["", *sorted([*chips(), *device_data()["without_sheet"]])])
  if (workers := nodes["count"] * nodes["devices"]) > MOST_WORKERS:
    raise OptionError("nodes.count x nodes.devices", f"at most {MOST_WORKERS}", workers)
  rates = (device[key] for key in ("peak", "memory_bandwidth", "memory", "start"))
  return Cluster(
    title=values[""]["title"],
    device=Device(*rates, width=WIDTHS[device["format"]], chip=device["chip"]),
    efficiency=Efficiency(device["efficiency"], device["half"]),
    network=network,
    source=values[""]["source"],
    host=link.get("host"),
    workers=workers or None,
    overlap=values[""]["overlap"],
    price=values[""]["price"],
  )


def _data_sheet(table: Mapping[str, Any]) -> dict[str, float]:
  """Return defaults of [device] that follow from its chip and format: the data sheet's rates, and the efficiency.

  If the efficiency is known as a range, the default is its middle.
  """
  name, form = table.get("chip"), table.get("format")
  sheet = chips().get(name) if isinstance(name, str) else None
  forms = {"float32": ("float32", "tf32"), "bfloat16": ("bfloat16",), "float16": ("bfloat16",)}
  peaks = [key for key in forms.get(form, ()) if sheet and key in sheet.peaks] if isinstance(form, str) else []
  if not sheet or not peaks:
    return {}
  device = sheet.device(peaks[0])
  shares = find(device._replace(chip=str(name)), "")
  rates = {key: getattr(device, key) for key in ("peak", "memory_bandwidth", "memory")}
  return rates | ({"efficiency": shares.middle.product} if shares else {})


def _values(name: str, table: Any, keys: Mapping[str, FileKey]) -> dict[str, Any]:
  """Check the values of a table and fill in defaults; the name "" stands for the top-level keys."""
  if not isinstance(table, Mapping):
    raise OptionError(name, f"a table with the keys {', '.join(keys)}", f"{table!r:.40}")
  for key in table:
    units.choice(f"key of [{name}]" if name else "key", key, [*keys, *([] if name else TOP)])
  values = {}
  for key, (meaning, kind, default, valid) in keys.items():
    option, value = f"{name}.{key}" if name else key, table.get(key, default)
    if not isinstance(value, KINDS[kind]) or (isinstance(value, bool) and kind != "true or false"):
      raise OptionError(option, f"{kind} ({meaning})", "nothing" if value is None else f"{value!r:.80}")
    if isinstance(value, str) and not value.isprintable():
      raise OptionError(option, "one printable line", f"{value!r:.80}")
    if valid:
      check(option, value, valid)
    values[key] = float(value) if kind == "a number" else value
  return values


def _network(
  nodes: Mapping[str, Any], link: Mapping[str, LinkModel], values: Mapping[str, Mapping[str, Any]]
) -> NetworkModel:
  """Build the network.

  Args:
    nodes: the values of [nodes].
    link: links by the name after "link.".
    values: the values of all tables, of which [uplink] and [torus] are used.
  """
  per_node, count, sites = (nodes[key] for key in ("devices", "count", "sites"))
  if count and sites > count:
    raise OptionError("nodes.sites", f"at most nodes.count ({count})", sites)
  if per_node > 1 and "device" not in link:
    raise OptionError("[link.device]", f"set (latency and bandwidth), because a node has {per_node} devices")
  if "node" not in link and (count != 1 or per_node == 1):
    advice = "For a single node, set nodes.count = 1 instead." if per_node > 1 else ""
    raise OptionError("[link.node]", "set (latency and bandwidth between nodes)", advice=advice)
  units.choice("nodes.library", library := nodes["library"].lower(), ["", *LIBRARIES])
  if not all(level in LEVELS for level in nodes["reduces"]):
    raise OptionError("nodes.reduces", "a list of 'inside', 'between' or both", f"{nodes['reduces']!r:.80}")
  if nodes["reduces"] and not library:
    raise OptionError("nodes.library", "set with nodes.reduces", "nothing")
  if "torus" in values and per_node > 1:
    raise OptionError("nodes.devices", "1 with [torus]", per_node)
  return NetworkModel(
    link.get("node") or link["device"],
    link["device"] if per_node > 1 else None,
    per_node,
    sites,
    card=nodes["card"] or None,
    uplink=Uplink(**values["uplink"]) if "uplink" in values else None,
    torus=Torus(**values["torus"]) if "torus" in values else None,
    reduces=tuple(nodes["reduces"]),
    library=LIBRARIES.get(library),
  )


def path() -> Path:
  """Return the path of the calibration: ~/.cache/ddl/measured.json, or ddl/measured.json in XDG_CACHE_HOME."""
  return files.cache_folder() / "measured.json"


def save(cluster: Cluster, figures: dict[str, Any]) -> None:
  """Save the calibration of this machine, replacing an earlier one.

  Args:
    cluster: a cluster with one worker per node and a single link.
    figures: additional measurements.
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
  """Load the calibrated cluster and the additional measurements; None without a calibration.

  Raises ValueError if the file is damaged.
  """
  if not path().exists():
    return None
  advice = "`python run.py calibrate` writes a new one"
  figures = files.read_json(path(), f"; {advice}")
  try:
    cluster = parse(_table(figures, "cluster"))
    figures.pop("cluster")
    _efficiencies(figures)
  except ValueError as error:
    raise ValueError(f"{path()} is not a valid calibration: {error} {advice}.") from error
  return cluster, figures


def _table(figures: Mapping[str, Any], key: str, default: Any = None) -> dict[str, Any]:
  if not isinstance(table := figures.get(key, default), dict):
    raise OptionError(key, "a JSON object", "nothing" if table is None else f"{table!r:.40}")
  return table


def _efficiencies(figures: Mapping[str, Any]) -> dict[str, Efficiency]:
  """Return the efficiency curves of a calibration, by kind of model."""
  curves = _table(figures, "efficiencies", {})
  return {kind: Efficiency(**_values(f"efficiencies.{kind}", curve, EFFICIENCY)) for kind, curve in curves.items()}
