"""What a round should take: the link's own seconds for its messages, and those of the cost model's clock."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax

from ddl.api import Algorithm, Tree
from ddl.perf.comm.collectives import ALL_REDUCE
from ddl.perf.comm.patterns import Op, Pattern
from ddl.perf.hardware.network import Link
from ddl.runtime import traffic
from ddl.runtime.layout.workers import SMALL
from ddl.schedule import Schedule
from experiments.config.experiment import Experiment
from experiments.costs.patterns import pattern_of
from experiments.train import virtual_time
from experiments.train.virtual_time import Charges

ROUNDS = 20  # of a prediction, of which the second half counts


def sent_bytes(algorithm: Algorithm, params: Tree, hosts: int, period: int) -> float:
  """Return the bytes that each host sends in a round of the steady state."""
  first = ROUNDS * period
  schedule = Schedule(algorithm.exchanges)
  return traffic.of(algorithm, params, hosts).nbytes(schedule.due(step) for step in range(first, first + period))


def messages(algorithm: Algorithm, params: Tree, hosts: int) -> Pattern:
  """Return the pattern with each message as it goes over sockets: large arrays alone, the others of a tree together."""
  leaves, structure = jax.tree.flatten(params)
  small = [x.size * x.dtype.itemsize < SMALL for x in leaves]
  together: list[list[bool]] = [small, *([i == j for i in range(len(leaves))] for j, s in enumerate(small) if not s)]

  def only(kept: Sequence[bool]) -> Pattern:
    some = [x if k else jax.ShapeDtypeStruct((0,), x.dtype) for x, k in zip(leaves, kept, strict=True)]
    return pattern_of(algorithm, structure.unflatten(some), hosts)

  parts = [only(kept) for kept in together]

  def joined(each: Sequence[tuple[Op, ...]]) -> tuple[Op, ...]:
    return tuple(op for ops in each for op in ops if op.nbytes)

  exchanges = tuple(each[0]._replace(ops=joined([e.ops for e in each])) for each in zip(*(p.exchanges for p in parts)))
  return Pattern(joined([part.local for part in parts]), exchanges)


def price(ops: Sequence[Op], hosts: int, link: Link) -> float:
  """Return the link's own seconds for all-reduces as Gloo makes them, one after the other.

  On a ring, whose 2 (p - 1) rounds each wait for a notice of the receiver before the data leave: two latencies a round.
  """
  twice = link._replace(latency=2 * link.latency)
  return sum(ALL_REDUCE["ring"](op.nbytes, hosts, twice) for op in ops)


def link_seconds(pattern: Pattern, period: int, hosts: int, link: Link) -> float:
  """Return the link's own seconds for a round's messages."""
  return period * price(pattern.local, hosts, link) + sum(price(each.ops, hosts, link) for each in pattern.exchanges)


def predicted_seconds(
  experiment: Experiment, pattern: Pattern, period: int, link: Link, step: float, overlap: bool
) -> float:
  """Return a round's seconds on the cost model's clock. step: seconds of one without communication."""
  algorithm: Any = experiment.make_algorithm()
  times = replace(experiment.times, settings={**experiment.times.settings, "seconds": step})
  network = replace(experiment.network, overlap=overlap)
  config = replace(experiment, steps=ROUNDS * period, times=times, network=network)
  prices = [price(ops, experiment.workers, link) if ops else None for ops in (pattern.local, *_ops(pattern))]
  seconds = virtual_time.lockstep_seconds(config, algorithm, Charges(prices[0], tuple(prices[1:])))
  half = ROUNDS // 2
  return (seconds(ROUNDS * period) - seconds((ROUNDS - half) * period)) / half


def _ops(pattern: Pattern) -> list[tuple[Op, ...]]:
  return [each.ops for each in pattern.exchanges]
