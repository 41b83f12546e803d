"""Numbers as text: percent, thousands, megabytes, with their spread in the same unit."""

import math
from collections.abc import Iterable, Sequence

UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))
BYTES = ("B", "kB", "MB", "GB", "TB", "PB")
NAMES = {
  "test_accuracy": "test accuracy",
  "test_loss": "test loss",
  "distance": "distance between workers",
  "step": "steps",
  "examples": "examples",
  "bytes_sent": "bytes per worker",
  "seconds": "measured seconds",
  "virtual_seconds": "virtual seconds",
}


def decimals(value: float, significant: int) -> int:
  """How many decimals show that many significant digits of the value."""
  return max(0, significant - 1 - math.floor(math.log10(abs(value)))) if value and math.isfinite(value) else 0


def figure(kind: str, mean: float, half: float | None = None) -> str:
  """`mean` or `mean ± half` of a quantity of NAMES: fractions become percent, bytes get a decimal prefix."""
  scale, unit = 1.0, ""
  if kind == "test_accuracy":
    scale, unit, places = 0.01, " %", 2
  elif kind in ("step", "examples"):
    places = 0
    if abs(mean) >= 1e7:
      scale, unit, places = 1e6, " M", decimals(mean / 1e6, 3)
  elif kind == "bytes_sent":
    power = min(len(BYTES) - 1, int(math.log10(abs(mean)) // 3)) if abs(mean) >= 1 else 0
    scale, unit = 1000.0**power, f" {BYTES[power]}"
    places = decimals(mean / scale, 3) if power else 0
  elif kind in ("seconds", "virtual_seconds"):
    return seconds(mean, half)
  else:
    places = min(6, decimals(mean, 3))
  spread = "" if half is None else f" ± {half / scale:,.{places}f}"
  return f"{mean / scale:,.{places}f}{spread}{unit}"


def seconds(mean: float, half: float | None = None) -> str:
  """`mean` or `mean ± half`, in the unit that suits the larger one."""
  largest = max(abs(mean), half or 0.0)
  scale, unit = next((each for each in UNITS if largest >= each[0]), UNITS[-1] if largest else UNITS[0])
  places = decimals(largest / scale, 3)
  return f"{mean / scale:,.{places}f}" + ("" if half is None else f" ± {half / scale:,.{places}f}") + f" {unit}"


def target(kind: str, value: float) -> str:
  """A target as the config has it: 95 % rather than 95.00 %."""
  return f"{value * 100:.6g} %" if kind == "test_accuracy" else f"{value:.6g}"


def listed(names: Sequence[str], most: int = 4) -> str:
  """ "a, b and c", or the first ones and the number of others."""
  names = list(names)
  if len(names) > most:
    names = [*names[: most - 1], f"{len(names) - most + 1} others"]
  return names[0] if len(names) == 1 else ", ".join(names[:-1]) + " and " + names[-1]


def between(values: Iterable[int]) -> str:
  """8, or 1 to 16 where they differ."""
  least, most = min(values := list(values)), max(values)
  return f"{least:,}" if least == most else f"{least:,} to {most:,}"


def share(part: float) -> str:
  """A share in percent; only 1 reads as 100 % and only 0 as 0 %."""
  if part in (0, 1):
    return f"{100 * part:.0f} %"
  return "under 0.1 %" if part < 0.0005 else "over 99.9 %" if part >= 0.9995 else f"{100 * part:.1f} %"
