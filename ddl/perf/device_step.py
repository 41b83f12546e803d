"""Model a step on a known device: the kernels of libraries, and the shares of the data sheet's rates that they reach.

In addition to the products of the layers (`layers.parts`) the model includes
  tiles      a convolution kernel computes tiles of TILE output maps, so that 80 maps cost as much as 128. This applies
             to the outputs in the forward pass and the weight gradient, and to the inputs in the input gradient.
  winograd   3x3 convolutions of stride 1 by F(2x2, 3x3), arXiv 1509.09308, with 16 instead of 36 products; 5x5 and
             larger convolutions by FFT, arXiv 1312.5851, with about half of the products. The choice is the 0-1 program
             of Zou et al. 2017, arXiv 1709.06622, over layers k and algorithms l with x_kl in {0, 1}:
               minimize sum_kl x_kl T_kl  subject to  sum_l x_kl = 1 for each k,  max_kl x_kl M_kl <= M_bound.
             Layers run one after the other and share one workspace, so each layer uses the fastest algorithm that fits.
  traffic    layers after a convolution read and write its maps again: batch normalization (forward: 2 reads, 1 write;
             backward: 2 reads of x, 2 of dy, 1 write of dx: 8 in total) and activation (forward 2, backward 3), or bias
             (forward 2, backward 1) and activation. Pooling, sums and concatenations are not counted; the share of the
             bandwidth absorbs them.
  fusion     in transformers, one kernel for each chain of element-wise operations (`Layer.fused_moved`).
  start      the host launches the kernels of each layer.

A kind of network is "convolution", "attention", "dense", or "" if unknown. Shares come from devices.toml; they are a
range if a kind of network was not measured on a device.
"""

import math
from functools import cache
from typing import NamedTuple

from ddl.perf import neural_networks
from ddl.perf.device import WIDTHS, Device, Efficiency, LayerWork, chips, device_data, step_seconds
from ddl.perf.layers import Attention, Layer, Table, has_attention, is_convolution, is_map_scale, params
from ddl.perf.units import percent

TILE = 128  # output maps per tile of a convolution kernel
NORMALIZED, BIASED = 13, 8  # values moved per output of a convolution by the layers that follow it
GAIN = {"direct": 1.0, "winograd": 36 / 16, "fft": 2.0}  # products of the direct algorithm divided by those of this one
UPDATE = 28  # bytes read and written per parameter by Adam in mixed precision: gradient, both moments and master copy
KINDS = {
  "convolution": "convolutional networks",
  "attention": "transformers",
  "dense": "dense networks",
  "": "any network",
}
MODEL_KINDS = {  # kinds of the models of `ddl.models`
  **dict.fromkeys(("linear", "mlp"), "dense"),
  **dict.fromkeys(("lenet", "resnet18", "resnet20"), "convolution"),
  **dict.fromkeys(("transformer", "gpt2"), "attention"),
}
FORMS = {"float32": "float32", "tf32": "TF32", "bfloat16": "16 bits"}


class Shares(NamedTuple):
  """The shares of a data sheet's rates that kernels reach on a device."""

  product: float  # share of the peak in matrix products and direct convolutions
  memory: float = 1.0  # share of the memory bandwidth for the traffic that is counted
  winograd: float = 0.0  # share of the peak in Winograd's products; 0: the libraries have neither Winograd nor FFT
  attention: float = 1.0  # speed of an attention kernel's products relative to `product`
  start: float = 0.0  # seconds per layer
  fused: bool = False  # whether element-wise operations of transformers are fused, as in compiled programs
  whole: bool = False  # `product` refers to whole steps: the FLOP of a step over its total time

  @property
  def efficiency(self) -> Efficiency:
    """The shares as the efficiency of a step's roofline."""
    return Efficiency(self.product, memory=self.memory)

  @property
  def text(self) -> str:
    """The shares as text, such as "31 % of the peak"."""
    if self.whole:
      return f"{percent(self.product)} of the peak"
    return f"{percent(self.product)} of the peak in products and {percent(self.memory)} of the memory bandwidth"


class DeviceStep(NamedTuple):
  """The arguments of `step_seconds` for a step on a device."""

  parts: tuple[LayerWork, ...]
  device: Device
  efficiency: Efficiency

  def seconds(self, examples: float) -> float:
    """Return the seconds of a step on `examples` examples."""
    return step_seconds(self.parts, examples, self.device, self.efficiency)


