"""Training sets without random access: one iterator per worker, whose state is checkpointed."""

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
  """Create a source that reads training examples in order from `grain.IterDataset`s of {"x": ..., "y": ...}.

  make(worker, workers, seed) returns a data set of single examples: the worker's shard, shuffled by the seed, repeated
  infinitely, and the same in each call. Filters, window shuffles, packing and `mp_prefetch` belong in `make`; batching
  does not. size: number of examples per epoch. Raises OptionError for other data sets.
  """
  if size < 1:
    raise OptionError("size", ">= 1 (the number of examples per epoch)", size)
  example: Any = next(iter(first_examples(make, 1)), None)
  checks.element(example, "the stream")
  one = {name: np.array(example[name])[None] for name in ("x", "y")}
  return Source(size, lambda indices: {name: x.repeat(len(indices), axis=0) for name, x in one.items()}, stream=make)


def first_examples(make: Make, count: int) -> list[Any]:
  """Return the first `count` examples (fewer if the stream ends) of a run with one worker and seed 0."""
  with contextlib.closing(_iterator(make(0, 1, 0))) as examples:
    return list(itertools.islice(examples, count))


class StreamFeed:
  """The batches of several workers, read from one iterator per worker."""

  def __init__(
    self, make: Make, workers: Sequence[int], *, count: int, batch: int, seed: int, check: checks.Check | None = None
  ):
    """Open the iterators of `workers`.

    count: number of all workers; batch: examples per worker and step; seed: passed to `make`; check: called on all
    batches.
    """
    self._step, self._started, self._check = 0, False, check
    self._iterators = {w: _iterator(make(w, count, seed).batch(batch, drop_remainder=True)) for w in workers}

  def __call__(self, first: int, steps: int) -> dict[str, np.ndarray]:
    """Return the batches of the next `steps` steps, [workers, steps, batch, ...].

    Raises OptionError if a stream ends or `first` is not the next step.
    """
    if first != self._step:
      raise OptionError("step", f"{self._step} (the next step of the stream)", first)
    with contextlib.nullcontext() if self._started else _ignored_interrupts():
      rows = [[self._next(worker, step) for step in range(first, first + steps)] for worker in self._iterators]
    self._started = True
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
    """Return the state of each iterator, serializable as JSON: worker -> state."""
    return {str(worker): iterator.get_state() for worker, iterator in self._iterators.items()}

  def restore(self, step: int, states: Mapping[str, Any], begin: bool = False) -> None:
    """Restore the iterators' states after `step` steps. begin: whether workers without a saved state may join."""
    if not begin and (missing := {*map(str, self._iterators)} - {*states}):
      value = f"none for worker {min(missing)}"
      raise OptionError(f"stream states in the checkpoint of step {step}", "complete", value, "Train from the start.")
    self._step = step
    for worker, iterator in self._iterators.items():
      if str(worker) in states:
        iterator.set_state(states[str(worker)])

  def close(self) -> None:
    """Stop the prefetching processes."""
    for iterator in self._iterators.values():
      iterator.close()

  def _next(self, worker: int, step: int) -> Mapping[str, np.ndarray]:
    batch = next(self._iterators[worker], None)
    if batch is None:
      raise OptionError(f"the stream of worker {worker}", "infinite", f"its end at step {step + 1}", "Call repeat().")
    return batch


@contextlib.contextmanager
def _ignored_interrupts() -> Iterator[None]:
  """Make processes started in this context ignore Ctrl-C, so that the run can still be saved."""
  main = threading.current_thread() is threading.main_thread()  # only this thread may set handlers
  before = signal.signal(signal.SIGINT, signal.SIG_IGN) if main else None
  try:
    yield
  finally:
    if main:
      signal.signal(signal.SIGINT, before)


def _iterator(dataset: Any) -> Any:
  import grain
  from absl import flags

  if not isinstance(dataset, grain.IterDataset):
    raise OptionError(
      "the data set of a stream", "a grain.IterDataset (for example, from to_iter_dataset())", repr(dataset)
    )
  if not flags.FLAGS.is_parsed():
    flags.FLAGS.mark_as_parsed()  # grain's mp_prefetch reads absl flags, which notebooks do not parse
  return iter(dataset)
