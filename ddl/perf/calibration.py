"""The calibration of a machine: terms of the cost model fitted to measured steps and collectives.

Links and rates minimize sum_i rho(log predicted_i - log measured_i), so that relative errors count alike from 1 kB to
16 MB, with rho(r) = 2 (sqrt(1 + (r / SCALE)^2) - 1): squares for small errors, absolute values for large ones, so that
a few disturbed measurements do not bias the fit.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import least_squares, lsq_linear

from ddl.perf import patterns, units
from ddl.perf.cluster import Cluster, Link, Network
from ddl.perf.device import Device, Efficiency
from ddl.perf.patterns import Op

SCALE = 0.1  # relative error from which a measurement counts as disturbed
STARTS = (1e-2, 1.0)  # of each coefficient, as shares of the largest that any measurement allows
LEAST = 1e-9  # of a coefficient, likewise: one that the measurements do not show is next to 0, but not 0
COLLECTIVES = ("all_reduce", "reduce_scatter", "all_gather", "permute")


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
  nbytes: Sequence[float], seconds: Sequence[float], cost: Callable[[float, Link], float] | None = None
) -> tuple[Link, np.ndarray]:
  """Return the link under which `cost` is nearest to the measurements, and predicted / measured - 1 of each.

  Args:
    nbytes: of each message.
    seconds: of each message.
    cost: (bytes, link) -> seconds of what was measured; None: one message, latency + n / bandwidth.

  Raises:
    ValueError: for invalid measurements, or of fewer than two sizes.
  """
  n, measured = _checked(seconds, nbytes)
  if len(set(n)) < 2:
    raise ValueError("messages of one size determine no latency and bandwidth; measure two sizes or more")
  price = cost or (lambda size, link: link.seconds(size))

  def predicted(x: np.ndarray) -> np.ndarray:
    return np.array([price(size, Link(x[0], 1 / x[1])) for size in n])

  x, errors = _fit(predicted, np.array([measured.min(), np.max(measured / np.maximum(n, 1.0))]), measured)
  return Link(float(x[0]), float(1 / x[1])), errors


def fit_rates(
  kinds: Sequence[str], flop: Sequence[float], nbytes: Sequence[float], seconds: Sequence[float],
  fed: Sequence[float] = (),
) -> tuple[dict[str, Rates], np.ndarray]:  # fmt: skip
  """Return the rates nearest to measured steps, by kind, and predicted / measured - 1 of each step.

  Kinds share all but their FLOP per second.

  Args:
    kinds: of each measured step.
    fed: bytes of its input.

  Raises:
    ValueError: for fewer steps than there are terms.
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

  Args:
    flop_per_example: F of a training step.
    peak: FLOP per second of one worker.
    examples: per worker and step, one per measurement.
    seconds: of the steps.

  Raises:
    ValueError: for invalid measurements, a step faster than the peak allows, or fewer than two sizes.
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


class ModelCase(NamedTuple):
  """A model with its sizes and the examples per worker."""

  model: str
  sizes: dict[str, Any]
  batch: int

  @property
  def name(self) -> str:
    """Label, e.g. mlp 512,512 x64."""
    sizes = " ".join(",".join(map(str, v)) if isinstance(v, tuple) else f"{k}={v}" for k, v in self.sizes.items())
    return " ".join(filter(None, [self.model, sizes, f"x{self.batch}"]))


CURVES = {  # where the efficiency of each kind of models is fitted
  "dense": tuple(ModelCase("mlp", {"hidden": (256, 256)}, batch) for batch in (16, 64, 256)),
  "convolution": tuple(ModelCase("lenet", {"channels": (16, 32)}, batch) for batch in (8, 32, 96)),
  "attention": tuple(ModelCase("transformer", {"layers": 1, "width": 64}, batch) for batch in (2, 8)),
}
CASES = (
  ModelCase("linear", {}, 256),
  ModelCase("mlp", {"hidden": (1024, 1024)}, 32),
  *(case for curve in CURVES.values() for case in curve),
)
# Also measured under synchronous SGD: how long messages take between steps.
TOGETHER = (CASES[1], CURVES["dense"][1], *CURVES["convolution"][:2], CURVES["attention"][1])


class MeasuredStep(NamedTuple):
  """Work of a step of a case."""

  flop: float  # of one worker, XLA's count
  moved: float  # bytes read and written, likewise
  messages: tuple[int, ...]  # bytes of each, of all parameters
  kind: str  # of its model
  fed: float = 0.0  # bytes of a worker's input


class Measurements(NamedTuple):
  """Work that a calibration measures on a machine."""

  steps: dict[str, MeasuredStep]  # by the cases' names
  sizes: tuple[int, ...]  # bytes of messages
  workers: int
  product_flop: float
  copy_bytes: float
  machine: str  # a description
  memory: float  # bytes of a worker's device
  overlap: bool  # whether exchanges run beside the steps