def device_step(
  table: Table, device: Device, shares: Shares, *, recomputed: float = 0.0, split: int = 1, examples: int = 0,
  room: float = math.inf,
) -> DeviceStep:  # fmt: skip
  """Return the step of a layer table on a device, with the fastest algorithm that applies to each convolution.

  Args:
    shares: the shares of the device's rates that kernels reach.
    recomputed: share of the forward pass that is recomputed in the backward pass.
    split: number of devices over which the optimizer state and its update are sharded.
    examples: with `room`, the examples of the step.
    room: bytes that a step leaves for the workspace of convolutions (M_bound).
  """
  parts = []
  if has_attention(table):
    parts.append(LayerWork(0.0, update=UPDATE / device.width * params(table) / split))
  for i, layer in enumerate(table):
    again = recomputed * layer.forward_flop
    if shares.whole:
      parts.append(LayerWork(layer.train_flop + again, 0.0, layer.held))
      continue
    slower = 1 / shares.attention if isinstance(layer, Attention) else 1.0
    values = layer.fused_moved if shares.fused else layer.moved
    moved = 0.0 if is_map_scale(layer) else values * (1 + recomputed / 3)
    work = flop(layer, i == 0) * cost(fastest(layer, shares, examples, room / device.width), shares)
    parts.append(LayerWork((work + again) * slower, moved, layer.held))
    if traffic := extra(layer):
      parts.append(LayerWork(0.0, traffic))
  started = device._replace(start=device.start + shares.start * len(table))
  return DeviceStep(tuple(parts), started, shares.efficiency)


def fastest(layer: Layer, shares: Shares, examples: int = 0, room: float = math.inf) -> str:
  """Return the fastest algorithm that applies to a layer with a workspace of at most `room` values."""
  names = ["direct"]
  if is_convolution(layer) and stride_one(layer):
    names += ["winograd"] * (layer.kernel == (3, 3)) + ["fft"] * (min(layer.kernel) >= 5)
  return min((x for x in names if workspace(x, layer, examples) <= room), key=lambda name: cost(name, shares))


def stride_one(layer: Layer) -> bool:
  """Return whether the output size implies a stride of 1: o = i + 2 pad - k + 1 >= i - k + 1."""
  return all(o >= i - k + 1 for i, k, o in zip(layer.size_in, layer.kernel, layer.size_out, strict=True))


