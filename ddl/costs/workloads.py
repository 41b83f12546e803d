"""Workloads of benchmarks and calibrations: models with sizes and batches on synthetic data; and kinds of models."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from ddl.api import Data
from ddl.data import DATA
from ddl.perf.devices.model import transformer
from ddl.perf.tables import TABLES

DENSE, CONVOLUTION, ATTENTION = "dense", "convolution", "attention"
PUBLISHED = {CONVOLUTION: "convolutions", ATTENTION: "transformer"}  # as `ddl.perf.devices.lookup` names them
KINDS: dict[str, str] = {
  **dict.fromkeys(("linear", "mlp"), DENSE),
  **dict.fromkeys(("lenet", "resnet18", "resnet20"), CONVOLUTION),
  **dict.fromkeys(("transformer", "gpt2"), ATTENTION),
}


def kind_of(model: str) -> str:
  """Return the kind of a model of `ddl.models` or of a layer table; "" for one that is neither."""
  if model in TABLES:
    if transformer(TABLES[model]):
      return ATTENTION
    layers = [layer for layer in TABLES[model] if hasattr(layer, "dense")]
    return DENSE if all(layer.dense for layer in layers) else CONVOLUTION
  return KINDS.get(model, "")


def published_kind(model: str) -> str:
  """Return the kind under which `ddl.perf.devices.lookup` has a model; "" where it has none."""
  return PUBLISHED.get(kind_of(model), "")


Block = Callable[[int], float]  # runs so many steps, returns their seconds


class Workload(NamedTuple):
  """A model with its sizes, on `workers` workers of `batch` examples each."""

  model: str
  sizes: Mapping[str, Any]
  workers: int
  batch: int
  pixels: int = 28  # of each side of an image
  members: int = 1
  microbatches: int = 1


SIZES: dict[str, tuple[dict[str, Any], list[tuple[int, int]]]] = {
  "mlp": ({"hidden": (512, 512)}, [(2, 64), (4, 64), (8, 64), (32, 64)]),
  "lenet": ({"channels": (16, 32), "kernel": 5, "hidden": 128}, [(2, 32), (8, 32)]),
  "transformer": ({"layers": 2, "width": 128, "heads": 4}, [(2, 8), (8, 8)]),
}
WORKLOADS = {
  f"{model} {workers}x{batch}": Workload(model, sizes, workers, batch)
  for model, (sizes, layouts) in SIZES.items()
  for workers, batch in layouts
}
DIGITS = {"hidden": (64, 64)}  # the model of most configs: a call of JAX takes longer than a step
WORKLOADS |= {f"digits 8x{batch}": Workload("mlp", DIGITS, 8, batch, 8) for batch in (16, 64)}
IN_PARTS = {  # measured under sync_sgd alone, against a plain loop over whole batches on one device
  "mlp 1x512 members 2": Workload("mlp", SIZES["mlp"][0], 1, 512, members=2),
  "transformer 1x32 members 2": Workload("transformer", SIZES["transformer"][0], 1, 32, members=2),
  "mlp 1x512 microbatches 4": Workload("mlp", SIZES["mlp"][0], 1, 512, microbatches=4),
  "transformer 1x32 microbatches 4": Workload("transformer", SIZES["transformer"][0], 1, 32, microbatches=4),
}
WORKLOADS |= IN_PARTS
ALGORITHMS: dict[str, dict[str, Any]] = {
  "sync_sgd": {},
  "local_sgd": {"period": 10},
  "dasgd": {"period": 10, "delay": 2, "keep": 0.25},
  "easgd": {"period": 10},
}
ASYNCHRONOUS: dict[str, dict[str, Any]] = {"async_sgd": {}, "async_easgd": {"period": 10}, "downpour": {"period": 10}}
COUNTERPARTS = {"async_sgd": "sync_sgd", "async_easgd": "easgd", "downpour": "local_sgd"}


def synthetic(model: str, pixels: int = 28, size: int = 8192) -> Data:
  """So many random examples: images [pixels, pixels, 1] in 10 classes, or 64 tokens of a vocabulary of 64."""
  if model == "transformer":
    return DATA["synthetic"](task="language", shape=(64,), num_outputs=64, examples=size)
  return DATA["synthetic"](shape=(pixels, pixels, 1), examples=size)
