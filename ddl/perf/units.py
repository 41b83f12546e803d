"""Format bytes, seconds, rates, shares and tables as text, and check names."""

from collections.abc import Iterable, Sequence

from ddl.errors import OptionError, nearest


def bytes_text(nbytes: float) -> str:
  """Format a number of bytes with decimal units: 1234567 -> 1.23 MB."""
  for unit, scale in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
    if abs(nbytes) >= scale:
      return f"{nbytes / scale:.3g} {unit}"
  return f"{nbytes:.0f} bytes"


def seconds_text(seconds: float) -> str:
  """Format seconds: 0.00123 -> 1.23 ms."""
  for unit, scale in (("s", 1.0), ("ms", 1e-3)):
    if abs(seconds) >= scale:
      return f"{seconds / scale:.3g} {unit}"
  return f"{seconds / 1e-6:.3g} us"


def rate_text(rate: float) -> str:
  """Format a rate: 12345.6 -> 12,346."""
  return f"{rate:.4g}" if rate < 1000 else f"{rate:,.0f}"


def rough_rate(rate: float) -> str:
  """Format a rate with three digits: 12345.6 -> 12,300."""
  return rate_text(float(f"{rate:.3g}"))


def percent(share: float) -> str:
  """Format a share as a percentage: 0.1234 -> 12.3 %."""
  return f"{100 * share:.3g} %"


def columns(rows: Sequence[Sequence[str]], left: int = 0) -> list[str]:
  """Format rows as lines with aligned columns; the first `left` columns are left-aligned, the others right-aligned."""
  widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
  pads = [str.ljust if i < left else str.rjust for i in range(len(widths))]
  return ["  ".join(pad(cell, width) for pad, cell, width in zip(pads, row, widths, strict=True)) for row in rows]


def choice(name: str, value: str, known: Iterable[str], advice: str = "") -> str:
  """Return the value; unless it is in `known`, raise an OptionError that suggests the most similar known name."""
  known = [*known]
  if value not in known:
    advice = " ".join(filter(None, (nearest(value, known), advice)))
    raise OptionError(name, f"one of {', '.join(filter(None, known))}", f"'{value}'", advice)
  return value
