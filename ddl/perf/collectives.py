"""Seconds of collectives on a network: of the textbook, by levels, on a torus, in switches, or as a library does them.

n bytes are the whole vector of a worker: the input of an all-reduce, what a reduce-scatter cuts into p strips, the
result of an all-gather. L is the latency, G = 1 / bandwidth. A round in which a worker sends m bytes and receives m
takes m G (2 - duplex) (arXiv 1602.06709); where it only sends or receives, m G. The reduction's arithmetic is free.
The costs of one link are those of Thakur, Rabenseifner, Gropp 2005 and the survey arXiv 1802.09941.

A library takes the cheapest of its algorithms and protocols. An algorithm is a number of steps in the nodes and between
them, and bytes that a worker's link and a node's link carry each way, both at once, so that the slower one counts:

  seconds = call + steps inside * hop + steps between * (hop + trips * L) + max(inside, between) of bytes G / share

For m workers in each of q nodes, p in all:

  ring      2 (p - q) and 2 (q - 1) steps; 2 n (p - 1) / p inside and between
  tree      2 (m - 1) and 2 ceil(log2 q) steps, a chain in each node: 2 n inside (n of two), 2 n between (n of two)
  switches  2 and 2 ceil(log2 q) steps; n (1 + 1 / m) inside, between as the tree

Where the switches between nodes add up, 2 steps and n bytes between.
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ddl.perf import units
from ddl.perf.cluster import Library, LinkModel, NetworkModel, Protocol, check_link

Cost = Callable[[float, int, LinkModel], float]  # (bytes, workers, link) -> seconds
NEAR = ("ring", "tree")  # algorithms whose partners are neighbours, so that few messages cross a switch at once


def lower_bound(nbytes: float, workers: int, link: LinkModel) -> float:
  """Lower bound of all-reduces in rounds, seconds: ceil(log2 p) L + 2 n G (2 - duplex) (p - 1) / p."""
  return _levels(nbytes, workers, link) * link.latency + 2 * _both(nbytes * (workers - 1) / workers, link)


def _ring_reduce_scatter(nbytes: float, workers: int, link: LinkModel) -> float:
  """(p - 1) (L + n G (2 - duplex) / p): strips go round, in p - 1 rounds."""
  _levels(nbytes, workers, link)
  return (workers - 1) * (link.latency + _both(nbytes / workers, link))


def _halving(nbytes: float, workers: int, link: LinkModel) -> float:
  """ceil(log2 p) L + n G (2 - duplex) (p - 1) / p: recursive halving (or doubling); Bruck's order for other p."""
  return _levels(nbytes, workers, link) * link.latency + _both(nbytes * (workers - 1) / workers, link)


def _tree_one_way(nbytes: float, workers: int, link: LinkModel) -> float:
  """ceil(log2 p) (L + n G): a binomial tree, the whole message at each level."""
  return _levels(nbytes, workers, link) * link.seconds(nbytes)


def _halving_doubling(nbytes: float, workers: int, link: LinkModel) -> float:
  """2 log2 p L + 2 n G (2 - duplex) (p - 1) / p, Rabenseifner's: recursive halving, then doubling.

  For p not a power of two: a step before, in which the workers above the power of two below p send their n bytes to
  others, and a step after, in which they receive the sum: 2 (L + n G) more.
  """
  _levels(nbytes, workers, link)
  power = 1 << (int(workers).bit_length() - 1)
  outside = 2 * link.seconds(nbytes) if power < workers else 0.0
  return outside + 2 * _halving(nbytes, power, link)


ALL_REDUCE: dict[str, Cost] = {
  "ring": lambda n, p, link: 2 * _ring_reduce_scatter(n, p, link),  # reduce-scatter, then all-gather
  "tree": lambda n, p, link: 2 * _tree_one_way(n, p, link),  # reduce, then broadcast
  # Whole messages with partners at distances 1, 2, 4, ...: ceil(log2 p) (L + n G (2 - duplex)). For p not a power of
  # two the partial sums of Bar-Noy, Kipnis, Schieber 1993 take as many rounds.
  "butterfly": lambda n, p, link: _levels(n, p, link) * (link.latency + _both(n, link)),
  "halving_doubling": _halving_doubling,
}
REDUCE_SCATTER: dict[str, Cost] = {"ring": _ring_reduce_scatter, "halving_doubling": _halving}
ALL_GATHER = REDUCE_SCATTER  # the same rounds, backwards
REDUCE: dict[str, Cost] = {"tree": _tree_one_way}
BROADCAST = REDUCE  # likewise
ONE_WAY = {"reduce_scatter": REDUCE_SCATTER, "all_gather": ALL_GATHER, "reduce": REDUCE, "broadcast": BROADCAST}
INSIDE = REDUCE_SCATTER | REDUCE  # of a node: there, then an all-reduce between nodes, then the same back


