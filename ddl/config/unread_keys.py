"""Keys of a config that a command does not read: a flag that sets one is a mistake. A file may, as several share it."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import optax

from ddl.config.experiment import Experiment
from ddl.config.registry import REGISTRIES, Config, entry, has_server, hyper, make_algorithm, takes
from ddl.names import short_name

UNREAD = {  # command: what it does not read of the config, and why
  "train": {"compare": "it makes one run", "sweep": "it tunes nothing"},
  "compare": {"sweep": "it tunes nothing", "seed": "its seeds are config.compare.seeds, e.g. =0,1,2"},
  "plan": {
    "compare": "it makes no runs",
    "sweep": "it tunes nothing",
    **dict.fromkeys(("times", "network", "barrier"), "its seconds are those of --cluster"),
  },
  "sweep": {"optimizer.learning_rate": "it tries those within config.sweep.learning_rate"}
  | {f"compare.{key}": "it compares nothing" for key in ("title", "seeds", "target", "expected")}
  | {"compare.grid": "it tunes each label once, and its result holds for all points of a grid"},
}
VIRTUAL = ("times", "network", "barrier")  # sections of virtual time
SETTINGS = tuple(kind for kind in REGISTRIES if kind not in VIRTUAL)  # sections of what is trained


def check(command: str, path: str, labels: Iterable[Any]) -> None:
  """ValueError where the command does not read `path`, a key as it stands in a flag. labels: their changes."""
  for key, why in UNREAD.get(command, {}).items():
    if within(path, key):
      raise ValueError(f"{command} does not read config.{path}: {why}")
  if command in ("train", "plan"):
    return
  section, _, key = path.rpartition(".")
  own = [changes.get(section, {}) if section else changes for changes in labels if isinstance(changes, Mapping)]
  values = [each.get(key) if isinstance(each, Mapping) else each if key == "name" else None for each in own]
  if values and all(value is not None for value in values):
    raise ValueError(
      f"{command} does not read config.{path}: every label of config.compare.algorithms sets its own; "
      "--only=LABELS picks some of them, and a label more is a line in the config file"
    )


def check_virtual(command: str, paths: Sequence[str], algorithms: Iterable[str]) -> None:
  """ValueError for a key of virtual time, as it stands in a flag, that none of the command's algorithms reads."""
  found = [unread(command, name) for name in algorithms]
  for path in paths:
    why = [next((told for key, told in keys.items() if within(path, key)), "") for keys in found]
    if path.partition(".")[0] in VIRTUAL and why and all(why):
      raise ValueError(f"{command} does not read config.{path} here: {'; '.join(dict.fromkeys(why))}")


def unread(command: str, name: str) -> dict[str, str]:
  """The keys of virtual time that the algorithm does not read, and why."""
  told = short_name(name)
  if not has_server(name) and command == "sweep":
    return dict.fromkeys(VIRTUAL, f"{told} takes no virtual time while it is tuned")
  if not has_server(name):
    return dict.fromkeys(
      ("barrier", "network.service_seconds", "network.blocks"), f"{told} has neither a server nor peers"
    )
  out: dict[str, str] = dict.fromkeys(("network.exchange_seconds", "network.overlap"), f"{told} has no collective")
  spec = entry("algorithm", name)
  if not make_algorithm(name, optax.sgd(0.1), 1, hyper(spec, {"name": name}, 1)).lock_free:
    out["network.blocks"] = f"{told} has a lock, the hogwild algorithms do without"
  return out


def reads(config: Config, key: str, command: str = "compare") -> bool:
  """Whether what the config names in the key's section takes the key; all read a key without a section."""
  section, _, name = key.rpartition(".")
  if section in VIRTUAL and any(within(key, each) for each in unread(command, config.algorithm.name)):
    return False
  return section in ("", "network") or name == "name" or takes(section, config[section].name, name)


def check_taken(command: str, paths: Sequence[str], experiments: Mapping[str, Experiment]) -> None:
  """ValueError for a setting, as it stands in a flag, of what every label has replaced by what does not take it."""
  for path in paths:
    section, _, key = path.partition(".")
    parts = [getattr(each, section) for each in experiments.values()] if section in SETTINGS and key != "name" else []
    if parts and all(key not in part.settings for part in parts):
      names = ", ".join(dict.fromkeys(part.short_name for part in parts))
      raise ValueError(f"{command} does not read config.{path}: no label's {section} takes it ({names})")


def within(path: str, key: str) -> bool:
  """Whether a path is a key or one of its section's."""
  return path == key or path.startswith(f"{key}.")
