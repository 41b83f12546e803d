"""The report's section on clusters: the runs on the clock of each one, who is first there, and where that turns."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ddl.perf.planning import time_to_accuracy
from ddl.perf.planning.time_to_accuracy import Reached, Verdict
from experiments.report import formats, templates
from experiments.report.comparison import Comparison, read

TEMPLATE = Path(__file__).with_name("cluster_section.html")
UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))
STARTING = (
  1e-5  # seconds: what a device takes to start a step at all, roughly; below, the arithmetic is not what counts
)


class OnCluster(NamedTuple):
  """A cluster's entry with what it says of the target."""

  entry: dict[str, Any]
  times: dict[str, Reached]  # by label
  verdict: Verdict
  sentence: str


def on_clusters(comparison: Comparison) -> list[OnCluster]:
  """Of a comparison made with --cluster, [] for others.

  Raises:
    ValueError: if the predicted seconds are not of these runs.
  """
  return [_on(comparison, entry) for entry in comparison.info.get("clusters") or []]


def sentences(folder: Path) -> list[str]:
  """One sentence or two per cluster, from a comparison's folder."""
  return [each.sentence for each in on_clusters(read(Path(folder)))]


def section(comparison: Comparison) -> tuple[str, list[Any]]:
  """The section as HTML, "" for a comparison without clusters; and its pictures."""
  from experiments.report.figures import curves, line_data

  found = on_clusters(comparison)
  if not found:
    return "", []
  pictures = []
  for each in found:
    shown = line_data.chart(_on_its_clock(comparison, each), "virtual_seconds", comparison.metric)
    if shown is not None:
      name, metric = each.entry["name"], formats.NAMES[comparison.metric]
      title = f"{metric[0].upper()}{metric[1:]} against predicted time on {name}"
      picture = curves.picture(shown._replace(title=title, x_label="predicted seconds"), comparison)
      pictures.append(picture._replace(name=f"{picture.name.partition('_')[0]}_on_{name}"))
  text = templates.template(TEMPLATE).render(
    goal=formats.target(comparison.metric, comparison.target),
    clusters=[{"info": each.entry, "sentence": each.sentence, "link": _link(each.entry)} for each in found],
    rows=[_row(result.info["label"], found) for result in comparison.results],
    parts=[_parts(result.info["label"], found) for result in comparison.results],
    notes=_notes(found),
    pictures=[picture.embedded() for picture in pictures],
  )
  return text, pictures


def seconds(mean: float, half: float | None = None) -> str:
  """`mean` or `mean ± half`, in the unit that suits the larger one."""
  largest = max(mean, half or 0.0)
  scale, unit = next((each for each in UNITS if largest >= each[0]), UNITS[-1] if largest else UNITS[0])
  places = formats.decimals(largest / scale, 3)
  return f"{mean / scale:,.{places}f}" + ("" if half is None else f" ± {half / scale:,.{places}f}") + f" {unit}"


def _on(comparison: Comparison, entry: dict[str, Any]) -> OnCluster:
  times = {}
  for result in comparison.results:
    label, runs = result.info["label"], {run.name: run.columns for run in result.runs}
    at, before = [], []
    for path, clock in zip(result.info["runs"], entry["algorithms"][label]["seconds"], strict=True):
      columns = runs.get(Path(path).name.replace("-", " "))
      if len(clock) != (0 if columns is None else len(columns["step"])):
        raise ValueError(f"comparison.json: {entry['name']} has {len(clock)} times of {path}, which has other lines")
      if columns is None:
        columns = {"step": np.empty(0), comparison.metric: np.empty(0)}
      found = time_to_accuracy.hit(
        columns["step"], columns[comparison.metric], comparison.target, comparison.higher_is_better
      )
      where = [np.searchsorted(columns["step"], step) if step == step else None for step in found]
      for kept, index in zip((at, before), where, strict=True):
        kept.append(math.nan if index is None else clock[index])
    times[label] = Reached(np.array(at), np.array(before), time_to_accuracy.estimate(at))
  verdict = time_to_accuracy.verdict(times)
  return OnCluster(entry, times, verdict, _sentence(comparison, entry, times, verdict))


def _sentence(comparison: Comparison, entry: Mapping[str, Any], times: Mapping[str, Reached], found: Verdict) -> str:
  goal = formats.target(comparison.metric, comparison.target)
  where = f"On {entry['name']} with {entry['workers']} workers"
  if found.winner is None:
    return f"{where}: no algorithm reaches {goal} with every seed."
  best = times[found.winner].estimate
  told = f"{where}: {found.winner} reaches {goal} first, after {seconds(best.mean, best.half)}"
  if found.second is None or found.lead is None:
    return f"{told}; no other does with every seed."
  told += f", {found.second} {seconds(found.lead.mean, found.lead.half)} later"
  if not found.certain:
    told += " (not told apart: " + ("one seed)" if best.seeds == 1 else "the seeds and evaluations leave it open)")
  return f"{told}. {_turn(entry)}"


