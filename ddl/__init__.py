# ruff: noqa: F403, F405
"""ddl: distributed SGD variants as pure functions, run for real and compared fairly.

The names below are those of `ddl.public`, imported on first use, as parts such as the cost model do without JAX.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
  from ddl.library.functions import RunOptions, StepInfo, compare, load, own, sweep, train
  from ddl.public import *

__version__ = "0.1.0"
__all__ = [
  "COLLECTIVE",
  "DATA",
  "MODELS",
  "SERVER",
  "Algorithm",
  "CompiledTrainer",
  "Data",
  "Exchange",
  "ExecutionConfig",
  "Group",
  "Model",
  "RunOptions",
  "ServerAlgorithm",
  "Simulator",
  "Source",
  "StepInfo",
  "compare",
  "from_equinox",
  "from_flax",
  "from_nnx",
  "load",
  "make_workers",
  "own",
  "periods_by_loss",
  "sweep",
  "train",
]


def __dir__() -> list[str]:
  """The public names, which are imported on first use."""
  return sorted([*__all__, "__version__"])


def __getattr__(name: str) -> Any:
  if name not in __all__:
    raise AttributeError(f"module 'ddl' has no attribute '{name}'; must be one of {', '.join(__all__)}")
  if name in ("RunOptions", "StepInfo", "compare", "load", "own", "sweep", "train"):
    from ddl.library import functions as library  # which is above this package, for who imports no other

    return getattr(library, name)
  from ddl import public

  return getattr(public, name)
