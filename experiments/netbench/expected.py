"""What a round should take: the link's own seconds for its messages, and those of the cost model's clock."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import jax

from ddl.api import Algorithm, Tree
from ddl.config.experiment import Experiment
from ddl.costs.cluster_clock import pattern_of
from ddl.engine import traffic
from ddl.engine.workers import SMALL
from ddl.perf.cluster import LinkModel
from ddl.perf.collectives import ALL_REDUCE
from ddl.perf.patterns import Op, Pattern
from ddl.run import virtual_time
from ddl.run.virtual_time import Charges
from ddl.schedule import Schedule

ROUNDS = 20  # of a prediction, of which the second half counts


class Expected:
  """A round of an experiment's algorithm on hosts with such links."""

  def __init__(self, experiment: Experiment, params: Tree, link: LinkModel, period: int, overlap: bool):
    """params: shapes; link: of each host; period: steps of a round; overlap: of messages with steps."""
    self._experiment, self._period, self._overlap = experiment, period, overlap
    self._algorithm: Any = experiment.make_algorithm()
    pattern = messages(self._algorithm, params, experiment.workers)
    self._local = price(pattern.local, experiment.workers, link)
    self.messages = [
      price(each.ops, experiment.workers, link) for each in pattern.exchanges
    ]  # seconds of each exchange
    schedule, first = Schedule(self._algorithm.exchanges), ROUNDS * period
    sent = traffic.of(self._algorithm, params, experiment.workers)
    self.nbytes = sent.nbytes(schedule.due(step) for step in range(first, first + period))  # that a host sends

  @property
  def link(self) -> float:
    """The link's own seconds for a round's messages."""
    return self._period * self._local + sum(self.messages)

  def predicted(self, step: float) -> float:
    """Return the seconds on the cost model's clock. step: seconds of one without communication."""
    last = ROUNDS * self._period
    times = replace(
      self._experiment.times, settings={**self._experiment.times.settings, "seconds": step, "jitter": 0.0}
    )
    network = replace(self._experiment.network, overlap=self._overlap)
    config = replace(self._experiment, steps=last, times=times, network=network)
    charges = Charges(self._local or None, tuple(self.messages))
    seconds = virtual_time.lockstep_seconds(config, self._algorithm, charges)
    return (seconds(last) - seconds(last // 2)) / (ROUNDS / 2)


def messages(algorithm: Algorithm, params: Tree, hosts: int) -> Pattern:
  """Return the pattern with each message as it goes over sockets: large arrays alone, the others of a tree together."""
  leaves, structure = jax.tree.flatten(params)
  small = [x.size * x.dtype.itemsize < SMALL for x in leaves]
  together = [small, *([i == j for i in range(len(leaves))] for j, s in enumerate(small) if not s)]

  def only(launched: Sequence[bool]) -> Pattern:
    some = [x if k else jax.ShapeDtypeStruct((0,), x.dtype) for x, k in zip(leaves, launched, strict=True)]
    return pattern_of(algorithm, structure.unflatten(some), hosts)

  def joined(each: Iterable[tuple[Op, ...]]) -> tuple[Op, ...]:
    return tuple(op for ops in each for op in ops if op.nbytes)

  parts = [only(launched) for launched in together]
  exchanges = [
    each._replace(ops=joined(part.exchanges[i].ops for part in parts)) for i, each in enumerate(parts[0].exchanges)
  ]
  return Pattern(joined(part.local for part in parts), tuple(exchanges))


def price(ops: Iterable[Op], hosts: int, link: LinkModel) -> float:
  """Return the link's own seconds for all-reduces as Gloo makes them, one after the other.

  On a ring, whose 2 (p - 1) rounds each wait for a notice of the receiver before the data leave: two latencies a round.
  """
  twice = link._replace(latency=2 * link.latency)
  return sum(ALL_REDUCE["ring"](op.nbytes, hosts, twice) for op in ops)
