"""What the bench measures: a model whose messages are worth a link, and the clock of each algorithm on that link."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

MODEL: dict[str, Any] = {"name": "mlp", "hidden": (640, 640, 640, 640)}  # 5.1 MB; three fragments of about equal size
FRAGMENTS = 3
BATCH = 256  # some tens of milliseconds of one core
EXAMPLES = 2**16  # of the synthetic data: a step of Sync EASGD on a slow link takes thousands
SPARE = 2  # rounds of an algorithm with a delay take that many times the time of an exchange


class Case(NamedTuple):
  """An algorithm with its settings."""

  label: str
  algorithm: dict[str, Any]
  batch: int
  overlap: bool = True

  @property
  def period(self) -> int:
    """Steps of a round."""
    return self.algorithm.get("period", 1)

  @property
  def delay(self) -> int:
    """Steps in flight."""
    return 1 if self.algorithm["name"] == "easgd" else self.algorithm.get("delay", 0)

  @property
  def steps_per_call(self) -> int:
    """Whole rounds in a compiled call, as a message in flight is waited for at its end."""
    return self.period * max(1, 64 // self.period)


class Measured(NamedTuple):
  """What decides the clocks, in seconds."""

  step: float  # of BATCH examples, without communication
  exchange: float  # of all parameters, as synchronous SGD waits for it


def synchronous() -> Case:
  """The case that is measured first: its wait is the exchange."""
  return Case("sync_sgd", {"name": "sync_sgd"}, BATCH)


def delay(measured: Measured, share: float = 1.0) -> int:
  """Return the steps that a share of an exchange takes, at least 1."""
  return max(1, math.ceil(share * measured.exchange / measured.step))


def _local(name: str) -> Callable[[Measured], Case]:
  def case(measured: Measured) -> Case:
    period = FRAGMENTS * math.ceil(SPARE * delay(measured) / FRAGMENTS)
    settings: dict[str, Any] = {"name": name, "period": period}
    if name == "dasgd":
      settings |= {"delay": delay(measured), "keep": 0.25}
    if name == "streaming_diloco":
      settings |= {"fragments": FRAGMENTS, "delay": delay(measured, 1 / FRAGMENTS), "keep": 0.5}
    return Case(name, settings, BATCH)

  return case


def _elastic(overlap: bool) -> Callable[[Measured], Case]:
  def case(measured: Measured) -> Case:
    # Its delay is one step by definition, so that one step takes as long as the exchange here.
    batch = min(EXAMPLES // 8, max(1, round(BATCH * measured.exchange / measured.step)))
    return Case("easgd" if overlap else "easgd, no overlap", {"name": "easgd", "period": SPARE}, batch, overlap)

  return case


CASES: dict[str, Callable[[Measured], Case]] = {
  "sync_sgd": lambda _: synchronous(),
  "local_sgd": _local("local_sgd"),
  "dasgd": _local("dasgd"),
  "easgd_no_overlap": _elastic(False),
  "easgd": _elastic(True),
  "diloco": _local("diloco"),
  "streaming_diloco": _local("streaming_diloco"),
}
