"""Choose data, model or hybrid parallelism for each layer by communication volume (Das et al. 2016, arXiv 1602.06709).

N nodes in G groups share a mini-batch of mb examples, with data parallelism across groups and model parallelism inside
a group, where each of the N / G nodes holds a strip of the weights. G = N is data parallelism, G = 1 model parallelism.
Volumes are bytes per node and iteration. `duplex` is ov, the share of receiving that overlaps sending.
"""

import math
from functools import cache
from typing import NamedTuple

from ddl.errors import OptionError
from ddl.perf.layers import FLOAT, Layer


class Volume(NamedTuple):
  """Communication volume in bytes per node and iteration."""

  model: float  # activations and their gradients, inside a group
  data: float  # gradients and weights of a strip, across groups

  @property
  def total(self) -> float:
    """The sum of both volumes."""
    return self.model + self.data


def volume(layer: Layer, batch: float, workers: int, groups: int, duplex: float = 1.0) -> Volume:
  """Return the paper's communication volume of a layer with G groups of nodes.

  model = 2 * 4 ifm iw ih mb / G (0 for G = N), data = 4 ifm ofm kw kh (2 - ov) G / N (0 for G = 1).
  """
  model = 0.0 if groups == workers else 2 * FLOAT * layer.input_values * batch / groups
  data = 0.0 if groups == 1 else FLOAT * layer.weights * (2 - duplex) * groups / workers
  return Volume(model, data)


def possible_groups(layer: Layer, batch: float, workers: int) -> list[int]:
  """Return the divisors of N that are possible numbers of groups.

  Each group needs at least one example, and each node at least one output map. Raises OptionError if there is none.
  """
  groups = [g for g in _divisors(workers) if g <= batch and workers // g <= layer.outputs]
  if not groups:
    nodes = f"at most {layer.outputs} nodes per group (one per output)"
    condition = f"a product of at most {batch:g} groups (one per example) and {nodes}"
    raise OptionError(f"{layer.name}: workers", condition, workers)
  return groups


def best(layer: Layer, batch: float, workers: int, duplex: float = 1.0) -> tuple[int, Volume]:
  """Return the number of groups with the least total `volume` (among equal ones, the largest), and this volume."""
  volumes = {g: volume(layer, batch, workers, g, duplex) for g in possible_groups(layer, batch, workers)}
  groups = min(volumes, key=lambda g: (volumes[g].total, -g))
  return groups, volumes[groups]


@cache
def _divisors(workers: int) -> list[int]:
  small = [g for g in range(1, math.isqrt(workers) + 1) if workers % g == 0]
  return sorted({*small, *(workers // g for g in small)})