def _turn(entry: Mapping[str, Any]) -> str:
  """At which bandwidths another would be first."""
  turn, here = entry["break_even"], entry["bandwidth"]
  if not turn["turns"]:
    low, high = (_rate(bandwidth) for bandwidth in turn["searched"])
    slow, fast = (f"{end['ratio']:.2g} of the time of {end['second']}" for end in turn["ends"])
    return (
      f"At no bandwidth from {low} to {high} would another be first: {turn['winner']} takes {slow} at the low end, "
      f"where time is what is sent, and {fast} at the high end, where it is steps and latency."
    )
  told = "; ".join(_overtaking(each, here) for each in turn["turns"])
  return f"{told[0].upper()}{told[1:]}; the link {entry['link']} has {_rate(here)}."


def _overtaking(turn: Mapping[str, Any], here: float) -> str:
  """Below or above which bandwidth who would be first, with the interval over the seeds that see it."""
  values = [value for value in turn["bandwidths"] if value is not None]
  mean, least, most = time_to_accuracy.interval(values or [turn["mean"]])
  spread = "" if math.isnan(least) else f" ({_rate(least)} to {_rate(most)})"
  count = "" if len(values) == len(turn["bandwidths"]) else f", in {len(values)} of {len(turn['bandwidths'])} seeds"
  return f"{'below' if turn['mean'] < here else 'above'} {_rate(mean)}{spread}{count}, {turn['other']} would be first"


def _row(label: str, found: Sequence[OnCluster]) -> dict[str, Any]:
  """A line of the table: a cell per cluster."""
  cells: list[dict[str, Any]] = []
  for each in found:
    estimate = each.times[label].estimate
    if not estimate.reached:
      cell = {"text": "never", "kind": "partial", "of": ""}
    elif estimate.reached < estimate.seeds:
      of = f"{estimate.reached}/{estimate.seeds} reached"
      cell = {"text": seconds(estimate.mean, estimate.half), "kind": "partial", "of": of}
    else:
      winner = each.verdict.winner
      pair = {name: each.times[name] for name in (winner, label) if name is not None}
      kind = "best" if winner == label else "" if time_to_accuracy.verdict(pair).certain else "tied"
      cell = {"text": seconds(estimate.mean, estimate.half), "kind": kind, "of": ""}
    cells.append(cell | {"label": each.entry["name"]})
  return {"label": label, "cells": cells}


def _parts(label: str, found: Sequence[OnCluster]) -> dict[str, Any]:
  """What a step and an exchange take."""
  cells = []
  for each in found:
    figures = each.entry["algorithms"][label]
    names = {"step_seconds": "step", "exchange_seconds": "exchange", "message_seconds": "message"}
    names["service_seconds"] = "service"
    parts = [f"{name} {seconds(figures[key])}" for key, name in names.items() if key in figures]
    if "staleness" in figures:
      stale = figures["staleness"]
      parts.append(f"staleness {stale['there']:.1f}, trained with {stale['trained']:.1f}")
    cells.append({"label": each.entry["name"], "text": seconds(figures["seconds_per_step"]), "of": parts})
  return {"label": label, "cells": cells}


def _notes(found: Sequence[OnCluster]) -> list[str]:
  first = found[0].entry
  told = [
    "Seconds are predicted, not measured. A step takes the larger of FLOP / (peak x efficiency) and bytes / memory "
    "bandwidth for each array of parameters, with "
    f"{first['flop_per_example']:.3g} FLOP per example by XLA's count of the compiled step; an exchange takes what "
    f"latency and bandwidth make of {formats.figure('bytes_sent', first['params_bytes'])} of parameters, by the "
    "cheapest collective of its kind. Jitter, slow workers, barrier and overlap are the config's."
  ]
  figures = [(each.entry["name"], part) for each in found for part in each.entry["algorithms"].values()]
  if any("staleness" in part for _, part in figures):
    told.append(
      "Algorithms with a server or peers were trained in the order of events that the config's times and network give. "
      "On a cluster the order is another; its seconds are those of its own order, the accuracy is that of the trained "
      "one. The closer the two stalenesses, the better that holds."
    )
  within = [each.entry["name"] for each in found if each.entry["link"] != "between nodes"]
  if within:
    told.append(f"One node of {formats.listed(within, 12)} holds all workers: its link to others is not used.")
  short = dict.fromkeys(name for name, part in figures if part["step_seconds"] < STARTING)
  if short:
    told.append(
      f"A step is under {seconds(STARTING)} on {formats.listed(list(short), 12)}: less than a device needs to "
      "start one. For so small a model these are bounds, with more weight on the network than it would have."
    )
  return told


def _link(entry: Mapping[str, Any]) -> str:
  return f"{_rate(entry['bandwidth'])}, {seconds(entry['latency'])} latency {entry['link']}"


def _rate(bandwidth: float) -> str:
  return f"{formats.figure('bytes_sent', bandwidth)}/s"


def _on_its_clock(comparison: Comparison, each: OnCluster) -> Comparison:
  """The comparison with the cluster's seconds for its virtual ones."""
  results = []
  for result in comparison.results:
    clocks = each.entry["algorithms"][result.info["label"]]["seconds"]
    by_name = {Path(run).name.replace("-", " "): clock for run, clock in zip(result.info["runs"], clocks, strict=True)}
    runs = [run._replace(columns=run.columns | {"virtual_seconds": np.array(by_name[run.name])}) for run in result.runs]
    results.append(result._replace(runs=runs))
  return comparison._replace(seconds="virtual_seconds", results=results)
