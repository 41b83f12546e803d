"""Fit terms of the cost model to measurements: a link, the rates of a step, an efficiency curve.

The fits of links and rates minimize sum_i rho(log predicted_i - log measured_i): a relative error counts equally for a
message of 1 kB and one of 16 MB. rho(r) = 2 (sqrt(1 + (r / SCALE)^2) - 1) is quadratic for small errors and linear for
large ones, so that a few outliers do not bias the fit.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from scipy.optimize import least_squares, lsq_linear

from ddl.perf.cluster import LinkModel
from ddl.perf.device import Efficiency

SCALE = 0.1  # relative error above which a measurement counts as an outlier
STARTS = (1e-2, 1.0)  # initial coefficients, relative to `most` in `_fit`
LEAST = 1e-9  # smallest coefficient, relative to `most` in `_fit`; it keeps undetermined coefficients above 0


class Rates(NamedTuple):
  """The rates of a step without overlap: seconds = fixed + FLOP / flop + bytes / memory + input bytes / feed."""

  fixed: float  # seconds per step
  flop: float  # FLOP per second
  memory: float  # bytes per second
  feed: float = math.inf  # input bytes per second that the host collects and sends to the device

  def seconds(self, flop: float, nbytes: float, fed: float = 0.0) -> float:
    """Return the seconds of a step from its FLOP, bytes read and written, and input bytes."""
    return self.fixed + flop / self.flop + nbytes / self.memory + fed / self.feed


def fit_link(
  nbytes: Sequence[float], seconds: Sequence[float], cost: Callable[[float, LinkModel], float]
) -> tuple[LinkModel, np.ndarray]:
  """Fit a link to measured seconds; also return the relative errors, predicted / measured - 1.

  Args:
    nbytes: message size of each measurement.
    seconds: measured seconds.
    cost: (bytes, link) -> predicted seconds.
  """
  n, measured = np.asarray(nbytes, float), np.asarray(seconds, float)

  def predicted(x: np.ndarray) -> np.ndarray:
    return np.array([cost(size, LinkModel(x[0], 1 / x[1])) for size in n])

  x, errors = _fit(predicted, np.array([measured.min(), np.max(measured / np.maximum(n, 1.0))]), measured)
  return LinkModel(float(x[0]), float(1 / x[1])), errors


def fit_rates(
  kinds: Sequence[str], flop: Sequence[float], nbytes: Sequence[float], seconds: Sequence[float],
  fed: Sequence[float] = (),
) -> tuple[dict[str, Rates], np.ndarray]:  # fmt: skip
  """Fit rates to measured steps; also return the relative errors, predicted / measured - 1.

  One rate of FLOP per second is fitted for each name in `kinds`; all steps share the other rates. The arguments have
  one entry per measured step.

  Args:
    kinds: names of kinds of steps.
    flop: FLOP.
    nbytes: bytes read and written.
    seconds: measured seconds.
    fed: input bytes; () or only zeros: `Rates.feed` is not fitted.
  """
  work, measured = np.array([flop, nbytes, *([fed] if any(fed) else [])], float), np.asarray(seconds, float)
  names = list(dict.fromkeys(kinds))
  of_kind = [np.where([kind == name for kind in kinds], work[0], 0.0) for name in names]
  columns = np.stack([np.ones(len(measured)), *of_kind, *work[1:]])
  most = np.min(np.where(columns > 0, measured / np.maximum(columns, 1e-300), np.inf), axis=1)
  x, errors = _fit(lambda x: x @ columns, most, measured)
  fixed, *inverse = map(float, x)
  shared = [1 / value for value in inverse[len(names) :]]  # memory and feed
  return {name: Rates(fixed, 1 / value, *shared) for name, value in zip(names, inverse, strict=False)}, errors


def fit_efficiency(
  flop_per_example: float, peak: float, examples: Sequence[float], seconds: Sequence[float]
) -> tuple[Efficiency, np.ndarray]:
  """Fit an efficiency curve to measured steps by relative least squares; also return the relative errors.

  t(b) = F (b + half) / (peak * best), where F is `flop_per_example`, is linear in 1 / best and half / best. Therefore,
  the optimum within 0 < best <= 1 and half >= 0 is global.
  """
  b, t = np.asarray(examples, float), np.asarray(seconds, float)
  scale = flop_per_example / peak
  columns = np.stack([scale * b / t, scale / t], axis=1)  # columns @ (1 / best, half / best) = t / t
  inverse, product = lsq_linear(columns, np.ones_like(t), ([1.0, 0.0], np.inf), method="bvls").x  # exact on a bound
  curve = Efficiency(float(1 / inverse), float(product / inverse))
  return curve, scale * (b + curve.half) / curve.best / t - 1


def _fit(
  predicted: Callable[[np.ndarray], np.ndarray], most: np.ndarray, seconds: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
  """Fit positive coefficients; also return the relative errors.

  The problem is not convex, so the fit starts from several points.

  Args:
    predicted: coefficients -> predicted seconds.
    most: the scale of each coefficient, roughly its largest possible value.
    seconds: measured seconds.
  """

  def residuals(logs: np.ndarray) -> np.ndarray:
    return np.log(predicted(most * np.exp(logs)) / seconds)

  bounds = (np.log(LEAST), np.log(1e3))
  results = [
    least_squares(residuals, np.log(start), bounds=bounds, loss="soft_l1", f_scale=SCALE)
    for start in itertools.product(STARTS, repeat=len(most))
  ]
  x = most * np.exp(min(results, key=lambda result: result.cost).x)
  return x, predicted(x) / seconds - 1