def _levels(nbytes: float, workers: int, link: LinkModel) -> int:
  """Return ceil(log2 p), of valid arguments."""
  units.amount("bytes of a message", nbytes)
  check_link("a link", link)
  return (units.count("number of workers", workers) - 1).bit_length()


def _both(nbytes: float, link: LinkModel) -> float:
  """Return the seconds of m bytes out and m bytes in, without the latency."""
  return link.busy_seconds(nbytes, nbytes)


def hierarchical(
  nbytes: float, workers: int, network: NetworkModel, inside: str = "ring", between: str = "ring"
) -> float:
  """Seconds of an all-reduce by levels: reduce-scatter in each node, all-reduce between nodes, all-gather in each node.

  The m workers of a node all-reduce n / m bytes each over its one link, which takes as long as n bytes of one worker.
  inside = "tree": reduce to one worker, only which all-reduces n bytes between nodes, then broadcast.
  """
  per_node, nodes, link = _shape(workers, network)
  middle = _named(ALL_REDUCE, between)(nbytes, nodes, network.way_out(workers, between not in NEAR))
  return 2 * _named(INSIDE, inside)(nbytes, per_node, link) + middle


def in_switches(nbytes: float, workers: int, network: NetworkModel) -> float:
  """Seconds of an all-reduce whose sums the switches form, where they do, with the cheapest way on the other level.

  In a node, 2 L + n G (2 - duplex) (1 + 1 / m): a worker sends all and fetches the sum of its m-th part, then sends
  that and receives all. Between nodes, 2 L + n G (2 - duplex): all goes up the tree of switches and comes down.
  """
  per_node, nodes, link = _shape(workers, network)
  way, seconds = network.way_out(workers), 0.0
  _levels(nbytes, workers, link)
  if per_node > 1 and "inside" in network.reduces:
    seconds += 2 * link.latency + _both(nbytes * (1 + 1 / per_node), link)
  elif per_node > 1:
    seconds += 2 * min(cost(nbytes, per_node, link) for cost in INSIDE.values())
  if nodes > 1 and "between" in network.reduces:
    seconds += 2 * way.latency + _both(nbytes, way)
  elif nodes > 1:
    seconds += min(cost(nbytes, nodes, network.way_out(workers, name not in NEAR)) for name, cost in ALL_REDUCE.items())
  return seconds


def on_torus(nbytes: float, workers: int, network: NetworkModel) -> float:
  """2 sum (k - 1) L + 2 n G (2 - duplex) (p - 1) / (p share): on all axes of k chips at once, each with a part of n."""
  if workers == 1 or network.torus is None:
    return 0.0
  steps, share = network.torus.steps(workers), network.torus.share(workers)
  sent = _both(nbytes * (workers - 1) / workers, network.between)
  return 2 * (steps * network.between.latency + sent / share)


def all_reduce(nbytes: float, workers: int, network: NetworkModel, algorithm: str = "best") -> float:
  """Seconds on a network whose workers are numbered node by node.

  algorithm: "best" is the choice of the library, where the network has one, else the cheapest of `all_reduces`; or one
  of these, such as "ring/LL" of a library; or one of the textbook, where "hierarchical" is the cheapest with one
  algorithm inside and one between nodes, and the cheapest of all where there is only one level.
  """
  seconds = all_reduces(nbytes, workers, network)
  if algorithm == "best":
    return min(seconds.values())
  if algorithm in seconds:
    return seconds[algorithm]
  flat = _textbook(nbytes, workers, network)
  flat.setdefault("hierarchical", min(flat.values()))
  return _named(flat, algorithm, "best", *seconds)


def all_reduces(nbytes: float, workers: int, network: NetworkModel) -> dict[str, float]:
  """Seconds of the all-reduces of a network: on its torus, of its library, or else of the textbook and in switches."""
  if network.torus:
    return {"torus": on_torus(nbytes, workers, network)}
  if network.library:
    return library_all_reduces(nbytes, workers, network, network.library)
  switches = {"switches": in_switches(nbytes, workers, network)} if network.reduces else {}
  return _textbook(nbytes, workers, network) | switches


