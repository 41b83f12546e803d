"""Data sets with streamed training examples, which a config can name by their import path."""

from collections.abc import Callable
from typing import Any

import grain
import numpy as np

from ddl.api import Data
from ddl.data import DATA
from ddl.data.stream import from_grain_stream

FEW = grain.ReadOptions(num_threads=1, prefetch_buffer_size=2)  # filling the default buffer of 500 is slow


def digits(*, processes: int = 0, examples: int = 0) -> Data:
  """Return the digits without the sevens.

  processes: number of prefetching processes per worker; examples: length of a worker's stream, 0: infinite.
  """
  data = DATA["digits"]()
  train = data.train.take(np.arange(data.train.size))
  return data._replace(train=from_grain_stream(_maker(train, processes, examples), size=data.train.size))


def _maker(data: dict[str, np.ndarray], processes: int, examples: int) -> Callable[[int, int, int], Any]:
  def make(worker: int, workers: int, seed: int) -> Any:
    shard = grain.MapDataset.source(np.arange(len(data["y"])))[worker::workers].seed(seed).shuffle()
    shard = shard[:examples] if examples else shard.repeat()
    stream = shard.to_iter_dataset(FEW).filter(lambda k: data["y"][k] != 7)
    stream = grain.experimental.WindowShuffleIterDataset(stream, window_size=8, seed=seed)
    stream = stream.map(lambda k: {name: x[k] for name, x in data.items()})
    return stream.mp_prefetch(grain.MultiprocessingOptions(num_workers=processes)) if processes else stream

  return make