class Calibration(NamedTuple):
  """Result of a calibration."""

  cluster: Cluster  # with the efficiency of dense models
  efficiencies: dict[str, Efficiency]  # by the kind of a model
  rates: dict[str, Rates]  # of a step, by the kind of a model
  links: dict[str, Link]  # by collective
  overhead: float  # R_O: seconds of a worker's loop beyond its compute, over its compute; median over the cases
  waiting: float  # seconds that a message takes longer between steps than in a loop of messages alone
  rows: list[dict[str, Any]]  # every measurement with what its fit predicts


def typical(seconds: np.ndarray) -> float:
  """Return the median over passes of the mean over processes. seconds: [passes, processes]."""
  return float(np.median(seconds.mean(axis=1)))


def collective_cost(name: str, workers: int) -> Callable[[float, Link], float]:
  """Return the model's cost of a collective, (bytes, link) -> seconds, of the cheapest algorithm."""
  return lambda nbytes, link: patterns.seconds([Op(name, nbytes)], workers, Network(link))


def solve(work: Measurements, measured: Mapping[str, np.ndarray]) -> Calibration:
  """Fit the terms.

  Args:
    work: what was measured.
    measured: seconds [passes, processes] of "loop CASE" and "compute CASE" (a step with and without its input),
      "sync_sgd CASE" for those in TOGETHER, "COLLECTIVE BYTES", "product" and "copy".
  """
  times = {name: typical(seconds) for name, seconds in measured.items()}
  rows: list[dict[str, Any]] = []

  def record(fit: str, names: Sequence[str], seconds: Iterable[float], errors: np.ndarray) -> None:
    for name, second, error in zip(names, seconds, errors, strict=True):
      figures = {"measured_s": second, "predicted_s": second * (1 + error), "error": error}
      rows.append({"fit": fit, "of": name, **{key: float(value) for key, value in figures.items()}})

  links = {}
  for name in COLLECTIVES:
    seconds = [times[f"{name} {n}"] for n in work.sizes]
    links[name], errors = fit_link(work.sizes, seconds, collective_cost(name, work.workers))
    record(name, [f"{n} bytes" for n in work.sizes], seconds, errors)
  names, steps = [*work.steps], work.steps.values()
  loops, computes = ([times[f"{kind} {name}"] for name in names] for kind in ("loop", "compute"))
  kinds, flop, moved, fed = zip(*((s.kind, s.flop, s.moved, s.fed) for s in steps), strict=True)
  rates, errors = fit_rates(kinds, flop, moved, loops, fed)
  record("step", names, loops, errors)

  # Synchronous SGD beyond the step and its messages: processes are out of step. The median over the models.
  price = collective_cost("all_reduce", work.workers)
  together = [case.name for case in TOGETHER if case.name in work.steps]
  seconds = np.array([times[f"sync_sgd {name}"] for name in together])
  messages = [work.steps[name].messages for name in together]
  sent = [sum(price(n, links["all_reduce"]) for n in each) for each in messages]
  known = np.array([times[f"loop {name}"] for name in together]) + sent
  count = np.array([len(each) for each in messages])
  waiting = max(0.0, float(np.median((seconds - known) / count)))
  record("sync_sgd", together, seconds, (known + waiting * count) / seconds - 1)

  fastest = max(s.flop / t for s, t in zip(steps, computes, strict=True))
  peak = max(work.product_flop / times["product"], fastest)
  # The bytes of a step are XLA's count, of which caches serve a part: no step may be seen to beat the roofline.
  moving = max(work.copy_bytes / times["copy"], *(s.moved / t for s, t in zip(steps, computes, strict=True)))
  efficiencies = {}
  for kind, curve in CURVES.items():
    cases = [case for case in curve if case.name in work.steps]
    if len(cases) > 1:
      seconds = [times[f"compute {case.name}"] for case in cases]
      per_example = work.steps[cases[-1].name].flop / cases[-1].batch  # where the parameters' update weighs least
      efficiencies[kind], errors = fit_efficiency(per_example, peak, [case.batch for case in cases], seconds)
      record(f"efficiency, {kind}", [case.name for case in cases], seconds, errors)
  link = links["all_reduce"]
  cluster = Cluster(
    title=f"this machine, {work.workers} processes",
    device=Device(peak, moving, work.memory),
    efficiency=efficiencies.get("dense") or next(iter(efficiencies.values())),
    network=Network(link._replace(latency=link.latency + waiting)),
    source=f"measured by python run.py calibrate on {work.machine}, float32",
    workers=work.workers,
    overlap=work.overlap,
  )
  shares = [(loop - compute) / compute for loop, compute in zip(loops, computes, strict=True)]
  return Calibration(cluster, efficiencies, rates, links, max(0.0, float(np.median(shares))), waiting, rows)