def workspace(algorithm: str, layer: Layer, examples: int) -> float:
  """Return the values in the workspace of a convolution: an upper bound, as fused kernels keep them on the chip.

  The workspace of Winograd's algorithm holds the 16 transformed values of each tile of 2x2 outputs, in the input and
  output maps, and of each kernel. FFT pads all maps and kernels to a power of two, and a transformed row of s points
  has s / 2 + 1 complex values.
  """
  if algorithm == "direct":
    return 0.0
  maps, kernels = examples * (layer.inputs + layer.outputs), layer.inputs * layer.outputs // layer.groups
  if algorithm == "winograd":
    return 16 * (math.ceil(layer.size_out[0] / 2) * math.ceil(layer.size_out[1] / 2) * maps + kernels)
  rows, columns = (2 ** math.ceil(math.log2(o + k - 1)) for o, k in zip(layer.size_out, layer.kernel, strict=True))
  return 2 * rows * (columns // 2 + 1) * (maps + kernels)


def cost(algorithm: str, shares: Shares) -> float:
  """Return an algorithm's time divided by that of direct convolution; infinity if the libraries do not have it.

  FFT is assumed to reach the same share of the peak as direct convolution.
  """
  if algorithm == "direct":
    return 1.0
  if not shares.winograd:
    return math.inf
  return (shares.product / shares.winograd if algorithm == "winograd" else 1.0) / GAIN[algorithm]


def flop(layer: Layer, first: bool) -> float:
  """Return a layer's FLOP per example in training, with its maps rounded up to whole tiles.

  first: whether it is the network's first layer, which needs no input gradient.
  """
  if is_map_scale(layer):
    return 0.0  # bound by memory traffic
  if not is_convolution(layer):
    return layer.train_flop * (2 / 3 if first and layer.dense else 1.0)
  outputs, inputs = (maps / layer.groups for maps in (layer.outputs, layer.inputs))
  filled = [math.ceil(maps / TILE) * TILE / maps for maps in (outputs, outputs, inputs)]
  return layer.forward_flop * sum(filled[: 2 if first else 3])


def extra(layer: Layer) -> float:
  """Return the values moved per example by normalization, bias and activation after a convolution."""
  if is_map_scale(layer):
    return NORMALIZED * layer.activations
  if not is_convolution(layer) or not layer.bias:
    return 0.0
  return (NORMALIZED if layer.normalized else BIASED) * layer.activations


class ShareRange(NamedTuple):
  """The known shares, or their range, for a kind of network on a device."""

  ends: tuple[Shares, ...]  # one entry, or the lowest and the highest
  source: str  # a sentence with the error of the shares, or with the reason for a range

  @property
  def middle(self) -> Shares:
    """The only entry, or the geometric mean of both ends."""
    low, high = self.ends[0], self.ends[-1]

    def between(name: str) -> float:
      a, b = getattr(low, name), getattr(high, name)
      return math.sqrt(a * b) if a and b else (a + b) / 2

    if low == high:
      return low
    return low._replace(**{name: between(name) for name in Shares._fields[:5]})


def kind_of(table: Table) -> str:
  """Return the kind of network of a layer table: attention, convolution or dense."""
  return "attention" if has_attention(table) else "convolution" if any(map(is_convolution, table)) else "dense"


def kind_of_model(name: str) -> str:
  """Return the kind of network of a model in `ddl.models` or of a layer table, by name; "" for other names."""
  return kind_of(neural_networks.table(name)) if neural_networks.has(name) else MODEL_KINDS.get(name, "")


@cache
def known(generation: str, kind: str, form: str) -> Shares | None:
  """Return the fitted `Shares` of a device generation for a kind of network in a number format; None without a fit.

  They are the fractions of the data sheet's peak rates that kernels reach.
  """
  entry = device_data()["shares"].get(kind, {}).get(form, {}).get(generation)
  return Shares(**entry) if entry else None


def find(device: Device, kind: str) -> ShareRange | None:
  """Return the shares for a kind of network on a device, or None if the device has no `chip` name."""
  if not device.chip:
    return None
  whole = device_data()["whole_step"].get(device.chip)
  if whole and whole["kind"] in (kind, ""):
    low, high = whole["low"], whole["high"]
    return ShareRange(
      (Shares(low, whole=True), Shares(high, whole=True)),
      f"{percent(low)} to {percent(high)} of the peak in whole steps: {whole['source']}",
    )
  sheet = chips().get(device.chip)
  form = "bfloat16" if device.width == WIDTHS["bfloat16"] else "float32"
  if form == "float32" and sheet and "float32" not in sheet.peaks:
    form = "tf32"
  if sheet and (shares := known(sheet.generation, kind, form)):
    count, median, largest = device_data()["errors"][kind][form]
    return ShareRange(
      (shares,),
      f"fitted on published steps of {KINDS[kind]} in {FORMS[form]} (experiments/papers/device_steps.md); "
      f"the errors on {count} other steps are {percent(median)} (median), at most {percent(largest)}",
    )
  generation = sheet.generation if sheet else ""
  near = _nearest(generation, kind, form)
  columns = list(zip(*(shares[:4] for shares in near), strict=True))
  start = max(shares.start for shares in near) if kind == "convolution" else 0.0
  fused = any(shares.fused for shares in near)
  low = Shares(*map(min, columns), start=start, fused=fused)
  high = Shares(*map(max, columns), fused=fused)  # a layer's start only slows a step
  if generation and not _measured(generation):
    least = min(low.product, *(entry["low"] for entry in device_data()["whole_step"].values()))
    reason = "no published step on this device: a range from the lowest to the highest shares of all devices"
    return ShareRange((low._replace(product=least), high), reason)
  missing = f"no published step of {KINDS[kind]} in {FORMS[form]}" if kind else "no published step of this network"
  return ShareRange(
    (low, high),
    f"{missing} on this device: a range from the lowest to the highest shares of similar devices or kinds of network",
  )


def _measured(generation: str) -> list[Shares]:
  """Return the shares of a device generation for all kinds of networks and number formats."""
  tables = [forms for kinds in device_data()["shares"].values() for forms in kinds.values()]
  return [Shares(**table[generation]) for table in tables if generation in table]


def _nearest(generation: str, kind: str, form: str) -> list[Shares]:
  """Return the known shares of the same kind of network on all devices.

  If there are fewer than two, add those of other kinds on the same device; if still fewer than two, return all shares
  in the number format. For a generation without any shares, return those of all devices, kinds and formats. `winograd`
  is set to 0.
  """
  kinds, generations = ("convolution", "attention"), sorted({chip.generation for chip in chips().values()})
  same_device = [known(generation, other, form) for other in kinds]
  same_kind = [known(other, kind, form) for other in generations]
  every = [known(other, other_kind, form) for other in generations for other_kind in kinds]
  if generation and not _measured(generation):
    same_device = same_kind = every = [shares for other in generations for shares in _measured(other)]
  candidates = [[shares for shares in near if shares] for near in (same_kind, [*same_device, *same_kind], every)]
  nearest = next((near for near in candidates if len(near) > 1), candidates[-1])
  return [shares._replace(winograd=0.0) for shares in nearest]
