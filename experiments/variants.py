"""The algorithms of a comparison: a config per label, made from `config.compare.algorithms`."""

import copy
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from experiments.parts import Config, named


def variants(config: Config, tuned: str = "") -> dict[str, Config]:
  """A config for each label: the common one, what the label changes in it, and what a sweep found.

  Args:
    config: with `compare.algorithms`: label -> nested changes, e.g. {"algorithm": {"name": "dasgd", "delay": 2}}.
    tuned: path of a sweep's tuned.json, or "".

  Raises:
    ValueError: for no or an unknown label, an unknown key, or a file that is no sweep's result.
  """
  labels = config.compare.algorithms.to_dict()
  if not labels:
    raise ValueError("config.compare.algorithms is empty; it maps labels to changes, as in configs/digits_compare.py")
  best = _read(tuned) if tuned else {}
  for label in best:
    named("label in config.compare.algorithms", labels, label)
  out = {}
  for label, changes in labels.items():
    out[label] = copy.deepcopy(config)
    for change in (changes, best.get(label, {})):
      _apply(out[label], change, f"config.compare.algorithms['{label}']")
  return out


def only(chosen: dict[str, Config], labels: list[str]) -> dict[str, Config]:
  """The variants with these labels, all where none is given.

  Raises:
    ValueError: for an unknown label.
  """
  for label in labels:
    named("label in config.compare.algorithms", chosen, label)
  return {label: variant for label, variant in chosen.items() if not labels or label in labels}


def slug(label: str) -> str:
  """The label as the name of a folder."""
  return "".join(c if c.isalnum() or c in "-_." else "_" for c in label)


def _apply(config: Config, changes: Mapping[str, Any], where: str) -> None:
  for key, value in changes.items():
    named(f"key in {where}", config, key)
    if isinstance(value, Mapping):
      _apply(config[key], value, f"{where}.{key}")
    else:
      with config.ignore_type():
        config[key] = value


def _read(path: str) -> dict[str, Any]:
  try:
    return {label: entry["best"] for label, entry in json.loads(Path(path).read_text())["algorithms"].items()}
  except (json.JSONDecodeError, KeyError, TypeError) as error:
    raise ValueError(f"{path} is no result of a sweep; give the tuned.json that `python run.py sweep` wrote") from error
