"""Data sets from arrays: forms, tasks, and errors."""

import jax.numpy as jnp
import numpy as np
import pytest

from ddl.data.arrays import flat, from_arrays
from ddl.errors import OptionError

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 5))
Y = np.arange(60) % 3


def test_a_sixth_of_the_examples_is_the_test_set_unless_it_is_passed():
  data = from_arrays(X, Y)
  assert (data.train.size, data.test.size) == (50, 10)
  batch = data.train.take(np.arange(50))
  rows = {tuple(row) for part in (data.train, data.test) for row in part.take(np.arange(part.size))["x"]}
  assert rows == {tuple(row) for row in X.astype(np.float32)} and batch["x"].dtype == np.float32
  data = from_arrays(X[:40], Y[:40], X[40:], Y[40:], validation=0.25)
  assert data.validation is not None
  assert (data.train.size, data.validation.size, data.test.size) == (30, 10, 20)
  np.testing.assert_array_equal(data.test.take(np.arange(20))["y"], Y[40:])


@pytest.mark.parametrize(
  ("x", "y", "task", "outputs", "dtypes"),
  [
    (X, Y, "classification", 3, ("float32", "int32")),
    (jnp.asarray(X), jnp.asarray(Y), "classification", 3, ("float32", "int32")),
    (X, X[:, :2], "regression", 2, ("float32", "float32")),
    (X, X[:, 0], "regression", 1, ("float32", "float32")),
    (Y.reshape(12, 5), Y.reshape(12, 5), "language", 3, ("int32", "int32")),
    (RNG.integers(0, 256, (60, 4, 4)).astype(np.uint8), Y, "classification", 3, ("float32", "int32")),
  ],
)
def test_types_and_shapes_determine_the_task(x, y, task, outputs, dtypes):
  data = from_arrays(x, y)
  batch = data.train.take(np.arange(3))
  assert (data.meta["task"], data.meta["num_outputs"]) == (task, outputs)
  assert (batch["x"].dtype, batch["y"].dtype) == dtypes
  assert batch["x"].shape[1:] == tuple(data.meta["shape"])


def test_the_forms_of_a_tuple_of_arrays():
  assert [len(flat(form)) for form in ((X, Y), (X, Y, X, Y), ((X, Y), (X, Y)))] == [2, 4, 4]
  for form in ((X,), (X, Y, X), ((X, Y), (X, Y), (X, Y))):
    with pytest.raises(OptionError):
      flat(form)


@pytest.mark.parametrize(
  "arrays",
  [
    (X, Y[:-1]),
    (X, Y, X),
    (X[:0], Y[:0]),
    (np.where(X > 2, np.nan, X), X[:, 0]),
    (np.arange(60), X[:, 0]),
    (X, Y - 1),
    (X, np.eye(3)[Y].astype(int)),
  ],
)
def test_other_arrays_are_errors(arrays):
  with pytest.raises(OptionError):
    from_arrays(*arrays)
