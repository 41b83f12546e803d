"""The report's section on clusters: predicted times to the target, the fastest algorithm, and break-even bandwidths."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ddl.names import pluralize
from ddl.report import curves, formats, frames, reader
from ddl.report.figure import Figure
from ddl.report.formats import rate, seconds
from ddl.report.frames import Frames, Quantity
from ddl.report.reader import PREDICTED
from ddl.report.sentences import FEW, next_one
from ddl.report.settings import of_labels
from ddl.report.statistics import log_summary
from ddl.report.tables import Cell, column

STARTING = 1e-5  # seconds that a device takes to start a step, roughly; below, the arithmetic does not count
PARTS = ("step", "exchange", "message", "service")


class ClusterSection(NamedTuple):
  """The variables of the section's template; cells by cluster."""

  sentences: list[str]
  times: dict[str, list[Cell]]  # predicted to the target
  parts: dict[str, list[Cell]]  # of a step
  sources: dict[str, str]
  notes: list[str]
  pictures: list[Figure]


def section(tables: Frames) -> ClusterSection | None:
  """Return the section; None for a comparison without clusters."""
  comparison, clusters = tables.comparison, tables.comparison.clusters
  if not clusters:
    return None
  wrapped = [result.info["label"] for result in comparison.results
             if (result.info["settings"].get("wrapper") or {}).get("name", "none") != "none"]  # fmt: skip
  return ClusterSection(
    sentences=sentences_of(tables),
    times={name: column(tables, quantity(name)) for name in clusters},
    parts={name: [_parts(each["algorithms"][label]) for label in tables.labels] for name, each in clusters.items()},
    sources={name: f"{each['title']}; {_link(each)}. {each['source']}." for name, each in clusters.items()},
    notes=_notes(list(clusters.values()), wrapped),
    pictures=curves.on_clusters(tables),
  )


def quantity(cluster: str) -> Quantity:
  """Return the seconds predicted for a cluster."""
  return Quantity(f"{PREDICTED}_{cluster}", cluster)


def sentences(folder: Path) -> list[str]:
  """Return a sentence or two per cluster, from a comparison's folder."""
  return sentences_of(frames.build(reader.read(folder)))


def sentences_of(tables: Frames) -> list[str]:
  """Return for each cluster which algorithm reaches the target first, and where another one would."""
  return [_sentence(tables, entry) for entry in tables.comparison.clusters.values()]


def _sentence(tables: Frames, entry: Mapping[str, Any]) -> str:
  goal, on = tables.comparison.goal, quantity(entry["name"])
  where = f"On {entry['name']} with {formats.between(of_labels(tables.comparison.info, 'workers'), 'worker')}"
  if tables.comparison.disjoint:
    return f"{where}: no seed is common to all labels, so that nothing is ranked."
  ranking = frames.ranking(tables, on)
  if not ranking.ranked:
    return f"{where}: no algorithm reaches {goal} with every seed."
  best, every = ranking.ranked[0], "" if tables.single else " with every seed"
  spent = seconds(float(tables.table.set_index("label").loc[best, on.name]))
  others = _with_some_seeds(tables, on, best)
  if len(ranking.ranked) == 1:
    only = "only " * (len(tables.table) > 1)
    return f"{where}: {'; '.join([f'{only}{best} reaches {goal}{every}, after {spent}', *others])}."
  mean = " on average" if ranking.rivals else ""  # the order of the means, which is not significant
  first = f"{best} reaches {goal} first{mean}, after {spent}"
  if others:
    first = f"of the {len(ranking.ranked)} that reach {goal}{every}, {best} does first{mean}, after {spent}"
  text = "; ".join([first, next_one(tables, on, ranking.ranked[1], best), *others])
  return f"{where}: {text}." + (f" {break_even(entry)}" if entry["break_even"] else "")


def _with_some_seeds(tables: Frames, on: Quantity, best: str) -> list[str]:
  """Return how those that reach the target with only some seeds compare with the best there, which is no test."""
  texts = []
  for line in tables.table.to_dict("records"):
    pair = frames.pair(tables, on, line["label"], best) if 0 < line["reached"] < line["seeds"] else None
    if pair is None:
      continue
    text = f"{line['label']} does in {pair['seeds']} of {pluralize(line['seeds'], 'seed')}"
    if pair["scale"] == "ratio":
      ratio = pair["estimate"]
      times, word = (1 / ratio, "sooner") if ratio < 1 else (ratio, "later")
      much = f"{times:,.{formats.decimals(times, 2)}f} times {word} on average"
      text += f", {much if times >= 1.05 else 'in about the same time'} there"
    texts.append(text)
  return texts[:FEW] + [f"{len(texts) - FEW} others do with some seeds"] * (len(texts) > FEW)


