"""Data sets whose training examples are streams, at addresses that a config can name."""

from collections.abc import Callable
from typing import Any

import grain
import numpy as np

from ddl.api import Data
from ddl.data import DATA
from ddl.data.stream import from_grain_stream

FEW = grain.ReadOptions(num_threads=1, prefetch_buffer_size=2)  # the default of 500 is slow to fill


def digits(*, processes: int = 0, examples: int = 0) -> Data:
  """The digits without the sevens. processes: of a worker that read ahead; examples: after which it ends, 0: never."""
  whole = DATA["digits"]()
  all_ = whole.train.take(np.arange(whole.train.size))
  return whole._replace(train=from_grain_stream(_maker(all_, processes, examples), size=whole.train.size))


def _maker(data: dict[str, np.ndarray], processes: int, examples: int) -> Callable[[int, int, int], Any]:
  def make(worker: int, workers: int, seed: int) -> Any:
    own = grain.MapDataset.source(np.arange(len(data["y"])))[worker::workers].seed(seed).shuffle()
    own = own[:examples] if examples else own.repeat()
    stream = own.to_iter_dataset(FEW).filter(lambda k: data["y"][k] != 7)
    stream = grain.experimental.WindowShuffleIterDataset(stream, window_size=8, seed=seed)
    stream = stream.map(lambda k: {name: x[k] for name, x in data.items()})
    return stream.mp_prefetch(grain.MultiprocessingOptions(num_workers=processes)) if processes else stream

  return make
