"""Benchmark workloads: models with sizes, workers and batches, and algorithms with their settings."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from ddl.costs.step_cost import SIZES

Block = Callable[[int], float]  # runs n steps and returns their seconds


class Workload(NamedTuple):
  """A model with its sizes, on `workers` workers with `batch` examples each."""

  model: str
  sizes: Mapping[str, Any]
  workers: int
  batch: int
  pixels: int = 28  # width and height of an image
  members: int = 1  # devices per worker
  microbatches: int = 1


LAYOUTS = {"mlp": [(2, 64), (4, 64), (8, 64), (32, 64)], "lenet": [(2, 32), (8, 32)], "transformer": [(2, 8), (8, 8)]}
WORKLOADS = {
  f"{model} {workers}x{batch}": Workload(model, SIZES[model], workers, batch)
  for model, layouts in LAYOUTS.items()
  for workers, batch in layouts
}
DIGITS = {"hidden": (64, 64)}  # the model of most configs, where JAX's dispatch takes longer than a step
WORKLOADS |= {f"digits 8x{batch}": Workload("mlp", DIGITS, 8, batch, 8) for batch in (16, 64)}
IN_PARTS = {  # measured only with sync_sgd, against a plain loop over whole batches on one device
  "mlp 1x512 members 2": Workload("mlp", SIZES["mlp"], 1, 512, members=2),
  "transformer 1x32 members 2": Workload("transformer", SIZES["transformer"], 1, 32, members=2),
  "mlp 1x512 microbatches 4": Workload("mlp", SIZES["mlp"], 1, 512, microbatches=4),
  "transformer 1x32 microbatches 4": Workload("transformer", SIZES["transformer"], 1, 32, microbatches=4),
}
WORKLOADS |= IN_PARTS
ALGORITHMS: dict[str, dict[str, Any]] = {
  "sync_sgd": {},
  "local_sgd": {"period": 10},
  "dasgd": {"period": 10, "delay": 2, "keep": 0.25},
  "easgd": {"period": 10},
}
ASYNCHRONOUS: dict[str, dict[str, Any]] = {"async_sgd": {}, "async_easgd": {"period": 10}, "downpour": {"period": 10}}
COUNTERPARTS = {"async_sgd": "sync_sgd", "async_easgd": "easgd", "downpour": "local_sgd"}  # the synchronous algorithms
