"""Closed forms of a parameter server: seconds of a visit, and for how long visits occupy the links.

S servers hold n / S bytes each; a worker's visit is a message up to and one down from each of them. L is the latency,
G = 1 / bandwidth. In asynchronous visits a link is occupied by the bytes alone: a message in flight occupies nothing,
and a worker sends its messages to the servers one after the other, without waiting for the one before to arrive.

Without a lock (the hogwild algorithms) messages share the link as with one; what runs concurrently are updates. An
update of n bytes moves 3 n through the server's memory (reads the center and the message, writes the center), which all
share too, and takes at most as long as n over the link: it costs nothing here, and a lock costs nothing.
You, Buluc, Demmel 2017, arXiv 1708.02983; Zou et al. 2017, arXiv 1709.06622.

Every function raises ValueError, one line, for more servers than parameters and for other invalid numbers.
"""

from ddl.perf import checks
from ddl.perf.hardware.network import Link, Network, check_link

FLOAT = 4  # bytes per parameter


def round_robin_seconds(nbytes: float, workers: int, link: Link) -> float:
  """p (L + n G): one worker after the other, one way (arXiv 1708.02983); a tree takes log2 p of them instead."""
  return checks.count("number of workers", workers) * _message(nbytes, link)


def visit_seconds(up: float, down: float, link: Link, servers: int = 1) -> float:
  """One worker's visit to idle servers: L + up G, then L + down G where there is a reply. up, down: bytes."""
  check_servers(servers, max(up, down))  # their messages share the worker's link and are in flight concurrently
  return _message(up, link) + (_message(down, link) if down else 0.0)


def node_seconds(up: float, down: float, workers: int, network: Network, peers: bool = False) -> float:
  """Seconds for which a full node's link is busy while each of its m workers makes a visit: m (bytes out and in) / B.

  Bytes that go both ways overlap as far as the link's duplex allows. Servers stand outside of the nodes; of peers,
  drawn evenly, (p - m) / (p - 1) are elsewhere. 0 where one node holds all.
  """
  if network.nodes(workers) == 1:
    return 0.0
  m = network.together(workers)
  out, back = (up + down, up + down) if peers else (up, down)  # a peer's message is another one's, too
  outside = (workers - m) / (workers - 1) if peers else 1.0
  return m * outside * network.way_out(workers, everyone=True).busy_seconds(out, back)


def served_seconds(nbytes: float, workers: int, link: Link, network: Network, servers: int = 1) -> float:
  """Seconds for which the servers' links, p (n G / S) (2 - duplex), or that of a full node are busy with p visits.

  That is a visit of every worker: no worker round is shorter.

  Args:
    nbytes: up, and as many down.
    link: of a server.
    network: of the workers.
  """
  check_servers(servers, nbytes)
  busy = check_link("a server's link", link).busy_seconds(nbytes, nbytes)
  return max(workers * busy / servers, node_seconds(nbytes, nbytes, workers, network))


def check_servers(servers: int, nbytes: float) -> int:
  """Return the number of servers; ValueError for more of them than float32 parameters in so many bytes."""
  checks.count("number of servers", servers)
  most = max(1, int(checks.amount("bytes of a message", nbytes)) // FLOAT)
  if servers > most:
    raise ValueError(f"{servers} servers are more than the {most} parameters; give at most {most}")
  return servers


def _message(nbytes: float, link: Link) -> float:
  return check_link("a server's link", link).seconds(checks.amount("bytes of a message", nbytes))
