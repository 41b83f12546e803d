"""Compare published training steps on single devices with predictions; efficiencies are fitted to some of the steps.

Steps with fewer than 16 images are omitted, because they are dominated by kernel launches. From MosaicML's table, the
data contain at most one row for each device, number of devices, model and sequence length. torchtitan's "selective"
recomputation counts as half of the forward pass.

The fitted points, marked in the column `use` of published_steps.csv, were chosen before the first fit:

- in float32, six networks on one or two devices of each generation;
- MosaicML's models with 125M, 760M and 3B parameters, with 2048 and 8192 tokens, on two devices;
- of the steps with fused kernels, those of FlashAttention's table, llm.c on H100, and parameter-golf on one device;
- BERT base on devices without other fitted transformers in the same number format;
- single points for kinds of network, devices and number formats that have no other fitted points.

The shares in devices.toml minimize the soft L1 loss of (log predicted_i - log measured_i) / 0.1 over these points. The
shares of 16-bit transformers on Ampere and later generations are fitted first, all together; then the shares of matrix
products for the other transformers. The held-out points influenced the model: GoogLeNet became a fitted network,
because no other network has maps that do not fill tiles; the tile size was chosen with the held-out points, although
the fitted points prefer the same size; a step on B200 became a fitted point; RTX 4090 and L40S became separate
generations; and H100 PCIe has the share of H100 SXM for matrix products, because its own two steps are memory-bound and
do not determine this share.
"""

import csv
import statistics
import tomllib
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from ddl.perf import device_step, neural_networks
from ddl.perf.device import Efficiency, chips, step_seconds
from ddl.perf.device_step import FORMS, KINDS, Shares, cost, extra, fastest, flop, kind_of
from ddl.perf.layers import Table, is_map_scale, parts
from ddl.perf.neural_networks import SequenceSizes, transformer
from experiments.papers import page
from experiments.papers.page import Section

MEMORY_2016 = 0.405  # share of the memory bandwidth that convolutions reach with libraries of 2016; fitted
ATTENTION_2022 = 0.3305  # relative speed of attention's products with libraries up to FlashAttention 1; fitted


class PublishedStep(NamedTuple):
  """A measured training step."""

  device: str  # key in devices.toml
  form: str  # number format of the peak
  network: str  # a layer table, or a transformer with its sequence length: "mpt_1b 2048", "bert_large 128"
  examples: int  # per device
  seconds: float  # per step
  source: str  # key in published_steps.toml
  devices: int = 1  # number of devices that share the model states (fully sharded)
  recomputed: float = 0.0  # share of the forward pass that is recomputed in the backward pass
  use: str = "run"  # "fitted", or held out: another "network", another "device", or another "run" of both

  @property
  def text(self) -> str:
    """A description such as "resnet50, 64 per device"."""
    recomputation = {0.0: "", 1.0: ", recomputed"}.get(self.recomputed, ", half recomputed")
    return f"{self.network}, {self.examples} per device{recomputation}"


class PredictedStep(NamedTuple):
  """A published step with its prediction."""

  point: PublishedStep
  predicted: float  # seconds

  @property
  def error(self) -> float:
    """Relative error: predicted / measured - 1."""
    return self.predicted / self.point.seconds - 1


@cache
def _data() -> dict[str, Any]:
  return tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))


def sources() -> dict[str, dict[str, str]]:
  """Return source -> its "text" and "libraries"."""
  return _data()["source"]


@cache
def points() -> list[PublishedStep]:
  """Read all published measurements of training steps."""
  with Path(__file__).with_suffix(".csv").open(newline="") as file:
    return [_point(row) for row in csv.DictReader(file)]


def _point(row: dict[str, str]) -> PublishedStep:
  examples, reported = int(row["examples"]), float(row["reported"])
  tokens = int(row["network"].split()[1]) if row["unit"] == "tokens/s" else 1
  seconds = reported / 1e3 if row["unit"] == "ms" else examples * tokens / reported
  step = row["device"], row["format"], row["network"], examples, seconds, row["source"]
  return PublishedStep(*step, int(row["devices"]), float(row["recomputed"]), row["use"])


