"""Data, model or hybrid parallelism, layer by layer: the algebra of Das et al. 2016, arXiv 1602.06709.

N nodes share a mini-batch of mb examples in G groups: data parallel across groups, model parallel inside one, where
each of the N / G nodes holds a strip of the weights. G = N is data parallelism, G = 1 model parallelism.
Volumes are bytes per node and iteration. `duplex` is ov, the share of receiving that overlaps sending.
"""

import math
from functools import cache
from typing import NamedTuple

from ddl.errors import OptionError
from ddl.perf import units
from ddl.perf.layers import FLOAT, Layer, Table


class Volume(NamedTuple):
  """Bytes per node and iteration."""

  model: float  # activations and their gradients, inside a group
  data: float  # gradients and weights of a strip, across groups

  @property
  def total(self) -> float:
    """Sum of both."""
    return self.model + self.data


class LayerGroups(NamedTuple):
  """The groups of nodes chosen for a layer."""

  layer: str
  kind: str  # "data", "model" or "hybrid"
  groups: int  # G
  volume: Volume


def volume(layer: Layer, batch: float, workers: int, groups: int, duplex: float = 1.0) -> Volume:
  """Volume of the paper: 2 * 4 ifm iw ih mb / G, none at G = N, and 4 ifm ofm kw kh (2 - ov) G / N, none at G = 1."""
  _check(batch, workers, duplex)
  if groups not in _divisors(workers):
    raise OptionError("groups", f"one of the divisors of {workers} workers, {_divisors(workers)}", groups)
  model = 0.0 if groups == workers else 2 * FLOAT * layer.input_values * batch / groups
  data = 0.0 if groups == 1 else FLOAT * layer.weights * (2 - duplex) * groups / workers
  return Volume(model, data)


def possible_groups(layer: Layer, batch: float, workers: int) -> list[int]:
  """Return the divisors of N that leave each group an example and each node an output map; ValueError if none does."""
  groups = [g for g in _divisors(workers) if g <= batch and workers // g <= layer.outputs]
  if not groups:
    condition = f"few enough to share {batch:g} examples and {layer.outputs} outputs"
    raise OptionError(f"{layer.name}: workers", condition, workers)
  return groups


def best(layer: Layer, batch: float, workers: int, duplex: float = 1.0) -> LayerGroups:
  """Return the possible groups with the least `volume`; of equal ones the most groups (the least model parallel)."""
  _check(batch, workers, duplex)
  volumes = {g: volume(layer, batch, workers, g, duplex) for g in possible_groups(layer, batch, workers)}
  groups = min(volumes, key=lambda g: (volumes[g].total, -g))
  kind = "data" if groups == workers else "model" if groups == 1 else "hybrid"
  return LayerGroups(layer.name, kind, groups, volumes[groups])


def choices(table: Table, batch: float, workers: int, duplex: float = 1.0) -> tuple[LayerGroups, ...]:
  """`best` of each layer."""
  return tuple(best(layer, batch, workers, duplex) for layer in table)


@cache
def _divisors(workers: int) -> list[int]:
  small = [g for g in range(1, math.isqrt(workers) + 1) if workers % g == 0]
  return sorted({*small, *(workers // g for g in small)})


def _check(batch: float, workers: int, duplex: float) -> None:
  units.count("number of workers", workers)
  units.share("duplex", duplex)
  if not 1 <= batch < math.inf:
    raise OptionError("batch", "finite and at least 1", f"{batch:g}")
