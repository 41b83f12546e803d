"""Partitions into shards, and the examples of each worker and step."""

import threading
import time
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddl.data import source
from ddl.data.sampling import PARTITIONS, ExampleSampler, batches

SETTINGS = {"iid": {}, "sharded": {}, "dirichlet": {"concentration": 0.3}}


def classes(size, count=4):
  return np.random.default_rng(0).integers(0, count, size)


def check(name, size, workers, seed, **more):
  shards = PARTITIONS[name](size, classes(size), workers=workers, seed=seed, **(SETTINGS[name] | more))
  assert len(shards) == workers and all(shard.dtype == np.int64 and shard.ndim == 1 for shard in shards)
  return shards


@settings(max_examples=30)
@given(size=st.integers(1, 200), workers=st.integers(1, 9), seed=st.integers(0, 2**40))
def test_iid_shards_are_the_whole_set(size, workers, seed):
  for shard in check("iid", size, workers, seed):
    np.testing.assert_array_equal(shard, np.arange(size))


@settings(max_examples=30)
@given(data=st.data(), workers=st.integers(1, 9), seed=st.integers(0, 2**40))
def test_sharded_is_disjoint_and_even(data, workers, seed):
  shards = check("sharded", data.draw(st.integers(workers, 200)), workers, seed)
  np.testing.assert_array_equal(np.sort(np.concatenate(shards)), np.arange(sum(map(len, shards))))
  assert max(map(len, shards)) - min(map(len, shards)) <= 1


@settings(max_examples=30)
@given(data=st.data(), workers=st.integers(1, 9), seed=st.integers(0, 2**40), concentration=st.floats(1e-4, 1e4))
def test_dirichlet_is_disjoint_and_nonempty(data, workers, seed, concentration):
  size = data.draw(st.integers(workers, 200))
  shards = check("dirichlet", size, workers, seed, concentration=concentration)
  np.testing.assert_array_equal(np.sort(np.concatenate(shards)), np.arange(size))
  assert min(map(len, shards)) >= 1


def test_dirichlet_concentration():
  labels = classes(20_000)

  def largest_share(concentration):
    shards = PARTITIONS["dirichlet"](20_000, labels, workers=4, seed=1, concentration=concentration)
    counts = np.array([np.bincount(labels[shard], minlength=4) for shard in shards])  # [worker, class]
    return np.mean(counts.max(axis=0) / counts.sum(axis=0))

  assert largest_share(1e-3) > 0.95  # one worker has nearly all examples of a class
  np.testing.assert_allclose(largest_share(1e5), 0.25, atol=0.01)  # each worker has a quarter of each class
  # A share is Beta(a, 3 a) with variance (3/16) / (4 a + 1).
  shares = []
  for seed in range(100):
    shards = PARTITIONS["dirichlet"](20_000, labels, workers=4, seed=seed, concentration=0.5)
    counts = np.array([np.bincount(labels[shard], minlength=4) for shard in shards])
    shares.append(counts / counts.sum(axis=0))
  np.testing.assert_allclose(np.var(shares), (3 / 16) / 3, rtol=0.1)


@pytest.mark.parametrize("name", ["sharded", "dirichlet"])
def test_partition_depends_on_the_seed(name):
  first, again, other = (np.concatenate(check(name, 100, 4, seed)) for seed in (0, 0, 1))
  np.testing.assert_array_equal(first, again)
  assert not np.array_equal(first, other)


@pytest.mark.parametrize("name", ["sharded", "dirichlet"])
def test_more_workers_than_examples(name):
  with pytest.raises(ValueError, match=r"^config\.workers must be at most 5[^\n]*got 6\.$"):
    check(name, 5, 6, 0)


def test_dirichlet_invalid_arguments():
  with pytest.raises(ValueError, match=r"^[^\n]*class labels[^\n]*$"):
    PARTITIONS["dirichlet"](10, None, workers=2, seed=0, concentration=1.0)
  for concentration in (0.0, -1.0, float("nan"), float("inf")):
    with pytest.raises(ValueError, match=r"^dirichlet\.concentration must be [^\n]*got [^\n]*$"):
      check("dirichlet", 10, 2, 0, concentration=concentration)


# Orders

sizes = st.lists(st.integers(3, 40), min_size=1, max_size=4)


def orders(shard_sizes, batch, seed):
  starts = np.cumsum([0, *shard_sizes])
  return ExampleSampler([np.arange(a, b) for a, b in pairwise(starts)], batch=batch, seed=seed)


