"""Refuse flags for config keys that a command does not use; config files may set them, as commands share the files."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import optax

from ddl.config.catalog import (
  REGISTRIES,
  Config,
  has_server,
  has_varying_period,
  keyword_arguments,
  make_algorithm,
  outer_rate,
  takes,
)
from ddl.config.experiment import Experiment
from ddl.errors import OptionError
from ddl.names import short_name

UNREAD = {  # command: {config key that it does not read: why}
  "train": {"compare": "only compare uses it", "sweep": "only sweep uses it"},
  "compare": {"sweep": "only sweep uses it", "seed": "config.compare.seeds sets the seeds"},
  "plan": {
    "compare": "only compare uses it",
    "sweep": "only sweep uses it",
    **dict.fromkeys(("times", "network", "barrier"), "times are predicted from the cluster"),
  },
  "sweep": {"optimizer.learning_rate": "it is tuned within config.sweep.learning_rate"}
  | {f"compare.{key}": "only compare uses it" for key in ("title", "seeds", "target", "stop_at_target", "expected")},
}
VIRTUAL = ("times", "network", "barrier")  # sections that affect only virtual time


def check(command: str, path: str, labels: Iterable[Any]) -> None:
  """Raise OptionError if a command does not use the key `path`. labels: config changes of each compared algorithm."""
  for key, why in UNREAD.get(command, {}).items():
    if within(path, key):
      raise _unread(command, path, why)
  if command in ("train", "plan"):
    return
  section, _, key = path.rpartition(".")
  sections = [changes.get(section, {}) if section else changes for changes in labels if isinstance(changes, Mapping)]
  values = [keys.get(key) if isinstance(keys, Mapping) else keys if key == "name" else None for keys in sections]
  if values and all(value is not None for value in values):
    raise _unread(
      command,
      path,
      "every entry of config.compare.algorithms overrides it",
      "Change the key in these entries; to run only some of them, pass only=LABELS.",
    )


def check_virtual(command: str, paths: Sequence[str], configs: Iterable[Config | Experiment]) -> None:
  """Raise OptionError for a virtual-time key in `paths` that none of the command's runs uses."""
  unread = [unread_by(command, config) for config in configs]
  for path in paths:
    why = [next((text for key, text in keys.items() if within(path, key)), "") for keys in unread]
    if path.partition(".")[0] in VIRTUAL and why and all(why):
      raise _unread(command, path, " and ".join(dict.fromkeys(why)))


def check_taken(command: str, paths: Sequence[str], experiments: Iterable[Experiment]) -> None:
  """Raise OptionError for a setting in `paths` that none of the experiments' factories takes."""
  for path in paths:
    section, _, key = path.partition(".")
    if section in REGISTRIES and section not in VIRTUAL and key != "name":
      parts = [getattr(experiment, section) for experiment in experiments]
      if all(key not in part.settings for part in parts):
        names = ", ".join(dict.fromkeys(part.short_name for part in parts))
        raise _unread(command, path, f"it is not a setting of the selected {section} ({names})")


def _unread(command: str, path: str, why: str, advice: str = "") -> OptionError:
  return OptionError(f"config.{path}", f"unset for {command}, because {why}", advice=advice)


def unread_by(command: str, config: Config | Experiment) -> dict[str, str]:
  """Return the virtual-time keys that a run with this config does not use, each with the reason."""
  name = config.algorithm.name
  short = short_name(name)
  if not has_server(name) and command == "sweep" and not config.elastic:
    return dict.fromkeys(VIRTUAL, f"{short} is tuned without virtual time")
  if not has_server(name):
    return dict.fromkeys(
      ("barrier", "network.service_seconds", "network.blocks"), f"{short} has neither a server nor peers"
    )
  out: dict[str, str] = dict.fromkeys(("network.exchange_seconds", "network.overlap"), f"{short} has no collective")
  built = isinstance(config, Experiment)
  settings = config.algorithm.settings if built else keyword_arguments("algorithm", config.algorithm, config.workers)
  if not make_algorithm(name, optax.sgd(0.1), config.workers, settings).lock_free:
    out["network.blocks"] = f"{short} is not lock-free, unlike the hogwild algorithms"
  return out


def reads(config: Config, key: str, command: str = "compare") -> bool:
  """Return whether a command with this config uses a key, such as "workers" or "algorithm.period"."""
  section, _, name = key.rpartition(".")
  if section in VIRTUAL and any(within(key, unread) for unread in unread_by(command, config)):
    return False
  if section == "outer_schedule" and not outer_rate(config.algorithm.name):
    return False
  if section == "period_schedule" and not has_varying_period(config.algorithm.name):
    return False
  return section in ("", "network") or name == "name" or takes(section, config[section].name, name)


def within(path: str, key: str) -> bool:
  """Return whether a config path equals a key or is inside it: "sweep.trials" is inside "sweep"."""
  return path == key or path.startswith(f"{key}.")
