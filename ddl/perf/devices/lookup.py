"""The shares that a step of a network reaches on a device: from measurements, or a range where there are none.

A kind of network is "convolutions", "transformer", or "" for any other. A range is two ends; `middle` stands between.
"""

import math
from typing import NamedTuple

from ddl.perf.devices import fitted
from ddl.perf.devices.model import Shares, transformer
from ddl.perf.devices.sheets import SHEETS
from ddl.perf.hardware.device import Device
from ddl.perf.step.convolution import is_convolution
from ddl.perf.step.layers import Table

KINDS = {"convolutions": "convolutional networks", "transformer": "transformers", "": "any network"}
FORMS = {"float32": "float32", "tf32": "TF32", "bfloat16": "16 bits"}
# Of the held-out steps of each kind and format: how many, median and largest error; a test counts them again.
ERRORS = {
  ("convolutions", "float32"): (115, 0.089, 0.40),
  ("convolutions", "bfloat16"): (3, 0.133, 0.13),
  ("convolutions", "tf32"): (1, 0.082, 0.08),
  ("transformer", "bfloat16"): (75, 0.051, 0.45),
  ("transformer", "float32"): (3, 0.023, 0.06),
}


class Found(NamedTuple):
  """What is known of a network's kind on a device."""

  ends: tuple[Shares, ...]  # one, or the lowest and the highest
  source: str  # in words, with the error or why it is a range

  @property
  def middle(self) -> Shares:
    """The one, or the geometric mean of both ends."""
    low, high = self.ends[0], self.ends[-1]
    if low == high:
      return low
    numbers = {name: _between(getattr(low, name), getattr(high, name)) for name in _NUMBERS}
    return low._replace(**numbers)


_NUMBERS = ("product", "memory", "winograd", "attention", "start")


def kind_of(table: Table) -> str:
  """Kind of a layer table; "" for a dense network, and for none."""
  return "transformer" if transformer(table) else "convolutions" if any(map(is_convolution, table)) else ""


def find(device: Device, kind: str) -> Found | None:
  """Shares of a kind of network on a device; None for a device without a name, which brings its own efficiency."""
  if not device.chip:
    return None
  whole = fitted.WHOLE.get((device.chip, kind)) or fitted.WHOLE.get((device.chip, ""))
  if whole:
    return Found(
      (Shares(whole.low, whole=True), Shares(whole.high, whole=True)),
      f"{_percent(whole.low)} to {_percent(whole.high)} of the peak in whole steps: {whole.source}",
    )
  sheet, form = SHEETS.get(device.chip), _form(device)
  if sheet and (one := fitted.known(sheet.generation, kind, form)):
    count, median, largest = ERRORS[kind, form]
    return Found(
      (one,),
      f"fitted on published steps of {KINDS[kind]} in {FORMS[form]} (docs/device_steps.md); "
      f"{count} others are off by {_percent(median)} (median), at most {_percent(largest)}",
    )
  near = _others(sheet.generation if sheet else "", kind, form)
  columns = list(zip(*(each[:4] for each in near), strict=True))
  ends = [Shares(*map(pick, columns)) for pick in (min, max)]
  start = max(each.start for each in near) if kind == "convolutions" else 0.0
  why = (
    f"no step of {KINDS[kind]} in {FORMS[form]} is measured on it" if kind else "its kind of network is not measured"
  )
  source = (
    f"{why}: a range, of the lowest and the highest shares of what is nearest to it (devices or kinds of network)"
  )
  return Found((ends[0]._replace(start=start), ends[1]), source)


def _others(generation: str, kind: str, form: str) -> list[Shares]:
  """Known shares nearest to what is asked, two or more: the kind's on other devices, with the device's own, or all."""
  kinds, generations = ("convolutions", "transformer"), sorted({sheet.generation for sheet in SHEETS.values()})
  own = [fitted.known(generation, other, form) for other in kinds] if generation else []
  same = [fitted.known(other, kind, form) for other in generations] if kind else []
  every = [fitted.known(other, each, form) for other in generations for each in kinds]
  for near in (same, [*own, *same], every):
    found = [shares._replace(winograd=0.0) for shares in near if shares]
    if len(found) > 1:
      break
  return found


def _form(device: Device) -> str:
  """Format of a device's peak."""
  sheet = SHEETS.get(device.chip)
  if device.width == 2:
    return "bfloat16"
  return "float32" if not sheet or "float32" in sheet.peaks else "tf32"


def _between(low: float, high: float) -> float:
  return math.sqrt(low * high) if low and high else (low + high) / 2


def _percent(share: float) -> str:
  return f"{100 * share:.3g} %"
