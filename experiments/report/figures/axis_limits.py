"""Where the upright axis of a figure of learning curves begins and ends."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
  from experiments.report.figures.mean_lines import Line

BELOW = 0.5  # times the range of the ends: how far an accuracy axis extends below the worst, and above for bands
FAR, LEAST = 4, 0.05  # an end that is FAR ranges of the better ones below them, each LEAST or more, is off that axis
STEPS = (0.1, 0.05, 0.02, 0.01, 0.005, 0.002, 0.001)  # of which an accuracy axis starts at a multiple


def _of_accuracy(lines: Sequence["Line"], targets: Sequence[float]) -> tuple[float, float]:
  """From somewhat below the worst end, or the target, to the best accuracy and what bands need above it.

  How lines rise from the start is left out, as it would squeeze their ends; so are ends far below all others.
  """
  ends = sorted((float(line.mean[-1]) for line in lines), reverse=True)
  kept = ends[:1]
  for end in ends[1:]:
    if kept[-1] - end > FAR * max(LEAST, kept[0] - kept[-1]):
      break
    kept.append(end)
  lowest, highest = min([*targets, *kept]), max([*targets, *(float(line.mean.max()) for line in lines)])
  room = highest - lowest or 0.01
  low = lowest - BELOW * room
  step = next((each for each in STEPS if each <= room / 4), STEPS[-1])
  low = max(0.0, step * float(np.floor(low / step + 1e-9)))
  bands = [float(line.band[1][line.mean >= low].max(initial=0.0)) for line in lines if line.band is not None]
  highest = max(highest, min(highest + BELOW * room, max(bands, default=0.0)))
  return float(low), float(min(1.0 + min(0.005, 0.03 * (1.0 - low)), highest + 0.06 * (highest - low)))


def limits(lines: Sequence["Line"], y: str, target: float | None, floor: float | None) -> tuple[float, float]:
  """Of the metric y. floor: of a log axis."""
  targets = [] if target is None else [target]
  if y == "test_accuracy":
    return _of_accuracy(lines, targets)
  values = np.concatenate([line.mean for line in lines])
  values = values[values > floor] if floor is not None else values  # leaves out NaN too
  highest = float(values.max())
  if y in ("test_loss", "test_perplexity"):  # a diverging loss must not set the scale
    highest = min(highest, 3 * max(float(np.nan_to_num(line.mean[0])) for line in lines))
  lowest, highest = min([float(values.min()), *targets]), max([highest, *targets])
  if floor is not None:
    return lowest / 1.3, highest * 1.3
  pad = 0.05 * (highest - lowest) or 0.05 * abs(highest) or 1.0
  return max(0.0, lowest - pad) if lowest >= 0 else lowest - pad, highest + pad