def break_even(entry: Mapping[str, Any]) -> str:
  """Return the bandwidths at which another algorithm would have the lowest mean; that is no test of significance."""
  result, bandwidth = entry["break_even"], entry["bandwidth"]
  if result["crossings"]:
    text = "; ".join(_overtaking(crossing, bandwidth) for crossing in result["crossings"])
    return f"By the means, {text}; the link {entry['link']} has {rate(bandwidth)}."
  low, high = map(rate, result["searched"])
  winner = result["winner"]
  slow, fast = (
    f"{end['ratio']:.2g} times as long as {end['second'] if end['first'] == winner else end['first']}"
    for end in result["ends"]
  )
  return (
    f"At every bandwidth from {low} to {high} {winner} has the lowest mean or shares it: it takes {slow} at the low "
    f"end, where bandwidth determines the time, and {fast} at the high end, where steps and latency do."
  )


def _overtaking(crossing: Mapping[str, Any], bandwidth: float) -> str:
  """Return below or above which bandwidth another would be first, with the interval over the seeds."""
  values = [value for value in crossing["bandwidths"] if value is not None]
  mean, ends = log_summary(values or [crossing["mean"]])
  spread = f" ({rate(ends[0])} to {rate(ends[1])})" if ends else ""
  count, seeds = len(values), len(crossing["bandwidths"])
  within = "" if count == seeds else f", in {count} of {seeds} seeds" if count else ", though in no single seed"
  side = "below" if crossing["mean"] < bandwidth else "above"
  return f"{side} {rate(mean)}{spread}{within}, {crossing['other']} would be first"


def _parts(figures: Mapping[str, Any]) -> Cell:
  """Return seconds of a step and its parts."""
  parts = [f"{name} {seconds(figures[f'{name}_seconds'])}" for name in PARTS if f"{name}_seconds" in figures]
  if stale := figures.get("staleness"):
    parts.append(f"staleness {stale['there']:.1f}, trained with {stale['trained']:.1f}")
  return Cell(seconds(figures["seconds_per_step"]), details=tuple(parts))


def _notes(entries: Sequence[Mapping[str, Any]], wrapped: Sequence[str]) -> list[str]:
  first = entries[0]
  nbytes = formats.figure("bytes_sent", first["params_bytes"])
  notes = [
    "Seconds are predicted, not measured, and means over the seeds. For each array of parameters a step takes the "
    "larger of FLOP / (peak x share) and bytes / (memory bandwidth x share), with the shares that the cluster's source "
    f"names and {first['flop_per_example']:.3g} FLOP per example as XLA counts the compiled step; an exchange takes "
    f"what latency and bandwidth make of {nbytes} of parameters, by the cheapest collective of its kind. Jitter, slow "
    "workers, barrier and overlap are those of the config."
  ]
  if any("staleness" in figures for entry in entries for figures in entry["algorithms"].values()):
    notes.append(
      "Algorithms with a server or peers were trained in the order of events that results from the config's times and "
      "network. On a cluster the order differs: the accuracy is that of the order of training. The closer the two "
      "values of staleness are, the better is the approximation."
    )
  if (members := first.get("members", {}).get("count", 1)) > 1:
    spent = ", ".join(f"{seconds(entry['members']['seconds'])} on {entry['name']}" for entry in entries)
    notes.append(
      f"A worker is {members} devices. The collectives among them, as XLA compiles them here, are part of a step and "
      f"not hidden: {spent}. In an exchange each device sends what it holds."
    )
  if wrapped:
    notes.append(f"The computation of compression is not counted: {formats.listed(wrapped, 6)}.")
  if within := [entry["name"] for entry in entries if entry["link"] != "between nodes"]:
    notes.append(f"One node of {formats.listed(within)} holds all workers: no message leaves the node.")
  steps = {entry["name"]: [each["step_seconds"] for each in entry["algorithms"].values()] for entry in entries}
  if short := [name for name, values in steps.items() if min(values) < STARTING]:
    notes.append(
      f"A step takes less than {seconds(STARTING)} on {formats.listed(short)}, less than a device needs to start one: "
      "for so small a model the times are lower bounds, and the network's share is too large."
    )
  return notes


def _link(entry: Mapping[str, Any]) -> str:
  return f"{rate(entry['bandwidth'])}, {seconds(entry['latency'])} latency {entry['link']}"
