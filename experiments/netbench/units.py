"""Bandwidths and latencies as a user writes them: 200mbit, 5ms."""

import re

RATES = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
TIMES = {"us": 1e-6, "ms": 1e-3, "s": 1.0}


def bandwidth(text: str) -> float:
  """Return bits per second of "200mbit"; ValueError for none, or one that the link cannot carry."""
  found = _number("bandwidth", text, RATES, "200mbit")
  if not 1e6 <= found <= 1e10:
    raise ValueError(f"--bandwidth={text}; invalid: must be from 1mbit to 10gbit")
  return found


def latency(text: str) -> float:
  """Return seconds of "5ms"; ValueError for none, or one above a second."""
  found = _number("latency", text, TIMES, "5ms")
  if found > 1:
    raise ValueError(f"--latency={text}; invalid: must be at most 1s, one way")
  return found


def bandwidth_text(rate: float) -> str:
  """50e6 -> 50 Mbit/s."""
  return f"{rate / 1e9:.3g} Gbit/s" if rate >= 1e9 else f"{rate / 1e6:.3g} Mbit/s"


def _number(flag: str, text: str, units: dict[str, float], example: str) -> float:
  found = re.fullmatch(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)([a-z]+)", text.strip().lower())
  if not found or found[2] not in units:
    raise ValueError(f"--{flag}={text}; invalid: must be a number and one of {', '.join(units)}, such as {example}")
  return float(found[1]) * units[found[2]]
