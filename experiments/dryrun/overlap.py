"""Seconds of a schedule by the cost model: compute, and of each collective what is exposed and what compute hides.

Compute and the links are a resource each. An operation takes the larger of FLOP / (peak * efficiency) and bytes /
bandwidth of the memory; a collective the cheapest way of `ddl.perf`. Those in flight take the links one after
the other, while compute goes on; what is left when a result is needed is exposed. A chain, on TPUs, moves only while
the kernels that drive it run.
"""

from collections.abc import Sequence
from typing import NamedTuple

from ddl.costs.cluster_clock import collective_seconds
from ddl.engine.compiled_program import Collective, Events
from ddl.perf.cluster import Cluster


class Transfer(NamedTuple):
  """A collective of a schedule."""

  times: float  # per run of the schedule
  kernels: int  # products that run between its start and its end, and drive it if it is a chain
  link: float  # seconds that it takes
  exposed: float  # seconds of these for which the device waits


class Seconds(NamedTuple):
  """Of one run of a schedule."""

  compute: float
  transfers: dict[int, Transfer]  # by id of the collective
  driving: float = 0.0  # of the compute, in kernels that drive a chain from outside of the schedule
  products: int = 0  # among these kernels

  @property
  def link(self) -> float:
    """Of all collectives."""
    return sum(each.times * each.link for each in self.transfers.values())

  @property
  def exposed(self) -> float:
    """Of all collectives."""
    return sum(each.times * each.exposed for each in self.transfers.values())


class _InFlight:
  """A collective under way."""

  def __init__(self, seconds: float, chain: bool):
    self.link, self.left, self.chain, self.kernels, self.exposed = seconds, seconds, chain, 0, 0.0


def price(events: Events, collectives: Sequence[Collective], cluster: Cluster, devices: int) -> Seconds:
  """Return the seconds of a schedule. found: its collectives, by id; devices: of the whole program."""
  compute, driving, products, transfers = 0.0, 0.0, 0, {}
  flights: dict[int, _InFlight] = {}

  def works(seconds: float, drives: bool, kernels: int = 1) -> None:
    free = seconds  # of the links, during this work
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
        works(seconds, drives, kernels=int(flop > 0))
      case ["loop", times, inner]:
        one = price(inner, collectives, cluster, devices)
        compute += times * one.compute
        transfers |= {i: each._replace(times=times * each.times) for i, each in one.transfers.items()}
        driving, products = driving + times * one.driving, products + times * one.products
        works(times * (one.compute + one.exposed - one.driving), drives=False)
        works(times * one.driving, drives=True, kernels=times * one.products)
      case ["start", number, chain]:
        flights[number] = _InFlight(collective_seconds(collectives[number], cluster, devices), chain)
      case ["done", number]:
        for each, flight in list(flights.items()):  # those before it leave the links first
          flight.exposed, flight.left = flight.exposed + flight.left, 0.0
          if each == number:
            break
        done = flights.pop(number)
        transfers[number] = Transfer(1, done.kernels, done.link, done.exposed)
  return Seconds(compute, transfers, driving, products)


def operation_seconds(flop: float, nbytes: float, cluster: Cluster) -> float:
  """Seconds of one operation on one device."""
  device = cluster.device
  reached = cluster.efficiency
  return max(flop / (device.peak * reached.best), nbytes / (device.memory_bandwidth * reached.memory))
