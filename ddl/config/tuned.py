"""The tuned.json of a sweep: the best settings of each algorithm label at each grid point.

Each entry records the settings at which it was tuned. A comparison with other settings is an error, because the best
learning rate depends on them.
"""

from collections.abc import Collection, Mapping
from typing import Any

from ddl import files
from ddl.config.catalog import named
from ddl.config.experiment import Experiment, flat, jsonable
from ddl.config.unread_keys import VIRTUAL, within
from ddl.errors import OptionError
from ddl.names import Place, quoted, text

# Settings that do not affect training, and settings that a sweep and a comparison choose separately.
IRRELEVANT = ("seed", "eval_every", "ema", "noise_batches", "data.validation")
OF_COLLECTIVES = ("network.exchange_seconds", "network.overlap")  # algorithms with a server do not read them


def settings_of(experiment: Experiment, tuned: Collection[str]) -> dict[str, Any]:
  """Return the settings that determine a run, as "section.key" -> value, except those in IRRELEVANT and `tuned`.

  VIRTUAL is also omitted without virtual time, and OF_COLLECTIVES with a server.
  """
  unread = VIRTUAL if not experiment.in_virtual_time else OF_COLLECTIVES if experiment.has_server else ()
  omitted = (*IRRELEVANT, *unread, *tuned)
  values = flat(jsonable(experiment.to_json()))
  return {key: value for key, value in values.items() if not any(within(key, other) for other in omitted)}


def summary(entries: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
  """Return {label: {"keys": tuned settings, "trials": number of trials}} for the report. entries: see `matching`."""
  return {label: {"keys": [*flat(entry["best"])], "trials": len(entry["trials"])} for label, entry in entries.items()}


def matching(
  path: str, labels: Mapping[str, Any], experiments: Mapping[str, Experiment], places: Mapping[str, Place]
) -> dict[str, dict[str, Any]]:
  """Return each experiment's entry of a tuned.json; labels that the sweep did not tune are omitted.

  Raises OptionError if the file is not a sweep's result, has an unknown label, has a label but not its grid point, or
  was tuned at other settings.

  Args:
    path: path of the tuned.json, or "".
    labels: all algorithm labels, without grid values.
    experiments: algorithm label at a grid point -> experiment before tuning.
    places: position of each experiment in the grid.
  """
  entries, out = _read(path), dict[str, dict[str, Any]]()
  for entry in entries:
    named(f"label in {path}", labels, entry["group"])
  for label, experiment in experiments.items():
    group, point = places[label]
    of_group = [entry for entry in entries if entry["group"] == group]
    of_point = [entry for entry in of_group if entry["point"] == jsonable(point)]
    if of_group and not of_point:
      known = "; ".join(_words(entry["point"]) for entry in of_group)
      condition = f"the result of a sweep of {quoted(group)} {_words(point)}"
      raise OptionError("tuned", condition, f"{path} ({known})", "Sweep with the same config and grid.")
    for entry in of_point:
      _check_settings(path, label, entry, experiment)
      out[label] = entry
  return out


def _check_settings(path: str, label: str, entry: Mapping[str, Any], experiment: Experiment) -> None:
  """Raise OptionError for the first setting that differs from those of the sweep, if any."""
  then, now = entry["settings"], settings_of(experiment, [*flat(entry["best"])])
  for key in [*now, *then]:
    if now.get(key) != then.get(key):
      condition = f"{then.get(key)} for {quoted(label)}, as in the sweep of {path}"
      value = "None" if now.get(key) is None else now[key]
      raise OptionError(f"config.{key}", condition, value, "Sweep with the same config.")


def _words(point: Mapping[str, Any]) -> str:
  values = ", ".join(f"{key}={text(value)}" for key, value in point.items())
  return f"with {values}" if values else "without a grid"


def _read(path: str) -> list[dict[str, Any]]:
  """Read the entries of a tuned.json; return [] for the path "". Raises OptionError for any other file."""
  if not path:
    return []
  expected = "a tuned.json written by sweep"
  try:
    entries = files.read_json(files.local(path), "").get("algorithms")
  except (OSError, ValueError) as error:
    raise OptionError("tuned", expected, f"{path} ({error})") from error
  entries = [*entries.values()] if isinstance(entries, dict) else []
  if not entries or not all(isinstance(entry, dict) and "best" in entry for entry in entries):
    raise OptionError("tuned", expected, path)
  types = {"group": str, "point": dict, "settings": dict, "best": dict, "trials": list}
  if not all(isinstance(entry.get(key), kind) for entry in entries for key, kind in types.items()):
    raise OptionError("tuned", f"{expected} in this version of ddl", path, "Sweep again with the same config.")
  return entries