@cache
def network(name: str) -> Table:
  """Return the layer table of a point's network."""
  if name == "alexnet_groups":
    grouped = ("conv2", "conv4", "conv5")
    return tuple(x._replace(groups=2) if x.name in grouped else x for x in neural_networks.table("alexnet"))
  model, _, tokens = name.partition(" ")
  if not tokens:
    return neural_networks.table(model)
  entry, length = dict(_data()["network"].get(model, {"like": model})), int(tokens)
  like = entry.pop("like", "")
  base: dict[str, Any] = neural_networks.sizes(like)._asdict() if like else {"tokens": length}
  sizes = SequenceSizes(**base | entry)
  predicted = length * sizes.predicted // sizes.tokens if sizes.predicted > 1 else sizes.predicted
  return transformer(sizes._replace(tokens=length, positions=length if sizes.positions else 0, predicted=predicted))


def known(generation: str, kind: str, form: str = "float32") -> Shares:
  """Return the fitted shares of a device generation, which must exist in devices.toml."""
  shares = device_step.known(generation, kind, form)
  assert shares, (generation, kind, form)
  return shares


def convolution_shares(generation: str, libraries: str = "2018", winograd: bool = True) -> Shares:
  """Return the shares of convolutions in float32. winograd: whether the libraries have Winograd convolutions."""
  shares = known(generation, "convolution")
  shares = shares._replace(memory=MEMORY_2016) if libraries == "2016" else shares
  return shares if winograd else shares._replace(winograd=0.0)


def shares_of(point: PublishedStep) -> Shares:
  """Return the shares of a point's device with the libraries that its source used."""
  generation, kind = chips()[point.device].generation, kind_of(network(point.network))
  libraries = sources()[point.source]["libraries"]
  if (kind, point.form) == ("convolution", "float32"):
    winograd = (generation, point.source) != ("kepler", "torch_5.0")
    return convolution_shares(generation, libraries, winograd)
  shares = known(generation, kind, point.form)
  if kind == "attention" and libraries < "2022":
    # start=0: the host launches kernels faster than the device runs them
    return shares._replace(attention=ATTENTION_2022, start=0.0, fused=False)
  return shares._replace(attention=ATTENTION_2022) if kind == "attention" and libraries == "2022" else shares


def predict(point: PublishedStep, shares: Shares | None = None) -> float:
  """Predict the seconds of a point's step. shares: default: those of its device."""
  device, table = chips()[point.device].device(point.form), network(point.network)
  step = device_step.device_step(
    table, device, shares or shares_of(point), recomputed=point.recomputed, split=point.devices
  )
  return step.seconds(point.examples)


@cache
def results() -> list[PredictedStep]:
  """Predict all points."""
  return [PredictedStep(point, predict(point)) for point in points()]


USES = {
  "fitted": "fitted",
  "network": "held out: other networks",
  "device": "held out: other devices",
  "run": "held out: other sizes and programs",
}
HALF = Efficiency(0.5)  # former assumption for all devices: half of the peak, and the full memory bandwidth


def section() -> Section:
  """Build the section: errors of the groups of points, and the effect of the 0-1 program."""
  groups = {}  # (use, kind, format): absolute errors
  for kind, form in dict.fromkeys((kind_of(network(r.point.network)), r.point.form) for r in results()):
    for use in USES:
      group = (use, kind, form)
      groups[group] = [
        abs(r.error) for r in results() if (r.point.use, kind_of(network(r.point.network)), r.point.form) == group
      ]
  return page.read(
    "device_steps", results=results(), groups=groups, uses=USES, kinds=KINDS, forms=FORMS, chips=chips(),
    shown=_program_points(), columns=by_column(), kepler=_kepler(),
    why={name: _why(name) for name in ("vgg16", "resnet50", "inception_v3")},
  )  # fmt: skip


