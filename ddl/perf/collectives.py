"""Seconds of collectives on a network: of the textbook, by levels, on a torus, in switches, or as a library does them.

n bytes are the whole vector of a worker, as in `textbook`, whose costs are those of links of one kind.

Every function raises ValueError, one line, for invalid workers, bytes or links, and for unknown algorithms.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from ddl.perf import library_costs, units
from ddl.perf.hardware.cluster import Link, Network
from ddl.perf.textbook import (
  ALL_GATHER,
  ALL_REDUCE,
  BROADCAST,
  INSIDE,
  ONE_WAY,
  REDUCE,
  REDUCE_SCATTER,
  both,
  levels,
  lower_bound,
)

__all__ = ["ALL_GATHER", "ALL_REDUCE", "BROADCAST", "ONE_WAY", "REDUCE", "REDUCE_SCATTER", "lower_bound"]
NEAR = ("ring", "tree")  # algorithms whose partners are neighbours, so that few messages cross a switch at once


def hierarchical(nbytes: float, workers: int, network: Network, inside: str = "ring", between: str = "ring") -> float:
  """Seconds of an all-reduce by levels: reduce-scatter in each node, all-reduce between nodes, all-gather in each node.

  The m workers of a node all-reduce n / m bytes each over its one link, which takes as long as n bytes of one worker.
  inside = "tree": reduce to one worker, which alone all-reduces n bytes between nodes, then broadcast.
  """
  per_node, nodes, link = _shape(workers, network)
  middle = _named(ALL_REDUCE, between)(nbytes, nodes, network.way_out(workers, between not in NEAR))
  return 2 * _named(INSIDE, inside)(nbytes, per_node, link) + middle


def in_switches(nbytes: float, workers: int, network: Network) -> float:
  """Seconds of an all-reduce whose sums the switches form, where they do, with the cheapest way on the other level.

  In a node, 2 L + n G (2 - duplex) (1 + 1 / m): a worker sends all and fetches the sum of its m-th part, then sends
  that and receives all. Between nodes, 2 L + n G (2 - duplex): all goes up the tree of switches and comes down.
  """
  per_node, nodes, link = _shape(workers, network)
  way, seconds = network.way_out(workers), 0.0
  levels(nbytes, workers, link)
  if per_node > 1:
    summed = 2 * link.latency + both(nbytes * (1 + 1 / per_node), link)
    apart = 2 * min(cost(nbytes, per_node, link) for cost in INSIDE.values())
    seconds += summed if "inside" in network.reduces else apart
  if nodes > 1:
    summed = 2 * way.latency + both(nbytes, way)
    seconds += summed if "between" in network.reduces else min(_between(nbytes, nodes, workers, network).values())
  return seconds


def on_torus(nbytes: float, workers: int, network: Network) -> float:
  """2 sum (k - 1) L + 2 n G (2 - duplex) (p - 1) / (p share): on all axes of k chips at once, each with a part of n."""
  if workers == 1 or network.torus is None:
    return 0.0
  steps, share = network.torus.steps(workers), network.torus.share(workers)
  sent = both(nbytes * (workers - 1) / workers, network.between)
  return 2 * (steps * network.between.latency + sent / share)


def all_reduce(nbytes: float, workers: int, network: Network, algorithm: str = "best") -> float:
  """Seconds on a network whose workers are numbered node by node.

  algorithm: "best" is what a library has chosen, where the network has one, else the cheapest of all; "torus",
  "switches" and "hierarchical" (the cheapest with one algorithm inside and one between nodes, and of the flat ones
  where there is only one level), one of ALL_REDUCE, or of a library's own such as "ring/LL".
  """
  per_node, nodes, link = _shape(workers, network)
  levels(nbytes, workers, link)
  two = per_node > 1 and nodes > 1
  if algorithm == "best":
    return min(_each(nbytes, workers, network).values())
  if algorithm == "hierarchical" and two:
    ways = [(inside, between) for inside in INSIDE for between in ALL_REDUCE]
    return min(hierarchical(nbytes, workers, network, *way) for way in ways)
  if algorithm == "hierarchical":
    return min(all_reduce(nbytes, workers, network, name) for name in ALL_REDUCE)
  if algorithm in (own := _own(nbytes, workers, network)):
    return own[algorithm]
  cost = _named(ALL_REDUCE, algorithm, "hierarchical", "best", *own)
  if nodes == 1:
    return cost(nbytes, workers, link)
  if not two:
    return cost(nbytes, workers, network.way_out(workers, algorithm not in NEAR))
  if algorithm == "ring":  # one worker of a node sends to the next node while the others send inside
    return max(cost(nbytes, workers, link), cost(nbytes, workers, network.way_out(workers)))
  if algorithm == "butterfly":  # at distances from per_node on, all workers of a node send n bytes at once
    return cost(nbytes, per_node, link) + cost(nbytes * per_node, nodes, network.way_out(workers, True))
  return hierarchical(nbytes, workers, network, algorithm, algorithm)  # near partners first: that is by levels


def one_way(kind: str, nbytes: float, workers: int, network: Network) -> float:
  """Seconds of the cheapest reduce_scatter, all_gather, reduce or broadcast: on one ring, by levels, or a library's."""
  costs = _named(ONE_WAY, kind)
  per_node, nodes, link = _shape(workers, network)
  levels(nbytes, workers, link)
  if network.torus:
    return on_torus(nbytes, workers, network) / 2
  if network.library:
    return min(library_costs.one_way(kind, nbytes, workers, network).values())
  inside = min(cost(nbytes, per_node, link) for cost in costs.values())
  away = {name: cost(nbytes, nodes, network.way_out(workers, name not in NEAR)) for name, cost in costs.items()}
  if "ring" not in costs or nodes == 1 or per_node == 1:
    return inside + min(away.values())
  ring = max(costs["ring"](nbytes, workers, link), costs["ring"](nbytes, workers, network.way_out(workers)))
  return min(inside + min(away.values()), ring)


