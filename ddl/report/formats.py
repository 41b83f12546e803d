"""Format numbers, intervals, units and lists as text."""

import math
from collections.abc import Iterable, Sequence

from ddl.names import pluralize, quoted

SECONDS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))
BYTES = ((1e15, "PB"), (1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B"))
NAMES = {  # of columns whose names are not words
  "distance": "distance between workers",
  "noise_scale": "gradient noise scale",
  "step": "steps",
  "bytes_sent": "bytes per worker",
  "seconds": "measured seconds",
}


def name(metric: str) -> str:
  """Return the name of a column in sentences and titles."""
  return NAMES.get(metric) or metric.replace("_", " ")


def is_share(metric: str) -> bool:
  """Return whether a metric is an accuracy, a share of the test examples, which is shown in percent."""
  return metric.startswith("test_") and "accuracy" in metric


def decimals(value: float) -> int:
  """Return the number of decimal places that shows three significant digits of a value."""
  return max(0, 2 - math.floor(math.log10(abs(value)))) if value and math.isfinite(value) else 0


def figure(kind: str, mean: float, half: float | None = None) -> str:
  """Format `mean` or `mean ± half` with its unit: accuracies in percent, bytes with a prefix. kind: a column."""
  return _text([mean] if half is None else [mean, half], " ± ", *_unit(kind, mean))


def with_interval(kind: str, mean: float, ends: tuple[float, float] | None) -> str:
  """Format `mean ± half`, or `mean (low to high)` if the interval is not symmetric."""
  if ends is None or math.isclose(mean - ends[0], ends[1] - mean, rel_tol=1e-6, abs_tol=1e-12):
    return figure(kind, mean, ends and (ends[1] - ends[0]) / 2)
  scale, unit, places = _unit(kind, mean)
  return f"{_text([mean], '', scale, '', places)} ({_text(ends, ' to ', scale, '', places)}) {unit}".rstrip()


def interval(kind: str, mean: float, ends: tuple[float, float]) -> str:
  """Format `low to high` in the unit of the mean."""
  return _text(ends, " to ", *_unit(kind, mean))


def estimate(kind: str, scale: str, value: float) -> str:
  """Format a ratio with three digits, or a difference with its unit (accuracies in percentage points)."""
  if scale == "ratio":
    return f"{value:,.{decimals(value)}f}"
  return figure(kind, value).replace(" %", " points")


def _unit(kind: str, value: float) -> tuple[float, str, int]:
  """Return (scale, name, number of decimals) of the unit in which to show a value."""
  if is_share(kind):
    return 0.01, "%", 2
  if kind in ("step", "examples"):
    return (1e6, "M", decimals(value / 1e6)) if abs(value) >= 1e7 else (1.0, "", 0)
  if kind != "bytes_sent" and "seconds" not in kind:
    return 1.0, "", min(6, decimals(value))
  units = BYTES if kind == "bytes_sent" else SECONDS if value else SECONDS[:1]
  scale, unit = next((unit for unit in units if abs(value) >= unit[0]), units[-1])
  return scale, unit, 0 if unit == "B" else decimals(value / scale)


def _text(values: Sequence[float], between: str, scale: float, unit: str, places: int) -> str:
  return between.join(f"{value / scale:,.{places}f}" for value in values) + f" {unit}".rstrip()


def rate(bandwidth: float) -> str:
  """Format bytes per second with a prefix."""
  return f"{figure('bytes_sent', bandwidth)}/s"


def target(kind: str, value: float) -> str:
  """Format a target without trailing zeros: 95 % rather than 95.00 %."""
  return f"{value * 100:.6g} %" if is_share(kind) else f"{value:.6g}"


def named(label: str) -> str:
  """Return an algorithm label as written in a sentence: quoted if it contains a comma."""
  return quoted(label) if ", " in label else label


def listed(names: Sequence[str], most: int = 12, labels: bool = True) -> str:
  """Format names as "a, b and c"; if there are more than `most`, format the first names and the number of others.

  labels: whether to quote names that contain commas.
  """
  names = [named(name) if labels else name for name in names]
  if len(names) > most:
    names = [*names[: most - 1], f"{len(names) - most + 1} others"]
  return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def between(values: Iterable[int], noun: str = "") -> str:
  """Format the range of values: "8" or "1 to 16", or "8 workers" with the noun "worker"."""
  least, most = min(values := list(values)), max(values)
  end = pluralize(most, noun) if noun else f"{most:,}"
  return end if least == most else f"{least:,} to {end}"


def share(part: float) -> str:
  """Format a share in percent; only exactly 1 becomes 100 % and only exactly 0 becomes 0 %."""
  if part in (0, 1):
    return f"{100 * part:.0f} %"
  return "under 0.1 %" if part < 0.0005 else "over 99.9 %" if part >= 0.9995 else f"{100 * part:.1f} %"
