"""Fit the cost model to measurements of this machine."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ddl.perf import patterns
from ddl.perf.cluster import Cluster, LinkModel, NetworkModel
from ddl.perf.device import Device, Efficiency
from ddl.perf.fit import Rates, fit_efficiency, fit_link, fit_rates
from ddl.perf.patterns import Op

COLLECTIVES = ("all_reduce", "reduce_scatter", "all_gather", "permute")


class ModelCase(NamedTuple):
  """A model, its sizes, and the examples per worker and step."""

  model: str
  sizes: dict[str, Any]
  batch: int

  @property
  def name(self) -> str:
    """Model, sizes and examples per worker as text, such as mlp 512,512 x64."""
    sizes = " ".join(",".join(map(str, v)) if isinstance(v, tuple) else f"{k}={v}" for k, v in self.sizes.items())
    return " ".join(filter(None, [self.model, sizes, f"x{self.batch}"]))


CURVES = {  # kind of model -> cases to which its efficiency is fitted
  "dense": tuple(ModelCase("mlp", {"hidden": (256, 256)}, batch) for batch in (16, 64, 256)),
  "convolution": tuple(ModelCase("lenet", {"channels": (16, 32)}, batch) for batch in (8, 32, 96)),
  "attention": tuple(ModelCase("transformer", {"layers": 1, "width": 64}, batch) for batch in (2, 8)),
}
CASES = (
  ModelCase("linear", {}, 256),
  ModelCase("mlp", {"hidden": (1024, 1024)}, 32),
  *(case for curve in CURVES.values() for case in curve),
)
# Cases also measured with synchronous SGD, to find how much longer messages take between steps than on their own.
TOGETHER = (CASES[1], CURVES["dense"][1], *CURVES["convolution"][:2], CURVES["attention"][1])


class MeasuredStep(NamedTuple):
  """The work of a step of a `ModelCase`: FLOP, bytes and messages."""

  flop: float  # per worker, from XLA's cost analysis
  moved: float  # bytes read and written per worker, from XLA's cost analysis
  messages: tuple[int, ...]  # bytes of each message of an exchange of all parameters
  kind: str  # kind of model: dense, convolution or attention
  fed: float = 0.0  # bytes of input per worker


class Measurements(NamedTuple):
  """The work that a calibration measures, and a description of the machine."""

  steps: dict[str, MeasuredStep]  # by case name
  sizes: tuple[int, ...]  # bytes of messages
  workers: int
  product_flop: float  # FLOP of the matrix product
  copy_bytes: float  # bytes read and written by the copy
  machine: str  # a description
  memory: float  # bytes per worker's device
  overlap: bool  # whether exchanges can overlap steps


class Calibration(NamedTuple):
  """The result of a calibration."""

  cluster: Cluster  # with the efficiency of dense models, if measured
  efficiencies: dict[str, Efficiency]  # by kind of model
  rates: dict[str, Rates]  # of a step, by kind of model
  links: dict[str, LinkModel]  # by collective
  overhead: float  # R_O: ratio of input and dispatch time to compute time, median over the cases
  waiting: float  # additional seconds of a message between steps, compared with a loop that only sends messages
  rows: list[dict[str, Any]]  # each measurement with the value that its fit predicts


def typical(seconds: np.ndarray) -> float:
  """Return the median over passes of the mean over processes. seconds: [passes, processes]."""
  return float(np.median(seconds.mean(axis=1)))


def collective_cost(name: str, workers: int) -> Callable[[float, LinkModel], float]:
  """Return the cost of a collective with its cheapest algorithm, as a function (bytes, link) -> seconds."""
  return lambda nbytes, link: patterns.seconds([Op(name, nbytes)], workers, NetworkModel(link))


def solve(work: Measurements, measured: Mapping[str, np.ndarray]) -> Calibration:
  """Fit links, step rates, efficiencies and overheads to the measurements.

  Args:
    work: FLOP and bytes of the measured blocks.
    measured: seconds [passes, processes] of one step, exchange or call: "loop CASE" and "compute CASE" (a step with and
      without its input), "sync_sgd CASE" for the cases in TOGETHER, "COLLECTIVE BYTES", "product" and "copy".
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

  # Synchronous SGD takes longer than a step and its messages, because processes wait for each other.
  price = collective_cost("all_reduce", work.workers)
  together = [case.name for case in TOGETHER if case.name in work.steps]
  seconds = np.array([times[f"sync_sgd {name}"] for name in together])
  messages = [work.steps[name].messages for name in together]
  sent = [sum(price(n, links["all_reduce"]) for n in sizes) for sizes in messages]
  known = np.array([times[f"loop {name}"] for name in together]) + sent
  count = np.array([len(sizes) for sizes in messages])
  waiting = max(0.0, float(np.median((seconds - known) / count)))
  record("sync_sgd", together, seconds, (known + waiting * count) / seconds - 1)

  fastest = max(s.flop / t for s, t in zip(steps, computes, strict=True))
  peak = max(work.product_flop / times["product"], fastest)
  # XLA's count of bytes includes accesses served by caches; the bandwidth keeps each step within the roofline.
  moving = max(work.copy_bytes / times["copy"], *(s.moved / t for s, t in zip(steps, computes, strict=True)))
  efficiencies = {}
  for kind, curve in CURVES.items():
    cases = [case for case in curve if case.name in work.steps]
    if len(cases) > 1:
      seconds = [times[f"compute {case.name}"] for case in cases]
      per_example = work.steps[cases[-1].name].flop / cases[-1].batch  # the largest batch: the update matters least
      efficiencies[kind], errors = fit_efficiency(per_example, peak, [case.batch for case in cases], seconds)
      record(f"efficiency, {kind}", [case.name for case in cases], seconds, errors)
  link = links["all_reduce"]
  cluster = Cluster(
    title=f"this machine, {work.workers} processes",
    device=Device(peak, moving, work.memory),
    efficiency=efficiencies.get("dense") or next(iter(efficiencies.values())),
    network=NetworkModel(link._replace(latency=link.latency + waiting)),
    source=f"measured by python run.py calibrate on {work.machine}, float32",
    workers=work.workers,
    overlap=work.overlap,
  )
  shares = [(loop - compute) / compute for loop, compute in zip(loops, computes, strict=True)]
  return Calibration(cluster, efficiencies, rates, links, max(0.0, float(np.median(shares))), waiting, rows)
