"""What the bench measures: a model whose messages are worth a link, and the clock of each algorithm on that link."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

MODEL: dict[str, Any] = {"name": "mlp", "hidden": (640, 640, 640, 640)}  # 5.1 MB; three fragments of about equal size
FRAGMENTS = 3
BATCH = 256  # some tens of milliseconds of one core
EXAMPLES = 2**16  # of the synthetic data: a step of Sync EASGD on a slow link takes thousands
ROUND = 2  # delays that a round takes
MARGIN = 1.5  # beside steps an exchange takes that much longer: its threads wait for the host's one core
BLOCK = 3.0  # seconds of computing at least, in one compiled call: at its end a mean of the losses is waited for


class Case(NamedTuple):
  """An algorithm with its settings."""

  label: str
  algorithm: dict[str, Any]
  batch: int
  rounds: int  # of a block
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
  def steps(self) -> int:
    """Steps of a block."""
    return self.rounds * self.period


SYNCHRONOUS = Case("sync_sgd", {"name": "sync_sgd"}, BATCH, rounds=5)  # is measured first: its wait is the exchange


class Measured(NamedTuple):
  """What decides the clocks, in seconds."""

  step: float  # of BATCH examples, without communication
  exchange: float  # of all parameters, as synchronous SGD waits for it
  fragment: float  # of the largest fragment of Streaming DiLoCo


def delay(exchange: float, step: float) -> int:
  """Return the steps that hide an exchange, at least 1."""
  return max(1, math.ceil(MARGIN * exchange / step))


def _local(name: str, measured: Measured) -> Case:
  whole = delay(measured.exchange, measured.step)
  period = FRAGMENTS * math.ceil(ROUND * whole / FRAGMENTS)
  settings: dict[str, Any] = {"name": name, "period": period}
  if name == "dasgd":
    settings |= {"delay": whole, "keep": 0.25}
  if name == "streaming_diloco":
    settings |= {"fragments": FRAGMENTS, "delay": delay(measured.fragment, measured.step), "keep": 0.5}
  return Case(name, settings, BATCH, math.ceil(BLOCK / (period * measured.step)))


def _elastic(overlap: bool, measured: Measured) -> Case:
  # Its delay is one step by definition, so that one step takes as long as the exchange here.
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
