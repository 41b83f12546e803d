"""Checks of labels, tokens, targets, inputs and masks: errors contain the first invalid index and value."""

import numpy as np
import pytest
from helpers.data_files import one_line, write_npz

from ddl.api import Data, Source
from ddl.data import checks, source
from ddl.data.augmentation import with_augmentation
from ddl.data.image_arrays import npz
from ddl.errors import first_line

RNG = np.random.default_rng(0)
X = RNG.standard_normal((60, 4)).astype(np.float32)
Y = np.arange(60, dtype=np.int32) % 3
TOKENS = RNG.integers(0, 7, (60, 9))
LABELS = {"task": "classification", "shape": (4,), "num_outputs": 3, "description": "labels"}
NUMBERS = {"task": "regression", "shape": (4,), "num_outputs": 2, "description": "numbers"}
TEXT = {"task": "language", "shape": (8,), "num_outputs": 7, "description": "text"}
EXAMPLES = {"classification": (X, Y), "regression": (X, X[:, :2]), "language": (TOKENS[:, :-1], TOKENS[:, 1:])}


def part(x, y, labels=None, **more):
  return Source(len(x), lambda k: {"x": x[k], "y": y[k], **{name: array[k] for name, array in more.items()}}, labels)


def changed(array, index, value):
  array = array.copy()
  array[index] = value
  return array


def check(meta, where="train", **change):
  """Check a data set of this task, one part of which has changed arrays."""
  x, y = EXAMPLES[meta["task"]]
  good = part(x, y)
  return checks.checked(Data(good, good, meta, good)._replace(**{where: part(**{"x": x, "y": y} | change)}))


@pytest.mark.parametrize("listed", [False, True])
@pytest.mark.parametrize(
  "y, words",
  [
    (changed(Y, 17, -1), ["from 0 to 2, got -1 at index 17"]),
    (changed(Y, 17, 3), ["got 3 at index 17"]),
    (changed(Y, [17, 40], [-100, -1]), ["got -100 at index 17", "Ignored labels"]),
    (changed(Y.astype(np.int64), 17, 2**32), ["got 4294967296 at index 17"]),
    (changed(Y.astype(np.uint64), 17, 2**63), ["got 9223372036854775808 at index 17"]),
    (changed(Y.astype(float), 17, 0.7), ["got 0.7 at index 17"]),
    (changed(Y.astype(float), 17, np.nan), ["got nan at index 17"]),
    (Y.astype(np.float32), ["float32", ".astype(np.int32)"]),
    (Y > 1, ["bool", ".astype(np.int32)"]),
    (Y.astype(str), ["<U"]),
    (Y + 1, ["got 3 at index 2", "subtract 1"]),
  ],
)
def test_invalid_labels(listed, y, words):
  """The source may also list its labels."""
  labels = {"labels": y} if listed else {}
  one_line(ValueError, lambda: check(LABELS, y=y, **labels), "labels of the training set", *words)


def test_errors_contain_the_part():
  for part_name in ("test", "validation"):
    one_line(ValueError, lambda where=part_name: check(LABELS, where, y=Y - 1), f"labels of the {part_name} set")


