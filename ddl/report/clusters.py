"""The report's section on clusters: predicted times to the target, and break-even bandwidths."""

import math
from collections.abc import Mapping
from typing import Any

from ddl.report import formats, frames
from ddl.report.formats import rate
from ddl.report.frames import Frames
from ddl.report.reader import PREDICTED
from ddl.report.sentences import claim, ranking_text
from ddl.report.settings import of_labels
from ddl.report.statistics import log_summary
from ddl.report.tables import Cell, column

STARTING = 1e-5  # approximate seconds to launch a step; they are not predicted, so shorter predictions are too low
PARTS = ("step", "exchange", "message", "service")


def caveats(tables: Frames) -> dict[str, Any]:
  """Return the facts on which the section's notes depend.

  wrapped: the labels of algorithms with a wrapper; is_stale: whether any algorithm has a staleness; short: the clusters
  with predicted steps shorter than STARTING.
  """
  wrappers = {info["label"]: info["settings"].get("wrapper") or {} for info in tables.comparison.infos}
  figures = {name: list(entry["algorithms"].values()) for name, entry in tables.comparison.clusters.items()}
  return {
    "wrapped": [label for label, wrapper in wrappers.items() if wrapper.get("name", "none") != "none"],
    "is_stale": any("staleness" in parts for algorithms in figures.values() for parts in algorithms),
    "short": [name for name in figures if any(parts["step_seconds"] < STARTING for parts in figures[name])],
  }


def columns(tables: Frames) -> tuple[dict[str, list[Cell]], dict[str, list[Cell]]]:
  """Return two maps from cluster to table column: predicted times to the target, and times of a step and its parts."""
  entries = tables.comparison.clusters
  times = {name: column(tables, frames.quantity(f"{PREDICTED}_{name}")) for name in entries}
  return times, {name: [_parts(entries[name]["algorithms"][label]) for label in tables.labels] for name in entries}


def sentences_of(tables: Frames) -> list[str]:
  """Return a sentence per cluster on the fastest algorithm and its break-even bandwidths."""
  comparison, sentences = tables.comparison, []
  workers = formats.between(of_labels(comparison.info, "workers"), "worker")
  none = "no algorithm reaches it with every seed"
  if comparison.disjoint:
    none = "not ranked, as no seed is common to all labels"
  for name, entry in comparison.clusters.items():
    quantity = frames.quantity(f"{PREDICTED}_{name}")
    parts = ranking_text(tables, quantity)
    others = f" {break_even(entry)}" if parts and entry["break_even"] else ""
    sentences.append(f"{claim(tables, quantity)} with {workers}: {'; '.join(parts) or none}.{others}")
  return sentences


def break_even(entry: Mapping[str, Any]) -> str:
  """Describe the bandwidths at which another algorithm would have the lowest mean time, without a significance test."""
  result, bandwidth = entry["break_even"], entry["bandwidth"]
  if result["crossings"]:
    text = "; ".join(_overtaking(crossing, bandwidth) for crossing in result["crossings"])
    return f"By the means, {text}; the link {entry['link']} has {rate(bandwidth)}."
  low, high = map(rate, result["searched"])
  return f"At every bandwidth from {low} to {high}, {result['winner']} has the lowest mean, possibly tied."


def _overtaking(crossing: Mapping[str, Any], bandwidth: float) -> str:
  """Describe the bandwidth below or above which another algorithm is fastest, with a 95 % interval over seeds."""
  values = [value for value in crossing["bandwidths"] if value is not None]
  mean, low, high = log_summary(values or [crossing["mean"]])
  spread = "" if math.isnan(low) else f" ({rate(low)} to {rate(high)})"
  count, seeds = len(values), len(crossing["bandwidths"])
  within = "" if count == seeds else f", in {count} of {seeds} seeds" if count else ", but in no single seed"
  side = "below" if crossing["mean"] < bandwidth else "above"
  return f"{side} {rate(mean)}{spread}{within}, {crossing['other']} would be fastest"


def _parts(figures: Mapping[str, Any]) -> Cell:
  """Return the table cell with the seconds per step, the seconds of its parts, and the staleness if there is any."""
  seconds = {name: figures[f"{name}_seconds"] for name in PARTS if f"{name}_seconds" in figures}
  parts = [f"{name} {formats.figure('seconds', value)}" for name, value in seconds.items()]
  if stale := figures.get("staleness"):
    parts.append(f"staleness {stale['there']:.1f}, in training {stale['trained']:.1f}")
  return Cell(formats.figure("seconds", figures["seconds_per_step"]), details=tuple(parts))
