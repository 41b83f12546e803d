"""Predict with the cost model how long a round takes and how long its messages occupy the link."""

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

ROUNDS = 20  # simulated rounds; only the second half counts


class Expected:
  """The messages of one round of an experiment's algorithm, and their predicted seconds."""

  def __init__(self, experiment: Experiment, params: Tree, link: LinkModel, period: int, overlap: bool):
    """Compute the messages of a round.

    Args:
      experiment: the experiment.
      params: the shapes of the parameters.
      link: the link of a host.
      period: steps per round.
      overlap: whether messages overlap steps.
    """
    self._experiment, self._period, self._overlap = experiment, period, overlap
    self._algorithm: Any = experiment.make_algorithm()
    pattern = messages(self._algorithm, params, experiment.workers)
    self._local = price(pattern.local, experiment.workers, link)
    self.messages = [  # seconds of each exchange
      price(exchange.ops, experiment.workers, link) for exchange in pattern.exchanges
    ]
    schedule, first = Schedule(self._algorithm.exchanges), ROUNDS * period
    sent = traffic.of(self._algorithm, params, experiment.workers)
    self.nbytes = sent.nbytes(schedule.due(step) for step in range(first, first + period))  # sent by a host per round

  @property
  def link(self) -> float:
    """Seconds for which the messages of a round occupy the link."""
    return self._period * self._local + sum(self.messages)

  def predicted(self, step: float) -> float:
    """Return the predicted seconds of a round. step: seconds of a step without communication."""
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
  """Return the messages that hosts send: one for each array of at least SMALL bytes, and one for all smaller ones."""
  leaves, structure = jax.tree.flatten(params)
  small = [x.size * x.dtype.itemsize < SMALL for x in leaves]
  together = [small, *([i == j for i in range(len(leaves))] for j, s in enumerate(small) if not s)]

  def only(launched: Sequence[bool]) -> Pattern:
    shapes = [x if k else jax.ShapeDtypeStruct((0,), x.dtype) for x, k in zip(leaves, launched, strict=True)]
    return pattern_of(algorithm, structure.unflatten(shapes), hosts)

  def joined(groups: Iterable[tuple[Op, ...]]) -> tuple[Op, ...]:
    return tuple(op for ops in groups for op in ops if op.nbytes)

  parts = [only(launched) for launched in together]
  exchanges = [
    exchange._replace(ops=joined(part.exchanges[i].ops for part in parts))
    for i, exchange in enumerate(parts[0].exchanges)
  ]
  return Pattern(joined(part.local for part in parts), tuple(exchanges))


def price(ops: Iterable[Op], hosts: int, link: LinkModel) -> float:
  """Return the seconds of sequential ring all-reduces over the link, as Gloo implements them.

  In each of the 2 (p - 1) steps of a ring, the sender waits for the receiver's ready message: two latencies per step.
  """
  twice = link._replace(latency=2 * link.latency)
  return sum(ALL_REDUCE["ring"](op.nbytes, hosts, twice) for op in ops)
