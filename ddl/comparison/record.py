"""comparison.json: what the report needs beside the runs' metrics; and the comparison that a resumed folder holds."""

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import jax

from ddl import files
from ddl.config.comparison import Comparison, restored
from ddl.config.experiment import Experiment, jsonable
from ddl.config.options import RunOptions
from ddl.costs.cluster_clock import pattern_of
from ddl.errors import OptionError
from ddl.names import Place, short_name, slug, words
from ddl.perf.patterns import Op, Pattern, Visits
from ddl.report import formats
from ddl.run import folder, inputs, virtual_time
from ddl.run.build import Components, param_shapes
from ddl.run.processes import say
from ddl.run.workdir import without

KINDS = {  # of a collective: its word, and that in the taxonomy
  "all_reduce": ("all-reduce", "all-reduce"), "all_gather": ("all-gather", "all-gather"),
  "reduce_scatter": ("reduce-scatter", "reduce-scatter"), "permute": ("message to a peer", "peer to peer"),
}  # fmt: skip
NOTHING = "nothing"


def described(components: Components, taxonomy_pattern: str) -> tuple[str, str]:
  """(the communication pattern, what is sent at which steps) of an experiment.

  The pattern is that of the taxonomy, but of a compressed algorithm that of the collectives that it has become.
  """
  experiment = components.experiment
  pattern = pattern_of(components.algorithm, param_shapes(components.model), experiment.workers)
  kinds = [KINDS[op.kind][1] for ops in (pattern.local, *(each.ops for each in pattern.exchanges)) for op in ops]
  shown = " + ".join(dict.fromkeys(kinds)) if experiment.wrapper_spec and kinds else taxonomy_pattern
  text = sends(pattern)
  if text == NOTHING and experiment.workers == 1:
    text += ", as there is one worker"
  return shown, text


def sends(pattern: Pattern) -> str:
  """What is sent at which steps, in words: "every 5 steps: all-reduce of 4.84 kB"."""
  if pattern.visits:
    return _visits(pattern.visits)
  at_each = Counter({("at each step", pattern.local): 1} if pattern.local else {})
  at_each.update((_when(each.period), each.ops) for each in pattern.exchanges if each.ops)
  texts = [f"{when}{f', {count} times' * (count > 1)}: {_ops(ops)}" for (when, ops), count in at_each.items()]
  sampled = any(op.senders for _, ops in at_each for op in ops)
  return "; ".join(texts + [formats.SAMPLED] * sampled) or NOTHING


def _when(period: int | Callable[[int], int]) -> str:
  if callable(period):
    return "at changing periods"
  return "at each step" if period == 1 else f"every {period} steps"


def _ops(ops: Sequence[Op]) -> str:
  """The collectives by kind, with the number and the bytes of all of a kind."""
  by_kind: dict[tuple[str, int | None], list[float]] = {}
  for op in ops:
    by_kind.setdefault((op.kind, op.senders), []).append(op.nbytes)
  return " and ".join(_of_a_kind(*kind, nbytes) for kind, nbytes in by_kind.items())


def _of_a_kind(kind: str, senders: int | None, nbytes: Sequence[float]) -> str:
  word, size = KINDS[kind][0], formats.figure("bytes_sent", sum(nbytes))
  among = f" among {senders} of the workers" if senders else ""
  if len(nbytes) == 1:
    return f"{word} of {size}{among}"
  plural = word.replace("message to a peer", "messages to peers") if kind == "permute" else f"{word}s"
  return f"{len(nbytes)} {plural} of {size} together{among}"


def _visits(visits: Visits) -> str:
  up, down = (formats.figure("bytes_sent", each) for each in (visits.up, visits.down))
  ways = ("to a peer", "from it") if visits.peers else ("to the server", "back")
  parts = [f"{size} {way}" for size, way, sent in ((up, ways[0], visits.up), (down, ways[1], visits.down)) if sent]
  if not parts:
    return NOTHING
  chance = f", with a probability of {visits.probability:g}" * (visits.probability < 1)
  return f"{_when(visits.period)}{chance}: {' and '.join(parts)}"


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
  changes = [f"{key} {old[key]!r} before, {new[key]!r} now" for key in new if new[key] != old[key]]
  if changes:
    say(f"the report in {file.parent} is drawn anew: {'; '.join(changes)}")


