"""Clusters by name, each with its source. A new one is an entry in the file of its kind."""

import difflib
from collections.abc import Sequence

from ddl.perf.hardware.cluster import Cluster
from ddl.perf.hardware.published import DASGD, NODES, SC17
from ddl.perf.hardware.today import TODAY

__all__ = ["CLUSTERS", "Cluster", "named"]

CLUSTERS: dict[str, Cluster] = {**NODES, **SC17, **DASGD, **TODAY}


def named(name: str, more: Sequence[str] = ()) -> Cluster:
  """Return the cluster; ValueError, with the nearest name, for an unknown one. more: names of others elsewhere."""
  if name in CLUSTERS:
    return CLUSTERS[name]
  known = [*CLUSTERS, *more]
  near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
  hint = f"did you mean '{near[0]}'? " if near else ""
  raise ValueError(f"no cluster named '{name}': {hint}known are {', '.join(known)}")
