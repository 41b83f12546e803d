"""Predict the seconds of collectives: textbook, hierarchical, torus and library (NCCL) algorithms.

n is the number of bytes of a worker's whole vector: the input of an all-reduce or reduce-scatter, the output of an
all-gather. L is the latency, G = 1 / bandwidth. A round in which a worker sends and receives m bytes takes
m G (2 - duplex) (arXiv 1602.06709); a round in which it only sends or only receives m bytes takes m G. The arithmetic
of the reduction is free. The costs on a single link are those of Thakur, Rabenseifner, Gropp 2005 and the survey
arXiv 1802.09941.

A library uses the cheapest of its algorithms and protocols. An algorithm takes steps inside and between nodes. In each
direction it sends bytes over a worker's link (inside) and a node's link (between) concurrently; the slower one counts:

  seconds = call + steps inside * (hop + L) + steps between * (hop + trips * L) + max over both of (bytes G / share)

For m workers in each of q nodes, p in total (steps inside and between nodes; bytes inside and between nodes):

  ring      2 (p - q) and 2 (q - 1) steps; 2 n (p - 1) / p and the same number of bytes
  tree      2 (m - 1) (a chain) and 2 ceil(log2 q) steps; 2 n (n if m = 2) and 2 n (n if q = 2) bytes
  switches  2 and 2 ceil(log2 q) steps; n bytes, and between nodes those of the tree

If the switches between nodes reduce: 2 steps and n bytes between nodes.

Between two nodes a tree sends about half of a ring's bytes, but NCCL limits the bandwidth of a tree's channels
(perChMaxTreeBws in tuning.cc: 23.6 GB/s on A100, 41.4 on H100, both directions together), and has about one channel per
network card. So a tree is faster on slow cards (100 Gb/s with A100), and a ring on fast ones (200 Gb/s). A node uses at
most `Library.cards` of its network cards: an NVLink domain of 72 GB200 reached 400 GB/s, not 3600.
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

from ddl.perf.cluster import Library, LinkModel, NetworkModel, Protocol

Cost = Callable[[float, int, LinkModel], float]  # (bytes, workers, link) -> seconds
NEAR = ("ring", "tree")  # algorithms that communicate between neighbors, so that few messages cross a switch at once


def lower_bound(nbytes: float, workers: int, link: LinkModel) -> float:
  """Return a lower bound in seconds for any all-reduce: ceil(log2 p) L + 2 n G (2 - duplex) (p - 1) / p."""
  return _levels(workers) * link.latency + 2 * _exchange_seconds(nbytes * (workers - 1) / workers, link)


def _ring_reduce_scatter(nbytes: float, workers: int, link: LinkModel) -> float:
  """Return the seconds of a ring reduce-scatter, p - 1 rounds with n / p bytes: (p - 1) (L + n G (2 - duplex) / p)."""
  return (workers - 1) * (link.latency + _exchange_seconds(nbytes / workers, link))


def _halving(nbytes: float, workers: int, link: LinkModel) -> float:
  """Return the seconds of recursive halving or doubling: ceil(log2 p) L + n G (2 - duplex) (p - 1) / p.

  If p is not a power of two, Bruck's algorithm has the same cost.
  """
  return _levels(workers) * link.latency + _exchange_seconds(nbytes * (workers - 1) / workers, link)


def _tree_one_way(nbytes: float, workers: int, link: LinkModel) -> float:
  """Return the seconds of a reduce or broadcast on a binomial tree: ceil(log2 p) (L + n G)."""
  return _levels(workers) * link.seconds(nbytes)


def _halving_doubling(nbytes: float, workers: int, link: LinkModel) -> float:
  """Return the seconds of Rabenseifner's all-reduce: 2 log2 p L + 2 n G (2 - duplex) (p - 1) / p.

  If p is not a power of two, the workers beyond the largest power of two first send their n bytes to other workers and
  finally receive the sum, which adds 2 (L + n G).
  """
  power = 1 << (workers.bit_length() - 1)
  outside = 2 * link.seconds(nbytes) if power < workers else 0.0
  return outside + 2 * _halving(nbytes, power, link)


ALL_REDUCE: dict[str, Cost] = {
  "ring": lambda n, p, link: 2 * _ring_reduce_scatter(n, p, link),  # reduce-scatter, then all-gather
  "tree": lambda n, p, link: 2 * _tree_one_way(n, p, link),  # reduce, then broadcast
  # Whole messages with partners at distances 1, 2, 4, ...: ceil(log2 p) (L + n G (2 - duplex)). If p is not a power of
  # two, the partial sums of Bar-Noy, Kipnis, Schieber 1993 take the same number of rounds.
  "butterfly": lambda n, p, link: _levels(p) * (link.latency + _exchange_seconds(n, link)),
  "halving_doubling": _halving_doubling,
}
REDUCE_SCATTER: dict[str, Cost] = {"ring": _ring_reduce_scatter, "halving_doubling": _halving}
ALL_GATHER = REDUCE_SCATTER  # the same rounds in reverse order
REDUCE: dict[str, Cost] = {"tree": _tree_one_way}
BROADCAST = REDUCE  # the same rounds in reverse order
ONE_WAY = {"reduce_scatter": REDUCE_SCATTER, "all_gather": ALL_GATHER, "reduce": REDUCE, "broadcast": BROADCAST}
INSIDE = REDUCE_SCATTER | REDUCE  # first phase of a hierarchical all-reduce, in each node; the last is its reverse


def _levels(workers: int) -> int:
  """Return ceil(log2 p)."""
  return (workers - 1).bit_length()


def _exchange_seconds(nbytes: float, link: LinkModel) -> float:
  """Return the seconds to send `nbytes` and to receive `nbytes`, without the latency."""
  return link.busy_seconds(nbytes, nbytes)


def hierarchical(nbytes: float, workers: int, network: NetworkModel) -> dict[tuple[str, str], float]:
  """Return the seconds of hierarchical all-reduces, by the names of the algorithms inside and between nodes.

  They are a reduce-scatter in nodes, an all-reduce between nodes, and an all-gather. With n = `nbytes`, the m workers
  of a node each all-reduce n / m bytes over the node's link, which takes as long as an all-reduce of n bytes by one
  worker per node. With a tree inside, each node reduces to one worker, which takes part in the all-reduce between nodes
  and then broadcasts the result.
  """
  per_node, _, link = _shape(workers, network)
  inside = {name: 2 * cost(nbytes, per_node, link) for name, cost in INSIDE.items()}
  between = _between_nodes(ALL_REDUCE, nbytes, workers, network)
  return {(a, b): near + far for a, near in inside.items() for b, far in between.items()}


def _between_nodes(costs: dict[str, Cost], nbytes: float, workers: int, network: NetworkModel) -> dict[str, float]:
  """Return the seconds of algorithms between the nodes, each of which counts as one worker."""
  nodes = network.nodes(workers)
  return {name: cost(nbytes, nodes, network.outgoing_link(workers, name not in NEAR)) for name, cost in costs.items()}


def on_torus(nbytes: float, workers: int, network: NetworkModel) -> float:
  """Return the seconds of an all-reduce on a torus that uses all axes at once, each for a part of the n bytes.

  With k chips along an axis, and share from `Torus.share`: 2 sum (k - 1) L + 2 n G (2 - duplex) (p - 1) / (p share).
  """
  if workers == 1 or network.torus is None:
    return 0.0
  steps, share = network.torus.steps(workers), network.torus.share(workers)
  sent = _exchange_seconds(nbytes * (workers - 1) / workers, network.between)
  return 2 * (steps * network.between.latency + sent / share)


def all_reduce(nbytes: float, workers: int, network: NetworkModel, algorithm: str = "best") -> float:
  """Return the seconds of an all-reduce on a network with workers numbered node by node.

  Args:
    algorithm: "best" for the cheapest of `all_reduces`, one of their names such as "ring/LL", or a textbook algorithm;
      "hierarchical" is the cheapest combination of algorithms inside and between nodes.
  """
  seconds = all_reduces(nbytes, workers, network)
  if algorithm == "best":
    return min(seconds.values())
  if algorithm in seconds:
    return seconds[algorithm]
  flat = _textbook(nbytes, workers, network)
  flat.setdefault("hierarchical", min(flat.values()))
  return flat[algorithm]


def all_reduces(nbytes: float, workers: int, network: NetworkModel) -> dict[str, float]:
  """Return name -> seconds of the all-reduce algorithms that a network can use.

  They are the algorithm of a torus, those of a library, or else textbook algorithms.
  """
  if network.torus:
    return {"torus": on_torus(nbytes, workers, network)}
  if network.library:
    return library_all_reduces(nbytes, workers, network, network.library)
  return _textbook(nbytes, workers, network)


def _textbook(nbytes: float, workers: int, network: NetworkModel) -> dict[str, float]:
  """Return the seconds of each algorithm in ALL_REDUCE.

  If there are several nodes with several workers each, also return those of the fastest hierarchical all-reduce.
  """
  per_node, nodes, link = _shape(workers, network)
  if nodes == 1:
    return {name: cost(nbytes, workers, link) for name, cost in ALL_REDUCE.items()}
  if per_node == 1:
    return _between_nodes(ALL_REDUCE, nbytes, workers, network)
  ways = hierarchical(nbytes, workers, network)
  way, crossing = network.outgoing_link(workers), network.outgoing_link(workers, all_nodes=True)
  ring, butterfly = ALL_REDUCE["ring"], ALL_REDUCE["butterfly"]
  return {
    # one worker of a node sends to the next node while the others send inside the node
    "ring": max(ring(nbytes, workers, link), ring(nbytes, workers, way)),
    "tree": ways["tree", "tree"],  # near partners communicate first, as in the hierarchical algorithm
    # at distances >= per_node, all workers of a node send n bytes at once
    "butterfly": butterfly(nbytes, per_node, link) + butterfly(nbytes * per_node, nodes, crossing),
    "halving_doubling": ways["halving_doubling", "halving_doubling"],
    "hierarchical": min(ways.values()),
  }


def one_way(kind: str, nbytes: float, workers: int, network: NetworkModel) -> float:
  """Return the seconds of the cheapest algorithm for `kind`: reduce_scatter, all_gather, reduce or broadcast."""
  costs = ONE_WAY[kind]
  per_node, nodes, link = _shape(workers, network)
  if network.torus:
    return on_torus(nbytes, workers, network) / 2
  if network.library:
    return _library_one_way(kind, nbytes, workers, network, network.library)
  inside = min(cost(nbytes, per_node, link) for cost in costs.values())
  away = min(_between_nodes(costs, nbytes, workers, network).values())
  if "ring" not in costs or nodes == 1 or per_node == 1:
    return inside + away
  ring = max(costs["ring"](nbytes, workers, link), costs["ring"](nbytes, workers, network.outgoing_link(workers)))
  return min(inside + away, ring)


def permute(nbytes: float, workers: int, network: NetworkModel, sources: Sequence[int | None] = ()) -> float:
  """Return the seconds of a permute, in which each worker sends and receives one message: L + m n G (2 - duplex).

  The m messages between a node and other nodes share its link. Messages inside nodes use separate links concurrently.
  On a torus a worker has one link to each neighbor.

  Args:
    nbytes: bytes of each message.
    workers: the number of workers; a single worker sends nothing.
    sources: the rank from which each worker receives (None: it receives nothing); (): all partners are in other nodes.
  """
  per_node, nodes, link = _shape(workers, network)
  if workers == 1:
    return 0.0
  if network.torus:
    return link.latency + 2 * network.torus.axes * _exchange_seconds(nbytes, link)
  if nodes == 1:
    return link.latency + _exchange_seconds(nbytes, link)
  way, card = network.outgoing_link(workers, True), network.worker_link(workers)
  if not sources:
    return way.latency + _exchange_seconds(per_node * nbytes, way)
  pairs = [(source // per_node, rank // per_node) for rank, source in enumerate(sources) if source not in (None, rank)]
  away = [pair for pair in pairs if pair[0] != pair[1]]
  out, back = (Counter(pair[end] for pair in away) for end in (0, 1))
  most = max((way.busy_seconds(out[i] * nbytes, back[i] * nbytes) for i in {*out, *back}), default=0.0)
  inside = link.latency + _exchange_seconds(nbytes, link) if len(away) < len(pairs) else 0.0
  return max(inside, way.latency + max(most, nbytes / card.bandwidth) if away else 0.0)


def network_bound(nbytes: float, workers: int, network: NetworkModel) -> float:
  """Return a lower bound in seconds for any all-reduce, from the links between nodes or, with one node, inside it.

  If switches reduce, the bound is at most L + n G (2 - duplex), because each worker sends its vector only once.
  """
  _, nodes, link = _shape(workers, network)
  count, link, level = (workers, link, "inside") if nodes == 1 else (nodes, network.between, "between")
  least = lower_bound(nbytes, count, link)
  return min(least, link.latency + _exchange_seconds(nbytes, link)) if level in network.reduces else least


def table(nbytes: float, workers: int, network: NetworkModel) -> dict[str, tuple[float, float]]:
  """Return (seconds, ratio to the lower bound) of each of `all_reduces`, cheapest first; 0 / 0 counts as 1."""
  bound = network_bound(nbytes, workers, network)
  seconds = all_reduces(nbytes, workers, network)
  return {
    name: (cost, cost / bound if bound else 1.0 if not cost else math.inf)
    for name, cost in sorted(seconds.items(), key=lambda item: item[1])
  }


def _shape(workers: int, network: NetworkModel) -> tuple[int, int, LinkModel]:
  """Return (workers of a full node, nodes, link inside a node)."""
  link = network.inside or network.between
  return network.workers_per_node(workers), network.nodes(workers), link


class LibraryAlgorithm(NamedTuple):
  """The steps and bytes of a library's algorithm inside and between nodes."""

  inside: int  # steps inside a node
  between: int  # steps between nodes
  near: float  # bytes in each direction on a worker's link
  far: float  # bytes in each direction on a node's link


