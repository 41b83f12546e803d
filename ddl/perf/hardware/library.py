"""What a communication library adds to the links: seconds of a call and of a step, the shares of bandwidth it reaches.

NCCL sends a message in one of three protocols. LL stores a flag beside every 4 bytes, LL128 one in every 128 bytes, and
Simple hands over chunks after a synchronization: fewer seconds of a step against less of the bandwidth. They and the
form call + steps * hop + bytes / bandwidth are those of NCCL's own choice (github.com/NVIDIA/nccl,
src/graph/tuning.cc). The figures of `NCCL` are fitted on nine published curves of nccl-tests; the errors on others are
in docs/reproduction.md.
"""

from typing import NamedTuple


class Protocol(NamedTuple):
  """A way to send: seconds of a call and of each of its steps, beside the latency of the link."""

  name: str
  call: float  # seconds of a call, whatever its bytes and workers
  inside: float  # seconds of a step inside a node, beside one latency of its link
  between: float  # seconds of a step between nodes, beside `trips` latencies of their link
  trips: float  # latencies of a step between nodes: hand-shakes, and chunks that wait for one another
  share: float  # of what the library reaches of a link


class Library(NamedTuple):
  """The costs of a library's collectives on devices in nodes."""

  name: str
  launch: float  # seconds of each device that one process drives, one after the other
  inside: float  # share of the links in a node that it reaches at best
  between: float  # share of the links between nodes
  protocols: tuple[Protocol, ...]  # on rings and trees
  switch: Protocol  # where a node's switch adds up; its share is that of the links in the node

  def without(self, protocol: str) -> "Library":
    """The library on a fabric where a protocol is not used, such as LL128 where 128 bytes may arrive out of order."""
    return self._replace(protocols=tuple(each for each in self.protocols if each.name != protocol))

  def instant(self) -> "Library":
    """The library with the same shares of the bandwidth, whose calls and steps take no time of their own."""

    def at_once(protocol: Protocol) -> Protocol:
      return protocol._replace(call=0.0, inside=0.0, between=0.0)

    protocols = tuple(map(at_once, self.protocols))
    return self._replace(launch=0.0, protocols=protocols, switch=at_once(self.switch))


NVLINK_LATENCY = 1e-6  # seconds; assumed: only its sum with a protocol's step is fitted
INFINIBAND_LATENCY = 2.7e-6  # of ib_write_lat on 400 Gb/s, in the report with the curves of eight B200; likewise
NCCL = Library(
  "NCCL", 4.8e-6, 0.72, 0.89,
  (
    Protocol("LL", 5.5e-6, 0.8e-6, 0.5e-6, 1.0, 0.12),
    Protocol("LL128", 21e-6, 0.9e-6, 5.2e-6, 1.0, 0.56),
    Protocol("Simple", 22e-6, 4e-6, 76e-6, 5.8, 1.0),
  ),
  Protocol("Simple", 42e-6, 0.0, 23e-6, 5.8, 0.59),
)  # fmt: skip
