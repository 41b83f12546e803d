"""Define netbench's model and cases; an algorithm's period, delay and batch follow from the measured link."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

MODEL: dict[str, Any] = {"name": "mlp", "hidden": (640, 640, 640, 640)}  # 5.1 MB, in three fragments of similar size
FRAGMENTS = 3
BATCH = 256  # examples of a step, which takes tens of milliseconds on one core
EXAMPLES = 2**16  # in the synthetic data; on a slow link, a step of Sync EASGD reads thousands of them
ROUND = 2  # period divided by delay
MARGIN = 1.5  # an overlapped exchange takes this many times as long, because its threads share the host's only core
BLOCK = 3.0  # minimum seconds of compute in a compiled call, which ends by waiting for the mean of the losses


class Case(NamedTuple):
  """An algorithm with its settings."""

  label: str
  algorithm: dict[str, Any]
  batch: int
  rounds: int  # per measured block, which is one compiled call
  overlap: bool = True  # whether messages overlap steps

  @property
  def period(self) -> int:
    """Steps per round."""
    return self.algorithm.get("period", 1)

  @property
  def delay(self) -> int:
    """Number of steps that overlap with an exchange."""
    return 1 if self.algorithm["name"] == "easgd" else self.algorithm.get("delay", 0)

  @property
  def steps(self) -> int:
    """Steps per measured block."""
    return self.rounds * self.period


# Synchronous SGD is measured first, because the time that it waits is the time of an exchange.
SYNCHRONOUS = Case("sync_sgd", {"name": "sync_sgd"}, BATCH, rounds=5)


class Measured(NamedTuple):
  """Seconds of a step and of exchanges, from which periods and delays follow."""

  step: float  # on BATCH examples, without communication
  exchange: float  # of all parameters: the time that synchronous SGD waits
  fragment: float  # exchange of the largest fragment of Streaming DiLoCo


def delay(exchange: float, step: float) -> int:
  """Return the smallest number of steps, at least 1, that take at least MARGIN times as long as an exchange."""
  return max(1, math.ceil(MARGIN * exchange / step))


def _local(name: str, measured: Measured) -> Case:
  hiding = delay(measured.exchange, measured.step)
  period = FRAGMENTS * math.ceil(ROUND * hiding / FRAGMENTS)
  settings: dict[str, Any] = {"name": name, "period": period}
  if name == "dasgd":
    settings |= {"delay": hiding, "keep": 0.25}
  if name == "streaming_diloco":
    settings |= {"fragments": FRAGMENTS, "delay": delay(measured.fragment, measured.step), "keep": 0.5}
  return Case(name, settings, BATCH, math.ceil(BLOCK / (period * measured.step)))


def _elastic(overlap: bool, measured: Measured) -> Case:
  # Sync EASGD has a delay of one step by definition, so its batch is chosen to make a step as long as an exchange.
  batch = min(EXAMPLES // 4, max(1, round(BATCH * MARGIN * measured.exchange / measured.step)))
  rounds = math.ceil(BLOCK / (ROUND * MARGIN * measured.exchange))
  label = "easgd" if overlap else "easgd, no overlap"
  return Case(label, {"name": "easgd", "period": ROUND}, batch, rounds, overlap)


CASES: dict[str, Callable[[Measured], Case]] = {
  "sync_sgd": lambda _: SYNCHRONOUS,
  "local_sgd": partial(_local, "local_sgd"),
  "dasgd": partial(_local, "dasgd"),
  "easgd_no_overlap": partial(_elastic, False),
  "easgd": partial(_elastic, True),
  "diloco": partial(_local, "diloco"),
  "streaming_diloco": partial(_local, "streaming_diloco"),
}
