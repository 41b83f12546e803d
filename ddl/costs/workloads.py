"""Sizes of models and synthetic data, on which steps are counted and measured."""

from typing import Any

from ddl.api import Data
from ddl.data import DATA

SIZES: dict[str, dict[str, Any]] = {
  "mlp": {"hidden": (512, 512)},
  "lenet": {"channels": (16, 32), "kernel": 5, "hidden": 128},
  "transformer": {"layers": 2, "width": 128, "heads": 4},
}


def synthetic(model: str, pixels: int = 28, size: int = 8192) -> Data:
  """Return so many random examples: images [pixels, pixels, 1] in 10 classes, or 64 tokens of a vocabulary of 64."""
  if model == "transformer":
    return DATA["synthetic"](task="language", shape=(64,), num_outputs=64, examples=size)
  return DATA["synthetic"](shape=(pixels, pixels, 1), examples=size)
