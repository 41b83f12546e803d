"""Data, model or hybrid parallelism, layer by layer: the algebra of Das et al. 2016, arXiv 1602.06709.

N nodes share a mini-batch of mb examples in G groups: data parallel across groups, model parallel inside one, where
each of the N / G nodes holds a strip of the weights. G = N is data parallelism, G = 1 model parallelism.
Volumes are bytes per node and iteration. `duplex` is ov, the share of receiving that overlaps sending.
"""

import math
from typing import NamedTuple

from ddl.perf.hardware.device import Part
from ddl.perf.step.layers import Layer, Table
from ddl.perf.tables.totals import FLOAT, input_values


class Volume(NamedTuple):
  """Bytes per node and iteration."""

  model: float  # activations and their gradients, inside a group
  data: float  # gradients and weights of a strip, across groups

  @property
  def total(self) -> float:
    """Both."""
    return self.model + self.data


class Choice(NamedTuple):
  """How to run a layer."""

  layer: str
  kind: str  # "data", "model" or "hybrid"
  groups: int  # G
  volume: Volume


def flop_per_byte(layer: Layer, examples: float, duplex: float = 1.0) -> float:
  """Of data parallelism: 6 macs MBn / (4 weights (2 - ov)), which at ov = 1 is 1.5 ow oh MBn: kernels don't matter."""
  return layer.train_flop * examples / (FLOAT * layer.weights * (2 - duplex))


def least_examples(layer: Layer, flop_per_byte_of_node: float, duplex: float = 1.0) -> float:
  """Examples per node from which data parallelism can hide its exchange: 1.5 ow oh MBn >= peak / bandwidth at ov = 1.

  flop_per_byte_of_node: peak FLOP per second over the link's bytes per second.
  """
  return flop_per_byte_of_node / flop_per_byte(layer, 1.0, duplex)


def volume(layer: Layer, batch: float, workers: int, groups: int, duplex: float = 1.0) -> Volume:
  """As in the paper: 2 * 4 ifm iw ih mb / G, none at G = N, and 4 ifm ofm kw kh (2 - ov) G / N, none at G = 1.

  Raises:
    ValueError: unless the groups divide the workers.
  """
  _check(batch, workers, duplex)
  _check_groups(workers, groups)
  model = 0.0 if groups == workers else 2 * FLOAT * input_values(layer) * batch / groups
  data = 0.0 if groups == 1 else FLOAT * layer.weights * (2 - duplex) * groups / workers
  return Volume(model, data)


def bytes_sent(layer: Layer, batch: float, workers: int, groups: int) -> Volume:
  """Exactly what each node sends, with collectives that reach the lower bound; it receives as much.

  model: all-gather forward, reduce-scatter backward: 2 * 4 ifm iw ih mb / G * (n - 1) / n with n = N / G.
  data: reduce-scatter and all-gather of the strip: 2 * 4 ifm ofm kw kh / n * (G - 1) / G.
  The paper's volumes are these at ov = 0 without (n - 1) / n and (G - 1) / G; its data volume at ov = 1 is half.

  Raises:
    ValueError: unless the groups divide the workers.
  """
  _check(batch, workers, 0.0)
  _check_groups(workers, groups)
  size = workers // groups
  model = 2 * FLOAT * input_values(layer) * batch / groups * (size - 1) / size
  data = 2 * FLOAT * layer.weights / size * (groups - 1) / groups
  return Volume(model, data)


def ideal_groups(layer: Layer, batch: float, workers: int, duplex: float = 1.0) -> float:
  """G* = sqrt(2 N mb iw ih / ((2 - ov) ofm kw kh)), where the volume's derivative is zero.

  That of `bytes_sent` is zero at G* of ov = 0.
  """
  _check(batch, workers, duplex)
  return math.sqrt(2 * workers * batch * input_values(layer) / ((2 - duplex) * layer.weights))


def possible_groups(layer: Layer, batch: float, workers: int) -> list[int]:
  """Divisors of N that leave each group an example and each node an output map.

  Raises:
    ValueError: if there is none.
  """
  divisors = [g for g in range(1, workers + 1) if workers % g == 0]
  found = [g for g in divisors if g <= batch and workers // g <= layer.outputs]
  if not found:
    raise ValueError(
      f"{layer.name}: {workers} workers cannot share {batch:g} examples and {layer.outputs} outputs; take fewer workers"
    )
  return found


def best(layer: Layer, batch: float, workers: int, duplex: float = 1.0) -> Choice:
  """The groups with the least `volume`: of all that are possible, of equal ones the most (the least model parallel).

  Raises:
    ValueError: if the workers are more than the layer can use.
  """
  _check(batch, workers, duplex)
  volumes = {g: volume(layer, batch, workers, g, duplex) for g in possible_groups(layer, batch, workers)}
  groups = min(volumes, key=lambda g: (volumes[g].total, -g))
  kind = "data" if groups == workers else "model" if groups == 1 else "hybrid"
  return Choice(layer.name, kind, groups, volumes[groups])


def choices(table: Table, batch: float, workers: int, duplex: float = 1.0) -> tuple[Choice, ...]:
  """`best` of each layer."""
  return tuple(best(layer, batch, workers, duplex) for layer in table)


def part(layer: Layer, workers: int, groups: int) -> Part:
  """What a node computes and moves through its memory for each of its mb / N examples.

  It has 1 / n of the weights and outputs, n = N / G, and the inputs of its group's mb / G examples: n of its own share.
  """
  _check_groups(workers, groups)
  size = workers // groups
  return Part(layer.train_flop, 3 * (size * input_values(layer) + layer.activations), 3 * layer.params / size)


def _check(batch: float, workers: int, duplex: float) -> None:
  if workers < 1 or not 1 <= batch < math.inf:
    raise ValueError(f"{workers} workers and a batch of {batch:g}; both have to be at least 1")
  if not 0 <= duplex <= 1:
    raise ValueError(f"duplex is {duplex:g}; it is a share from 0 (half duplex) to 1 (full)")


def _check_groups(workers: int, groups: int) -> None:
  if groups < 1 or workers % groups:
    fits = [g for g in range(1, workers + 1) if workers % g == 0]
    raise ValueError(f"{groups} groups do not divide {workers} workers; take one of {', '.join(map(str, fits))}")
