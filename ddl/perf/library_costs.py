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

from ddl.perf.hardware.cluster import Library, Link, Network, Protocol


class Way(NamedTuple):
  """An algorithm's steps and bytes on both levels."""

  name: str
  inside: int  # steps
  between: int
  near: float  # bytes each way of a worker's link
  far: float  # bytes each way of a node's link


def all_reduce(nbytes: float, workers: int, network: Network, processes: bool = True) -> dict[str, float]:
  """Seconds by algorithm and protocol, such as "ring/LL". processes: one of each worker; else one drives all of a node.

  One process starts its devices one after the other, while the last call is still on its way: the larger counts.
  """
  library, link = _library(network), network.inside or network.between
  if workers == 1:
    return {"ring/LL": 0.0}
  started = library.launch * (1 if processes else network.together(workers))
  found = {}
  for way in _ways(nbytes, workers, network):
    for protocol in (library.switch,) if way.name == "switches" else library.protocols:
      share = protocol.share * (1 if way.name == "switches" else library.inside)
      seconds = _seconds(way, protocol, (link, share), network.way_out(workers), library)
      found[f"{way.name}/{protocol.name}"] = max(started, seconds)
  return found


def one_way(kind: str, nbytes: float, workers: int, network: Network) -> dict[str, float]:
  """Seconds of reduce_scatter or all_gather on the ring, of reduce or broadcast on the tree, by protocol."""
  library, link = _library(network), network.inside or network.between
  if workers == 1:
    return {"ring/LL": 0.0}
  wanted = "ring" if kind in ("reduce_scatter", "all_gather") else "tree"
  way = next(each for each in _ways(nbytes, workers, network) if each.name == wanted)
  half = Way(wanted, way.inside // 2, way.between // 2, *(min(sent / 2, nbytes) for sent in (way.near, way.far)))
  if wanted == "tree":  # all links carry all of it
    half = half._replace(near=nbytes if way.near else 0.0, far=nbytes if way.far else 0.0)
  return {
    f"{wanted}/{each.name}": _seconds(
      half, each, (link, each.share * library.inside), network.way_out(workers), library
    )
    for each in library.protocols
  }


def _library(network: Network) -> Library:
  if network.library is None:
    raise ValueError("the network has no library; give it one, such as ddl.perf.hardware.cluster.NCCL")
  return network.library


def _ways(nbytes: float, workers: int, network: Network) -> Iterator[Way]:
  together, nodes = network.together(workers), network.nodes(workers)
  depth, far = 2 * (nodes - 1).bit_length(), nbytes * min(nodes - 1, 2)  # of two nodes, each sends all once
  ring = 2 * nbytes * (workers - 1) / workers
  yield Way("ring", 2 * (workers - nodes), 2 * (nodes - 1), ring if together > 1 else 0.0, ring if nodes > 1 else 0.0)
  if nodes > 1 and "between" in network.reduces:
    depth, far = 2, nbytes
  yield Way("tree", 2 * (together - 1), depth, nbytes * min(together - 1, 2), far)
  if together > 1 and "inside" in network.reduces:
    yield Way("switches", 2, depth, nbytes * (1 + 1 / together), far)


def _seconds(way: Way, protocol: Protocol, inside: tuple[Link, float], out: Link, library: Library) -> float:
  """inside: the link there, and the share of its bandwidth."""
  link, share = inside
  steps = way.inside * (protocol.inside + link.latency)
  steps += way.between * (protocol.between + protocol.trips * out.latency)
  reached = library.between * (1 if way.name == "switches" else protocol.share)
  near, far = (each.busy_seconds(sent, sent) for each, sent in ((link, way.near), (out, way.far)))
  return protocol.call + steps + max(near / share, far / reached)
