"""The report's section on clusters: predicted times to the target, the fastest algorithm, and break-even bandwidths."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ddl.perf.units import counted
from ddl.report import formats
from ddl.report.cells import Cell, column
from ddl.report.findings import FEW, UNRANKED, next_one
from ddl.report.formats import rate, seconds
from ddl.report.reader import Comparison, common_runs, read, run_name
from ddl.report.settings import of_labels
from ddl.report.statistics import log_summary
from ddl.report.table import LabelRow, pairs, ranking, rows

if TYPE_CHECKING:
  from ddl.report.figures.picture import Picture

STARTING = 1e-5  # seconds that a device takes to start a step, roughly; below, the arithmetic does not count
PREDICTED = "predicted_seconds"  # what they are called
TIME = "virtual_seconds"  # the column that holds a cluster's predicted seconds
PARTS = ("step", "exchange", "message", "service")


class OnCluster(NamedTuple):
  """A comparison in the seconds of a cluster, its rows, and the sentence on which reaches the target first."""

  entry: dict[str, Any]  # in comparison.json
  comparison: Comparison
  table: list[LabelRow]
  sentence: str


def on_clusters(comparison: Comparison) -> list[OnCluster]:
  """Of a comparison made with --cluster, [] for others.

  Raises:
    ValueError: if the predicted seconds are not of these runs.
  """
  return [_on(comparison, entry) for entry in comparison.info.get("clusters", [])]


def sentences(folder: Path) -> list[str]:
  """One sentence or two per cluster, from a comparison's folder."""
  return [each.sentence for each in on_clusters(read(folder))]


def section(comparison: Comparison) -> dict[str, Any] | None:
  """The variables of the section's template; None for a comparison without clusters."""
  found = {each.entry["name"]: each for each in on_clusters(comparison)}
  if not found:
    return None
  labels = [result.info["label"] for result in comparison.results]
  entries = {name: each.entry for name, each in found.items()}
  return {
    "sentences": [each.sentence for each in found.values()],
    "times": {name: column(each.table, TIME) for name, each in found.items()},
    "parts": {name: [_parts(each["algorithms"][label]) for label in labels] for name, each in entries.items()},
    "sources": {name: f"{each['title']}; {_link(each)}. {each['source']}." for name, each in entries.items()},
    "notes": _notes(list(entries.values()), [e.info["label"] for e in comparison.results if _wrapped(e.info)]),
  }


def pictures(comparison: Comparison) -> "list[Picture]":
  """The metric against the seconds of each cluster."""
  from ddl.report.figures import curve_data, curves
  from ddl.report.figures.style import line_styles

  drawn, styles = [], line_styles(comparison)
  for each in on_clusters(comparison):
    shown, name = curve_data.chart(each.comparison, TIME, comparison.metric), each.entry["name"]
    if shown is not None:
      title = f"{shown.title.partition(' against ')[0]} against predicted time on {name}"
      picture = curves.picture(shown._replace(title=title, x_label="predicted seconds"), comparison, styles)
      data = {f"{PREDICTED}_{name}" if column == TIME else column: each for column, each in picture.data.items()}
      drawn.append(replace(picture, name=f"{picture.name.partition('_')[0]}_on_{name}", data=data))
  return drawn


def _on(comparison: Comparison, entry: dict[str, Any]) -> OnCluster:
  results = []
  for result in comparison.results:
    runs, clocks = [], _clocks(comparison, entry, result.info["label"])
    for run in result.runs:
      clock = clocks.get(run.name, [math.nan] * len(run.columns["step"]))
      runs.append(run._replace(columns=run.columns | {TIME: np.array(clock)}))
    results.append(result._replace(runs=runs))
  clocked = comparison._replace(seconds=TIME, results=results)
  table = rows(clocked)
  return OnCluster(entry, clocked, table, _sentence(comparison, entry, table))


def _clocks(comparison: Comparison, entry: Mapping[str, Any], label: str) -> dict[str, Sequence[float]]:
  """The times of a label's runs by their names; only those of seeds that all labels have are predicted."""
  whole = comparison.whole or comparison
  every = {each.info["label"]: each.info["runs"] for each in whole.results}
  seconds, lines = entry["algorithms"][label]["seconds"], {}
  for result in whole.results:
    if result.info["label"] == label:
      lines = {run.name: len(run.columns["step"]) for run in result.runs}
  paths = every[label] if len(seconds) == len(every[label]) else common_runs(every)[label]
  for path, clock in zip(paths, seconds, strict=True):
    if len(clock) != lines.get(run_name(path), 0):
      raise ValueError(f"comparison.json: {entry['name']} has {len(clock)} times of {path}, which has other lines")
  return dict(zip(map(run_name, paths), seconds, strict=True))


def _sentence(comparison: Comparison, entry: Mapping[str, Any], table: Sequence[LabelRow]) -> str:
  goal = comparison.goal
  where = f"On {entry['name']} with {formats.between(of_labels(comparison.info, 'workers'), 'worker')}"
  if comparison.disjoint:
    return f"{where}: {UNRANKED[0].lower()}{UNRANKED[1:]}"
  ranked, rivals, _ = ranking(table, TIME)
  if not ranked:
    return f"{where}: no algorithm reaches {goal} with every seed."
  best, every = ranked[0], " with every seed" * (table[0].seeds > 1)
  spent, others = seconds(best.estimates[TIME].mean), _in_some(table, best)
  if len(ranked) == 1:
    only = "only " * (len(table) > 1)
    return f"{where}: {'; '.join([f'{only}{best.label} reaches {goal}{every}, after {spent}', *others])}."
  mean = " on average" if rivals else ""  # the order of the means, which is not significant
  first = f"{best.label} reaches {goal} first{mean}, after {spent}"
  if others:
    first = f"of the {len(ranked)} that reach {goal}{every}, {best.label} does first{mean}, after {spent}"
  text = "; ".join([first, next_one(table, TIME, ranked[1], best), *others])
  return f"{where}: {text}." + (f" {break_even(entry)}" if entry["break_even"] else "")


