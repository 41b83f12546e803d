"""The report's section on clusters: predicted times to the target, the fastest algorithm, and break-even bandwidths."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from experiments.report import formats
from experiments.report.cells import Cell, column
from experiments.report.findings import next_one
from experiments.report.formats import rate, seconds
from experiments.report.reader import Comparison, read, run_name
from experiments.report.settings_table import of_labels
from experiments.report.statistics import log_summary
from experiments.report.table_rows import Row, ranking, rows

if TYPE_CHECKING:
  from experiments.report.figures.picture import Picture

STARTING = 1e-5  # seconds that a device takes to start a step, roughly; below, the arithmetic does not count
PREDICTED = "predicted_seconds"  # what they are called
TIME = "virtual_seconds"  # the column that holds a cluster's predicted seconds
PARTS = ("step", "exchange", "message", "service")


class OnCluster(NamedTuple):
  """A comparison in the seconds of a cluster, its rows, and the sentence on which reaches the target first."""

  entry: dict[str, Any]  # in comparison.json
  comparison: Comparison
  table: list[Row]
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
  from experiments.report.figures import curves, line_data
  from experiments.report.figures.line_styles import line_styles

  drawn, styles = [], line_styles(comparison)
  for each in on_clusters(comparison):
    shown, name = line_data.chart(each.comparison, TIME, comparison.metric), each.entry["name"]
    if shown is not None:
      title = f"{shown.title.partition(' against ')[0]} against predicted time on {name}"
      picture = curves.picture(shown._replace(title=title, x_label="predicted seconds"), comparison, styles)
      data = {f"{PREDICTED}_{name}" if column == TIME else column: each for column, each in picture.data.items()}
      drawn.append(replace(picture, name=f"{picture.name.partition('_')[0]}_on_{name}", data=data))
  return drawn


def _on(comparison: Comparison, entry: dict[str, Any]) -> OnCluster:
  results = []
  for result in comparison.results:
    runs, there = [], {run.name: run for run in result.runs}
    for path, clock in zip(result.info["runs"], entry["algorithms"][result.info["label"]]["seconds"], strict=True):
      run = there.get(run_name(path))
      if len(clock) != (len(run.columns["step"]) if run else 0):
        raise ValueError(f"comparison.json: {entry['name']} has {len(clock)} times of {path}, which has other lines")
      runs += [run._replace(columns=run.columns | {TIME: np.array(clock)})] if run else []
    results.append(result._replace(runs=runs))
  clocked = comparison._replace(seconds=TIME, results=results)
  table = rows(clocked)
  return OnCluster(entry, clocked, table, _sentence(comparison, entry, table))


def _sentence(comparison: Comparison, entry: Mapping[str, Any], table: Sequence[Row]) -> str:
  goal = comparison.goal
  where = f"On {entry['name']} with {formats.between(of_labels(comparison.info, 'workers'), 'worker')}"
  ranked, rivals = ranking(table, TIME)
  if not ranked:
    return f"{where}: no algorithm reaches {goal} with every seed."
  mean = " on average" if rivals else ""  # the order of the means, which is not significant
  text = f"{where}: {ranked[0].label} reaches {goal} first{mean}, after {seconds(ranked[0].estimates[TIME].mean)}"
  if len(ranked) == 1:
    return f"{text}; no other does with every seed."
  return f"{text}; {next_one(table, TIME, ranked[1], ranked[0])}. {break_even(entry)}"


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
  count = (
    "" if len(values) == len(crossing["bandwidths"]) else f", in {len(values)} of {len(crossing['bandwidths'])} seeds"
  )
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
    f"efficiency) and bytes / memory bandwidth, with {first['flop_per_example']:.3g} FLOP per example as XLA counts "
    f"the compiled step; an exchange takes what latency and bandwidth make of {nbytes} of parameters, by the cheapest "
    "collective of its kind. Jitter, slow workers, barrier and overlap are those of the config."
  ]
  if any("staleness" in figures for entry in entries for figures in entry["algorithms"].values()):
    notes.append(
      "Algorithms with a server or peers were trained in the order of events that results from the config's times and "
      "network. On a cluster the order differs: the predicted seconds are those of that order, the accuracy is that of "
      "the order of training. The closer the two values of staleness are, the better is the approximation."
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
