"""The settings of a comparison for its page: what all algorithms share, said once, and what differs by label."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from experiments.report import formats

CLOCKS = ("times", "network", "barrier")  # sections that are read for virtual and predicted seconds alone
UNITS = {
  "batch": "examples per worker and step", "steps": "of each worker, with a server or peers on average",
  "eval_every": "steps between evaluations",
}  # fmt: skip
ORDER = ("model", "data", "partition", "workers", "batch", "steps", "eval_every", "optimizer", "schedule", *CLOCKS)
RATE = "optimizer.learning_rate"


class Settings(NamedTuple):
  """Texts: (section, what it is set to), and a table with a row per algorithm."""

  shared: list[tuple[str, str]]
  head: list[str]
  rows: list[tuple[str, list[str]]]  # label, cells
  note: str  # where the rates are from, if that is one place; else the table has it


def settings(info: Mapping[str, Any]) -> Settings:
  """From a comparison's comparison.json."""
  entries = info["algorithms"]
  left_out = () if info["virtual"] or info.get("clusters") else CLOCKS
  flat = [_flat({k: v for k, v in entry["settings"].items() if k not in left_out}) for entry in entries]
  keys = sorted(dict.fromkeys(key for each in flat for key in each), key=_place)
  found = {key: [_text(each[key]) if key in each else "" for each in flat] for key in keys}
  rates = found.pop(RATE, [])
  common = {key: texts[0] for key, texts in found.items() if len(set(texts)) == 1}
  own = {_words(key): texts for key, texts in found.items() if key not in common}
  origins = [_origin(entry.get("tuned")) for entry in entries]
  columns = {"learning rate": rates} if rates else {}
  columns |= {"the rate is from": origins} if len(set(origins)) > 1 else {}
  columns["hyper-parameters"] = [_pairs(entry["hyper"]) for entry in entries]
  columns |= own
  seeds = "seed" if len(info["seeds"]) == 1 else "seeds"
  shared = [*_sections(common), (seeds, ", ".join(map(str, info["seeds"])))]
  rows = [(entry["label"], [texts[place] for texts in columns.values()]) for place, entry in enumerate(entries)]
  note = f"The learning rates are from {origins[0]}." if rates and len(set(origins)) == 1 else ""
  return Settings(shared, list(columns), rows, note)


def own_clock(info: Mapping[str, Any]) -> bool:
  """Whether some algorithm has other step times, another network or barrier than the others."""
  clocks = [{name: entry["settings"].get(name) for name in CLOCKS} for entry in info["algorithms"]]
  return any(clock != clocks[0] for clock in clocks)


def without_unset(config: Mapping[str, Any]) -> dict[str, Any]:
  """The config without the keys that are left to their defaults; what labels change stays: None unsets a key there."""
  given = {k: v if k == "compare" else without_unset(v) if isinstance(v, Mapping) else v for k, v in config.items()}
  return {k: v for k, v in given.items() if v is not None}


def _flat(tree: Mapping[str, Any], above: str = "") -> dict[str, Any]:
  found = {}
  for key, value in tree.items():
    found |= _flat(value, f"{above}{key}.") if isinstance(value, Mapping) else {f"{above}{key}": value}
  return found


def _place(key: str) -> tuple[int, str, bool, str]:
  """Sections in an order for people, the name of a section's choice before its settings."""
  section, _, rest = key.partition(".")
  return (ORDER.index(section) if section in ORDER else len(ORDER)), section, rest != "name", rest


def _sections(common: Mapping[str, str]) -> list[tuple[str, str]]:
  """What all share by section: its choice, then the choice's settings."""
  found: dict[str, list[str]] = {}
  for key, text in common.items():
    section, _, rest = key.partition(".")
    named = text if rest in ("", "name") else f"{_words(rest)} {text}"
    found.setdefault(section, []).append(f"{named} {UNITS[section]}" if section in UNITS else named)
  if {"workers", "batch", "steps"} <= common.keys():
    budget = int(common["workers"]) * int(common["batch"]) * int(common["steps"])
    found["steps"].append(f"{budget:,} examples of all workers together")
  return [(_words(section), ", ".join(parts)) for section, parts in found.items()]


def _origin(tuned: Mapping[str, Any] | None) -> str:
  """Where a learning rate is from, and what was tuned with it."""
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
