"""What every run in real time tells of itself, on threads and on Ray."""

from typing import NamedTuple


class Progress(NamedTuple):
  """How far a run is."""

  visits: int
  exchanges: int  # visits in which something moved: all, but for those of peer-to-peer algorithms without a peer
  seconds: float  # since the first turns began: compilation and the start of processes lie before


class NotFinite(ValueError):
  """A loss, a message or the center is no longer finite."""
