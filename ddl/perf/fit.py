"""Terms of the cost model fitted to measurements: a link, the rates of a step, an efficiency curve.

Links and rates minimize sum_i rho(log predicted_i - log measured_i), so that relative errors count alike from 1 kB to
16 MB, with rho(r) = 2 (sqrt(1 + (r / SCALE)^2) - 1): squares for small errors, absolute values for large ones, so that
a few disturbed measurements do not bias the fit.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from scipy.optimize import least_squares, lsq_linear

from ddl.perf import units
from ddl.perf.cluster import LinkModel
from ddl.perf.device import Efficiency

SCALE = 0.1  # relative error from which a measurement counts as disturbed
STARTS = (1e-2, 1.0)  # of each coefficient, as shares of the largest that any measurement allows
LEAST = 1e-9  # of a coefficient, likewise: one that the measurements do not show is next to 0, but not 0


class Rates(NamedTuple):
  """A step's seconds = fixed + FLOP / flop + bytes / memory + input / feed: none of them overlap."""

  fixed: float  # seconds per step
  flop: float  # FLOP per second
  memory: float  # bytes per second
  feed: float = math.inf  # bytes of input per second that the host gathers and hands to the device

  def seconds(self, flop: float, nbytes: float, fed: float = 0.0) -> float:
    """Seconds of a step with so many FLOP, bytes read and written, and bytes of input."""
    return self.fixed + flop / self.flop + nbytes / self.memory + fed / self.feed


def fit_link(
  nbytes: Sequence[float], seconds: Sequence[float], cost: Callable[[float, LinkModel], float] | None = None
) -> tuple[LinkModel, np.ndarray]:
  """Return the link under which `cost` is nearest to the measurements, and predicted / measured - 1 of each.

  cost: (bytes, link) -> seconds of what was measured; None: one message, latency + n / bandwidth.
  """
  n, measured = _checked(seconds, nbytes)
  if len(set(n)) < 2:
    raise ValueError("messages of one size determine no latency and bandwidth; measure two sizes or more")
  price = cost or (lambda size, link: link.seconds(size))

  def predicted(x: np.ndarray) -> np.ndarray:
    return np.array([price(size, LinkModel(x[0], 1 / x[1])) for size in n])

  x, errors = _fit(predicted, np.array([measured.min(), np.max(measured / np.maximum(n, 1.0))]), measured)
  return LinkModel(float(x[0]), float(1 / x[1])), errors


def fit_rates(
  kinds: Sequence[str], flop: Sequence[float], nbytes: Sequence[float], seconds: Sequence[float],
  fed: Sequence[float] = (),
) -> tuple[dict[str, Rates], np.ndarray]:  # fmt: skip
  """Return the rates nearest to measured steps, by kind, and predicted / measured - 1 of each step.

  Kinds share all but their FLOP per second.
  """
  work, measured = _checked(seconds, flop, nbytes, *([fed] if any(fed) else []))
  names = list(dict.fromkeys(kinds))
  terms = len(names) + len(work)
  if len(measured) < terms:
    raise ValueError(f"{len(measured)} measured steps determine no {terms} rates; measure as many or more")
  of_kind = [np.where([kind == name for kind in kinds], work[0], 0.0) for name in names]
  columns = np.stack([np.ones(len(measured)), *of_kind, *work[1:]])
  most = np.min(np.where(columns > 0, measured / np.maximum(columns, 1e-300), np.inf), axis=1)
  x, errors = _fit(lambda x: x @ columns, most, measured)
  fixed, *inverse = (float(each) for each in x)
  shared = [1 / each for each in inverse[len(names) :]]  # memory, and the feed
  return {name: Rates(fixed, 1 / each, *shared) for name, each in zip(names, inverse, strict=False)}, errors


def fit_efficiency(
  flop_per_example: float, peak: float, examples: Sequence[float], seconds: Sequence[float]
) -> tuple[Efficiency, np.ndarray]:
  """Return the efficiency curve nearest to measured steps, in relative least squares, and the errors as above.

  t(b) = F (b + half) / (peak best) is linear in 1 / best and half / best, so that the optimum within 0 < best <= 1 and
  half >= 0 is the global one.
  """
  b, t = _checked(seconds, examples)
  scale = units.positive("FLOP per example", flop_per_example) / units.positive("peak (FLOP/s)", peak)
  if len(set(b)) < 2 or not b.all():
    raise ValueError("at least two sizes of 1 example or more are needed to fit an efficiency curve")
  share = np.max(scale * b / t)
  if share > 1 + 1e-9:
    raise ValueError(f"a measured step is {share:.3g} times as fast as the peak of {peak:g} FLOP/s allows")
  columns = np.stack([scale * b / t, scale / t], axis=1)  # t / t = (1 / best, half / best) @ columns
  inverse, product = lsq_linear(columns, np.ones_like(t), ([1.0, 0.0], np.inf), method="bvls").x  # exact on a bound
  curve = Efficiency(float(1 / inverse), float(product / inverse))
  return curve, scale * (b + curve.half) / curve.best / t - 1


def _fit(
  predicted: Callable[[np.ndarray], np.ndarray], most: np.ndarray, seconds: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
  """Return (coefficients above 0, relative errors), the best of several starts: the problem is not convex.

  most: of each coefficient about the largest, its scale.
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


def _checked(seconds: Sequence[float], *others: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
  """Return (others [.., measurements] or [measurements] where there is one, seconds) as arrays."""
  measured, rest = np.asarray(seconds, float), [np.asarray(o, float) for o in others]
  if any(o.shape != measured.shape for o in rest):
    raise ValueError(f"{len(measured)} times of {', '.join(str(len(o)) for o in rest)} measurements; give one each")
  if not (len(measured) and np.all(np.isfinite(measured)) and np.all(measured > 0)):
    raise ValueError("measured seconds must be finite and above 0")
  if not all(np.all(np.isfinite(o)) and np.all(o >= 0) for o in rest):
    raise ValueError("bytes, FLOP and examples must be finite and 0 or more")
  return (rest[0] if len(rest) == 1 else np.stack(rest)), measured
