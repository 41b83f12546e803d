"""Training sets that cannot be read by index: an iterator for each worker, whose place is saved with a run."""

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
  """Return the source of training examples that come as `grain.IterDataset`s of {"x": ..., "y": ...} give them.

  `make(worker, workers, seed)` gives the examples of a worker, one by one: its own shard, shuffled by the seed, without
  an end (`repeat()`), and the same whenever it is called. What filters, shuffles within a window, packs or reads ahead
  in processes (`mp_prefetch`) goes in there. Batches are made of it here.

  Args:
    make: see above.
    size: examples that count as an epoch.

  Raises:
    ValueError: for a size below 1, data sets of another kind, or whose elements are something else.
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
  """Return the first examples of a stream that one worker has to itself, at most `count`."""
  examples = _iterator(make(0, 1, 0))
  try:
    return list(itertools.islice(examples, count))
  finally:
    examples.close()


class StreamFeed:
  """The batches of some workers, each from its own iterator: one step after the other, from the first."""

  def __init__(
    self, make: Make, workers: Sequence[int], *, count: int, batch: int, seed: int, check: checks.Check | None = None
  ):
    """Open the iterators.

    Args:
      make: see `from_grain_stream`.
      workers: ids of those whose batches these are.
      count: number of all workers.
      batch: examples per worker and step.
      seed: for `make`.
      check: raises ValueError for a batch of wrong types, shapes or values.
    """
    self._step, self._begun, self._check = 0, False, check
    self._iterators = {w: _iterator(make(w, count, seed).batch(batch, drop_remainder=True)) for w in workers}

  def __call__(self, first: int, steps: int) -> dict[str, np.ndarray]:
    """Return the batches of the next steps, of which `first` is the first: [workers, steps, batch, ...].

    ValueError where a stream ends.
    """
    assert first == self._step, f"step {first} of a stream that is at {self._step}"
    with contextlib.nullcontext() if self._begun else _deaf_to_interrupts():
      taken = [[self._next(worker, step) for step in range(first, first + steps)] for worker in self._iterators]
    self._begun = True
    self._step += steps
    out = {name: np.stack([np.stack([each[name] for each in row]) for row in taken]) for name in ("x", "y")}
    if self._check:
      workers, sizes = [*self._iterators], out["y"].shape[:3]

      def name(position: int) -> str:
        row, step, index = np.unravel_index(position, sizes)
        return f"{index} of step {first + step + 1} of worker {workers[row]}"

      self._check({key: x.reshape(-1, *x.shape[3:]) for key, x in out.items()}, math.prod(sizes), name)
    return out

  def states(self) -> dict[str, Any]:
    """Return where each iterator is, as JSON: worker -> state."""
    return {str(worker): iterator.get_state() for worker, iterator in self._iterators.items()}

  def restore(self, step: int, states: Mapping[str, Any], begin: bool = False) -> None:
    """Go on where the iterators were after `step` steps; states: of these workers, or more.

    begin: whether others begin now. ValueError for others: the checkpoint is of a run whose training set was no stream.
    """
    if not begin and {*map(str, self._iterators)} - {*states}:
      raise ValueError(f"the checkpoint of step {step} does not hold where its streams were; train again")
    self._step = step
    for worker, iterator in self._iterators.items():
      if str(worker) in states:
        iterator.set_state(states[str(worker)])

  def close(self) -> None:
    """End the processes that read ahead."""
    for iterator in self._iterators.values():
      iterator.close()

  def _next(self, worker: int, step: int) -> Mapping[str, np.ndarray]:
    found = next(self._iterators[worker], None)
    if found is None:
      raise ValueError(
        f"the stream of worker {worker} ends at step {step + 1}; it has to go on for ever: end it in repeat()"
      )
    return found


@contextlib.contextmanager
def _deaf_to_interrupts() -> Iterator[None]:
  """Let the processes that start here ignore Ctrl-C, which a terminal sends to all: the run still has to be saved."""
  if threading.current_thread() is not threading.main_thread():  # which alone may set handlers
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
    flags.FLAGS.mark_as_parsed()  # grain's mp_prefetch reads flags of its own, which a notebook never parses
  return iter(dataset)