def _textbook(nbytes: float, workers: int, network: NetworkModel) -> dict[str, float]:
  """Seconds of ALL_REDUCE, and of the best way by levels where there are two."""
  per_node, nodes, link = _shape(workers, network)
  way, crossing = network.way_out(workers), network.way_out(workers, everyone=True)
  if nodes == 1 or per_node == 1:
    links = {name: link if nodes == 1 else way if name in NEAR else crossing for name in ALL_REDUCE}
    return {name: cost(nbytes, workers, links[name]) for name, cost in ALL_REDUCE.items()}
  ways = {(a, b): hierarchical(nbytes, workers, network, a, b) for a in INSIDE for b in ALL_REDUCE}
  ring, butterfly = ALL_REDUCE["ring"], ALL_REDUCE["butterfly"]
  return {
    # one worker of a node sends to the next node while the others send inside
    "ring": max(ring(nbytes, workers, link), ring(nbytes, workers, way)),
    "tree": ways["tree", "tree"],  # near partners first: that is by levels
    # at distances from per_node on, all workers of a node send n bytes at once
    "butterfly": butterfly(nbytes, per_node, link) + butterfly(nbytes * per_node, nodes, crossing),
    "halving_doubling": ways["halving_doubling", "halving_doubling"],
    "hierarchical": min(ways.values()),
  }


def one_way(kind: str, nbytes: float, workers: int, network: NetworkModel) -> float:
  """Seconds of the cheapest reduce_scatter, all_gather, reduce or broadcast: on one ring, by levels, or a library's."""
  costs = _named(ONE_WAY, kind)
  per_node, nodes, link = _shape(workers, network)
  _levels(nbytes, workers, link)
  if network.torus:
    return on_torus(nbytes, workers, network) / 2
  if network.library:
    return _library_one_way(kind, nbytes, workers, network, network.library)
  inside = min(cost(nbytes, per_node, link) for cost in costs.values())
  away = min(cost(nbytes, nodes, network.way_out(workers, name not in NEAR)) for name, cost in costs.items())
  if "ring" not in costs or nodes == 1 or per_node == 1:
    return inside + away
  ring = max(costs["ring"](nbytes, workers, link), costs["ring"](nbytes, workers, network.way_out(workers)))
  return min(inside + away, ring)


