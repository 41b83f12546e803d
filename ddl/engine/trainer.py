"""The interface between the training loop and the runtimes.

Implementations include `CompiledTrainer`, `Simulator` and `RealTimeTrainer` (threads and Ray).
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import jax
import numpy as np

from ddl.api import Tree
from ddl.engine.consensus import Consensus

Feed = Callable[[int, int], dict[str, np.ndarray]]  # (first step, steps) -> [local workers, steps, batch, ...]


class TrainerCall(Protocol):
  """Consecutive steps that a trainer runs in one call of a compiled program."""

  @property
  def first(self) -> int:
    """Return the first step."""
    ...

  @property
  def end(self) -> int:
    """Return the step after the last."""
    ...


class Trainer(Protocol):
  """An object that trains a run, or a batch of runs that differ only in seeds and traced hyperparameters.

  A carry is the state between two calls; only its trainer knows its structure. A batch of one run has the same carry
  and program as that run, and bit-identical results.
  """

  @property
  def layout(self) -> dict[str, Any]:
    """Return the settings of devices and execution that must be equal for a bit-exact resume."""
    ...

  @property
  def portable(self) -> bool:
    """Return whether a trainer with a different `layout` can restore a carry, with results equal up to rounding."""
    ...

  @property
  def fed(self) -> Sequence[int]:
    """Return the IDs of the workers whose batches `run` takes in this process."""
    ...

  @property
  def compile_seconds(self) -> float:
    """Return the seconds spent compiling so far."""
    ...

  def start(self, key: Any) -> Any:
    """Return the initial carry for a random key, or for a `RunKey` with hyperparameters.

    Raises:
      ValueError: if the carry does not fit into memory.
    """
    ...

  def join(self, carries: Sequence[Any]) -> Any:
    """Combine the carries of several runs into the carry of a batch."""
    ...

  def part(self, carry: Any, run: int) -> Any:
    """Return the carry of one run of a batch."""
    ...

  def plan(self, first: int, last: int, every: int) -> Sequence[TrainerCall]:
    """Return the calls that run steps first..last-1, with a boundary at each multiple of `every`."""
    ...

  def run(self, carry: Any, calls: Any, feed: Any, key: jax.Array) -> Iterator[tuple[Any, Any, Any]]:
    """Run the calls and yield (call, carry after it, losses); a yielded carry may be donated to the next call.

    For several runs at once, batches from `feed` have shape [local workers, runs, steps, batch, ...] and `key` has
    shape [runs].
    """
    ...

  def losses(self, call: Any, losses: Any) -> np.ndarray:
    """Wait for a call and return its losses on the host: [steps], or [runs, steps]."""
    ...

  def nbytes(self, call: Any) -> float:
    """Return the bytes that a worker sends in a call: a mean over the workers.

    With servers, they include what a worker receives, and its share of what servers send to each other.
    """
    ...

  def seconds(self, carry: Any) -> float | None:
    """Return the training seconds that the trainer measured, or None if the loop measures them."""
    ...

  def consensuses(self, carry: Any) -> list[Consensus]:
    """Return the consensus model of each run. The carry stays valid."""
    ...

  def saved(self, carry: Any) -> Tree:
    """Convert the carry of one run to the form that a checkpoint stores."""
    ...

  def saved_shapes(self, key: jax.Array, step: int) -> Tree:
    """Return the shapes, types and shardings of the carry in a checkpoint after `step` steps."""
    ...

  def restored(self, saved: Tree, step: int) -> Any:
    """Convert a saved carry, from a checkpoint after `step` steps, to a carry of this trainer."""
    ...

  def describe(self) -> str:
    """Describe workers, devices and execution in one line."""
    ...

  def stop(self) -> None:
    """Stop the run early, from a signal handler: `run` yields its completed calls and then returns."""
    ...

  def close(self) -> None:
    """Stop processes and threads."""
    ...


class SingleRunTrainer:
  """Base class of trainers; its default methods suit a trainer of one run at a time, timed by the training loop."""

  portable = False
  layout: dict[str, Any]
  fed: Sequence[int] = ()

  def consensus(self, carry: Any) -> Consensus:
    """Return the model to evaluate and the workers' distance from their mean; the carry stays valid."""
    raise NotImplementedError

  def consensuses(self, carry: Any) -> list[Consensus]:
    """Return the consensus of the only run, as a list."""
    return [self.consensus(carry)]

  def join(self, carries: Sequence[Any]) -> Any:
    """Return the carry of the only run of a batch."""
    (carry,) = carries
    return carry

  def part(self, carry: Any, run: int) -> Any:
    """Return the carry of the only run of a batch."""
    del run
    return carry

  def seconds(self, carry: Any) -> float | None:
    """Return None, so that the loop measures the seconds."""
    del carry

  def stop(self) -> None:
    """Do nothing: the loop stops between two calls."""

  def close(self) -> None:
    """Do nothing: there is nothing to release."""
