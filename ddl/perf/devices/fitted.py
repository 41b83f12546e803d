"""Shares of the data sheets' rates, as `fit` finds them (a test asks that no change of 2 % is better), and as sources
give them for whole steps."""

from typing import NamedTuple

from ddl.perf.devices.model import Shares

# Convolutions in float32: 63 steps of ResNet-50, VGG-16, AlexNet and GoogLeNet on five devices.
PRODUCT = {"kepler": 0.3345, "maxwell": 0.4652, "pascal": 0.794, "volta": 0.8533}
WINOGRAD = {"kepler": 0.4809, "maxwell": 0.7516, "pascal": 0.8802, "volta": 0.7767}
MEMORY = {"2016": 0.405, "2018": 0.6703}  # libraries of that time
START = 2.44e-4  # seconds per layer
# Transformers with 16 bits: ten steps of MPT on A100 and H100; V100: one step of BERT.
LANGUAGE = {"ampere": 0.8358, "hopper": 0.5788, "volta": 0.6613}
LANGUAGE_MEMORY, ATTENTION = 0.2895, 0.3558
LANGUAGE_FLOAT32 = {"volta": 0.7976}  # one step of BERT
# Convolutions on tensor cores: one step of ResNet-50 each, with the products' share of transformers and 30 us a layer.
TENSOR = {"volta": Shares(0.6613, 0.8974, start=3e-5), "ampere": Shares(0.8358, 0.5006, start=3e-5)}
TF32 = {"ampere": Shares(0.4038, MEMORY["2018"], start=START)}  # one step of ResNet-50


class Whole(NamedTuple):
  """Lowest and highest share of the peak in whole steps, as reported."""

  low: float
  high: float
  source: str


WHOLE = {  # by device and kind of network; "": any
  ("tpu_v5e", "transformer"): Whole(
    0.561, 0.669, "MaxText's README: 16 to 128 billion parameters on 256 chips, exchanges included"
  ),
  ("tpu_v5p", "transformer"): Whole(
    0.640, 0.715, "MaxText's README: 32 to 1160 billion parameters on 64 to 6144 chips, exchanges included"
  ),
  ("haswell", ""): Whole(
    0.31,
    0.8,
    "forward passes of ResNet-50 (lowest), Inception v3 and VGG-11 (highest) on an EC2 c4.8xlarge, with MKL: "
    "MXNet's docs/how_to/perf.md",
  ),
}


def convolution_shares(generation: str, libraries: str = "2018", winograd: bool = True) -> Shares:
  """In float32. winograd: whether the libraries have it (cuDNN 5.0 had not for Kepler)."""
  return Shares(
    PRODUCT[generation], MEMORY[libraries], WINOGRAD[generation] if winograd else 0.0, start=START
  )  # fmt: skip


def language_shares(generation: str, form: str) -> Shares:
  """Of transformers."""
  product = (LANGUAGE_FLOAT32 if form == "float32" else LANGUAGE)[generation]
  return Shares(product, LANGUAGE_MEMORY, attention=ATTENTION)


def known(generation: str, kind: str, form: str) -> Shares | None:
  """Shares of a device's generation for "convolutions" or "transformer" in a format, or None."""
  if kind == "transformer":
    there = LANGUAGE_FLOAT32 if form == "float32" else LANGUAGE if form == "bfloat16" else {}
    return language_shares(generation, form) if generation in there else None
  if kind != "convolutions":
    return None
  if form == "float32":
    return convolution_shares(generation) if generation in PRODUCT else None
  return {"bfloat16": TENSOR, "tf32": TF32}[form].get(generation)