@pytest.mark.parametrize(
  "meta, change, words",
  [
    (LABELS, {"y": np.eye(3)[Y]}, ["one-hot", "[60, 3]", "argmax"]),
    (LABELS, {"y": np.eye(3, dtype=bool)[Y]}, ["one-hot"]),
    (LABELS, {"y": Y[:, None]}, ["[n, 1]"]),
    (LABELS | {"num_outputs": 300}, {"y": Y.astype(np.uint8)}, ["299", "uint8"]),
    (LABELS, {"labels": Y[:50]}, ["shape [60]", "[50]"]),
    (LABELS, {"y": Y[:50]}, ["IndexError", "training set"]),
    (LABELS, {"x": changed(X, (13, 2), np.nan)}, ["x of the training set must be finite, got nan at index 13"]),
    (LABELS, {"x": changed(X, (13, 2), -np.inf)}, ["got -inf at index 13"]),
    (LABELS, {"x": X.astype(complex)}, ["complex128"]),
    (LABELS, {"x": X[:, :3]}, ["[n, 4]", "[n, 3]"]),
    (LABELS, {"x": (9 * X).astype(np.int8)}, ["x of the test set", "(int8)", "got float32"]),
    (LABELS | {"num_outputs": 0}, {}, ["num_outputs"]),
    (LABELS | {"num_outputs": 3.0}, {}, ["num_outputs"]),
    (LABELS, {"mask": changed(np.ones(60), 5, 2.0)}, ["mask", "got 2.0 at index 5"]),
    (LABELS, {"weight": changed(np.ones(60), 5, -1.0)}, ["weight", "got -1.0 at index 5"]),
    (NUMBERS, {"y": X[:, 0]}, ["[n, 2]", "[n]"]),
    (NUMBERS, {"y": X[:, :3]}, ["[n, 2]", "[n, 3]"]),
    (NUMBERS | {"num_outputs": 1}, {}, ["[n, 1] or [n]", "[n, 2]"]),
    (NUMBERS, {"y": changed(X[:, :2], (8, 1), np.nan)}, ["targets y of the training set", "got nan at index 8"]),
    (NUMBERS, {"y": X[:, :2] > 0}, ["bool"]),
    (TEXT, {"x": changed(TOKENS[:, :-1], (4, 2), 7)}, ["tokens x of the training set", "got 7 at index 4"]),
    (TEXT, {"y": changed(TOKENS[:, 1:], (4, 2), -100)}, ["tokens y", "got -100 at index 4", "Ignored"]),
    (TEXT, {"y": TOKENS[:, 2:]}, ["y of the training set", "[60, 8]", "[60, 7]"]),
    (TEXT, {"y": np.eye(7, dtype=int)[TOKENS[:, 1:]]}, ["y of the training set", "[60, 8, 7]"]),
    (TEXT, {"x": TOKENS[:, :-1].astype(np.float32)}, ["float32", ".astype(np.int32)"]),
    (TEXT | {"num_outputs": 70_000}, {"x": TOKENS[:, :-1].astype(np.uint16)}, ["69999", "uint16"]),
  ],
)
def test_examples_that_do_not_match_their_task(meta, change, words):
  one_line(ValueError, lambda: check(meta, **change), *words)


@pytest.mark.parametrize(
  "meta, change",
  [
    (LABELS, {}),
    (LABELS, {"labels": Y}),
    (LABELS, {"labels": Y.tolist()}),
    (LABELS, {"labels": Y + 90}),  # groups for partitions, not classes
    (LABELS, {"y": Y.astype(np.uint8)}),
    (LABELS, {"x": X.astype(np.float64)}),
    (LABELS, {"y": np.stack([Y, Y[::-1], Y, Y], axis=1)}),  # a class for each position
    (LABELS | {"num_outputs": 4}, {"y": np.eye(4, dtype=int)[Y]}),  # 0 or 1 for each position
    (LABELS, {"mask": np.ones(60, bool), "name": Y.astype(str)}),
    (NUMBERS, {}),
    (NUMBERS | {"num_outputs": 1}, {"y": X[:, 0]}),
    (NUMBERS | {"num_outputs": 1}, {"y": X[:, :1]}),
    (NUMBERS, {"y": X[:, :2].astype(np.int8)}),
    (TEXT, {}),
    ({"task": "ranking", "shape": (4,)}, {}),
  ],
)
def test_valid_examples(meta, change):
  x, y = EXAMPLES.get(meta["task"], (X, Y))
  data = Data(part(**{"x": x, "y": y} | change), part(**{"x": x, "y": y} | change), meta)
  assert checks.checked(data) == data  # all examples were checked, so `take` need not check them


def test_examples_beyond_the_limit_are_checked_by_take(monkeypatch):
  monkeypatch.setattr(checks, "READ", 20 * 20)  # of 20 bytes each
  y = changed(Y, [42, 44], [5, -7])
  data = check(LABELS, y=y)
  np.testing.assert_array_equal(data.train.take(np.array([3, 40, 3]))["y"], Y[[3, 40, 3]])
  one_line(ValueError, lambda: data.train.take(np.array([3, 44, 42])), "training set", "got -7 at index 44")
  one_line(ValueError, lambda: check(LABELS, y=y, labels=y), "got 5 at index 42")
  one_line(ValueError, lambda: check(LABELS, y=changed(y, 19, 9)), "got 9 at index 19")


def test_examples_beyond_the_time_limit_are_checked_by_take(monkeypatch):
  monkeypatch.setattr(checks, "SECONDS", 0.0)
  y = changed(Y, 44, -7)
  data = check(LABELS, y=y)
  one_line(ValueError, lambda: data.train.take(np.array([3, 44])), "got -7 at index 44")


