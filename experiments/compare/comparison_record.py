"""comparison.json: what the report needs beside the runs' metrics."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax

from ddl import files
from experiments.compare import traffic_text
from experiments.config.comparisons.comparison import Comparison
from experiments.config.options import RunOptions
from experiments.config.parts.part import jsonable
from experiments.grid_point import Place, words
from experiments.short_name import short_name, slug
from experiments.train import virtual_time
from experiments.train.build import Components
from experiments.train.folder import run_dir
from experiments.train.folder.workdir import without
from experiments.train.processes import say
from experiments.train.trainers import clock_is_virtual


def write(file: Path, page: dict[str, Any]) -> None:
  """Write comparison.json; say first what an older one had otherwise."""
  tell_changes(file, page)
  file.write_text(json.dumps(page, indent=2) + "\n")


def tell_changes(file: Path, page: Mapping[str, Any]) -> None:
  """Say what the comparison that `page` is about to overwrite had otherwise."""
  if not file.exists():
    return
  try:
    old, new = ({"target": each["target"]["value"], "title": each["title"]} for each in (files.read_json(file), page))
  except (ValueError, KeyError, TypeError):  # damaged: it is about to be replaced
    return
  told = [f"{key} {old[key]!r} before, {new[key]!r} now" for key in new if new[key] != old[key]]
  if told:
    say(f"the report in {file.parent} is drawn anew: {'; '.join(told)}")


def content(
  path: Path, comparison: Comparison, components: Mapping[str, Components], runs: Mapping[str, list[str]],
  failed: Mapping[str, str], tuned: Mapping[str, Any], options: RunOptions, metric: str,
) -> dict[str, Any]:  # fmt: skip
  """What comparison.json holds, but for the clusters. runs, failed, tuned: by label, the last without the grid."""
  first, title = comparison.first, comparison.title
  parts = next(iter(components.values()))
  virtual = clock_is_virtual(components.values())
  entries = [
    entry(path, label, each, virtual, comparison.place(label))
    | {"tuned": tuned.get(label, tuned.get(comparison.place(label).group))}
    | {"failed": failed.get(label), "runs": runs[label]}
    for label, each in components.items()
  ]
  abouts = [path / run / run_dir.ABOUT for each in runs.values() for run in each]
  trained = files.read_json(next(each for each in abouts if each.exists()))  # maybe long before this report
  return {
    "title": title or f"{_counted(comparison)}, {first.model.short_name} on {first.data.short_name}",
    "command": run_dir.about(without(options.command))["command"],  # as it is run elsewhere
    "config": comparison.to_json(),
    "target": {"metric": f"test_{metric}", "value": comparison.target},
    "versions": trained["versions"] if isinstance(trained.get("versions"), dict) else {},
    "device": f"{jax.device_count()} x {jax.devices()[0].device_kind}",
    "git": trained.get("git"),
    "data": parts.data.meta["description"],
    "model": model_text(first.model.to_json()),
    "seeds": list(comparison.seeds),
    "expected": [list(pair) for pair in comparison.expected_labels],
    "grid": jsonable(comparison.grid),
    "algorithms": entries,
  } | ({"changed_inputs": changes} if (changes := run_dir.input_changes(path)) else {})


def _counted(comparison: Comparison) -> str:
  """3 algorithms over workers and period."""
  groups = {comparison.place(label).group for label in comparison.experiments}
  keys = [words(key, list(comparison.grid)) for key, values in comparison.grid.items() if len(values) > 1]
  return f"{len(groups)} algorithm{'s' * (len(groups) != 1)}" + f" over {' and '.join(keys)}" * bool(keys)


def entry(path: Path, label: str, components: Components, virtual: bool, place: Place) -> dict[str, Any]:
  """The algorithm's entry in comparison.json."""
  experiment = components.experiment
  spec, wrapper = experiment.spec, experiment.wrapper_spec
  pattern, sends = traffic_text.described(components, spec.taxonomy.pattern)
  files = {"events": f"{slug(label)}/{run_dir.EVENTS}", "lockstep": f"{slug(label)}/{run_dir.LOCKSTEP}"}
  return {
    "label": label,
    "name": experiment.algorithm.name,
    "title": f"{spec.title}; {wrapper.title}" if wrapper else spec.title,
    "citation": f"{spec.citation}; {wrapper.citation}" if wrapper else spec.citation,
    "taxonomy": spec.taxonomy._asdict() | {"pattern": pattern},
    "sends": sends,
    "hyper": jsonable(experiment.algorithm.settings),
    "settings": {k: v for k, v in experiment.to_json().items() if k not in ("algorithm", "seed")},
    "virtual": virtual_time.describe(experiment) if virtual else None,
    **{key: file if (path / file).exists() else None for key, file in files.items()},
    "group": place.group,
    "point": jsonable(place.point),
  }


def model_text(model: Mapping[str, Any]) -> str:
  """The model's name and its settings, as text."""
  sizes = ", ".join(
    f"{k} {'-'.join(map(str, v)) if isinstance(v, list) else v}" for k, v in model.items() if k != "name"
  )
  name = short_name(model["name"])
  return f"{name} ({sizes})" if sizes else name
