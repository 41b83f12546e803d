"""The settings in which the algorithms of a comparison differ, for the report."""

from collections.abc import Mapping
from typing import Any

from ddl.names import pluralize, short_name
from ddl.report import formats
from ddl.run.folder import flat

RATE = "optimizer.learning_rate"


def settings(info: Mapping[str, Any]) -> tuple[dict[str, list[str]], str]:
  """Return a column of texts, one per label, for each setting that differs, and a note on the learning rates.

  Learning rates and hyperparameters are always columns. The note is the rates' origin if it is the same for all labels;
  otherwise the origin is a column, and the note is "". info: the content of comparison.json.
  """
  entries, columns, note = info["algorithms"], {}, ""
  leaves = [_texts(entry["settings"]) for entry in entries]
  keys = dict.fromkeys(key for texts in leaves for key in texts)
  texts_of = {key: [texts.get(key, "") for texts in leaves] for key in keys}
  if RATE in texts_of:
    columns["learning rate"] = texts_of.pop(RATE)
    columns["learning rate from"] = [_origin(entry["tuned"]) for entry in entries]
    if len(set(columns["learning rate from"])) == 1:
      note = f"The learning rates are from {columns.pop('learning rate from')[0]}."
  hyper = [[f"{_words(name)} {_text(value)}" for name, value in entry["hyper"].items()] for entry in entries]
  columns["hyperparameters"] = [", ".join(texts) or "none" for texts in hyper]
  return columns | {_words(key): texts for key, texts in texts_of.items() if len(set(texts)) > 1}, note


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
