"""Write comparison.json, from which the report is generated, and read it to resume a comparison."""

import contextlib
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
from ddl.names import Place, pluralize, short_name, slug, words
from ddl.perf.patterns import Op, Pattern, Visits
from ddl.report import formats
from ddl.run import folder, inputs, virtual_time
from ddl.run.build import Components, param_shapes
from ddl.run.metrics import Metric
from ddl.run.processes import say
from ddl.run.workdir import without

NOTHING = "nothing"
SAMPLED = (
  "bytes are counted as if only these workers exchanged messages with a server, but all workers join the all-reduce"
)


def describe_traffic(components: Components, taxonomy_pattern: str) -> tuple[str, str]:
  """Return the name of an experiment's communication pattern, and a text about its messages and their periods.

  The name is `taxonomy_pattern`. If the experiment has a wrapper, such as compression, and sends messages, the name
  instead lists the collectives that are actually used.
  """
  experiment = components.experiment
  pattern = pattern_of(components.algorithm, param_shapes(components.model), experiment.workers)
  ops = [*pattern.local, *(op for exchange in pattern.exchanges for op in exchange.ops)]
  kinds = ["peer to peer" if op.kind == "permute" else op.kind.replace("_", "-") for op in ops]
  shown = " + ".join(dict.fromkeys(kinds)) if experiment.wrapper_spec and kinds else taxonomy_pattern
  text = sends(pattern)
  if text == NOTHING and experiment.workers == 1:
    text += ", as there is only one worker"
  return shown, text


def sends(pattern: Pattern) -> str:
  """Describe messages and their periods, such as "every 5 steps: all-reduce of 4.84 kB"."""
  if pattern.visits:
    return _visits(pattern.visits)
  at_each = Counter({("at each step", pattern.local): 1} if pattern.local else {})
  at_each.update((_when(exchange.period), exchange.ops) for exchange in pattern.exchanges if exchange.ops)
  texts = [f"{when}{f', {count} times' * (count > 1)}: {_ops(ops)}" for (when, ops), count in at_each.items()]
  sampled = any(op.senders for _, ops in at_each for op in ops)
  return "; ".join(texts + [SAMPLED] * sampled) or NOTHING


def _when(period: int | Callable[[int], int]) -> str:
  if callable(period):
    return "at changing periods"
  return "at each step" if period == 1 else f"every {period} steps"


def _ops(ops: Sequence[Op]) -> str:
  """Describe collectives by kind, with the number and total bytes of each kind."""
  by_kind: dict[tuple[str, int | None], list[float]] = {}
  for op in ops:
    by_kind.setdefault((op.kind, op.senders), []).append(op.nbytes)
  texts = []
  for (kind, senders), nbytes in by_kind.items():
    word, size = kind.replace("_", "-"), formats.figure("bytes_sent", sum(nbytes))
    one, several = ("message to a peer", "messages to peers") if kind == "permute" else (word, f"{word}s")
    text = f"{one} of {size}" if len(nbytes) == 1 else f"{len(nbytes)} {several} of {size} together"
    texts.append(text + (f" from {pluralize(senders, 'worker')}" if senders else ""))
  return " and ".join(texts)


def _visits(visits: Visits) -> str:
  ways = {"to a peer": visits.up, "from it": visits.down}
  if not visits.peers:
    ways = {"to the server": visits.up, "back": visits.down}
  parts = [f"{formats.figure('bytes_sent', nbytes)} {way}" for way, nbytes in ways.items() if nbytes]
  if not parts:
    return NOTHING
  chance = f", with a probability of {visits.probability:g}" * (visits.probability < 1)
  return f"{_when(visits.period)}{chance}: {' and '.join(parts)}"


