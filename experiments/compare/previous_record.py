"""The comparison that a folder holds already: a resume that asks for some of its labels keeps the others."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from ddl import files
from experiments.config.comparisons.comparison import Comparison
from experiments.config.comparisons.variants import restored
from experiments.config.experiment import Experiment
from experiments.config.options import RunOptions
from experiments.config.parts.part import jsonable
from experiments.grid_point import Place
from experiments.train.folder import inputs, run_dir
from experiments.train.folder.workdir import without
from experiments.train.processes import say


class Joined(NamedTuple):
  """A comparison with the labels and clusters that only its folder's record has."""

  comparison: Comparison
  options: RunOptions  # that record all of its labels
  read: Mapping[str, Sequence[str]]  # the runs of labels that were not asked for, which are read as they are
  tuned: dict[str, Any]  # where the settings of these are from


def joined(path: Path, comparison: Comparison, options: RunOptions) -> Joined:
  """With what the comparison.json of the folder has beside what is asked for; unchanged where nothing is resumed.

  A label that is not asked for stays as it was run, with its own seeds. Clusters stay unless others are given.

  Raises:
    ValueError: if its labels can't be compared with those asked for, as of another model or budget.
  """
  unchanged = Joined(comparison, options, {}, {})
  if not options.resume or not (path / run_dir.COMPARISON).exists():
    return unchanged
  try:
    record = files.read_json(path / run_dir.COMPARISON)
  except ValueError:  # damaged, and about to be replaced
    return unchanged
  try:
    entries = {each["label"]: each for each in record["algorithms"]}
    clusters = tuple(str(each.get("file") or each["name"]) for each in record.get("clusters", ()))
    grid = {key: tuple(map(restored, values)) for key, values in record.get("grid", {}).items()}
    with inputs.allowed_code(path, options.trust_code, options.allow_changed_inputs):
      kept = {label: _experiment(path, entries[label]) for label in entries if label not in comparison.experiments}
  except (KeyError, TypeError, AttributeError):  # as damaged, or older
    return unchanged
  there = {label: found for label, found in kept.items() if found is not None}
  if gone := [label for label in kept if label not in there]:
    say(f"no run of {', '.join(gone)} is left in {path}, so that the report goes without")
  clusters = comparison.clusters or clusters
  if not there:
    return unchanged._replace(comparison=replace(comparison, clusters=clusters))
  if grid.keys() != comparison.grid.keys():
    keys = [", ".join(each) or "no keys" for each in (grid, comparison.grid)]
    raise ValueError(f"{path} holds a comparison over {keys[0]}, this one is over {keys[1]}; give another --workdir")
  try:
    whole = replace(
      comparison,
      experiments={
        label: there.get(label) or comparison.experiments[label]
        for label in _order(list(entries), list(comparison.experiments))
        if label in there or label in comparison.experiments
      },
      clusters=clusters,
      grid={
        key: (*values, *(each for each in grid[key] if jsonable(each) not in jsonable(values)))
        for key, values in comparison.grid.items()
      },
      places={**comparison.places, **{label: _place(entries[label]) for label in there}},
    )
  except ValueError as error:
    raise ValueError(f"{path} holds labels that are not asked for ({', '.join(there)}): {error}") from error
  tuned = {label: entries[label].get("tuned") for label in there}
  return Joined(whole, _recording(options, whole), {label: entries[label]["runs"] for label in there}, tuned)


def _experiment(path: Path, entry: Mapping[str, Any]) -> Experiment | None:
  """Of a label as it was run; None where no run is left."""
  configs = [path / run / run_dir.CONFIG for run in entry["runs"]]
  found = next((each for each in configs if each.exists()), None)
  return None if found is None else Experiment.from_json(files.read_json(found))


def _place(entry: Mapping[str, Any]) -> Place:
  return Place(entry.get("group", entry["label"]), restored(entry.get("point", {})))


def _order(there: Sequence[str], asked: Sequence[str]) -> list[str]:
  """The labels as the record has them, a new one behind the one that it is asked for after, or at the end."""
  found = list(there)
  for number, label in enumerate(asked):
    if label not in found:
      found.insert(found.index(asked[number - 1]) + 1 if number else len(found), label)
  return found


def _recording(options: RunOptions, whole: Comparison) -> RunOptions:
  """Options whose command and record are of all labels and clusters, so that either makes the whole again."""
  groups = list(dict.fromkeys(whole.place(label).group for label in whole.experiments))
  command, recorded = options.command, dict(options.recorded)
  flags = [f"--{name}={','.join(each)}" for name, each in (("only", groups), ("cluster", whole.clusters)) if each]
  if command[:2] == ("python", "run.py"):
    command = (*without(command, ("only", "cluster")), *flags)
  if recorded:
    section = recorded["config"]["compare"]["algorithms"]  # what it lacks, a resume keeps from comparison.json
    asked = recorded["options"].get("only", [])
    names = [*asked, *(group for group in groups if group in section and group not in asked)] if asked else []
    given = {"only": names, "cluster": list(whole.clusters)}
    recorded |= {"options": recorded["options"] | {key: value for key, value in given.items() if value}}
    arguments = without(recorded["arguments"], ("only", "cluster"))
    recorded |= {"arguments": [*arguments, *flags] if arguments else []}  # a notebook has none
  return replace(options, command=command, recorded=recorded)
