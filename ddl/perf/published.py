"""Derive the uncertainty of a predicted rate from the rates that published runs of synchronous SGD reached.

A prediction assumes that the backward pass hides the all-reduce of gradients and that all devices are always busy.
Published runs were slower: on average, they reached the rate that is predicted without overlap.
"""

from typing import NamedTuple

from ddl.perf.units import percent, rough_rate


class ReachedRates(NamedTuple):
  """The 10th and the 90th percentile of published rates divided by the rates predicted without overlap."""

  low: float
  high: float
  points: int  # number of published rates
  systems: int  # number of systems that they were measured on


# From experiments/papers/published_scaling.csv; checked by a test.
ONE_NODE = ReachedRates(0.78, 1.03, 667, 43)
SEVERAL_NODES = ReachedRates(0.77, 1.08, 152, 11)


def interval(hidden: float, exposed: float, reached: ReachedRates) -> tuple[float, float]:
  """Return an interval that contains at least 80 % of the published rates: (low * e, max(high * e, h)).

  Args:
    hidden: h, the rate that is predicted if the backward pass hides the all-reduce.
    exposed: e, the rate that is predicted without overlap.
    reached: the percentiles of published runs.
  """
  return reached.low * exposed, max(reached.high * exposed, hidden)


class ExpectedRates(NamedTuple):
  """The interval of expected rates of synchronous SGD in examples per second, and an explanation."""

  low: float
  high: float
  text: str

  @property
  def range(self) -> str:
    """The interval as text."""
    return f"{rough_rate(self.low)} to {rough_rate(self.high)}"


def expected(hidden: float, exposed: float, several: bool) -> ExpectedRates:
  """Return the `interval`, with an explanation, for workers on one node or, if `several`, on several nodes."""
  rates, nodes = (SEVERAL_NODES, "several nodes") if several else (ONE_NODE, "one node")
  low, high = interval(hidden, exposed, rates)
  text = (
    f"80 % of {rates.points} published runs on {rates.systems} systems of {nodes} reached {percent(rates.low)} to "
    f"{percent(rates.high)} of the rate predicted without overlap ({rough_rate(exposed)}). The range also includes the "
    "rate predicted with overlap."
  )
  return ExpectedRates(low, high, text)
