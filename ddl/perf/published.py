"""Derive the uncertainty of a predicted rate from the rates that published runs of synchronous SGD reached.

A prediction assumes that the backward pass hides the all-reduce of gradients and that all devices are always busy.
Published runs were slower: on average, they reached the rate that is predicted without overlap.
"""

from typing import NamedTuple

from ddl.perf.units import percent, rate_text


class ReachedRates(NamedTuple):
  """The 10th and the 90th percentile of published rates divided by the rates predicted without overlap."""

  low: float
  high: float
  points: int  # number of published rates
  systems: int  # number of systems that they were measured on


# From experiments/papers/published_scaling.csv; checked by a test.
ONE_NODE = ReachedRates(0.8, 1.05, 667, 43)
SEVERAL_NODES = ReachedRates(0.77, 1.08, 152, 11)


def interval(hidden: float, exposed: float, reached: ReachedRates) -> tuple[float, float]:
  """Return the interval in which 80 % of published rates were: (low * e, max(high * e, h)).

  Args:
    hidden: h, the rate that is predicted if the backward pass hides the all-reduce.
    exposed: e, the rate that is predicted without overlap.
    reached: the percentiles of published runs.
  """
  return reached.low * exposed, max(reached.high * exposed, hidden)


def sentence(hidden: float, exposed: float, several: bool) -> str:
  """Describe the interval of rates in a sentence. several: whether the workers are on several nodes."""
  reached = SEVERAL_NODES if several else ONE_NODE
  low, high = interval(hidden, exposed, reached)
  nodes = "several nodes" if several else "one node"
  return (
    f"Expect {rate_text(low)} to {rate_text(high)} examples/s: 80 % of {reached.points} published runs on {nodes} "
    f"reached {percent(reached.low)} to {percent(reached.high)} of the rate predicted without overlap "
    f"({rate_text(exposed)})"
  )
