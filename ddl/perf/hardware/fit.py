"""Terms of the cost model from measurements: latency and bandwidth of a link, rates of a device.

All fits minimise sum_i rho(log predicted_i - log measured_i), so that relative errors count alike from 1 kB to 16 MB,
with rho(r) = 2 (sqrt(1 + (r / SCALE)^2) - 1): squares for small errors, absolute values for large ones, so that a
few measurements that something disturbed do not draw the fit to them.
"""

import itertools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from scipy import optimize

from ddl.perf.hardware.network import Link

SCALE = 0.1  # relative error from which a measurement counts as disturbed
STARTS = (1e-2, 1.0)  # of each coefficient, as shares of the largest that any measurement allows
LEAST = 1e-9  # of a coefficient, likewise: what the measurements do not show is next to nothing, but not nothing


class Rates(NamedTuple):
  """A step's seconds = fixed + FLOP / flop + bytes / memory: what is computed and what is moved do not overlap."""

  fixed: float  # seconds per step
  flop: float  # FLOP per second
  memory: float  # bytes per second

  def seconds(self, flop: float, nbytes: float) -> float:
    """Of a step that computes so many FLOP and reads and writes so many bytes."""
    return self.fixed + flop / self.flop + nbytes / self.memory


def link(
  nbytes: Sequence[float], seconds: Sequence[float], cost: Callable[[float, Link], float] | None = None
) -> tuple[Link, np.ndarray]:
  """The link under which `cost` comes nearest to the measurements, and predicted / measured - 1 of each.

  Args:
    nbytes: of each message.
    seconds: that it took.
    cost: (bytes, link) -> seconds of what was measured; None: one message, latency + n / bandwidth.

  Raises:
    ValueError: for invalid measurements, or of fewer than two sizes.
  """
  n, took = _checked(seconds, nbytes)
  if len(set(n)) < 2:
    raise ValueError("messages of one size alone don't tell latency from bandwidth; measure two sizes or more")
  price = cost or (lambda size, on: on.seconds(size))

  def predicted(x: np.ndarray) -> np.ndarray:
    return np.array([price(size, Link(x[0], 1 / x[1])) for size in n])

  x, errors = _fit(predicted, np.array([took.min(), np.max(took / np.maximum(n, 1.0))]), took)
  return Link(float(x[0]), float(1 / x[1])), errors


def rates(flop: Sequence[float], nbytes: Sequence[float], seconds: Sequence[float]) -> tuple[Rates, np.ndarray]:
  """The rates that come nearest to the measured steps, and predicted / measured - 1 of each.

  Raises:
    ValueError: for invalid measurements, or fewer than three.
  """
  work, took = _checked(seconds, flop, nbytes)
  if len(took) < 3:
    raise ValueError(f"{len(took)} measured steps don't tell three rates; measure three or more")
  columns = np.stack([np.ones(len(took)), *work])
  x, errors = _fit(lambda x: x @ columns, np.min(took / np.maximum(columns, 1e-300), axis=1), took)
  return Rates(float(x[0]), float(1 / x[1]), float(1 / x[2])), errors


def _fit(
  predicted: Callable[[np.ndarray], np.ndarray], most: np.ndarray, seconds: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
  """(coefficients above 0, relative errors), the best of several starts: the problem is not convex.

  most: of each coefficient about the largest, its scale.
  """

  def residuals(logs: np.ndarray) -> np.ndarray:
    return np.log(predicted(most * np.exp(logs)) / seconds)

  bounds = (np.log(LEAST), np.log(1e3))
  found = [
    optimize.least_squares(residuals, np.log(start), bounds=bounds, loss="soft_l1", f_scale=SCALE)
    for start in itertools.product(STARTS, repeat=len(most))
  ]
  x = most * np.exp(min(found, key=lambda result: result.cost).x)
  return x, predicted(x) / seconds - 1


def _checked(seconds: Sequence[float], *others: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
  """(others [.., measurements] or [measurements] where there is one, seconds) as arrays."""
  took, rest = np.asarray(seconds, float), [np.asarray(o, float) for o in others]
  if any(o.shape != took.shape for o in rest):
    raise ValueError(f"{len(took)} times of {', '.join(str(len(o)) for o in rest)} measurements; give one each")
  if not (len(took) and np.all(np.isfinite(took)) and np.all(took > 0)):
    raise ValueError("a fit takes measured seconds, all finite and above 0")
  if not all(np.all(np.isfinite(o)) and np.all(o >= 0) for o in rest):
    raise ValueError("a fit takes bytes and FLOP that are finite and 0 or more")
  return (rest[0] if len(rest) == 1 else np.stack(rest)), took
