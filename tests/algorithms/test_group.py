"""Collectives of a group over devices x virtual workers equal those over one axis of 8 workers, and NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from ddl.group import Group, Present
from ddl.group_recorder import Sent, record

LAYOUTS = [1, 2, 4, 8]  # devices for 8 workers
VALUES = np.random.default_rng(0).integers(-50, 50, size=(8, 16, 3)).astype(np.float32)  # sums are exact
STEPS = [0, 1, 3, 4, 7, 8, 11, -1, -9]
PAIR, ONE = Group(("device", "virtual")), Group("w")


def over_pair(fn, devices, *args):
  """Run fn(group, ...) of one worker over devices x virtual workers: [8, ...] -> [8, ...]."""
  mesh = jax.make_mesh((devices,), ("device",), axis_types=(AxisType.Auto,), devices=jax.devices()[:devices])
  lifted = jax.vmap(lambda *a: fn(PAIR, *a), axis_name="virtual")
  return jax.jit(jax.shard_map(lifted, mesh=mesh, in_specs=P("device"), out_specs=P("device"), check_vma=False))(*args)


def over_one(fn, *args):
  return jax.vmap(lambda *a: fn(ONE, *a), axis_name="w")(*args)


def permuted(sources):
  return np.stack([np.zeros_like(VALUES[0]) if s is None else VALUES[s] for s in sources])


PERMUTATIONS = [
  [7, 6, 5, 4, 3, 2, 1, 0], [1, 0, 3, 2, 5, 4, 7, 6], [0, 2, 4, 6, 1, 3, 5, 7], [None, 0, None, None, 7, 3, None, 4],
  [None] * 8, [0, 1, 2, 3, 4, 5, 6, 7],
]  # fmt: skip
CASES = {  # (function of one worker, the same for all workers in NumPy)
  "sum": (lambda g, x: g.sum(x), lambda x: np.stack([x.sum(0)] * 8)),
  "mean": (lambda g, x: g.mean(x), lambda x: np.stack([x.mean(0)] * 8)),
  "max": (lambda g, x: g.max(x), lambda x: np.stack([x.max(0)] * 8)),
  "gather": (lambda g, x: g.gather(x), lambda x: np.stack([x] * 8)),
  "reduce_scatter": (lambda g, x: g.reduce_scatter(x), lambda x: x.sum(0).reshape(8, 2, 3)),
  "index": (lambda g, x: g.index() + 0 * x[0, 0].astype(jnp.int32), lambda x: np.arange(8)),
  "size": (lambda g, x: g.size() + 0 * x[0, 0], lambda x: np.full(8, 8)),
}


@pytest.mark.parametrize("devices", LAYOUTS)
def test_pair_equals_one_axis(devices):
  def all_cases(g, x):
    return [fn(g, x) for fn, _ in CASES.values()]

  pair, one = over_pair(all_cases, devices, VALUES), over_one(all_cases, VALUES)
  for two_axes, one_axis, (_, numpy) in zip(pair, one, CASES.values(), strict=True):
    np.testing.assert_array_equal(one_axis, numpy(VALUES))
    np.testing.assert_array_equal(two_axes, numpy(VALUES))
    assert two_axes.sharding.mesh.shape["device"] == devices


@pytest.mark.parametrize("devices", [4, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 2, 8))])
def test_shift_and_permute(devices):
  def all_cases(g, x):
    tree = {"a": x, "b": x[0]}
    return [g.shift(tree, k) for k in STEPS], [g.permute(tree, p) for p in PERMUTATIONS]

  expected = [np.roll(VALUES, k, axis=0) for k in STEPS], [permuted(p) for p in PERMUTATIONS]
  for result in (over_pair(all_cases, devices, VALUES), jax.jit(lambda x: over_one(all_cases, x))(VALUES)):
    for trees, arrays in zip(result, expected, strict=True):
      for tree, array in zip(trees, arrays, strict=True):
        np.testing.assert_array_equal(tree["a"], array)
        np.testing.assert_array_equal(tree["b"], array[:, 0])


@settings(max_examples=12)
@given(st.permutations([*range(8)]), st.sampled_from([2, 4]), st.sets(st.integers(0, 7)))
def test_any_permutation(order, devices, receives_nothing):
  sources = [None if i in receives_nothing else s for i, s in enumerate(order)]
  np.testing.assert_array_equal(over_pair(lambda g, x: g.permute(x, sources), devices, VALUES), permuted(sources))


@pytest.mark.parametrize("devices", LAYOUTS)
def test_absent_workers(devices):
  present = np.array([True, True, False, True, False, False, False, True])

  def all_cases(g, x, present):
    few = Present(g, present)
    return few.sum(x), few.mean(x), few.max(x), few.mean({"a": x})["a"]

  mean = VALUES[present].sum(axis=0) / np.float32(4)  # exact
  expected = VALUES[present].sum(axis=0), mean, VALUES[present].max(axis=0), mean
  for result in (over_pair(all_cases, devices, VALUES, present), over_one(all_cases, VALUES, present)):
    for array, one in zip(result, expected, strict=True):
      np.testing.assert_array_equal(array, np.stack([one] * 8))


def test_the_size_is_a_python_integer():
  sizes = []
  jax.vmap(lambda x: sizes.append(ONE.size()) or x, axis_name="w")(jnp.zeros(8))
  assert sizes == [8] and type(sizes[0]) is int


@pytest.mark.parametrize(
  "collective, words",
  [
    (lambda x: ONE.reduce_scatter(x[:15]), r"multiple of 8 \(the number of workers\), got 15"),
    (lambda x: ONE.permute(x, [0] * 8), r"must have 8 entries \(distinct ranks or None\)"),
    (lambda x: ONE.permute(x, [*range(7)]), r"must have 8 entries \(distinct ranks or None\)"),
    (lambda x: Group(("a", "b", "w")).sum(x), "a pair"),
  ],
)
def test_invalid_arguments_are_refused(collective, words):
  with pytest.raises(ValueError, match=words):
    jax.vmap(collective, axis_name="w")(VALUES)


# ---- the recorder

X = jax.ShapeDtypeStruct((16, 3), jnp.float32)
BYTES = 16 * 3 * 4


@pytest.mark.parametrize(
  "collectives, sent, per_worker",
  [
    (lambda g, x: g.mean(x), [Sent("all_reduce", BYTES, 1)], 2 * BYTES * 7 / 8),
    (lambda g, x: g.sum({"a": x, "b": x}), [Sent("all_reduce", 2 * BYTES, 2)], 4 * BYTES * 7 / 8),
    (lambda g, x: g.max(x), [Sent("all_reduce", BYTES, 1)], 2 * BYTES * 7 / 8),
    (lambda g, x: g.gather(x), [Sent("all_gather", 8 * BYTES, 1)], 7 * BYTES),
    (lambda g, x: g.reduce_scatter(x), [Sent("reduce_scatter", BYTES, 1)], BYTES * 7 / 8),
    (lambda g, x: g.shift(x, 3), [Sent("permute", BYTES, 1, (5, 6, 7, 0, 1, 2, 3, 4))], BYTES),
    (lambda g, x: g.permute(x, PERMUTATIONS[0]), [Sent("permute", BYTES, 1, tuple(PERMUTATIONS[0]))], BYTES),
    (lambda g, x: (g.shift(x, 8), g.permute(x, [*range(8)]), g.index(), g.size(), g.sum({})), [], 0),
    (lambda g, x: g.mean(x.astype(jnp.bfloat16)), [Sent("all_reduce", BYTES // 2, 1)], BYTES * 7 / 8),
    (lambda g, x: (g.mean(x), g.mean(x), g.mean(x)), [Sent("all_reduce", BYTES, 1)] * 3, 6 * BYTES * 7 / 8),
  ],
)
def test_the_recorder_records_collectives_and_returns_their_shapes(collectives, sent, per_worker):
  result, shapes = record(collectives, X, workers=8)
  assert result.sent == sent and result.used
  assert sum(op.per_worker(8) for op in result.sent) == per_worker
  real = jax.make_jaxpr(lambda x: collectives(ONE, x), axis_env=[("w", 8)], return_shape=True)(X)[1]
  assert jax.tree.map(lambda x: (x.shape, x.dtype), shapes, is_leaf=lambda x: hasattr(x, "shape")) == jax.tree.map(
    lambda x: (x.shape, x.dtype), real, is_leaf=lambda x: hasattr(x, "shape")
  )


def test_one_worker_sends_nothing():
  assert record(lambda g, x: g.mean(x), X, workers=1)[0].sent == []
  assert not record(lambda g, x: x + g.size(), X, workers=8)[0].used


@pytest.mark.parametrize(
  "collective",
  [
    lambda g, x: jax.lax.scan(lambda c, _: (g.mean(c), None), x, length=5)[0],
    lambda g, x: jax.lax.fori_loop(0, 4, lambda _, c: g.mean(c), x),
    lambda g, x: jax.lax.cond(x[0, 0] > 0, g.mean, lambda x: x, x),
    lambda g, x: jax.jit(g.mean)(x),
  ],
)
def test_collectives_inside_of_loops_conditions_and_jit_are_refused(collective):
  with pytest.raises(ValueError, match=r"^a collective of an algorithm must be outside JAX transformations such"):
    record(collective, X, workers=8)
