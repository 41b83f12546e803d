"""Sources from data sets of grain: examples by index, order, and invalid data sets."""

import grain
import numpy as np
import pytest
from helpers.data_files import everything, one_line

from ddl.data import source
from ddl.data.sampling import ExampleSampler, batches

Y = np.arange(40, dtype=np.int32) % 3
X = np.random.default_rng(0).standard_normal((40, 5)).astype(np.float32)


def mapped():
  return grain.MapDataset.source(np.arange(40)).map(lambda k: {"x": 2 * X[k], "y": Y[k], "more": "text"})


def test_examples_by_index():
  part = source.from_grain(mapped(), labels=Y)
  settings = np.array([7, 0, 7, 39])
  np.testing.assert_array_equal(part.take(settings)["x"], 2 * X[settings])
  np.testing.assert_array_equal(part.take(settings)["y"], Y[settings])
  assert part.size == 40 and {*everything(part)} == {"x", "y"}
  order = ExampleSampler([np.arange(40)] * 2, batch=4, seed=1)
  taken, plain = (batches(one, order, [0, 1], 3, 2) for one in (part, source.in_memory(2 * X, Y)))
  for name in taken:
    np.testing.assert_array_equal(taken[name], plain[name])


def test_order_and_random_maps_of_the_data_set():
  shuffled = mapped().seed(3).shuffle().random_map(lambda row, rng: row | {"x": row["x"] + rng.random()})
  part = source.from_grain(shuffled[:24])
  expected = np.stack([shuffled[k]["x"] for k in range(24)])
  for _ in range(2):
    np.testing.assert_array_equal(everything(part)["x"], expected)


@pytest.mark.parametrize(
  "dataset, words",
  [
    (mapped().to_iter_dataset(), ["grain.MapDataset"]),
    (mapped().repeat(), ["repeat"]),
    (mapped().map(lambda row: row["x"]), ["ndarray", "'x' and 'y'"]),
    (mapped().map(lambda row: row | {"weights": 1}), ["dicts without masks and weights", "'weights'"]),
  ],
)
def test_invalid_data_sets(dataset, words):
  one_line(ValueError, lambda: source.from_grain(dataset), *words)


def test_filters_are_refused():
  part = source.from_grain(mapped().filter(lambda row: row["y"] != 2))
  one_line(ValueError, lambda: everything(part), "filter")