def steps_page() -> str:
  """Render the page with all steps."""
  return page.render(
    page.TEMPLATES / "all_steps.md", sources=sources(), results=results(), chips=chips(), forms=FORMS, uses=USES
  )  # fmt: skip


PROGRAM = {  # column -> predicted seconds of a point
  "half of the peak": lambda point: _half(point, winograd=False),
  "and 0-1 program": lambda point: _half(point, winograd=True),
  "fitted, direct": lambda point: predict(point, shares_of(point)._replace(winograd=0.0)),
  "fitted, 0-1 program": predict,
}


def _program_points() -> list[PublishedStep]:
  """Return the points that show the 0-1 program: TensorFlow's with larger batches, and ResNet-50 on V100."""
  program_points = [p for p in points() if p.source == "tf" and (p.examples > 32 or p.device == "k80")]
  small = {("k80", "inception_v3", 32), ("k80", "resnet50", 32)}  # also measured with 64
  program_points = [p for p in program_points if (p.device, p.network, p.examples) not in small]
  return program_points + [p for p in points() if (p.source, p.network, p.examples) == ("mxnet", "resnet50", 128)]


def _half(point: PublishedStep, winograd: bool) -> float:
  """Predict a step at half of the peak: by the roofline, or if `winograd`, with the 0-1 program's algorithms."""
  layers, device = network(point.network), chips()[point.device].device(point.form)
  shares = Shares(HALF.best, winograd=HALF.best * winograd)
  work = [
    part._replace(flop=part.flop * cost(fastest(layer, shares), shares))
    for layer, part in zip(layers, parts(layers), strict=True)
  ]
  return step_seconds(work, point.examples, device, HALF)


def _why(name: str) -> tuple[float, ...]:
  """Return four numbers that explain the errors of predictions with the 0-1 program (`ddl.perf.device_step`).

  1. The training FLOP with feature maps rounded up to whole tiles, divided by the FLOP without rounding.
  2. The share of the rounded FLOP in layers for which Winograd is fastest.
  3. The share of the step time (P100, 64 images) spent in the memory-bound operations after convolutions.
  4. The share of these operations' bytes that belongs to layers with normalization.
  """
  layers, shares = network(name), convolution_shares("pascal", "2016")
  step = device_step.device_step(layers, chips()["p100"].device("float32"), shares)
  filled = [flop(layer, i == 0) for i, layer in enumerate(layers)]
  fast = sum(f for f, layer in zip(filled, layers, strict=True) if fastest(layer, shares) == "winograd")
  moving = [part for part in step.parts if not part.flop and not part.held]
  seconds = step_seconds(moving, 64, step.device._replace(start=0.0), step.efficiency) / step.seconds(64)
  normal = sum(extra(x) for x in layers if x.normalized or is_map_scale(x)) / max(1.0, sum(map(extra, layers)))
  products = sum(layer.train_flop for layer in layers if not is_map_scale(layer))
  return sum(filled) / products, fast / sum(filled), seconds, normal


def by_column() -> dict[str, list[float]]:
  """Return the relative errors of the points in the 0-1 program table, by column of PROGRAM."""
  program_points = _program_points()
  return {name: [predicted(p) / p.seconds - 1 for p in program_points] for name, predicted in PROGRAM.items()}


def _kepler() -> list[float]:
  """Return the median errors on K40c with cuDNN 5.0, without and with Winograd, which cuDNN 5.1 added for Kepler."""
  kepler = [p for p in points() if (p.source, p.device) == ("torch_5.0", "k40c")]
  libraries = [convolution_shares("kepler", "2016", winograd) for winograd in (False, True)]
  return [statistics.median(predict(p, shares) / p.seconds - 1 for p in kepler) for shares in libraries]