def permute(nbytes: float, workers: int, network: Network, sources: Sequence[int | None] = ()) -> float:
  """L + m n G (2 - duplex): each worker sends one message and receives one; m messages of a node share its link.

  sources: whom each worker hears, by rank; None: nobody. With () all partners are in other nodes, so that m is the
  workers of a full node. Messages inside of nodes use the links there, each its own, at the same time. One worker has
  no partner; one on a torus has one of its links to each neighbour.
  """
  per_node, nodes, link = _shape(workers, network)
  levels(nbytes, workers, link)
  if workers == 1:
    return 0.0
  if network.torus:
    return link.latency + 2 * network.torus.axes * both(nbytes, link)
  if nodes == 1:
    return link.latency + both(nbytes, link)
  way, card = network.way_out(workers, True), network.worker_link(workers)
  if not sources:
    return way.latency + both(per_node * nbytes, way)
  pairs = [(source // per_node, rank // per_node) for rank, source in enumerate(sources) if source not in (None, rank)]
  away = [pair for pair in pairs if pair[0] != pair[1]]
  out, back = (Counter(pair[end] for pair in away) for end in (0, 1))
  most = max((way.busy_seconds(out[i] * nbytes, back[i] * nbytes) for i in {*out, *back}), default=0.0)
  inside = link.latency + both(nbytes, link) if len(away) < len(pairs) else 0.0
  return max(inside, way.latency + max(most, nbytes / card.bandwidth) if away else 0.0)


def network_bound(nbytes: float, workers: int, network: Network) -> float:
  """Lower bound of all-reduces, seconds: of the nodes' links, or of the links inside where there is one node.

  Where switches add up, L + n G (2 - duplex) if that is less: all workers send all once.
  """
  _, nodes, link = _shape(workers, network)
  count, link, level = (workers, link, "inside") if nodes == 1 else (nodes, network.between, "between")
  least = lower_bound(nbytes, count, link)
  return min(least, link.latency + both(nbytes, link)) if level in network.reduces else least


def table(nbytes: float, workers: int, network: Network) -> dict[str, tuple[float, float]]:
  """Seconds of every all-reduce of the network and their ratio to the lower bound (1 where both are 0), cheapest first.

  Those of its library where it has one, that on the torus where it is one, else all of the textbook.
  """
  bound = network_bound(nbytes, workers, network)
  seconds = _each(nbytes, workers, network)
  return {
    name: (cost, cost / bound if bound else 1.0 if not cost else math.inf)
    for name, cost in sorted(seconds.items(), key=lambda item: item[1])
  }


def _each(nbytes: float, workers: int, network: Network) -> dict[str, float]:
  """Seconds of the all-reduces that are to be had on this network: without two levels there is none by levels."""
  own = _own(nbytes, workers, network)
  if network.torus or network.library:
    return dict(own)
  per_node, nodes, _ = _shape(workers, network)
  names = [*ALL_REDUCE, *(["hierarchical"] if per_node > 1 and nodes > 1 else [])]
  return {name: all_reduce(nbytes, workers, network, name) for name in names} | dict(own)


def _own(nbytes: float, workers: int, network: Network) -> Mapping[str, float]:
  """Seconds of the all-reduces that the network has beside those of the textbook."""
  if network.torus:
    return {"torus": on_torus(nbytes, workers, network)}
  if network.library:
    return library_costs.all_reduce(nbytes, workers, network)
  return {"switches": in_switches(nbytes, workers, network)} if network.reduces else {}


def _between(nbytes: float, nodes: int, workers: int, network: Network) -> dict[str, float]:
  return {name: cost(nbytes, nodes, network.way_out(workers, name not in NEAR)) for name, cost in ALL_REDUCE.items()}


def _shape(workers: int, network: Network) -> tuple[int, int, Link]:
  """(workers of a full node, nodes, the link inside)."""
  units.count("number of workers", workers)
  units.count("workers per node", network.per_node)
  units.count("number of sites", network.sites)
  return network.together(workers), network.nodes(workers), network.inside or network.between


def _named(entries: dict[str, Any], name: str, *others: str) -> Any:
  if name not in entries:
    raise ValueError(f"unknown collective {name!r}; known are {', '.join((*entries, *others))}")
  return entries[name]
