"""Seconds of a communication library's collectives: the cheapest of its algorithms and protocols, as it would choose.

An algorithm is a number of steps in the nodes and between them, and bytes that a worker's link and a node's link carry
each way. Both levels are busy at once, so that the slower one counts:

  seconds = call + steps inside * hop + steps between * (hop + trips * L) + max(inside, between) of bytes G / share

For m workers in each of q nodes, p in all, n bytes:

  ring      2 (p - q) and 2 (q - 1) steps; 2 n (p - 1) / p inside and between
  tree      2 (m - 1) and 2 ceil(log2 q) steps, a chain in each node: 2 n inside (n of two), 2 n between (n of two)
  switches  2 and 2 ceil(log2 q) steps; n (1 + 1 / m) inside, between as the tree

Where the switches between nodes add up, 2 steps and n bytes between.
"""

from collections.abc import Iterator
from typing import NamedTuple

from ddl.perf.cluster import Library, NetworkModel, Protocol


class LibraryAlgorithm(NamedTuple):
  """An algorithm's steps and bytes on both levels."""

  name: str
  inside: int  # steps
  between: int
  near: float  # bytes each way of a worker's link
  far: float  # bytes each way of a node's link


def all_reduce(nbytes: float, workers: int, network: NetworkModel, processes: bool = True) -> dict[str, float]:
  """Seconds by algorithm and protocol, such as "ring/LL". processes: one of each worker; else one drives all of a node.

  One process starts its devices one after the other, while the last call is still on its way: the larger counts.
  """
  library = _library(network)
  if workers == 1:
    return {"ring/LL": 0.0}
  started = library.launch * (1 if processes else network.together(workers))
  return {
    f"{algorithm.name}/{protocol.name}": max(started, _seconds(algorithm, protocol, workers, network))
    for algorithm in _algorithms(nbytes, workers, network)
    for protocol in ((library.switch,) if algorithm.name == "switches" else library.protocols)
  }


def one_way(kind: str, nbytes: float, workers: int, network: NetworkModel) -> dict[str, float]:
  """Seconds of reduce_scatter or all_gather on the ring, of reduce or broadcast on the tree, by protocol."""
  library = _library(network)
  if workers == 1:
    return {"ring/LL": 0.0}
  name = "ring" if kind in ("reduce_scatter", "all_gather") else "tree"
  both = next(each for each in _algorithms(nbytes, workers, network) if each.name == name)
  near, far = (min(sent / 2, nbytes) for sent in (both.near, both.far))
  if name == "tree":  # all links carry all of it
    near, far = (nbytes if sent else 0.0 for sent in (both.near, both.far))
  half = LibraryAlgorithm(name, both.inside // 2, both.between // 2, near, far)
  return {f"{name}/{protocol.name}": _seconds(half, protocol, workers, network) for protocol in library.protocols}


def _library(network: NetworkModel) -> Library:
  if network.library is None:
    raise ValueError("the network has no library; give it one, such as ddl.perf.cluster.NCCL")
  return network.library


def _algorithms(nbytes: float, workers: int, network: NetworkModel) -> Iterator[LibraryAlgorithm]:
  together, nodes = network.together(workers), network.nodes(workers)
  depth, far = 2 * (nodes - 1).bit_length(), nbytes * min(nodes - 1, 2)  # of two nodes, each sends all once
  ring = 2 * nbytes * (workers - 1) / workers
  inside, between = ring if together > 1 else 0.0, ring if nodes > 1 else 0.0
  yield LibraryAlgorithm("ring", 2 * (workers - nodes), 2 * (nodes - 1), inside, between)
  if nodes > 1 and "between" in network.reduces:
    depth, far = 2, nbytes
  yield LibraryAlgorithm("tree", 2 * (together - 1), depth, nbytes * min(together - 1, 2), far)
  if together > 1 and "inside" in network.reduces:
    yield LibraryAlgorithm("switches", 2, depth, nbytes * (1 + 1 / together), far)


def _seconds(algorithm: LibraryAlgorithm, protocol: Protocol, workers: int, network: NetworkModel) -> float:
  library, link, out = _library(network), network.inside or network.between, network.way_out(workers)
  switches = algorithm.name == "switches"
  steps = algorithm.inside * (protocol.inside + link.latency)
  steps += algorithm.between * (protocol.between + protocol.trips * out.latency)
  inside = protocol.share * (1 if switches else library.inside)
  between = library.between * (1 if switches else protocol.share)
  near, far = link.busy_seconds(algorithm.near, algorithm.near), out.busy_seconds(algorithm.far, algorithm.far)
  return protocol.call + steps + max(near / inside, far / between)