def permute(nbytes: float, workers: int, network: NetworkModel, sources: Sequence[int | None] = ()) -> float:
  """L + m n G (2 - duplex): each worker sends one message and receives one; m messages of a node share its link.

  sources: the rank from which each worker receives; None: from nobody. With () all partners are in other nodes, so that
  m is the workers of a full node. Messages inside nodes use the links there, each its own, at the same time. One worker
  has no partner; one on a torus has one of its links to each neighbour.
  """
  per_node, nodes, link = _shape(workers, network)
  _levels(nbytes, workers, link)
  if workers == 1:
    return 0.0
  if network.torus:
    return link.latency + 2 * network.torus.axes * _both(nbytes, link)
  if nodes == 1:
    return link.latency + _both(nbytes, link)
  way, card = network.way_out(workers, True), network.worker_link(workers)
  if not sources:
    return way.latency + _both(per_node * nbytes, way)
  pairs = [(source // per_node, rank // per_node) for rank, source in enumerate(sources) if source not in (None, rank)]
  away = [pair for pair in pairs if pair[0] != pair[1]]
  out, back = (Counter(pair[end] for pair in away) for end in (0, 1))
  most = max((way.busy_seconds(out[i] * nbytes, back[i] * nbytes) for i in {*out, *back}), default=0.0)
  inside = link.latency + _both(nbytes, link) if len(away) < len(pairs) else 0.0
  return max(inside, way.latency + max(most, nbytes / card.bandwidth) if away else 0.0)


def network_bound(nbytes: float, workers: int, network: NetworkModel) -> float:
  """Lower bound of all-reduces, seconds: of the nodes' links, or of the links inside where there is one node.

  Where switches add up, L + n G (2 - duplex) if that is less: all workers send all once.
  """
  _, nodes, link = _shape(workers, network)
  count, link, level = (workers, link, "inside") if nodes == 1 else (nodes, network.between, "between")
  least = lower_bound(nbytes, count, link)
  return min(least, link.latency + _both(nbytes, link)) if level in network.reduces else least


def table(nbytes: float, workers: int, network: NetworkModel) -> dict[str, tuple[float, float]]:
  """Seconds of `all_reduces` and their ratio to the lower bound (1 where both are 0), cheapest first."""
  bound = network_bound(nbytes, workers, network)
  seconds = all_reduces(nbytes, workers, network)
  return {
    name: (cost, cost / bound if bound else 1.0 if not cost else math.inf)
    for name, cost in sorted(seconds.items(), key=lambda item: item[1])
  }


def _shape(workers: int, network: NetworkModel) -> tuple[int, int, LinkModel]:
  """Return (workers of a full node, nodes, the link inside)."""
  units.count("number of workers", workers)
  units.count("workers per node", network.per_node)
  units.count("number of sites", network.sites)
  return network.together(workers), network.nodes(workers), network.inside or network.between


def _named(entries: dict[str, Any], name: str, *others: str) -> Any:
  units.choice("collective", name, dict.fromkeys((*entries, *others)))
  return entries[name]


class LibraryAlgorithm(NamedTuple):
  """An algorithm's steps and bytes on both levels."""

  inside: int  # steps
  between: int
  near: float  # bytes each way of a worker's link
  far: float  # bytes each way of a node's link


def library_all_reduces(
  nbytes: float, workers: int, network: NetworkModel, library: Library, processes: bool = True
) -> dict[str, float]:
  """Seconds by algorithm and protocol, such as "ring/LL".

  processes: one process of each worker; otherwise one drives all of a node, and starts its devices one after the other
  while the last call is still on its way, so that the larger counts.
  """
  _levels(nbytes, workers, _shape(workers, network)[2])
  if workers == 1:
    return {"ring/LL": 0.0}
  started = library.launch * (1 if processes else network.together(workers))
  return {
    f"{name}/{protocol.name}": max(started, _library_seconds(name, algorithm, protocol, workers, network, library))
    for name, algorithm in _library_algorithms(nbytes, workers, network).items()
    for protocol in ((library.switch,) if name == "switches" else library.protocols)
  }


def _library_one_way(kind: str, nbytes: float, workers: int, network: NetworkModel, library: Library) -> float:
  """Seconds of reduce_scatter or all_gather on the ring, of reduce or broadcast on the tree: half of an all-reduce."""
  if workers == 1:
    return 0.0
  name = "ring" if kind in ("reduce_scatter", "all_gather") else "tree"
  both = _library_algorithms(nbytes, workers, network)[name]
  near, far = (min(sent / 2, nbytes) for sent in (both.near, both.far))
  if name == "tree":  # all links carry all of it
    near, far = (nbytes if sent else 0.0 for sent in (both.near, both.far))
  half = LibraryAlgorithm(both.inside // 2, both.between // 2, near, far)
  return min(_library_seconds(name, half, protocol, workers, network, library) for protocol in library.protocols)


def _library_algorithms(nbytes: float, workers: int, network: NetworkModel) -> dict[str, LibraryAlgorithm]:
  together, nodes = network.together(workers), network.nodes(workers)
  depth, far = 2 * (nodes - 1).bit_length(), nbytes * min(nodes - 1, 2)  # of two nodes, each sends all once
  if nodes > 1 and "between" in network.reduces:
    depth, far = 2, nbytes
  ring = 2 * nbytes * (workers - 1) / workers
  inside, between = ring if together > 1 else 0.0, ring if nodes > 1 else 0.0
  algorithms = {
    "ring": LibraryAlgorithm(2 * (workers - nodes), 2 * (nodes - 1), inside, between),
    "tree": LibraryAlgorithm(2 * (together - 1), depth, nbytes * min(together - 1, 2), far),
  }
  if together > 1 and "inside" in network.reduces:
    algorithms["switches"] = LibraryAlgorithm(2, depth, nbytes * (1 + 1 / together), far)
  return algorithms


def _library_seconds(
  name: str, algorithm: LibraryAlgorithm, protocol: Protocol, workers: int, network: NetworkModel, library: Library
) -> float:
  link, out = network.inside or network.between, network.way_out(workers)
  steps = algorithm.inside * (protocol.inside + link.latency)
  steps += algorithm.between * (protocol.between + protocol.trips * out.latency)
  inside = protocol.share * (1 if name == "switches" else library.inside)
  between = library.between * (1 if name == "switches" else protocol.share)
  near, far = link.busy_seconds(algorithm.near, algorithm.near), out.busy_seconds(algorithm.far, algorithm.far)
  return protocol.call + steps + max(near / inside, far / between)
