"""Predicted seconds of a local step for one algorithm of each family, at the settings that the planner recommends.

The families average all parameters (an all-reduce), or send them to a server and receive a reply.
"""

from collections.abc import Sequence
from typing import NamedTuple

from ddl.perf.comm import collectives, server
from ddl.perf.hardware import Cluster
from ddl.perf.planning.delays import round_seconds


class Settings(NamedTuple):
  """Settings of the families."""

  params_bytes: float
  examples: int  # of a worker's step
  step: float  # seconds of a worker's step without any exchange
  workers: int
  servers: int
  delay: int  # of DaSGD
  period: int  # of DaSGD
  local_period: int  # of local SGD, without a delay
  easgd_period: int  # its exchange runs beside one step
  server_period: int  # of asynchronous EASGD, likewise


class Speed(NamedTuple):
  """Prediction for one algorithm."""

  algorithm: str
  setting: str
  seconds: float  # per local step
  efficiency: float  # step without exchange / step
  rate: float  # examples per second of all workers


def speed(settings: Settings, algorithm: str, setting: str, seconds: float) -> Speed:
  """Return the prediction with the efficiency and the rate of so many seconds per step."""
  return Speed(algorithm, setting, seconds, settings.step / seconds, settings.workers * settings.examples / seconds)


def most(found: Sequence[Speed]) -> list[Speed]:
  """Return the predictions of the most examples per second; several where they are equal to three digits."""
  best = max(each.rate for each in found)
  return [each for each in found if each.rate >= 0.999 * best]


def speeds(settings: Settings, cluster: Cluster) -> tuple[Speed, ...]:
  """Synchronous SGD, local SGD, DaSGD, EASGD and two asynchronous servers, by their closed forms."""
  s = settings
  average = collectives.all_reduce(s.params_bytes, s.workers, cluster.network)

  def collective(name: str, period: int, delay: int) -> Speed:
    hidden = delay if cluster.overlap else 0
    taken = round_seconds(step=s.step, message=average, period=period, delay=hidden) / period
    return speed(s, name, f"period {period}, delay {delay}", taken)

  link = cluster.server_link(s.workers)
  alone = s.workers == 1  # a worker that is its own server sends nothing
  visit = 0.0 if alone else server.visit_seconds(s.params_bytes, s.params_bytes, link, s.servers)
  served = 0.0 if alone else server.served_seconds(s.params_bytes, s.workers, link, cluster.network, s.servers)

  def asynchronous(name: str, period: int, delay: int) -> Speed:
    own = round_seconds(step=s.step, message=visit, period=period, delay=delay if cluster.overlap else 0)
    taken = max(own, served) / period
    return speed(s, name, f"{s.servers} server{'s' * (s.servers > 1)}, period {period}", taken)

  return (
    collective("sync_sgd", 1, 0),
    collective("local_sgd", s.local_period, 0),
    collective("dasgd", s.period, s.delay),
    collective("easgd", s.easgd_period, 1),
    asynchronous("async_sgd", 1, 0),
    asynchronous("async_easgd", s.server_period, 1),
  )
