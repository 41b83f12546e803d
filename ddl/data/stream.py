"""Training sets that cannot be read by index: an iterator for each worker, whose state is saved with a run."""

import contextlib
import itertools
import math
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ddl.api import Source
from ddl.data import checks
from ddl.errors import OptionError

Make = Callable[[int, int, int], Any]  # (worker, number of workers, seed) -> grain.IterDataset


def from_grain_stream(make: Make, *, size: int) -> Source:
  """Return a source of training examples in the order of `grain.IterDataset`s of {"x": ..., "y": ...}.

  Args:
    make: (worker, workers, seed) -> the examples of a worker, one by one: its shard, shuffled by the seed, without an
      end (`repeat()`), and the same in each call. Filters, window shuffles, packing and reading ahead in processes
      (`mp_prefetch`) belong in there, batches do not.
    size: examples that count as an epoch.

  Raises:
    ValueError: for a size below 1, other data sets or elements.
  """
  if size < 1:
    raise OptionError("size", "at least 1, the examples that count as an epoch", size)
  example: Any = next(iter(first_examples(make, 1)), None)
  checks.element(example, "the stream")
  one = {name: np.array(example[name]) for name in ("x", "y")}

  def take(indices: np.ndarray) -> dict[str, np.ndarray]:
    return {name: np.repeat(x[None], len(indices), axis=0) for name, x in one.items()}

  return Source(size, take, stream=make)


def first_examples(make: Make, count: int) -> list[Any]:
  """Return at most `count` first examples of the stream of a single worker."""
  examples = _iterator(make(0, 1, 0))
  try:
    return list(itertools.islice(examples, count))
  finally:
    examples.close()


class StreamFeed:
  """Batches of some workers, each from its own iterator, in the order of the steps."""

  def __init__(
    self, make: Make, workers: Sequence[int], *, count: int, batch: int, seed: int, check: checks.Check | None = None
  ):
    """Open the iterators.

    Args:
      make: see `from_grain_stream`.
      workers: ids of the workers whose batches these are.
      count: number of all workers.
      batch: examples per worker and step.
      seed: for `make`.
      check: raises ValueError for a batch of wrong types, shapes or values.
    """
    self._step, self._begun, self._check = 0, False, check
    self._iterators = {w: _iterator(make(w, count, seed).batch(batch, drop_remainder=True)) for w in workers}

  def __call__(self, first: int, steps: int) -> dict[str, np.ndarray]:
    """Return the batches of the steps from `first` on: [workers, steps, batch, ...]; ValueError where a stream ends."""
    assert first == self._step, f"step {first} of a stream that is at {self._step}"
    with contextlib.nullcontext() if self._begun else _ignored_interrupts():
      rows = [[self._next(worker, step) for step in range(first, first + steps)] for worker in self._iterators]
    self._begun = True
    self._step += steps
    out = {name: np.stack([np.stack([batch[name] for batch in row]) for row in rows]) for name in ("x", "y")}
    if self._check:
      workers, sizes = [*self._iterators], out["y"].shape[:3]

      def name(position: int) -> str:
        row, step, index = np.unravel_index(position, sizes)
        return f"{index} of step {first + step + 1} of worker {workers[row]}"

      self._check({key: x.reshape(-1, *x.shape[3:]) for key, x in out.items()}, math.prod(sizes), name)
    return out

  def states(self) -> dict[str, Any]:
    """Return the state of each iterator as JSON: worker -> state."""
    return {str(worker): iterator.get_state() for worker, iterator in self._iterators.items()}

  def restore(self, step: int, states: Mapping[str, Any], begin: bool = False) -> None:
    """Continue after `step` steps.

    Args:
      step: number of finished steps.
      states: of these workers, or more.
      begin: whether workers without a state begin now; otherwise they are a ValueError.
    """
    if not begin and {*map(str, self._iterators)} - {*states}:
      raise ValueError(f"the checkpoint of step {step} does not hold where its streams were; train again")
    self._step = step
    for worker, iterator in self._iterators.items():
      if str(worker) in states:
        iterator.set_state(states[str(worker)])

  def close(self) -> None:
    """Stop the processes that read ahead."""
    for iterator in self._iterators.values():
      iterator.close()

  def _next(self, worker: int, step: int) -> Mapping[str, np.ndarray]:
    batch = next(self._iterators[worker], None)
    if batch is None:
      raise ValueError(
        f"the stream of worker {worker} ends at step {step + 1}; it has to go on for ever: end it in repeat()"
      )
    return batch


@contextlib.contextmanager
def _ignored_interrupts() -> Iterator[None]:
  """Let processes that start here ignore Ctrl-C, which a terminal sends to all: the run still has to be saved."""
  if threading.current_thread() is not threading.main_thread():  # only the main thread may set handlers
    yield
    return
  before = signal.signal(signal.SIGINT, signal.SIG_IGN)
  try:
    yield
  finally:
    signal.signal(signal.SIGINT, before)


def _iterator(dataset: Any) -> Any:
  import grain
  from absl import flags

  if not isinstance(dataset, grain.IterDataset):
    raise ValueError(f"{dataset!r}; invalid: must be a grain.IterDataset, as to_iter_dataset() makes it")
  if not flags.FLAGS.is_parsed():
    flags.FLAGS.mark_as_parsed()  # grain's mp_prefetch reads absl flags, which a notebook never parses
  return iter(dataset)