@settings(max_examples=30)
@given(sizes, st.integers(1, 3), st.integers(0, 2**40), st.lists(st.integers(0, 30), max_size=8))
def test_any_chunking_gives_the_same_stream(shard_sizes, batch, seed, chunks):
  whole, pieces, backwards = (orders(shard_sizes, batch, seed) for _ in range(3))
  starts = np.cumsum([0, *chunks])
  for worker in range(len(shard_sizes)):
    expected = whole.indices(worker, 0, int(starts[-1]))
    parts = [pieces.indices(worker, int(start), steps) for start, steps in zip(starts, chunks, strict=False)]
    np.testing.assert_array_equal(np.concatenate([*parts, np.empty((0, batch), np.int64)]), expected)
    for step in reversed(range(int(starts[-1]))):
      np.testing.assert_array_equal(backwards.indices(worker, step, 1)[0], expected[step])


@settings(max_examples=30)
@given(sizes, st.integers(1, 3), st.integers(0, 2**40))
def test_each_epoch_visits_each_example_once(shard_sizes, batch, seed):
  order = orders(shard_sizes, batch, seed)
  for worker, shard in enumerate(order.shards):
    stream = order.indices(worker, 0, 4 * len(shard)).reshape(-1)
    for epoch in stream[: 4 * len(shard)].reshape(4, -1):
      np.testing.assert_array_equal(np.sort(epoch), shard)


def test_order_depends_only_on_seed_worker_and_epoch():
  shard = np.arange(50)
  stream = ExampleSampler([shard] * 3, batch=50, seed=0).indices(1, 0, 2)
  assert not np.array_equal(stream[0], stream[1])
  assert not np.array_equal(stream, ExampleSampler([shard] * 3, batch=50, seed=0).indices(2, 0, 2))
  assert not np.array_equal(stream, ExampleSampler([shard] * 3, batch=50, seed=1).indices(1, 0, 2))
  np.testing.assert_array_equal(stream, ExampleSampler([shard] * 8, batch=50, seed=0).indices(1, 0, 2))  # more workers


def test_batches_do_not_depend_on_the_group_of_workers():
  x = np.random.default_rng(0).standard_normal((90, 2, 3)).astype(np.float32)
  calls = []
  inner = source.in_memory(x, np.arange(90, dtype=np.int32))
  counted = inner._replace(take=lambda indices: calls.append(indices) or inner.take(indices))
  order = ExampleSampler(PARTITIONS["sharded"](90, None, workers=8, seed=0), batch=5, seed=3)
  everyone = batches(counted, order, range(8), 7, 4)
  assert len(calls) == 1 and everyone["x"].shape == (8, 4, 5, 2, 3) and everyone["y"].shape == (8, 4, 5)
  np.testing.assert_array_equal(everyone["x"], x[everyone["y"]])
  for group in ([0, 1, 2, 3], [4, 5, 6, 7], [6], [5, 2]):
    part = batches(counted, ExampleSampler(order.shards, batch=5, seed=3), group, 7, 4)
    for name in part:
      np.testing.assert_array_equal(part[name], everyone[name][group])


def test_batch_larger_than_a_shard():
  with pytest.raises(ValueError, match=r"^config\.batch must be from 1 to 7 [^\n]*worker 1[^\n]*got 8[^\n]*$"):
    orders([9, 7, 8], 8, 0)
  with pytest.raises(ValueError, match=r"^config\.batch must [^\n]*got 0[^\n]*$"):
    orders([9], 0, 0)


def test_sampler_is_thread_safe(monkeypatch):
  expected = orders([12], 3, 0).indices(0, 0, 40)  # 4 steps are an epoch
  order, make, wrong = orders([12], 3, 0), np.random.default_rng, []

  def slow(*args):
    time.sleep(1e-3)  # lets other threads run during a change of epochs
    return make(*args)

  def read(offset):
    for step in range(40):
      step = (step * 7 + offset) % 40
      if not np.array_equal(order.indices(0, step, 1)[0], expected[step]):
        wrong.append(step)

  monkeypatch.setattr(np.random, "default_rng", slow)
  threads = [threading.Thread(target=read, args=(offset,)) for offset in (0, 13, 26)]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join()
  assert not wrong


def test_batch_larger_than_a_shard_with_repeat():
  shards = [np.arange(3), np.arange(3, 40)]
  with pytest.raises(ValueError, match="repeat=True"):
    ExampleSampler(shards, batch=8, seed=0)
  order = ExampleSampler(shards, batch=8, seed=0, repeat=True)
  stream = order.indices(0, 0, 9).reshape(-1)
  for epoch in stream.reshape(-1, 3):  # 24 epochs of three examples
    assert sorted(epoch) == [0, 1, 2]
  np.testing.assert_array_equal(order.indices(0, 4, 2), order.indices(0, 0, 9)[4:6])
  np.testing.assert_array_equal(
    order.indices(1, 0, 4), ExampleSampler(shards[1:] * 2, batch=8, seed=0).indices(1, 0, 4)
  )
