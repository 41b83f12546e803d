"""What a round should take: the link's own seconds for its messages, and the cost model's prediction."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from ddl.api import Algorithm, Tree
from ddl.perf.comm.collectives import ALL_REDUCE
from ddl.perf.comm.patterns import Op, Pattern
from ddl.perf.hardware import Cluster
from ddl.perf.hardware.device import Device, Efficiency
from ddl.perf.hardware.network import Link, Network
from ddl.runtime import traffic
from ddl.runtime.layout.workers import SMALL
from ddl.schedule import Schedule
from experiments.config.experiment import Experiment
from experiments.costs import cluster_clock
from experiments.costs.patterns import pattern_of
from experiments.train import virtual_time

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


def link_seconds(pattern: Pattern, period: int, hosts: int, link: Link) -> float:
  """Return the link's own seconds for a round's messages: all-reduces on a ring, as Gloo makes them, one by one."""
  local = period * sum(ALL_REDUCE["ring"](op.nbytes, hosts, link) for op in pattern.local)
  return local + sum(ALL_REDUCE["ring"](op.nbytes, hosts, link) for each in pattern.exchanges for op in each.ops)


def predicted_seconds(
  experiment: Experiment, pattern: Pattern, period: int, link: Link, step: float, overlap: bool
) -> float:
  """Return the cost model's seconds of a round. step: seconds of one without communication."""
  device = Device(peak=experiment.batch / step, memory_bandwidth=np.inf, memory=np.inf)  # of 1 FLOP per example
  cluster = Cluster("the bench's hosts", device, Efficiency(1.0), Network(link), "measured", overlap=overlap)
  config = replace(experiment, steps=ROUNDS * period)
  there = cluster_clock.on(config, pattern, cluster, 1.0)
  algorithm: Any = experiment.make_algorithm()
  seconds = virtual_time.lockstep_seconds(there.config, algorithm, there.charged)
  half = ROUNDS // 2
  return (seconds(ROUNDS * period) - seconds((ROUNDS - half) * period)) / half
