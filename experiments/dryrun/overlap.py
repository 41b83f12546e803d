"""Predict the seconds of a compiled schedule: compute, and the exposed and hidden time of each collective.

Compute is one resource, and all links together are another. An operation takes the larger of FLOP / (peak *
efficiency) and bytes / (memory bandwidth * efficiency); a collective takes the time of the cheapest algorithm in
`ddl.perf`. During compute, collectives in flight use the links one after the other; the part of a collective that
remains when its result is needed is exposed. On TPUs, a chained collective (see `ddl.engine.compiled_program`) advances
only while the kernels that drive it run.
"""

from collections.abc import Sequence
from typing import NamedTuple

from ddl.costs.cluster_clock import collective_seconds
from ddl.engine.compiled_program import Collective, Events
from ddl.perf.cluster import Cluster


class Transfer(NamedTuple):
  """A collective of a schedule, with its seconds per execution."""

  times: float  # executions of the collective per execution of the schedule
  kernels: int  # matrix products between its start and end; for a chained collective, only those that drive it
  link: float  # seconds for which it uses the links
  exposed: float  # part of these seconds in which the device waits


class Seconds(NamedTuple):
  """Predicted seconds of a schedule that is executed once."""

  compute: float
  transfers: dict[int, Transfer]  # by the collective's id
  driving: float = 0.0  # part of `compute` in kernels that drive a chained collective started outside the schedule
  products: int = 0  # number of matrix products in these kernels

  @property
  def link(self) -> float:
    """Sum of the collectives' seconds."""
    return sum(transfer.times * transfer.link for transfer in self.transfers.values())

  @property
  def exposed(self) -> float:
    """Sum of the collectives' exposed seconds."""
    return sum(transfer.times * transfer.exposed for transfer in self.transfers.values())


class _InFlight:
  """A collective that has started but not finished."""

  def __init__(self, seconds: float, chain: bool):
    self.link, self.left, self.chain, self.kernels, self.exposed = seconds, seconds, chain, 0, 0.0


def price(events: Events, collectives: Sequence[Collective], cluster: Cluster, devices: int) -> Seconds:
  """Predict the seconds of a schedule. collectives: indexed by id; devices: number of devices of the program."""
  compute, driving, products, transfers = 0.0, 0.0, 0, {}
  flights: dict[int, _InFlight] = {}

  def advance(seconds: float, drives: bool, kernels: int = 1) -> None:
    free = seconds  # link time available during this work
    for flight in flights.values():
      if flight.chain and not drives:
        continue
      flight.kernels += kernels
      moved = min(flight.left, free)
      flight.left, free = flight.left - moved, free - moved

  for event in events:
    match event:
      case ["work", flop, nbytes, drives]:
        seconds = operation_seconds(flop, nbytes, cluster)
        compute += seconds
        if drives and not any(flight.chain for flight in flights.values()):
          driving, products = driving + seconds, products + (flop > 0)
        advance(seconds, drives, kernels=int(flop > 0))
      case ["loop", times, inner]:
        one = price(inner, collectives, cluster, devices)
        compute += times * one.compute
        transfers |= {i: transfer._replace(times=times * transfer.times) for i, transfer in one.transfers.items()}
        driving, products = driving + times * one.driving, products + times * one.products
        advance(times * (one.compute + one.exposed - one.driving), drives=False)
        advance(times * one.driving, drives=True, kernels=times * one.products)
      case ["start", number, chain]:
        flights[number] = _InFlight(collective_seconds(collectives[number], cluster, devices), chain)
      case ["done", number]:
        for other, flight in list(flights.items()):  # earlier collectives finish first
          flight.exposed, flight.left = flight.exposed + flight.left, 0.0
          if other == number:
            break
        done = flights.pop(number)
        transfers[number] = Transfer(1, done.kernels, done.link, done.exposed)
  return Seconds(compute, transfers, driving, products)


def operation_seconds(flop: float, nbytes: float, cluster: Cluster) -> float:
  """Return the roofline time of one operation on one device."""
  device = cluster.device
  efficiency = cluster.efficiency
  return max(flop / (device.peak * efficiency.best), nbytes / (device.memory_bandwidth * efficiency.memory))
