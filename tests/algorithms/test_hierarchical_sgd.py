"""Hierarchical local SGD: what it equals, in float64 at rtol 1e-12, and the ring of a group."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.twins import INNER, W, build, close, drive
from reference import collective as reference

from ddl.algorithms.collective.hierarchical_sgd import group_mean
from ddl.group import Group

pytestmark = pytest.mark.usefixtures("x64")


def run(name, workers=8, steps=12, **hyper):
  x0, grad = reference.problem(workers, steps)
  return drive(build(name, INNER["adam"][0], workers, **hyper), x0, grad, workers=workers, steps=steps)[:2]


def same(one, other):
  for ours, expected in zip(one, other, strict=True):
    close(ours, expected)


@pytest.mark.parametrize("workers", [1, 6, 8])
@pytest.mark.sampled(3)
def test_one_group_is_local_sgd_of_its_period(workers):
  ours = run("hierarchical_sgd", workers, group_size=workers, period=2, outer_period=6)
  same(ours, run("local_sgd", workers, period=2))


@pytest.mark.parametrize("workers", [1, 5, 8])
@pytest.mark.sampled(3)
def test_groups_of_one_worker_are_local_sgd_of_the_outer_period(workers):
  same(run("hierarchical_sgd", workers, group_size=1, period=2, outer_period=6), run("local_sgd", workers, period=6))


def test_equal_periods_are_local_sgd():
  """The groups' means are lost in the mean of all."""
  same(run("hierarchical_sgd", group_size=4, period=3, outer_period=3), run("local_sgd", period=3))


def test_groups_that_never_meet_are_local_sgd_of_fewer_workers():
  """Of the first 4: the problem of 8 workers has another gradient for each of the others."""
  x0, grad = reference.problem(8, 12)
  ours = run("hierarchical_sgd", group_size=4, period=2, outer_period=100)[0]
  few = drive(build("local_sgd", INNER["adam"][0], period=2), x0, grad, workers=4, steps=12)[0]
  close(ours[:, :4], few)


@pytest.mark.parametrize("workers, size", [(6, 2), (6, 3), (9, 3)])
@pytest.mark.sampled(3)
def test_groups_of_any_number(workers, size):
  x0, grad = reference.problem(workers, 12)
  hyper = {"group_size": size, "period": 2, "outer_period": 4}
  how = {"workers": workers, "steps": 12, "inner": INNER["adam"][1]}
  close(run("hierarchical_sgd", workers, **hyper)[0], reference.hierarchical_sgd(x0, grad, **how, **hyper).params)


@pytest.mark.parametrize("shape", [(), (2, 3, 4)])
@pytest.mark.parametrize("size", [1, 3, 4])
@pytest.mark.sampled(3)
def test_the_mean_of_a_group_is_that_and_equal_on_all_of_it(size, shape):
  x = np.random.default_rng(0).normal(size=(12, *shape))
  expected = np.repeat(x.reshape(-1, size, *shape).mean(axis=1), size, axis=0)
  pair = Group(("a", "b"))
  one = jax.vmap(lambda x: group_mean(W, x, size), axis_name="w")(jnp.asarray(x))
  both = jax.vmap(jax.vmap(lambda x: group_mean(pair, x, size), axis_name="b"), axis_name="a")
  close(one, expected)
  np.testing.assert_array_equal(both(jnp.asarray(x).reshape(4, 3, *shape)).reshape(12, *shape), one)
  np.testing.assert_array_equal(one, np.repeat(one[::size], size, axis=0))


@pytest.mark.parametrize("size", [0, 3, 16])
def test_a_group_size_that_does_not_divide_the_workers_is_refused(size):
  with pytest.raises(ValueError, match=f"group_size must .*, got {size}") as refused:
    build("hierarchical_sgd", INNER["sgd"][0], group_size=size, period=2, outer_period=6)
  assert "\n" not in str(refused.value)
