"""Hierarchical local SGD: special cases in float64 at rtol 1e-12, and the mean of a group."""

import jax
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


@pytest.mark.parametrize("workers", [8, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 6))])
def test_one_group_is_local_sgd_of_its_period(workers):
  ours = run("hierarchical_sgd", workers, group_size=workers, period=2, outer_period=6)
  same(ours, run("local_sgd", workers, period=2))


@pytest.mark.parametrize("workers", [8, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 5))])
def test_groups_of_one_worker_are_local_sgd_of_the_outer_period(workers):
  same(run("hierarchical_sgd", workers, group_size=1, period=2, outer_period=6), run("local_sgd", workers, period=6))


def test_equal_periods_are_local_sgd():
  same(run("hierarchical_sgd", group_size=4, period=3, outer_period=3), run("local_sgd", period=3))


def test_groups_without_outer_averages_are_local_sgd_of_fewer_workers():
  x0, grad = reference.problem(8, 12)
  ours = run("hierarchical_sgd", group_size=4, period=2, outer_period=100)[0]
  few = drive(build("local_sgd", INNER["adam"][0], period=2), x0, grad, workers=4, steps=12)[0]
  close(ours[:, :4], few)


@pytest.mark.parametrize("workers, size", [(6, 2), (6, 3), (9, 3)])
@pytest.mark.sampled(3)
def test_other_numbers_of_workers_equal_the_reference(workers, size):
  x0, grad = reference.problem(workers, 12)
  hyper = {"group_size": size, "period": 2, "outer_period": 4}
  how = {"workers": workers, "steps": 12, "inner": INNER["adam"][1]}
  close(run("hierarchical_sgd", workers, **hyper)[0], reference.hierarchical_sgd(x0, grad, **how, **hyper).params)


@pytest.mark.parametrize("size", [1, 3])
def test_all_workers_of_a_group_get_its_mean_on_one_axis_and_on_two(size):
  rng, pair = np.random.default_rng(0), Group(("a", "b"))
  xs = [rng.normal(size=(12,)), rng.normal(size=(12, 2, 3, 4))]
  flat = jax.jit(jax.vmap(lambda x: group_mean(W, x, size), axis_name="w"))(xs)
  nested = jax.jit(jax.vmap(jax.vmap(lambda x: group_mean(pair, x, size), axis_name="b"), axis_name="a"))
  for x, one, two in zip(xs, flat, nested([x.reshape(4, 3, *x.shape[1:]) for x in xs]), strict=True):
    close(one, np.repeat(x.reshape(-1, size, *x.shape[1:]).mean(axis=1), size, axis=0))
    np.testing.assert_array_equal(two.reshape(x.shape), one)
    np.testing.assert_array_equal(one, np.repeat(one[::size], size, axis=0))


@pytest.mark.parametrize("size", [0, 3, 16])
def test_a_group_size_that_does_not_divide_the_workers_is_refused(size):
  with pytest.raises(ValueError, match=f"group_size must .*, got {size}") as refused:
    build("hierarchical_sgd", INNER["sgd"][0], group_size=size, period=2, outer_period=6)
  assert "\n" not in str(refused.value)
