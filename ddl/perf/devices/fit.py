"""The shares of `fitted`, from the points chosen for it before any fit; all other points are held out.

sum_i rho(log predicted_i - log measured_i) is minimized, rho as in `hardware.fit`. Two looks at the held-out points
went into the model, and count against it: GoogLeNet went over to the fitted networks, as no other one there has maps
that do not fill tiles, and the tile was chosen, which the fitted points prefer too.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from scipy.optimize import least_squares

from ddl.perf.devices import fitted
from ddl.perf.devices.model import Shares, device_step, transformer
from ddl.perf.devices.points import SOURCES, Point, convolutional_points, language_points, network
from ddl.perf.devices.sheets import SHEETS

SCALE = 0.1  # error from which a point counts as an outlier
DEVICES = ("k80", "m60", "gtx1080ti", "p100", "v100")  # one or two of each generation
NETWORKS = ("alexnet", "alexnet_groups", "alexnet_v2", "googlenet", "vgg16", "resnet50")
LANGUAGE = ("mpt_125m", "mpt_760m", "mpt_3b")  # with 2048 and 8192 tokens
SINGLE = (  # device, format, network, source and images: the only point of a group
  ("v100", "bfloat16", "bert_large 128", "nv_bert", 64),
  ("v100", "float32", "bert_large 128", "nv_bert", 32),
  ("v100", "bfloat16", "resnet50", "nv_mxnet", 192),
  ("a100_80gb", "bfloat16", "resnet50", "nv_mxnet", 256),
  ("a100_80gb", "tf32", "resnet50", "nv_mxnet", 256),
)


class Result(NamedTuple):
  """A point, and what is predicted."""

  point: Point
  role: str  # "fitted", or held out: "network", "device", "run" (of a fitted network and device)
  predicted: float  # seconds

  @property
  def error(self) -> float:
    """Predicted / measured - 1."""
    return self.predicted / self.point.seconds - 1


def points() -> list[Point]:
  """All of them."""
  return convolutional_points() + language_points()


def role(point: Point) -> str:
  """How a point is used."""
  model, _, tokens = point.network.partition(" ")
  if (point.device, point.form, point.network, point.source, point.examples) in SINGLE:
    return "fitted"
  if point.form == "float32" and not tokens:
    if point.device not in DEVICES or point.source == "torch_5.0":
      return "device"
    return "fitted" if point.network in NETWORKS else "network"
  if point.source == "mosaic" and point.device in ("a100_80gb", "h100"):
    return (
      "fitted" if model in LANGUAGE and int(tokens) in (2048, 8192) else "network" if model not in LANGUAGE else "run"
    )
  if point.device in ("a100_40gb", "h100_96gb", "h200"):
    return "device"
  return "network" if point.source == "titan" else "run"


def shares_of(point: Point) -> Shares:
  """Shares of a point's device with the libraries of its source."""
  generation, libraries = SHEETS[point.device].generation, SOURCES[point.source].libraries
  kind = "transformer" if transformer(network(point.network)) else "convolutions"
  if (kind, point.form) == ("convolutions", "float32"):
    return fitted.convolution_shares(generation, libraries, (generation, point.source) != ("kepler", "torch_5.0"))
  found = fitted.known(generation, kind, point.form)
  assert found, point
  return found


def predict(point: Point, shares: Shares | None = None) -> float:
  """Seconds of the step of a point, by default with its device's shares."""
  sheet, table = SHEETS[point.device], network(point.network)
  found = shares or shares_of(point)
  step = device_step(table, sheet.device(point.form), found, recomputed=point.recomputed, split=point.devices)
  return step.seconds(point.examples)


def results() -> list[Result]:
  """All points with what is predicted."""
  return [Result(point, role(point), predict(point)) for point in points()]


def minimize(
  chosen: Sequence[Point], start: Sequence[float], shares: Callable[[np.ndarray, Point], Shares]
) -> np.ndarray:
  """Return the parameters, above 0 and at most 1, nearest to the points. shares: (parameters, point) -> its shares."""

  def residuals(logs: np.ndarray) -> list[float]:
    return [np.log(predict(point, shares(np.exp(logs), point)) / point.seconds) for point in chosen]

  found = least_squares(
    residuals, np.log(start), bounds=(np.log(1e-6), 0.0), loss="soft_l1", f_scale=SCALE, diff_step=1e-4
  )
  return np.exp(found.x)


def convolutions() -> dict[str, float]:
  """Shares of convolutional networks in float32: of products and Winograd by generation, of memory by libraries."""
  generations = ("kepler", "maxwell", "pascal", "volta")
  names = [*(f"product {g}" for g in generations), *(f"winograd {g}" for g in generations)]
  names += ["memory 2016", "memory 2018", "start"]

  def shares(x: np.ndarray, point: Point) -> Shares:
    value, generation = dict(zip(names, x, strict=True)), SHEETS[point.device].generation
    memory = value[f"memory {SOURCES[point.source].libraries}"]
    return Shares(
      value[f"product {generation}"], memory, value[f"winograd {generation}"], start=value["start"]
    )  # fmt: skip

  chosen = [p for p in convolutional_points() if p.form == "float32" and role(p) == "fitted"]
  return dict(zip(names, minimize(chosen, [0.5] * 8 + [0.4, 0.6, 2e-4], shares), strict=True))


def transformers() -> dict[str, float]:
  """Shares of transformers with bfloat16: of products by generation, of memory, of products in attention."""
  names = ("product ampere", "product hopper", "memory", "attention")

  def shares(x: np.ndarray, point: Point) -> Shares:
    value: dict[str, float] = dict(zip(names, x, strict=True))
    return Shares(value[f"product {SHEETS[point.device].generation}"], value["memory"], attention=value["attention"])

  chosen = [p for p in language_points() if p.source == "mosaic" and role(p) == "fitted"]
  return dict(zip(names, minimize(chosen, [0.7, 0.6, 0.5, 0.6], shares), strict=True))