def _in_some(table: Sequence[LabelRow], best: LabelRow) -> list[str]:
  """How those that reach the target with some seeds alone compare with the best there; this is no test."""
  found = []
  for row in table:
    if not 0 < row.reached < row.seeds or not (pair := pairs(table, TIME).get((row.label, best.label))):
      continue
    some = f"in {pair.seeds} of {counted(row.seeds, 'seed')}"
    times, word = (1 / pair.mean, "sooner") if pair.mean < 1 else (pair.mean, "later")
    much = (
      f"{times:,.{formats.decimals(times, 2)}f} times {word} on average" if times >= 1.05 else "in about the same time"
    )
    found.append(f"{row.label} does {some}, {much} there" if pair.ratio else f"{row.label} does {some}")
  return found[:FEW] + [f"{len(found) - FEW} others do with some seeds"] * (len(found) > FEW)


def break_even(entry: Mapping[str, Any]) -> str:
  """The bandwidths at which another algorithm would have the lowest mean; that is no test of significance."""
  found, here = entry["break_even"], entry["bandwidth"]
  if not found["crossings"]:
    low, high = (rate(bandwidth) for bandwidth in found["searched"])
    winner = found["winner"]
    slow, fast = (
      f"{end['ratio']:.2g} times as long as {end['second'] if end['first'] == winner else end['first']}"  # level there
      for end in found["ends"]
    )
    return (
      f"At every bandwidth searched, {low} to {high} in half decades, {winner} has the lowest mean or shares it: it "
      f"takes {slow} at the low end, where bandwidth determines the time, and {fast} at the high end, where steps and "
      "latency do."
    )
  text = "; ".join(_overtaking(crossing, here) for crossing in found["crossings"])
  return f"By the means, {text}; the link {entry['link']} has {rate(here)}."


def _overtaking(crossing: Mapping[str, Any], here: float) -> str:
  """Below or above which bandwidth another would be first, with the interval over the seeds where that happens."""
  values = [value for value in crossing["bandwidths"] if value is not None]
  mean, ends = log_summary(values or [crossing["mean"]])
  spread = f" ({rate(ends[0])} to {rate(ends[1])})" if ends else ""
  found, seeds = len(values), len(crossing["bandwidths"])
  count = "" if found == seeds else f", in {found} of {seeds} seeds" if found else ", though in no seed by itself"
  side = "below" if crossing["mean"] < here else "above"
  return f"{side} {rate(mean)}{spread}{count}, {crossing['other']} would be first"


def _parts(figures: Mapping[str, Any]) -> Cell:
  """Seconds of a step and its parts."""
  parts = [f"{name} {seconds(figures[f'{name}_seconds'])}" for name in PARTS if f"{name}_seconds" in figures]
  if stale := figures.get("staleness"):
    parts.append(f"staleness {stale['there']:.1f}, trained with {stale['trained']:.1f}")
  return Cell(seconds(figures["seconds_per_step"]), details=tuple(parts))


def _wrapped(info: Mapping[str, Any]) -> bool:
  return (info["settings"].get("wrapper") or {}).get("name", "none") != "none"


def _notes(entries: Sequence[Mapping[str, Any]], wrapped: Sequence[str]) -> list[str]:
  first = entries[0]
  nbytes = formats.figure("bytes_sent", first["params_bytes"])
  notes = [
    "Seconds are predicted, not measured. For each array of parameters a step takes the larger of FLOP / (peak x "
    "share) and bytes / (memory bandwidth x share), with the shares that the cluster's source names and "
    f"{first['flop_per_example']:.3g} FLOP per example as XLA counts the compiled step; an exchange takes what latency "
    f"and bandwidth make of {nbytes} of parameters, by the cheapest collective of its kind. Jitter, slow workers, "
    "barrier and overlap are those of the config."
  ]
  if any("staleness" in figures for entry in entries for figures in entry["algorithms"].values()):
    notes.append(
      "Algorithms with a server or peers were trained in the order of events that results from the config's times and "
      "network. On a cluster the order differs: the predicted seconds are those of that order, the accuracy is that of "
      "the order of training. The closer the two values of staleness are, the better is the approximation."
    )
  if (members := first.get("members", {}).get("count", 1)) > 1:
    spent = ", ".join(f"{seconds(entry['members']['seconds'])} on {entry['name']}" for entry in entries)
    notes.append(
      f"A worker is {members} devices. The collectives among them, as XLA compiles them here, are part of a step and "
      f"not hidden: {spent}. In an exchange each device sends what it holds."
    )
  if wrapped:
    notes.append(
      f"What it takes to choose, round or decompose what is sent is not counted: {formats.listed(wrapped, 6)}."
    )
  if within := [entry["name"] for entry in entries if entry["link"] != "between nodes"]:
    notes.append(f"One node of {formats.listed(within)} holds all workers: no message leaves the node.")
  steps = {entry["name"]: [each["step_seconds"] for each in entry["algorithms"].values()] for entry in entries}
  if short := [name for name, each in steps.items() if min(each) < STARTING]:
    notes.append(
      f"A step takes less than {seconds(STARTING)} on {formats.listed(short)}, less than a device needs to start one: "
      "for so small a model the times are lower bounds, and the network's share is too large."
    )
  return notes


def _link(entry: Mapping[str, Any]) -> str:
  return f"{rate(entry['bandwidth'])}, {seconds(entry['latency'])} latency {entry['link']}"
