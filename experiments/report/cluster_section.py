"""The report's section on clusters: predicted times to the target, the fastest algorithm, and break-even bandwidths."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from experiments.report import formats
from experiments.report.findings import versus
from experiments.report.formats import seconds
from experiments.report.reader import Comparison, read, run_name
from experiments.report.settings_table import of_labels
from experiments.report.statistics import summary
from experiments.report.table_rows import Row, by_row, cell, cells, ranking, rows

STARTING = 1e-5  # seconds that a device takes to start a step, roughly; below, the arithmetic does not count
TIME = "virtual_seconds"  # the column that holds a cluster's predicted seconds
PARTS = ("step", "exchange", "message", "service")


class OnCluster(NamedTuple):
  """A comparison in the seconds of a cluster, its rows, and the sentence on who reaches the target first."""

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
  return [each.sentence for each in on_clusters(read(Path(folder)))]


def section(comparison: Comparison) -> tuple[dict[str, Any] | None, list[Any]]:
  """What the section's template needs, None for a comparison without clusters; and the section's pictures."""
  from experiments.report.figures import curves, line_data

  found = on_clusters(comparison)
  if not found:
    return None, []
  pictures = []
  for each in found:
    shown = line_data.chart(each.comparison, TIME, comparison.metric)
    if shown is not None:
      name, metric = each.entry["name"], formats.NAMES[comparison.metric]
      title = f"{metric[0].upper()}{metric[1:]} against predicted time on {name}"
      picture = curves.picture(shown._replace(title=title, x_label="predicted seconds"), comparison)
      pictures.append(picture._replace(name=f"{picture.name.partition('_')[0]}_on_{name}"))
  labels = [result.info["label"] for result in comparison.results]
  parts = {each.entry["name"]: [_parts(each.entry["algorithms"][label]) for label in labels] for each in found}
  return {
    "found": [{"info": each.entry, "sentence": each.sentence, "link": _link(each.entry)} for each in found],
    "rows": by_row(labels, {each.entry["name"]: cells(each.table, TIME, seconds) for each in found}),
    "parts": by_row(labels, parts),
    "notes": _notes([each.entry for each in found]),
    "pictures": [picture.embedded() for picture in pictures],
  }, pictures


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
  goal = formats.target(comparison.metric, comparison.target)
  where = f"On {entry['name']} with {formats.between(of_labels(comparison.info, 'workers'))} workers"
  ranked, _ = ranking(table, TIME)
  if not ranked:
    return f"{where}: no algorithm reaches {goal} with every seed."
  best = ranked[0].estimates[TIME]
  told = f"{where}: {ranked[0].label} reaches {goal} first, after {seconds(best.mean, best.half)}"
  if len(ranked) == 1:
    return f"{told}; no other does with every seed."
  second = versus(TIME, TIME, ranked[1], ranked[0])
  return f"{told}; the next on average, {ranked[1].label}, {second}. {turns(entry)}"


def turns(entry: Mapping[str, Any]) -> str:
  """The bandwidths at which another would be first."""
  turn, here = entry["break_even"], entry["bandwidth"]
  if not turn["turns"]:
    low, high = (_rate(bandwidth) for bandwidth in turn["searched"])
    slow, fast = (f"{end['ratio']:.2g} times as long as {end['second']}" for end in turn["ends"])
    return (
      f"At no bandwidth from {low} to {high} would another be first: {turn['winner']} takes {slow} at the low "
      f"end, where bandwidth determines the time, and {fast} at the high end, where steps and latency do."
    )
  told = "; ".join(_overtaking(each, here) for each in turn["turns"])
  return f"{told[0].upper()}{told[1:]}; the link {entry['link']} has {_rate(here)}."


def _overtaking(turn: Mapping[str, Any], here: float) -> str:
  """Below or above which bandwidth another would be first, with the interval over the seeds where that happens."""
  values = [value for value in turn["bandwidths"] if value is not None]
  log, half = summary(np.log(values or [turn["mean"]]))  # bandwidths are averaged as ratios
  mean, spread = math.exp(log), ""
  if half is not None:
    spread = f" ({_rate(math.exp(log - half))} to {_rate(math.exp(log + half))})"
  count = "" if len(values) == len(turn["bandwidths"]) else f", in {len(values)} of {len(turn['bandwidths'])} seeds"
  return f"{'below' if turn['mean'] < here else 'above'} {_rate(mean)}{spread}{count}, {turn['other']} would be first"


def _parts(figures: Mapping[str, Any]) -> dict[str, Any]:
  """Seconds of a step and its parts."""
  parts = [f"{name} {seconds(figures[f'{name}_seconds'])}" for name in PARTS if f"{name}_seconds" in figures]
  if "staleness" in figures:
    stale = figures["staleness"]
    parts.append(f"staleness {stale['there']:.1f}, trained with {stale['trained']:.1f}")
  return cell(seconds(figures["seconds_per_step"]), "", *parts)


def _notes(entries: Sequence[Mapping[str, Any]]) -> list[str]:
  first = entries[0]
  nbytes = formats.figure("bytes_sent", first["params_bytes"])
  told = [
    "Seconds are predicted, not measured. For each array of parameters a step takes the larger of FLOP / (peak x "
    f"efficiency) and bytes / memory bandwidth, with {first['flop_per_example']:.3g} FLOP per example as XLA counts "
    f"the compiled step; an exchange takes what latency and bandwidth make of {nbytes} of parameters, by the cheapest "
    "collective of its kind. Jitter, slow workers, barrier and overlap are those of the config."
  ]
  figures = [(entry["name"], part) for entry in entries for part in entry["algorithms"].values()]
  if any("staleness" in part for _, part in figures):
    told.append(
      "Algorithms with a server or peers were trained in the order of events that results from the config's times and "
      "network. On a cluster the order differs: the predicted seconds are those of that order, the accuracy is that of "
      "the order of training. The approximation is the better, the closer the two values of staleness are."
    )
  within = [entry["name"] for entry in entries if entry["link"] != "between nodes"]
  if within:
    told.append(f"One node of {formats.listed(within, 12)} holds all workers: no message leaves the node.")
  short = dict.fromkeys(name for name, part in figures if part["step_seconds"] < STARTING)
  if short:
    told.append(
      f"A step takes less than {seconds(STARTING)} on {formats.listed(list(short), 12)}, less than a device "
      "needs to start one: for so small a model the times are lower bounds, and the network's share is too large."
    )
  return told


def _link(entry: Mapping[str, Any]) -> str:
  return f"{_rate(entry['bandwidth'])}, {seconds(entry['latency'])} latency {entry['link']}"


def _rate(bandwidth: float) -> str:
  return f"{formats.figure('bytes_sent', bandwidth)}/s"
