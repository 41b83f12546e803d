"""The settings of a comparison for its page: those that all algorithms share, and a table of those that differ."""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from experiments.report import formats

CLOCKS = ("times", "network", "barrier")  # sections that only virtual and predicted seconds depend on
UNITS = {
  "batch": "examples per worker and step", "steps": "of each worker, with a server or peers on average",
  "eval_every": "steps between evaluations",
}  # fmt: skip
ORDER = ("model", "data", "partition", "workers", "batch", "steps", "eval_every", "optimizer", "schedule", *CLOCKS)
BUDGET = "workers", "batch", "steps"  # their product is the number of examples
RATE = "optimizer.learning_rate"


class Settings(NamedTuple):
  """Texts: (section, what it is set to), and a table with a row per algorithm."""

  shared: list[tuple[str, str]]
  head: list[str]
  rows: list[tuple[str, list[str]]]  # label, cells
  note: str  # where the learning rates come from if that is the same for all; else a column has it


def settings(info: Mapping[str, Any]) -> Settings:
  """From a comparison's comparison.json."""
  entries = info["algorithms"]
  virtual = any(entry["virtual"] for entry in entries)
  left_out = () if virtual or info.get("clusters") else CLOCKS
  flat = [_flat({k: v for k, v in entry["settings"].items() if k not in left_out}) for entry in entries]
  keys = sorted(dict.fromkeys(key for each in flat for key in each), key=_place)
  found = {key: [_text(each[key]) if key in each else "" for each in flat] for key in keys}
  rates = found.pop(RATE, [])
  common = {key: texts[0] for key, texts in found.items() if len(set(texts)) == 1}
  units = {key: f" ({UNITS[key]})" if key in UNITS else "" for key in found}
  own = {_words(key) + units[key]: texts for key, texts in found.items() if key not in common}
  origins = [_origin(entry.get("tuned")) for entry in entries]
  columns = {"learning rate": rates} if rates else {}
  columns |= {"the rate is from": origins} if len(set(origins)) > 1 else {}
  columns["hyper-parameters"] = [_pairs(entry["hyper"]) for entry in entries]
  columns |= own
  seeds = "seed" if len(info["seeds"]) == 1 else "seeds"
  budgets = {math.prod(budget) for budget in zip(*(of_labels(info, key) for key in BUDGET), strict=True)}
  total = ("examples", f"{formats.between(budgets)} of all workers together")
  shared = [*_sections(common), total, (seeds, ", ".join(map(str, info["seeds"])))]
  rows = [(entry["label"], [texts[place] for texts in columns.values()]) for place, entry in enumerate(entries)]
  note = f"The learning rates are from {origins[0]}." if rates and len(set(origins)) == 1 else ""
  return Settings(shared, list(columns), rows, note)


def varying(info: Mapping[str, Any]) -> dict[str, list[str]]:
  """Of "workers" and "batch" those that labels set differently: a value per algorithm."""
  found = {key: [str(value) for value in of_labels(info, key)] for key in ("workers", "batch")}
  return {key: values for key, values in found.items() if len(set(values)) > 1}


def of_labels(info: Mapping[str, Any], key: str) -> list[Any]:
  """What each label sets a key to."""
  return [entry["settings"][key] for entry in info["algorithms"]]


def without_unset(config: Mapping[str, Any]) -> dict[str, Any]:
  """The config without keys that are None, except under `compare`, where None unsets a key of a label."""
  given = {k: v if k == "compare" else without_unset(v) if isinstance(v, Mapping) else v for k, v in config.items()}
  return {k: v for k, v in given.items() if v is not None}


def _flat(tree: Mapping[str, Any], above: str = "") -> dict[str, Any]:
  found = {}
  for key, value in tree.items():
    found |= _flat(value, f"{above}{key}.") if isinstance(value, Mapping) else {f"{above}{key}": value}
  return found


def _place(key: str) -> tuple[int, str, bool, str]:
  """The order of sections on the page; within one `name` comes first."""
  section, _, rest = key.partition(".")
  return (ORDER.index(section) if section in ORDER else len(ORDER)), section, rest != "name", rest


def _sections(common: Mapping[str, str]) -> list[tuple[str, str]]:
  """Shared settings by section, `name` first."""
  found: dict[str, list[str]] = {}
  for key, text in common.items():
    section, _, rest = key.partition(".")
    named = text if rest in ("", "name") else f"{_words(rest)} {text}"
    found.setdefault(section, []).append(f"{named} {UNITS[section]}" if section in UNITS else named)
  return [(_words(section), ", ".join(parts)) for section, parts in found.items()]


def _origin(tuned: Mapping[str, Any] | None) -> str:
  """Where a learning rate comes from, and what was tuned with it."""
  if not tuned or RATE not in tuned["keys"]:
    return "the config, not from a sweep (--tuned)"
  others = [key.rpartition(".")[2] for key in tuned["keys"] if key != RATE]
  beside = f", that tuned {formats.listed([_words(key) for key in others], 9)} too" if others else ""
  count = f" of {tuned['trials']} trials" if tuned["trials"] else ""
  return f"a sweep{count}{beside}"


def _pairs(values: Mapping[str, Any]) -> str:
  return ", ".join(f"{_words(name)} {_text(value)}" for name, value in values.items()) or "none"


def _words(key: str) -> str:
  """optimizer.momentum as "momentum of optimizer"."""
  section, _, rest = key.rpartition(".")
  return f"{rest} of {section}".replace("_", " ") if section else rest.replace("_", " ")


def _text(value: Any) -> str:
  if isinstance(value, bool):
    return "yes" if value else "no"
  if isinstance(value, list):
    return "(" + ", ".join(map(_text, value)) + ")"
  return "not set" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)
