"""Checks of arguments: each returns the value, or raises ValueError with one line: name, value, what would be valid."""

import math


def count(name: str, value: float, least: int = 1) -> int:
  """Return an integer of at least `least`."""
  if not value >= least or value % 1:
    raise ValueError(f"{name} is {value:g}; invalid: must be an integer of {least} or more")
  return int(value)


def amount(name: str, value: float) -> float:
  """Return a finite number of 0 or more."""
  if not 0 <= value < math.inf:
    raise ValueError(f"{name} is {value:g}; invalid: must be finite and 0 or more")
  return value


def positive(name: str, value: float) -> float:
  """Return a finite number above 0."""
  if not 0 < value < math.inf:
    raise ValueError(f"{name} is {value:g}; invalid: must be finite and above 0")
  return value


def share(name: str, value: float) -> float:
  """Return a number from 0 to 1."""
  if not 0 <= value <= 1:
    raise ValueError(f"{name} is {value:g}; invalid: must be from 0 to 1")
  return value
