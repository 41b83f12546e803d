"""The settings of a comparison for the report: those common to all algorithms, and a table of the others."""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from ddl.names import pluralize, short_name
from ddl.report import formats
from ddl.report.reader import BUDGET
from ddl.run.folder import flat

CLOCKS = ("times", "network", "barrier")  # sections that affect only virtual and predicted seconds
UNSET = {  # settings that are not shown if no algorithm changes them
  "outer_schedule": {"name": "constant", "warmup": 0},
  "period_schedule": {"name": "constant"},
  "rate_scaling": "none",
  "base_batch": 0,
  "ema": 0.0,
}
UNITS = {
  "batch": "examples per worker and step",
  "microbatches": "per batch",
  "steps": "per worker, with a server or peers on average",
  "eval_every": "steps between evaluations", "noise_batches": "per evaluation, for the gradient noise scale",
}  # fmt: skip
RATE = "optimizer.learning_rate"


class Settings(NamedTuple):
  shared: dict[str, str]  # settings common to all labels: section -> text
  columns: dict[str, list[str]]  # settings that differ, a text per label
  note: str  # the origin of the learning rates if it is the same for all labels; else it is a column


def settings(info: Mapping[str, Any]) -> Settings:
  """Return a comparison's settings, both common and differing ones. info: the content of comparison.json."""
  entries = info["algorithms"]
  left_out = () if info.get("clusters") or any(entry["virtual"] for entry in entries) else CLOCKS
  unset = [key for key, value in UNSET.items() if all(entry["settings"].get(key) == value for entry in entries)]
  hidden = {*left_out, *unset}
  leaves = [_texts({k: v for k, v in entry["settings"].items() if k not in hidden}) for entry in entries]
  keys = dict.fromkeys(key for texts in leaves for key in texts)
  texts_of = {key: [texts.get(key, "") for texts in leaves] for key in keys}
  columns, note = {}, ""
  if RATE in texts_of:
    columns["learning rate"] = texts_of.pop(RATE)
    columns["learning rate from"] = [_origin(entry["tuned"]) for entry in entries]
    if len(set(columns["learning rate from"])) == 1:
      note = f"The learning rates are from {columns.pop('learning rate from')[0]}."
  hyper = [[f"{_words(name)} {_text(value)}" for name, value in entry["hyper"].items()] for entry in entries]
  columns["hyperparameters"] = [", ".join(texts) or "none" for texts in hyper]
  shared: dict[str, str] = {}
  for key, texts in texts_of.items():
    section, _, rest = key.partition(".")
    unit = UNITS.get(key, "")
    if len(set(texts)) > 1:
      columns[_words(key) + f" ({unit})" * bool(unit)] = texts
      continue
    part = texts[0] if rest in ("", "name") else f"{_words(rest)} {texts[0]}"
    title, part = _words(section), f"{part} {unit}".rstrip()
    shared[title] = f"{shared[title]}, {part}" if title in shared else part
  budgets = {math.prod(budget) for budget in zip(*(of_labels(info, key) for key in BUDGET), strict=True)}
  shared["examples"] = f"{formats.between(budgets)} summed over all workers"
  shared["seed" if len(info["seeds"]) == 1 else "seeds"] = ", ".join(map(str, info["seeds"]))
  return Settings(shared, columns, note)


def of_labels(info: Mapping[str, Any], key: str) -> list[Any]:
  """Return the value of a setting for each compared algorithm."""
  return [entry["settings"][key] for entry in info["algorithms"]]


def without_unset(config: Mapping[str, Any]) -> dict[str, Any]:
  """Return a config without unset keys (None)."""
  return {k: without_unset(v) if isinstance(v, Mapping) else v for k, v in config.items() if v is not None}


def _texts(tree: Mapping[str, Any]) -> dict[str, str]:
  """Flatten a tree to {"section.key": text}; the name of a user-defined function appears without its file."""
  return {key: _text(short_name(value) if key.endswith(".name") else value) for key, value in flat(tree).items()}


def _origin(tuned: Mapping[str, Any] | None) -> str:
  """Describe the origin of a learning rate, and the other keys tuned with it."""
  if not tuned or RATE not in tuned["keys"]:
    return "the config, not from a sweep (--tuned)"
  others = [_words(key.rpartition(".")[2]) for key in tuned["keys"] if key != RATE]
  count = f" of {pluralize(tuned['trials'], 'trial')}" if tuned["trials"] else ""
  return f"a sweep{count}" + (f", which also tuned {formats.listed(others)}" if others else "")


def _words(key: str) -> str:
  """Format the key optimizer.momentum as "momentum of optimizer"."""
  section, _, rest = key.rpartition(".")
  return (f"{rest} of {section}" if section else rest).replace("_", " ")


def _text(value: Any) -> str:
  if isinstance(value, bool):
    return "yes" if value else "no"
  if isinstance(value, list):
    return f"({', '.join(map(_text, value))})"
  return "not set" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)
