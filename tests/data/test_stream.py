"""Streams of grain as training sets: batches, saved states, and errors."""

import json

import grain
import numpy as np
import pytest
from helpers.data_files import one_line

from ddl.data import checks, source
from ddl.data.stream import StreamFeed, from_grain_stream

X = np.random.default_rng(0).standard_normal((90, 5)).astype(np.float32)
FEW = grain.ReadOptions(num_threads=1, prefetch_buffer_size=2)  # the default of 500 is slow to fill


def mapped(worker, workers, seed):
  shard = grain.MapDataset.source(np.arange(90))[worker::workers].seed(seed).shuffle().repeat()
  examples = shard.to_iter_dataset(FEW).filter(lambda k: k % 3 != 0)
  return examples.map(lambda k: {"x": X[k], "y": np.int32(k), "more": "text"})


def shuffled(worker, workers, seed):
  """Add a window shuffle, whose state is more than a number."""
  return grain.experimental.WindowShuffleIterDataset(mapped(worker, workers, seed), window_size=8, seed=seed)


def in_processes(worker, workers, seed):
  return mapped(worker, workers, seed).mp_prefetch(grain.MultiprocessingOptions(num_workers=1))


def feed(make, workers, seed=3):
  return StreamFeed(make, workers, count=4, batch=5, seed=seed)


def same(first, second):
  assert first.keys() == second.keys() == {"x", "y"}
  for name in first:
    np.testing.assert_array_equal(first[name], second[name])


def test_batches_are_from_the_shard_of_each_worker():
  whole = feed(mapped, range(4))(0, 3)
  assert whole["x"].shape == (4, 3, 5, 5) and whole["x"].dtype == np.float32 and whole["y"].shape == (4, 3, 5)
  assert (whole["y"] % 3 != 0).all() and (whole["y"] % 4 == np.arange(4)[:, None, None]).all()
  np.testing.assert_array_equal(whole["x"], X[whole["y"]])
  assert not np.array_equal(whole["y"], feed(mapped, range(4), seed=4)(0, 3)["y"])


def test_batches_do_not_depend_on_the_workers_of_a_process_or_the_calls():
  whole = feed(shuffled, range(4))(0, 4)
  part = feed(shuffled, [1, 2])
  for first, steps in ((0, 1), (1, 3)):
    same(part(first, steps), {name: x[1:3, first : first + steps] for name, x in whole.items()})


@pytest.mark.parametrize("make", [shuffled, pytest.param(in_processes, marks=pytest.mark.slow)])
def test_restored_stream_continues(make):
  stream = feed(make, [1, 3])
  stream(0, 3)
  states = json.loads(json.dumps(stream.states()))
  expected = stream(3, 2)
  stream.close()
  for workers, rows in (([1, 3], [0, 1]), ([3], [1])):
    restored = feed(make, workers)
    restored.restore(3, states)
    same(restored(3, 2), {name: x[rows] for name, x in expected.items()})
    restored.close()


def test_finite_stream():
  def ending(worker, workers, seed):
    del seed
    examples = range(12) if worker == 1 else range(99)
    return grain.MapDataset.source(examples).map(lambda k: {"x": np.zeros(2), "y": k}).to_iter_dataset()

  one_line(ValueError, lambda: feed(ending, [0, 1])(0, 4), "worker 1", "step 3", "repeat()")


def test_batches_are_checked():
  def wrong(worker, workers, seed):
    del workers, seed
    examples = grain.MapDataset.source(np.arange(90)).repeat().to_iter_dataset(FEW)
    return examples.map(lambda k: {"x": X[k], "y": np.int32(-1 if k == 23 and worker == 2 else k % 3)})

  meta = {"task": "classification", "shape": (5,), "num_outputs": 3}
  created = StreamFeed(wrong, [0, 2], count=4, batch=5, seed=3, check=checks.batch_check(meta, "training"))
  assert created(0, 4)["y"].shape == (2, 4, 5)
  one_line(ValueError, lambda: created(4, 2), "training set", "got -1", "index 3 of step 5 of worker 2")
  created.close()


def test_source_of_a_stream_has_shapes_but_no_subsets():
  stream = from_grain_stream(mapped, size=60)
  assert stream.size == 60 and {k: x.shape for k, x in stream.take(np.arange(3)).items()} == {"x": (3, 5), "y": (3,)}
  one_line(ValueError, lambda: source.split(stream, 0.1), "stream")


@pytest.mark.parametrize(
  "make, size, words",
  [
    (lambda *_: grain.MapDataset.source(range(9)), 9, ["grain.IterDataset"]),
    (lambda *_: grain.MapDataset.source(range(9)).to_iter_dataset(), 9, ["int", "'x' and 'y'"]),
    (
      lambda *_: mapped(0, 1, 0).map(lambda row: row | {"loss_mask": 1}),
      9,
      ["dicts without masks and weights", "'loss_mask'"],
    ),
    (mapped, 0, ["size must be", "got 0"]),
  ],
)
def test_invalid_streams(make, size, words):
  one_line(ValueError, lambda: from_grain_stream(make, size=size), *words)