def test_augmented_batches_are_checked():
  def worse(rng, batch):
    return {**batch, "x": np.where(rng.random(batch["x"].shape) < 0.5, np.nan, batch["x"])}

  good = part(X, Y)
  train = checks.checked(Data(with_augmentation(good, worse), good, LABELS)).train
  call = [np.random.default_rng(0)], np.array([[7, 8]])
  one_line(ValueError, lambda: train.augmented(*call), "got nan at index 7")
  assert train.take(np.array([7]))["x"].shape == (1, 4)


def test_complete_data_sets_are_only_sampled():
  calls = []

  def take(k):
    calls.append(len(k))
    return {"x": X[k], "y": Y[k]}

  data = Data(Source(60, take, Y), Source(60, take, Y), LABELS)
  assert checks.checked(data, complete=True) == data and calls == [32, 32]
  bad = changed(Y, 59, 3)
  one_line(ValueError, lambda: checks.checked(Data(part(X, bad, bad), data.test, LABELS), True), "got 3 at index 59")


@pytest.mark.parametrize(
  "change, word",
  [
    ({"test": None}, "test set must be a ddl.Source, got NoneType"),
    ({"train": (X, Y)}, "training set must be a ddl.Source, got tuple"),
    ({"validation": X}, "validation set must be a ddl.Source, got ndarray"),
    ({"train": Source(0, part(X, Y).take)}, "size of the training set"),
    ({"train": Source(60.0, part(X, Y).take)}, "got 60.0"),
    ({"train": Source(60, lambda k: {"x": X[k]})}, "must be dicts with the keys 'x' and 'y', got the keys ['x']"),
    ({"train": Source(60, lambda k: (X[k], Y[k]))}, "dict of x and y, got tuple"),
    ({"meta": None}, "the data set's meta must be a dict, got NoneType"),
    ({"meta": LABELS | {"shape": 4}}, "shape in the data set's meta"),
  ],
)
def test_invalid_parts_and_meta(change, word):
  one_line(ValueError, lambda: checks.checked(Data(part(X, Y), part(X, Y), LABELS)._replace(**change)), word)


def test_arrays_of_different_lengths():
  one_line(ValueError, lambda: source.in_memory(X, Y[:-1]), "60", "59")


BITS, BYTES = RNG.integers(0, 2, (60, 5, 5)), RNG.integers(0, 256, (60, 5, 5))


@pytest.mark.parametrize("dtype, shape", [(np.uint8, (5, 5)), (np.float32, (5, 5)), (np.float32, (25,))])
def test_npz_with_one_scaled_part(tmp_path, dtype, shape):
  parts = [x.astype(dtype).reshape(60, *shape) for x in (BITS, BYTES)]
  for train, test in (parts, parts[::-1]):
    path = write_npz(tmp_path, x_train=train, y_train=Y, x_test=test, y_test=Y)
    one_line(ValueError, lambda path=path: npz(path=path), "x_test must be in the same range as in x_train")
    npz(path=write_npz(tmp_path, x_train=train, y_train=Y, x_test=train[:20], y_test=Y[:20]))


@pytest.mark.parametrize(
  "test",
  [BITS[:8], np.zeros((60, 5, 5)), BITS * (np.arange(60)[:, None, None] % 8 == 0) * 9, BYTES[:10]],
)
def test_small_dark_and_sparse_parts_are_valid(tmp_path, test):
  for train in (BITS, BYTES):
    parts = {"x_train": train.astype(np.uint8), "x_test": test.astype(np.uint8)}
    npz(path=write_npz(tmp_path, y_train=Y, y_test=Y[: len(test)], **parts))


def test_labels_that_contradict_y():
  for where, name in (("train", "training"), ("test", "test"), ("validation", "validation")):
    words = f"labels of the {name} set must be equal to y (2 at index 17), got 0."
    one_line(ValueError, lambda where=where: check(LABELS, where, labels=changed(Y, 17, 0)), words)
    assert check(LABELS, where, labels=Y)


def test_labels_that_contradict_y_beyond_the_limit(monkeypatch):
  monkeypatch.setattr(checks, "READ", 0)
  data = check(LABELS, labels=changed(Y, 18, 1))
  one_line(ValueError, lambda: data.train.take(np.array([3, 18])), "y (0 at index 18), got 1.")


@pytest.mark.parametrize("text, line", [("a\nb", "a"), ("\n  b \nc", "b"), ("", "OSError"), (" \n", "OSError")])
def test_the_first_line_of_an_error_is_not_empty(text, line):
  assert first_line(OSError(text)) == line