def write(file: Path, page: dict[str, Any]) -> None:
  """Write comparison.json; if it already exists, print changes of target and title."""
  changes = []
  with contextlib.suppress(FileNotFoundError, ValueError, KeyError, TypeError):  # a damaged file is replaced
    old, new = ({"target": p["target"]["value"], "title": p["title"]} for p in (files.read_json(file), page))
    changes = [f"{key} {old[key]!r} before, {new[key]!r} now" for key in new if new[key] != old[key]]
  if changes:
    say(f"the report in {file.parent} is regenerated: {'; '.join(changes)}")
  folder.write_json(file, page)


def content(
  path: Path, comparison: Comparison, components: Mapping[str, Components], runs: Mapping[str, list[str]],
  failed: Mapping[str, str], tuned: Mapping[str, Any], options: RunOptions, metric: Metric,
) -> dict[str, Any]:  # fmt: skip
  """Return the content of comparison.json, without predictions for clusters.

  runs: algorithm label -> run folders. failed: algorithm label -> error of a diverged run.
  tuned: algorithm label -> its tuned settings, see `ddl.config.tuned.summary`.
  """
  first, title = comparison.first, comparison.title
  parts = next(iter(components.values()))
  virtual = any(experiment.in_virtual_time for experiment in comparison.experiments.values())
  entries = [
    entry(path, label, built, virtual, comparison.place(label))
    | {"tuned": tuned.get(label), "failed": failed.get(label), "runs": runs[label]}
    for label, built in components.items()
  ]
  abouts = [path / run / folder.ABOUT for folders in runs.values() for run in folders]
  trained = files.read_json(next(about for about in abouts if about.exists()))  # versions at training time
  return {
    "title": title or f"{_counted(comparison)}, {first.model.short_name} on {first.data.short_name}",
    "command": folder.about(without(options.command))["command"],  # to reproduce it in another folder
    "config": comparison.to_json(),
    "target": {
      "metric": f"test_{metric.name}",
      "value": comparison.target,
      "higher_is_better": metric.higher_is_better,
      "stop": comparison.stop_at_target,
    },
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
  """Return the start of the default title, such as "3 algorithms over workers and period"."""
  groups = {comparison.place(label).group for label in comparison.experiments}
  keys = [words(key, list(comparison.grid)) for key, values in comparison.grid.items() if len(values) > 1]
  return pluralize(len(groups), "algorithm") + f" over {' and '.join(keys)}" * bool(keys)


def entry(path: Path, label: str, components: Components, virtual: bool, place: Place) -> dict[str, Any]:
  """Return the entry of one algorithm label in comparison.json. virtual: whether to describe the virtual time."""
  experiment = components.experiment
  spec, wrapper = experiment.spec, experiment.wrapper_spec
  pattern, sends = describe_traffic(components, spec.taxonomy.pattern)
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
  """Describe a model by its name and settings."""
  values = {key: "-".join(map(str, value)) if isinstance(value, list) else value for key, value in model.items()}
  sizes = ", ".join(f"{key} {value}" for key, value in values.items() if key != "name")
  return short_name(model["name"]) + f" ({sizes})" * bool(sizes)


class Joined(NamedTuple):
  """A comparison merged with the algorithm labels and clusters recorded in its folder."""

  comparison: Comparison
  options: RunOptions  # options whose command and record name all labels
  read: Mapping[str, Sequence[str]]  # runs of recorded labels that were not requested: read, but not trained
  tuned: dict[str, Any]  # the tuned settings of these labels


def joined(path: Path, comparison: Comparison, options: RunOptions) -> Joined:
  """Merge a comparison with the algorithm labels and clusters recorded in the folder to resume.

  Recorded labels that are not requested keep their settings and seeds. Recorded clusters are used if none are
  requested. Without `options.resume` nothing changes.

  Raises ValueError if recorded labels have a different model, data set, budget or grid.
  """
  unchanged = Joined(comparison, options, {}, {})
  if not options.resume or not (path / folder.COMPARISON).exists():
    return unchanged
  try:
    record = files.read_json(path / folder.COMPARISON)
  except ValueError:  # a damaged file is replaced
    return unchanged
  try:
    entries = {entry["label"]: entry for entry in record["algorithms"]}
    clusters = tuple(str(cluster.get("file") or cluster["name"]) for cluster in record.get("clusters", ()))
    grid = {key: tuple(map(restored, values)) for key, values in record.get("grid", {}).items()}
    with inputs.allowed_code(path, options.trust_code, options.allow_changed_inputs):
      recorded = {label: _experiment(path, entries[label]) for label in entries if label not in comparison.experiments}
  except (KeyError, TypeError, AttributeError):  # a damaged or older file
    return unchanged
  earlier = {label: experiment for label, experiment in recorded.items() if experiment is not None}
  if missing := [label for label in recorded if label not in earlier]:
    say(f"{path} contains no runs of {', '.join(missing)}: the report omits these algorithms")
  clusters = comparison.clusters or clusters
  if not earlier:
    return unchanged._replace(comparison=replace(comparison, clusters=clusters))
  if grid.keys() != comparison.grid.keys():
    keys = [", ".join(axes) or "no keys" for axes in (grid, comparison.grid)]
    raise OptionError(
      "workdir", f"the folder of a comparison with a grid over {keys[1]}", f"{path} (grid over {keys[0]})"
    )
  merged = {}
  for key, values in comparison.grid.items():
    merged[key] = (*values, *(value for value in grid[key] if jsonable(value) not in jsonable(values)))
  known = {**comparison.experiments, **earlier}
  labels = _order(list(entries), list(comparison.experiments))
  experiments = {label: known[label] for label in labels if label in known}
  places = {**comparison.places, **{label: _place(entries[label]) for label in earlier}}
  try:
    whole = replace(comparison, experiments=experiments, clusters=clusters, grid=merged, places=places)
  except ValueError as error:
    raise ValueError(
      f"{path} contains runs of {', '.join(earlier)}, which cannot be compared with the requested algorithms: {error}"
    ) from error
  tuned = {label: entries[label].get("tuned") for label in earlier}
  return Joined(whole, _recording(options, whole), {label: entries[label]["runs"] for label in earlier}, tuned)


def _experiment(path: Path, entry: Mapping[str, Any]) -> Experiment | None:
  """Return the experiment of the first existing run of an entry in comparison.json; None without an existing run."""
  configs = [config for run in entry["runs"] if (config := path / run / folder.CONFIG).exists()]
  return Experiment.from_json(files.read_json(configs[0])) if configs else None


def _place(entry: Mapping[str, Any]) -> Place:
  return Place(entry.get("group", entry["label"]), restored(entry.get("point", {})))


def _order(recorded: Sequence[str], requested: Sequence[str]) -> list[str]:
  """Insert each new label into `recorded` after the label that precedes it in `requested`; return the result."""
  labels = list(recorded)
  for number, label in enumerate(requested):
    if label not in labels:
      labels.insert(labels.index(requested[number - 1]) + 1 if number else len(labels), label)
  return labels


def _recording(options: RunOptions, whole: Comparison) -> RunOptions:
  """Return options whose command and record reproduce the whole comparison, with all labels and clusters."""
  groups = list(dict.fromkeys(whole.place(label).group for label in whole.experiments))
  command, recorded = options.command, dict(options.recorded)
  flags = [f"--{name}={','.join(values)}" for name, values in (("only", groups), ("cluster", whole.clusters)) if values]
  if command[:2] == ("python", "run.py"):
    command = (*without(command, ("only", "cluster")), *flags)
  if recorded:
    section = recorded["config"]["compare"]["algorithms"]  # a resume reads the others from comparison.json
    only = recorded["options"].get("only", [])
    names = [*only, *(group for group in groups if group in section and group not in only)] if only else []
    flag_values = {"only": names, "cluster": list(whole.clusters)}
    recorded |= {"options": recorded["options"] | {key: value for key, value in flag_values.items() if value}}
    arguments = without(recorded["arguments"], ("only", "cluster"))
    recorded |= {"arguments": [*arguments, *flags] if arguments else []}  # empty in a notebook
  return replace(options, command=command, recorded=recorded)