def library_all_reduces(
  nbytes: float, workers: int, network: NetworkModel, library: Library, processes: bool = True
) -> dict[str, float]:
  """Return the seconds of an all-reduce by algorithm and protocol, such as "ring/LL".

  Args:
    processes: whether each worker is a process. If False, one process drives all devices of a node: it launches the
      call on one device after another while the previous call is still running, so that the call takes as long as the
      launches or the transfer, whichever is longer.
  """
  if workers == 1:
    return {"ring/LL": 0.0}
  started = library.launch * (1 if processes else network.workers_per_node(workers))
  return {
    f"{name}/{protocol.name}": max(started, _library_seconds(name, algorithm, protocol, workers, network, library))
    for name, algorithm in _library_algorithms(nbytes, workers, network).items()
    for protocol in ((library.switch,) if name == "switches" else library.protocols)
  }


def _library_one_way(kind: str, nbytes: float, workers: int, network: NetworkModel, library: Library) -> float:
  """Return the seconds of half an all-reduce: reduce_scatter or all_gather on a ring, reduce or broadcast on a tree."""
  if workers == 1:
    return 0.0
  name = "ring" if kind in ("reduce_scatter", "all_gather") else "tree"
  both = _library_algorithms(nbytes, workers, network)[name]
  near, far = (min(sent / 2, nbytes) for sent in (both.near, both.far))
  if name == "tree":  # all links carry the whole vector
    near, far = (nbytes if sent else 0.0 for sent in (both.near, both.far))
  half = LibraryAlgorithm(both.inside // 2, both.between // 2, near, far)
  return min(_library_seconds(name, half, protocol, workers, network, library) for protocol in library.protocols)


def _library_algorithms(nbytes: float, workers: int, network: NetworkModel) -> dict[str, LibraryAlgorithm]:
  per_node, nodes = network.workers_per_node(workers), network.nodes(workers)
  depth, far = 2 * (nodes - 1).bit_length(), nbytes * min(nodes - 1, 2)  # with two nodes each sends the vector once
  if nodes > 1 and "between" in network.reduces:
    depth, far = 2, nbytes
  ring = 2 * nbytes * (workers - 1) / workers
  inside, between = ring if per_node > 1 else 0.0, ring if nodes > 1 else 0.0
  algorithms = {
    "ring": LibraryAlgorithm(2 * (workers - nodes), 2 * (nodes - 1), inside, between),
    "tree": LibraryAlgorithm(2 * (per_node - 1), depth, nbytes * min(per_node - 1, 2), far),
  }
  if per_node > 1 and "inside" in network.reduces:
    algorithms["switches"] = LibraryAlgorithm(2, depth, nbytes, far)
  return algorithms


def _library_seconds(
  name: str, algorithm: LibraryAlgorithm, protocol: Protocol, workers: int, network: NetworkModel, library: Library
) -> float:
  link, out = network.inside or network.between, network.outgoing_link(workers)
  steps = algorithm.inside * (protocol.inside + link.latency)
  steps += algorithm.between * (protocol.between + protocol.trips * (out.latency + library.latency))
  inside, between = protocol.share * library.inside, min(library.between * out.bandwidth, library.fastest)
  if network.card:
    cards = min(library.cards, network.between.bandwidth / network.card)
    between = min(between, library.between * cards * network.card)
    if name == "tree" and network.inside:
      between = min(between, library.tree * cards * link.bandwidth)
  if name == "switches":
    inside = protocol.share
  else:
    between *= protocol.share
  near = link.busy_seconds(algorithm.near, algorithm.near) / inside
  return protocol.call + steps + max(near, out._replace(bandwidth=between).busy_seconds(algorithm.far, algorithm.far))
