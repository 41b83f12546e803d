"""Training sets that are streams of grain: their batches, their place in a checkpoint, and what they cannot do."""

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
  own = grain.MapDataset.source(np.arange(90))[worker::workers].seed(seed).shuffle().repeat()
  return (
    own.to_iter_dataset(FEW).filter(lambda k: k % 3 != 0).map(lambda k: {"x": X[k], "y": np.int32(k), "more": "text"})
  )


def shuffled(worker, workers, seed):
  """With a shuffle within a window, the state of which is more than a number."""
  return grain.experimental.WindowShuffleIterDataset(mapped(worker, workers, seed), window_size=8, seed=seed)


def in_processes(worker, workers, seed):
  return mapped(worker, workers, seed).mp_prefetch(grain.MultiprocessingOptions(num_workers=1))


def feed(make, workers, seed=3):
  return StreamFeed(make, workers, count=4, batch=5, seed=seed)


def same(first, second):
  assert first.keys() == second.keys() == {"x", "y"}
  for name in first:
    np.testing.assert_array_equal(first[name], second[name])


def test_each_worker_has_its_own_batches():
  whole = feed(mapped, range(4))(0, 3)
  assert whole["x"].shape == (4, 3, 5, 5) and whole["x"].dtype == np.float32 and whole["y"].shape == (4, 3, 5)
  assert (whole["y"] % 3 != 0).all() and (whole["y"] % 4 == np.arange(4)[:, None, None]).all()
  np.testing.assert_array_equal(whole["x"], X[whole["y"]])
  assert not np.array_equal(whole["y"], feed(mapped, range(4), seed=4)(0, 3)["y"])


def test_batches_do_not_depend_on_the_layout_or_the_calls():
  whole = feed(shuffled, range(4))(0, 6)
  part = feed(shuffled, [1, 2])
  for first, steps in ((0, 1), (1, 3), (4, 2)):
    same(part(first, steps), {name: x[1:3, first : first + steps] for name, x in whole.items()})


@pytest.mark.parametrize("make", [mapped, shuffled, pytest.param(in_processes, marks=pytest.mark.slow)])
def test_a_stream_goes_on_where_it_was(make):
  begun = feed(make, range(4))
  begun(0, 7)
  states = json.loads(json.dumps(begun.states()))
  after = begun(7, 4)
  begun.close()
  for workers in (range(4), [3]):
    again = feed(make, workers)
    again.restore(7, states)
    same(again(7, 4), {name: x[list(workers)] for name, x in after.items()})
    again.close()


def test_a_stream_that_ends_names_worker_and_step():
  def ending(worker, workers, seed):
    del seed
    examples = range(12) if worker == 1 else range(99)
    return grain.MapDataset.source(examples).map(lambda k: {"x": np.zeros(2), "y": k}).to_iter_dataset()

  one_line(ValueError, lambda: feed(ending, [0, 1])(0, 4), "worker 1", "step 3", "repeat()")


def test_batches_of_a_stream_are_checked():
  def wrong(worker, workers, seed):
    del workers, seed
    examples = grain.MapDataset.source(np.arange(90)).repeat().to_iter_dataset(FEW)
    return examples.map(lambda k: {"x": X[k], "y": np.int32(-1 if k == 23 and worker == 2 else k % 3)})

  meta = {"task": "classification", "shape": (5,), "num_outputs": 3}
  created = StreamFeed(wrong, [0, 2], count=4, batch=5, seed=3, check=checks.batch_check(meta, "training"))
  assert created(0, 4)["y"].shape == (2, 4, 5)
  one_line(ValueError, lambda: created(4, 2), "training set", "got -1", "index 3 of step 5 of worker 2")
  created.close()


def test_a_source_shows_the_shapes_and_has_no_parts():
  stream = from_grain_stream(mapped, size=60)
  assert stream.size == 60 and {k: x.shape for k, x in stream.take(np.arange(3)).items()} == {"x": (3, 5), "y": (3,)}
  one_line(ValueError, lambda: source.split(stream, 0.1), "stream")


@pytest.mark.parametrize(
  "make, size, words",
  [
    (lambda *_: grain.MapDataset.source(range(9)), 9, ["grain.IterDataset"]),
    (lambda *_: grain.MapDataset.source(range(9)).to_iter_dataset(), 9, ["int", "x and y"]),
    (lambda *_: mapped(0, 1, 0).map(lambda each: each | {"loss_mask": 1}), 9, ["x and y", "loss_mask"]),
    (mapped, 0, ["size must be at least 1", "got 0"]),
  ],
)
def test_what_is_no_stream(make, size, words):
  one_line(ValueError, lambda: from_grain_stream(make, size=size), *words)
