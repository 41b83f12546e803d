"""The axes of a grid's panels: their limits, scales, and the tick labels that there is room for."""

from typing import Any

import numpy as np

from experiments.report.grid.grid_data import SPEEDUP, Chart
from experiments.report.reader import SCORES

BEYOND = 1.0  # times the range of the means: how far an axis goes for the ends of bars; arrows mark those cut there
FIGURE, LETTER = 0.088, 0.072  # inches of a tick label's and of a title's character, on average


def limits(shown: Chart) -> tuple[float, float]:
  """Of y: around all means, and as far as the bars go unless that hides the means."""
  estimates = [each for panel in shown.panels for line in panel.lines for each in line.estimates]
  means = np.array([each.mean for each in estimates])
  ends = np.array([each.interval or (each.mean, each.mean) for each in estimates])
  if shown.ideal is not None:
    means = np.append(means, [1.0, max(shown.ticks) / shown.ideal])
  if shown.log_y:
    means, ends = np.log(means), np.log(np.maximum(ends, 1e-300))
  low, high = float(means.min()), float(means.max())
  room = high - low or 0.1 * abs(high) or 1.0
  low, high = max(float(ends.min()), low - BEYOND * room), min(float(ends.max()), high + BEYOND * room)
  low, high = min(low, float(means.min())) - 0.06 * room, max(high, float(means.max())) + 0.06 * room
  if shown.log_y:
    return float(np.exp(low)), float(np.exp(high))
  at_most = 1.0 + 0.02 * room if shown.quantity == "test_accuracy" else np.inf
  return (max(low, 0.0) if shown.quantity != "test_loss" else low), min(high, at_most)


def dress(axes: Any, shown: Chart, limits: tuple[float, float], inches: float) -> None:
  """Scales, ticks and limits of a panel that is about so wide."""
  from matplotlib import ticker

  places = np.array([*shown.ticks])
  if shown.log_x:
    axes.set_xscale("log")
    reach = (places.max() / places.min()) ** 0.06
    axes.set_xlim(places.min() / reach, places.max() * reach)
  else:
    room = 0.06 * (places.max() - places.min())
    axes.set_xlim(places.min() - room, places.max() + room)
  axes.xaxis.set_minor_locator(ticker.NullLocator())
  labels = _room(shown, inches)
  if "" in labels and not shown.numbers:  # names are all needed
    axes.set_xticks(places, [*shown.ticks.values()], rotation=30, ha="right", rotation_mode="anchor")
  else:
    axes.set_xticks(places, labels)
  if shown.log_y:
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(ticker.LogLocator(subs=(1,) if limits[1] > 300 * limits[0] else (1, 2, 5)))
    axes.yaxis.set_minor_formatter(ticker.NullFormatter())
  if shown.quantity == "test_accuracy":
    axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.4g} %")
  elif shown.quantity in SCORES or shown.quantity == SPEEDUP:
    axes.yaxis.set_major_formatter("{x:g}")
  elif shown.quantity in ("bytes_sent", "step", "examples"):
    unit = "B" if shown.quantity == "bytes_sent" else ""
    axes.yaxis.set_major_formatter(ticker.EngFormatter(unit=unit, sep=" " if unit else ""))
  else:
    axes.yaxis.set_major_formatter("{x:,.6g} s")
  axes.set_ylim(*limits)
  axes.grid(True)


def _room(shown: Chart, inches: float) -> list[str]:
  """The labels of the ticks, empty where they would touch another; the first and the last are kept."""
  places = np.array([*shown.ticks])
  along = np.log(places) if shown.log_x else places
  middle = (along - along[0]) / max(float(np.ptp(along)), 1e-12) * 0.89 * inches
  half = np.array([(len(label) + 1) / 2 * FIGURE for label in shown.ticks.values()])
  last, kept = len(half) - 1, [0]
  for number in range(1, last):
    if all(abs(middle[number] - middle[other]) > half[number] + half[other] for other in (kept[-1], last)):
      kept.append(number)
  kept += [last] if middle[last] - middle[0] > half[last] + half[0] else []
  return [label if number in kept else "" for number, label in enumerate(shown.ticks.values())]
