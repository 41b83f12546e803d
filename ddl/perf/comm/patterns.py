"""What each algorithm exchanges, as data: the bytes and the seconds of every algorithm follow from this table.

A new algorithm is an entry here; the tests compare each with the traffic of the traced program. Sizes are shares of the
parameters' bytes: inner optimizers' states and batch-norm statistics are not sent by any of them.
"""

from typing import NamedTuple

from ddl.perf.comm import collectives, server
from ddl.perf.hardware.network import Network


class Op(NamedTuple):
  """A collective of all workers."""

  kind: str  # all_reduce, or one of collectives.ONE_WAY
  share: float = 1.0  # of the parameters' bytes: the whole vector, before it is cut or after it is put together
  padded: bool = False  # to a multiple of the number of workers, in values

  def nbytes(self, params_bytes: float, workers: int, itemsize: int) -> float:
    """Bytes of the whole vector."""
    values = -(-params_bytes * self.share // itemsize // workers) * workers if self.padded else 0
    return values * itemsize if self.padded else params_bytes * self.share

  def sent(self, params_bytes: float, workers: int, itemsize: int) -> float:
    """Bytes that each worker sends, as few as can be: n (p - 1) / p, twice that for an all-reduce."""
    once = self.nbytes(params_bytes, workers, itemsize) * (workers - 1) / workers
    return 2 * once if self.kind == "all_reduce" else once

  def seconds(self, params_bytes: float, workers: int, network: Network, algorithm: str, itemsize: int) -> float:
    """On this network. algorithm: of an all-reduce; the others take their cheapest."""
    nbytes = self.nbytes(params_bytes, workers, itemsize)
    if self.kind == "all_reduce":
      return collectives.all_reduce(nbytes, workers, network, algorithm)
    return collectives.one_way(self.kind, nbytes, workers, network)


class Pattern(NamedTuple):
  """What an algorithm sends: collectives, or messages to and from a server or another worker."""

  step: tuple[Op, ...] = ()  # at each local step, which waits for them
  launch: tuple[Op, ...] = ()  # at each exchange: launch and merge together
  up: float = 0.0  # at each visit, share of the parameters' bytes from the worker to the server or the peer
  down: float = 0.0  # and back
  peers: bool = False  # up and down are between two workers
  periodic: bool = False  # the period is a setting; else there is an exchange at every step


class Cost(NamedTuple):
  """Seconds of an algorithm's communication."""

  step: float  # that every local step waits for
  exchange: float  # of one exchange, which runs beside as many steps as the algorithm's delay


AVERAGE = Pattern(launch=(Op("all_reduce"),), periodic=True)
VISIT = Pattern(up=1.0, down=1.0)
PERIODIC_VISIT = VISIT._replace(periodic=True)

PATTERNS: dict[str, Pattern] = {
  "sync_sgd": Pattern(step=(Op("all_reduce"),)),
  "sharded_sync_sgd": Pattern(step=(Op("reduce_scatter", padded=True), Op("all_gather", padded=True))),
  "local_sgd": AVERAGE,
  "post_local_sgd": AVERAGE,
  "dasgd": AVERAGE,
  "easgd": AVERAGE,
  "eamsgd": AVERAGE,
  "round_robin_easgd": Pattern(launch=(Op("all_reduce"),)),  # of one worker's difference and zeros, at every step
  "independent": Pattern(),
  "async_sgd": VISIT,
  "async_msgd": VISIT,
  "hogwild_sgd": VISIT,
  "async_easgd": PERIODIC_VISIT,
  "async_measgd": PERIODIC_VISIT,
  "hogwild_easgd": PERIODIC_VISIT,
  "original_easgd": VISIT,
  "downpour": PERIODIC_VISIT,
  "dc_asgd": VISIT,
  "dynsgd": PERIODIC_VISIT,
  "staleness_aware_sgd": VISIT,
  "async_local_sgd": PERIODIC_VISIT,
  "gosgd": Pattern(up=1.0, peers=True),
  "pull_gossip": Pattern(down=1.0, peers=True),
  "push_gossip": Pattern(up=1.0, peers=True),
  "ad_psgd": Pattern(up=1.0, down=1.0, peers=True),
}


def pattern(name: str) -> Pattern:
  """An algorithm's. ValueError, with the known names, for one that there is not."""
  if name not in PATTERNS:
    raise ValueError(f"there is no algorithm {name!r}; there are {', '.join(PATTERNS)}")
  return PATTERNS[name]


def exchange_bytes(name: str, params_bytes: float, workers: int, *, itemsize: int = 4) -> float:
  """Bytes of one exchange: what each worker sends (collectives), or sends and is sent (servers, peers).

  Raises:
    ValueError: for an unknown algorithm, or numbers that can't be.
  """
  found = _checked(name, params_bytes, workers)
  if found.peers and workers == 1:
    return 0.0  # there is nobody to talk to
  visit = (found.up + found.down) * params_bytes
  return visit + sum(op.sent(params_bytes, workers, itemsize) for op in found.launch)


def bytes_sent(
  name: str, params_bytes: float, workers: int, *, period: int = 1, probability: float = 1.0, itemsize: int = 4
) -> float:
  """Bytes per worker and local step, on average: those of a step, and those of an exchange over the period.

  Args:
    name: of the algorithm.
    params_bytes: of the model's parameters.
    workers: p.
    period: steps per exchange (tau).
    probability: that a visit is made at all (p_s of gosgd).
    itemsize: bytes of one parameter, for the padding of strips.

  Raises:
    ValueError: for an unknown algorithm, a period where the algorithm has none, or numbers that can't be.
  """
  found = _checked(name, params_bytes, workers)
  _check_period(name, period)
  if not 0 <= probability <= 1:
    raise ValueError(f"probability is {probability:g}; it lies in 0..1")
  exchange = exchange_bytes(name, params_bytes, workers, itemsize=itemsize) * probability
  return sum(op.sent(params_bytes, workers, itemsize) for op in found.step) + exchange / period


def seconds(
  name: str,
  params_bytes: float,
  workers: int,
  network: Network,
  *,
  servers: int = 1,
  algorithm: str = "best",
  itemsize: int = 4,
) -> Cost:
  """Seconds of a step's and of an exchange's communication, with all layers packed into one message.

  algorithm: of the all-reduces, as in `collectives.all_reduce`. A visit has the nodes' link to itself: how long
  it waits for others is a matter of the queue.

  Raises:
    ValueError: for an unknown algorithm, or numbers that can't be.
  """
  found = _checked(name, params_bytes, workers)
  step, launch = (
    sum(op.seconds(params_bytes, workers, network, algorithm, itemsize) for op in ops)
    for ops in (found.step, found.launch)
  )
  if not (found.up or found.down) or (found.peers and workers == 1):
    return Cost(step, launch)
  up, down = found.up * params_bytes, found.down * params_bytes
  link = network.inside if network.inside and found.peers and network.nodes(workers) == 1 else network.between
  return Cost(step, launch + server.visit_seconds(up, down, link, 1 if found.peers else servers))


def _checked(name: str, params_bytes: float, workers: int) -> Pattern:
  collectives.check_bytes(params_bytes)
  collectives.check_workers(workers)
  return pattern(name)


def _check_period(name: str, period: int) -> None:
  server.check_count("period", period)
  if period > 1 and not pattern(name).periodic:
    raise ValueError(f"{name} has no period: it exchanges at every step, or never")