def content(
  path: Path, comparison: Comparison, components: Mapping[str, Components], runs: Mapping[str, list[str]],
  failed: Mapping[str, str], tuned: Mapping[str, Any], options: RunOptions, metric: str,
) -> dict[str, Any]:  # fmt: skip
  """What comparison.json holds, but for the clusters. runs, failed, tuned: by label, the last without the grid."""
  first, title = comparison.first, comparison.title
  parts = next(iter(components.values()))
  virtual = any(each.in_virtual_time for each in comparison.experiments.values())
  entries = [
    entry(path, label, each, virtual, comparison.place(label))
    | {"tuned": tuned.get(label, tuned.get(comparison.place(label).group))}
    | {"failed": failed.get(label), "runs": runs[label]}
    for label, each in components.items()
  ]
  abouts = [path / run / folder.ABOUT for each in runs.values() for run in each]
  trained = files.read_json(next(each for each in abouts if each.exists()))  # maybe long before this report
  return {
    "title": title or f"{_counted(comparison)}, {first.model.short_name} on {first.data.short_name}",
    "command": folder.about(without(options.command))["command"],  # as it is run elsewhere
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
  } | ({"changed_inputs": changes} if (changes := folder.input_changes(path)) else {})


def _counted(comparison: Comparison) -> str:
  """3 algorithms over workers and period."""
  groups = {comparison.place(label).group for label in comparison.experiments}
  keys = [words(key, list(comparison.grid)) for key, values in comparison.grid.items() if len(values) > 1]
  return f"{len(groups)} algorithm{'s' * (len(groups) != 1)}" + f" over {' and '.join(keys)}" * bool(keys)


def entry(path: Path, label: str, components: Components, virtual: bool, place: Place) -> dict[str, Any]:
  """The algorithm's entry in comparison.json."""
  experiment = components.experiment
  spec, wrapper = experiment.spec, experiment.wrapper_spec
  pattern, sends = described(components, spec.taxonomy.pattern)
  files = {"events": f"{slug(label)}/{folder.EVENTS}", "lockstep": f"{slug(label)}/{folder.LOCKSTEP}"}
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
  if not options.resume or not (path / folder.COMPARISON).exists():
    return unchanged
  try:
    record = files.read_json(path / folder.COMPARISON)
  except ValueError:  # damaged, and about to be replaced
    return unchanged
  try:
    entries = {each["label"]: each for each in record["algorithms"]}
    clusters = tuple(str(each.get("file") or each["name"]) for each in record.get("clusters", ()))
    grid = {key: tuple(map(restored, values)) for key, values in record.get("grid", {}).items()}
    with inputs.allowed_code(path, options.trust_code, options.allow_changed_inputs):
      recorded = {label: _experiment(path, entries[label]) for label in entries if label not in comparison.experiments}
  except (KeyError, TypeError, AttributeError):  # as damaged, or older
    return unchanged
  earlier = {label: experiment for label, experiment in recorded.items() if experiment is not None}
  if gone := [label for label in recorded if label not in earlier]:
    say(f"no run of {', '.join(gone)} is left in {path}, so that the report goes without")
  clusters = comparison.clusters or clusters
  if not earlier:
    return unchanged._replace(comparison=replace(comparison, clusters=clusters))
  if grid.keys() != comparison.grid.keys():
    keys = [", ".join(each) or "no keys" for each in (grid, comparison.grid)]
    raise OptionError("workdir", f"the folder of a comparison over {keys[1]}", f"{path}, of one over {keys[0]}")
  try:
    whole = replace(
      comparison,
      experiments={
        label: earlier.get(label) or comparison.experiments[label]
        for label in _order(list(entries), list(comparison.experiments))
        if label in earlier or label in comparison.experiments
      },
      clusters=clusters,
      grid={
        key: (*values, *(each for each in grid[key] if jsonable(each) not in jsonable(values)))
        for key, values in comparison.grid.items()
      },
      places={**comparison.places, **{label: _place(entries[label]) for label in earlier}},
    )
  except ValueError as error:
    raise ValueError(f"{path} holds labels that are not asked for ({', '.join(earlier)}): {error}") from error
  tuned = {label: entries[label].get("tuned") for label in earlier}
  return Joined(whole, _recording(options, whole), {label: entries[label]["runs"] for label in earlier}, tuned)


def _experiment(path: Path, entry: Mapping[str, Any]) -> Experiment | None:
  """Of a label as it was run; None where no run is left."""
  configs = [path / run / folder.CONFIG for run in entry["runs"]]
  config = next((each for each in configs if each.exists()), None)
  return None if config is None else Experiment.from_json(files.read_json(config))


def _place(entry: Mapping[str, Any]) -> Place:
  return Place(entry.get("group", entry["label"]), restored(entry.get("point", {})))


def _order(recorded: Sequence[str], asked: Sequence[str]) -> list[str]:
  """The labels as the record has them, a new one behind the one that it is asked for after, or at the end."""
  labels = list(recorded)
  for number, label in enumerate(asked):
    if label not in labels:
      labels.insert(labels.index(asked[number - 1]) + 1 if number else len(labels), label)
  return labels


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
    flag_values = {"only": names, "cluster": list(whole.clusters)}
    recorded |= {"options": recorded["options"] | {key: value for key, value in flag_values.items() if value}}
    arguments = without(recorded["arguments"], ("only", "cluster"))
    recorded |= {"arguments": [*arguments, *flags] if arguments else []}  # a notebook has none
  return replace(options, command=command, recorded=recorded)
