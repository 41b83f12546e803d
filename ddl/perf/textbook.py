"""Seconds of collectives among workers on links of their own, as in textbooks, and the lower bound.

n bytes are the whole vector of a worker: the input of an all-reduce, what a reduce-scatter cuts into p strips, the
result of an all-gather. L is the latency, G = 1 / bandwidth. A round in which a worker sends m bytes and receives m
takes m G (2 - duplex) (arXiv 1602.06709); where it only sends or receives, m G. The reduction's arithmetic is free.
Costs as in Thakur, Rabenseifner, Gropp 2005 and the survey arXiv 1802.09941.

Every function raises ValueError, one line, for invalid workers, bytes or links.
"""

from collections.abc import Callable

from ddl.perf import units
from ddl.perf.hardware.cluster import Link, check_link

Cost = Callable[[float, int, Link], float]  # (bytes, workers, link) -> seconds


def lower_bound(nbytes: float, workers: int, link: Link) -> float:
  """Lower bound of all-reduces in rounds, seconds: ceil(log2 p) L + 2 n G (2 - duplex) (p - 1) / p."""
  return levels(nbytes, workers, link) * link.latency + 2 * both(nbytes * (workers - 1) / workers, link)


def _ring_reduce_scatter(nbytes: float, workers: int, link: Link) -> float:
  """(p - 1) (L + n G (2 - duplex) / p): strips go round, in p - 1 rounds."""
  levels(nbytes, workers, link)
  return (workers - 1) * (link.latency + both(nbytes / workers, link))


def _halving(nbytes: float, workers: int, link: Link) -> float:
  """ceil(log2 p) L + n G (2 - duplex) (p - 1) / p: recursive halving (or doubling); Bruck's order for other p."""
  return levels(nbytes, workers, link) * link.latency + both(nbytes * (workers - 1) / workers, link)


def _tree_one_way(nbytes: float, workers: int, link: Link) -> float:
  """ceil(log2 p) (L + n G): a binomial tree, the whole message at each level."""
  return levels(nbytes, workers, link) * link.seconds(nbytes)


def _ring(nbytes: float, workers: int, link: Link) -> float:
  """2 (p - 1) (L + n G (2 - duplex) / p): reduce-scatter, then all-gather, both on the ring."""
  return 2 * _ring_reduce_scatter(nbytes, workers, link)


def _tree(nbytes: float, workers: int, link: Link) -> float:
  """2 ceil(log2 p) (L + n G): reduce, then broadcast; no worker sends and receives in one round."""
  return 2 * _tree_one_way(nbytes, workers, link)


def _butterfly(nbytes: float, workers: int, link: Link) -> float:
  """ceil(log2 p) (L + n G (2 - duplex)): whole messages with partners at distances 1, 2, 4, ...

  For p not a power of two the partial sums of Bar-Noy, Kipnis, Schieber 1993 take as many rounds.
  """
  return levels(nbytes, workers, link) * (link.latency + both(nbytes, link))


def _halving_doubling(nbytes: float, workers: int, link: Link) -> float:
  """2 log2 p L + 2 n G (2 - duplex) (p - 1) / p, Rabenseifner's: recursive halving, then doubling.

  For p not a power of two: a step before, in which the workers above the power of two below p send their n bytes to
  others, and a step after, in which they receive the sum: 2 (L + n G) more.
  """
  levels(nbytes, workers, link)
  power = 1 << (int(workers).bit_length() - 1)
  outside = 2 * link.seconds(nbytes) if power < workers else 0.0
  return outside + 2 * _halving(nbytes, power, link)


ALL_REDUCE: dict[str, Cost] = {
  "ring": _ring,
  "tree": _tree,
  "butterfly": _butterfly,
  "halving_doubling": _halving_doubling,
}
REDUCE_SCATTER: dict[str, Cost] = {"ring": _ring_reduce_scatter, "halving_doubling": _halving}
ALL_GATHER = REDUCE_SCATTER  # the same rounds, backwards
REDUCE: dict[str, Cost] = {"tree": _tree_one_way}
BROADCAST = REDUCE  # likewise
ONE_WAY = {"reduce_scatter": REDUCE_SCATTER, "all_gather": ALL_GATHER, "reduce": REDUCE, "broadcast": BROADCAST}
INSIDE = REDUCE_SCATTER | REDUCE  # of a node: there, then an all-reduce between nodes, then the same back


def levels(nbytes: float, workers: int, link: Link) -> int:
  """ceil(log2 p), of valid arguments."""
  units.amount("bytes of a message", nbytes)
  check_link("a link", link)
  return (units.count("number of workers", workers) - 1).bit_length()


def both(nbytes: float, link: Link) -> float:
  """Seconds of m bytes out and m bytes in, without the latency."""
  return link.busy_seconds(nbytes, nbytes)
