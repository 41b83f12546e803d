"""Closed forms of a parameter server: what a round takes, and how many exchanges a second it can serve.

S servers hold n / S bytes each; a worker's exchange is a message up to and one down from each of them. L is the
latency, G = 1 / bandwidth. Of asynchronous visits a link is held by the bytes alone: what is on its way occupies
nobody, and a worker's messages to the servers leave one behind the other, not waiting for the one before to arrive.

In the serial forms (`exchange_seconds`, `round_robin_seconds`) a message is sent when the one before it is there, as in
the papers: p workers and S servers need max(p, S) messages in a row for one message of every worker to every server, so
that the servers' links are the bottleneck while p > S.

Without a lock (the hogwild algorithms) messages share the link as with one; what runs side by side are updates. An
update of n bytes moves 3 n through the server's memory (reads the center and the message, writes the center), which is
one for all, too, and takes at most as long as n over the link: it costs nothing here, and a lock costs nothing.
You, Buluc, Demmel 2017, arXiv 1708.02983; Zou et al. 2017, arXiv 1709.06622.
"""

from ddl.perf.comm.collectives import check_bytes, check_workers
from ddl.perf.hardware.network import Link, Network, check_link


def exchange_seconds(nbytes: float, workers: int, link: Link, servers: int = 1, parts: int = 1) -> float:
  """A synchronous round: p workers push n bytes, and pull n bytes when the last push is there.

  a = max(p, S) (L + n G / (k S)) is what one of k parts (layers, say) takes one way. A part is pulled when all of it
  is there, while the next is pushed, as far as sending overlaps receiving: a + (k - 1) a (2 - duplex) + a.

  Raises:
    ValueError: for more servers than parameters of four bytes, or other invalid numbers.
  """
  check_servers(servers, nbytes)
  part = _message(nbytes / check_count("parts", parts), link, servers)
  return max(check_workers(workers), servers) * part * (2 + (parts - 1) * (2 - link.duplex))


def round_robin_seconds(nbytes: float, workers: int, link: Link) -> float:
  """p (L + n G): one worker after the other, one way (arXiv 1708.02983); a tree takes log2 p of them instead."""
  return check_workers(workers) * _message(nbytes, link, 1)


def visit_seconds(up: float, down: float, link: Link, servers: int = 1) -> float:
  """One worker's exchange with idle servers: L + up G, then L + down G where there is a reply. up, down: bytes."""
  check_servers(servers, max(up, down))  # their messages share the worker's link and are on their way side by side
  return _message(up, link, 1) + (_message(down, link, 1) if down else 0.0)


def node_seconds(up: float, down: float, workers: int, network: Network, peers: bool = False) -> float:
  """How long the link of a full node is busy while each of its m workers makes a visit: m (bytes out and in) / B.

  Bytes that go both ways overlap as far as the link's duplex lets them. Servers stand outside of the nodes; of peers,
  drawn evenly, (p - m) / (p - 1) are elsewhere. 0 where one node holds all.
  """
  if network.nodes(workers) == 1:
    return 0.0
  m, link = network.together(workers), network.between
  out, back = (up + down, up + down) if peers else (up, down)  # a peer's message is another one's, too
  outside = (workers - m) / (workers - 1) if peers else 1.0
  return m * outside * (max(out, back) + (1 - link.duplex) * min(out, back)) / link.bandwidth


def limit(nbytes: float, link: Link, servers: int = 1) -> float:
  """Exchanges of n bytes up and n down that the servers can serve: 1 / ((n G / S) (2 - duplex)) per second."""
  busy = nbytes / check_servers(servers, nbytes) / check_link("a server's link", link).bandwidth * (2 - link.duplex)
  return 1 / busy if busy else float("inf")


def served_seconds(nbytes: float, workers: int, link: Link, network: Network, servers: int = 1) -> float:
  """How long the servers' links, or that of a full node, are busy with one visit of every worker: no turn is shorter.

  Args:
    nbytes: up, and as many down.
    link: of a server.
    network: of the workers.
  """
  return max(workers / limit(nbytes, link, servers), node_seconds(nbytes, nbytes, workers, network))


def throughput(nbytes: float, workers: int, link: Link, turn: float, servers: int = 1) -> float:
  """Exchanges per second at most: p / (turn + visit), until the servers' limit. turn: a worker's computation, seconds.

  Asynchronous workers reach it if they never come at the same time; a queue costs them more.
  """
  if not turn >= 0:
    raise ValueError(f"a turn of {turn:g} s is invalid: must be 0 or more")
  alone = turn + visit_seconds(nbytes, nbytes, link, servers)
  offered = check_workers(workers) / alone if alone else float("inf")
  return min(offered, limit(nbytes, link, servers))


def utilisation(nbytes: float, workers: int, link: Link, turn: float, servers: int = 1) -> float:
  """Share of the time in which the servers' links are busy, 0..1: throughput / limit."""
  most = limit(nbytes, link, servers)
  return throughput(nbytes, workers, link, turn, servers) / most if most < float("inf") else 0.0


def check_servers(servers: int, nbytes: float, itemsize: int = 4) -> int:
  """The number of servers, if it can be. ValueError, one line, for more of them than parameters of `itemsize` bytes."""
  check_count("servers", servers)
  most = max(1, int(check_bytes(nbytes)) // itemsize)
  if servers > most:
    raise ValueError(f"{servers} servers are more than the {most} parameters; give at most {most}")
  return servers


def check_count(name: str, count: int) -> int:
  """The count, if it is an integer of 1 or more; else ValueError, one line."""
  if not count >= 1 or count % 1:
    raise ValueError(f"{name} is {count:g}; give an integer of 1 or more")
  return count


def _message(nbytes: float, link: Link, servers: int) -> float:
  """Seconds of a worker's message to one of the servers."""
  return check_link("a server's link", link).seconds(check_bytes(nbytes) / servers)
