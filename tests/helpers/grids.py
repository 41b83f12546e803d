"""Folders of comparisons over a grid with synthetic metrics, for the tests of reports."""

from itertools import product
from pathlib import Path

from helpers.comparisons import comparison

EVERY, LINES = 10, 5


def grid(folder: Path, axes: dict, loss, groups=("sync", "local"), lacks=None, seeds=3, **info) -> Path:
  """Write a comparison of all groups at all points of the grid; 8 workers take 40 steps, fewer workers more.

  loss: (group, point, seed) -> loss of the last of five lines, between which it changes by equal factors.
  lacks: group -> keys of the grid that it does not read.
  """
  runs, settings, places = {}, {}, {}
  for group in groups:
    for values in product(*axes.values()):
      point = dict(zip(axes, values, strict=True))
      point = {key: value for key, value in point.items() if key not in (lacks or {}).get(group, ())}
      label = ", ".join([group, *(f"{key.rpartition('.')[2]} {value}" for key, value in point.items())])
      workers = point.get("workers", 8)
      steps = point.get("steps", 320 // workers)
      runs[label] = [_lines(loss(group, point, seed), workers, steps) for seed in range(seeds)]
      settings[label] = {"workers": workers, "steps": steps}
      places[label] = {"group": group, "point": point}
  more = {"metric": "test_loss", "value": 0.1, "grid": {key: list(values) for key, values in axes.items()}} | info
  return comparison(folder, runs, settings=settings, places=places, **more)


def _lines(last: float, workers: int, steps: int) -> list[dict]:
  results = []
  for number in range(LINES):
    step = steps * number / (LINES - 1)
    line = {"step": step, "examples": 16 * workers * step, "epoch": 0.1 * step, "distance": 0.1 * (number > 0)}
    line |= {"test_loss": last ** (number / (LINES - 1)), "bytes_sent": 100 * step, "seconds": 0.5 * step}
    results.append(line | ({"train_loss": 0.1} if step else {}))
  return results
