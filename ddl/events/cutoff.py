"""How many of n workers a synchronous round should wait for, from times of which some are censored.

Teng and Wood 2018, arXiv 1803.04209: c* = argmax_c c / E[x_(c)], x_(c) the c-th smallest of the workers' times. Here
the times are independent and lognormal, fitted to a window of rounds. A dropped worker's time is censored at the moment
at which the round was closed; leaving it out would bias the fit towards fast workers.
"""

from functools import lru_cache

import numpy as np
from scipy.special import gammaln, log_ndtr, ndtri

ESTIMATORS = ("window", "elfving")


def fit(logs: np.ndarray, seen: np.ndarray) -> tuple[float, float]:
  """Mean m and standard deviation s of a normal by maximum likelihood, with censoring from the right.

  In a = m / s, b = 1 / s, r = b x - a the log-likelihood, sum_seen (log b - r^2 / 2) + sum_censored log Phi(-r), is
  concave (Olsen 1978): Newton's method finds its top.

  Args:
    logs: [k] x.
    seen: [k] bool, some True; False where the value is only known to be larger than x.
  """
  center, scale = np.mean(logs), np.std(logs[seen])
  if not scale > 0:
    return float(np.mean(logs[seen])), 0.0  # no spread to estimate
  x = (logs - center) / scale
  count, a, b, height = np.sum(seen), 0.0, 1.0, -np.inf
  step = np.zeros(2)
  for _ in range(100):
    r = b * x - a
    now = -np.inf if b <= 0 else np.sum(np.where(seen, np.log(b) - r**2 / 2, log_ndtr(-r)))
    if now < height:  # overshot
      step = step / 2
      a, b = a - step[0], b - step[1]
      continue
    height = now
    hazard = np.exp(-(r**2) / 2 - np.log(2 * np.pi) / 2 - log_ndtr(-r))  # phi(r) / (1 - Phi(r))
    slope = np.where(seen, r, hazard)
    curve = np.where(seen, 1.0, hazard * (hazard - r))
    gradient = np.array([slope.sum(), count / b - (slope * x).sum()])
    mixed = -(curve * x).sum()
    step = np.linalg.solve([[curve.sum(), mixed], [mixed, count / b**2 + (curve * x**2).sum()]], gradient)
    a, b = a + step[0], b + step[1]
    if np.abs(step).max() < 1e-9:
      break
  return float(center + scale * a / b), float(scale / b)


@lru_cache(maxsize=8)
def _order_weights(count: int) -> tuple[np.ndarray, np.ndarray]:
  """A grid z [grid] and weights [count, grid]: E[f(z_(c))] = sum_z weights[c - 1, z] f(z), z_(c) of `count` normals."""
  z = np.linspace(-10.0, 14.0, 1201)  # the trapezium rule on a smooth function that vanishes at both ends
  c = np.arange(1, count + 1)[:, None]
  density = gammaln(count + 1) - gammaln(c) - gammaln(count - c + 1) - np.log(2 * np.pi) / 2 - z**2 / 2
  density = density + (c - 1) * log_ndtr(z) + (count - c) * log_ndtr(-z)
  return z, np.exp(density) * (z[1] - z[0])


def order_statistics(mean: float, deviation: float, count: int) -> np.ndarray:
  """E[x_(c)], c = 1..count, of as many independent draws x with log x ~ Normal(mean, deviation^2): [count] seconds."""
  z, weights = _order_weights(count)
  return weights @ np.exp(mean + deviation * z)


def elfving(mean: float, deviation: float, count: int) -> np.ndarray:
  """The same by E[x_(c)] = m + s PhiInv((c - pi/8) / (n - pi/4 + 1)), m and s of x: its normal approximation."""
  average = np.exp(mean + deviation**2 / 2)
  c = np.arange(1, count + 1)
  return average * (1 + np.sqrt(np.expm1(deviation**2)) * ndtri((c - np.pi / 8) / (count - np.pi / 4 + 1)))


def best(seconds: np.ndarray, seen: np.ndarray, *, workers: int, estimator: str) -> int:
  """The c that maximises c / E[x_(c)] among `workers`; seconds, seen: [k] times >= 0, and False where censored."""
  seconds = np.maximum(seconds, np.finfo(float).tiny)  # a step can be too short to move the clock
  mean, deviation = fit(np.log(seconds), seen)
  if estimator == "elfving":  # a normal can be negative, unlike the times
    expected = np.maximum(elfving(mean, deviation, workers), seconds.min())
  else:
    expected = order_statistics(mean, deviation, workers)
  return int(np.argmax(np.arange(1, workers + 1) / expected)) + 1
