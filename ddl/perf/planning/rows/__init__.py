"""Rows of a plan: a quantity, its value, the formula behind it and what limits it."""

from typing import NamedTuple


class Row(NamedTuple):
  """One recommendation."""

  quantity: str
  value: str
  why: str  # the formula with its numbers
  limit: str  # what keeps it from being larger, or smaller
