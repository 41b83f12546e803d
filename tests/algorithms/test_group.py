"""Each question to a group over devices x virtual workers equals the same over one axis of eight, and NumPy."""

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

LAYOUTS = [(1, 8), (2, 4), (4, 2), (8, 1)]
VALUES = np.random.default_rng(0).integers(-50, 50, size=(8, 16, 3)).astype(np.float32)  # sums are exact
STEPS = [0, 1, 2, 3, 5, 7, 8, 11, 24, -1, -3, -9]
PAIR, ONE = Group(("device", "virtual")), Group("w")


def over_pair(fn, devices, *args):
  """fn(group, ...) of one worker over devices x virtual: [8, ...] -> [8, ...]."""
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
CASES = {  # name: (function of one worker, the same of all workers in NumPy)
  "sum": (lambda g, x: g.sum(x), lambda x: np.stack([x.sum(0)] * 8)),
  "mean": (lambda g, x: g.mean(x), lambda x: np.stack([x.mean(0)] * 8)),
  "max": (lambda g, x: g.max(x), lambda x: np.stack([x.max(0)] * 8)),
  "gather": (lambda g, x: g.gather(x), lambda x: np.stack([x] * 8)),
  "reduce_scatter": (lambda g, x: g.reduce_scatter(x), lambda x: x.sum(0).reshape(8, 2, 3)),
  "index": (lambda g, x: g.index() + 0 * x[0, 0].astype(jnp.int32), lambda x: np.arange(8)),
  "size": (lambda g, x: g.size() + 0 * x[0, 0], lambda x: np.full(8, 8)),
}


@pytest.mark.parametrize("devices, virtual", LAYOUTS)
@pytest.mark.parametrize("name", CASES)
def test_pair_equals_one_axis(name, devices, virtual):
  fn, numpy = CASES[name]
  pair = over_pair(fn, devices, VALUES)
  np.testing.assert_array_equal(over_one(fn, VALUES), numpy(VALUES))
  np.testing.assert_array_equal(pair, numpy(VALUES))
  assert pair.sharding.mesh.shape["device"] == devices and 8 // devices == virtual


@pytest.mark.parametrize("devices, virtual", LAYOUTS)
def test_shift_and_permute(devices, virtual):
  """All in one program, on a tree."""
  del virtual

  def everything(g, x):
    tree = {"a": x, "b": x[0]}
    return [g.shift(tree, k) for k in STEPS], [g.permute(tree, p) for p in PERMUTATIONS]

  expected = [np.roll(VALUES, k, axis=0) for k in STEPS], [permuted(p) for p in PERMUTATIONS]
  for result in (over_pair(everything, devices, VALUES), jax.jit(lambda x: over_one(everything, x))(VALUES)):
    for trees, arrays in zip(result, expected, strict=True):
      for tree, array in zip(trees, arrays, strict=True):
        np.testing.assert_array_equal(tree["a"], array)
        np.testing.assert_array_equal(tree["b"], array[:, 0])


@settings(max_examples=25)
@given(st.permutations([*range(8)]), st.sampled_from([2, 4]), st.sets(st.integers(0, 7)))
def test_any_permutation(order, devices, without):
  sources = [None if i in without else s for i, s in enumerate(order)]
  np.testing.assert_array_equal(over_pair(lambda g, x: g.permute(x, sources), devices, VALUES), permuted(sources))


@pytest.mark.parametrize("devices, virtual", LAYOUTS)
def test_without_some_workers(devices, virtual):
  del virtual
  target = np.array([True, True, False, True, False, False, False, True])

  def everything(g, x, target):
    few = Present(g, target)
    return few.sum(x), few.mean(x), few.max(x), few.mean({"a": x})["a"]

  mean = VALUES[target].sum(axis=0) / np.float32(4)  # exact
  expected = VALUES[target].sum(axis=0), mean, VALUES[target].max(axis=0), mean
  for result in (over_pair(everything, devices, VALUES, target), over_one(everything, VALUES, target)):
    for array, one in zip(result, expected, strict=True):
      np.testing.assert_array_equal(array, np.stack([one] * 8))


def test_a_size_is_a_python_integer():
  sizes = []
  jax.vmap(lambda x: sizes.append(ONE.size()) or x, axis_name="w")(jnp.zeros(8))
  assert sizes == [8] and type(sizes[0]) is int


@pytest.mark.parametrize(
  "ask, words",
  [
    (lambda x: ONE.reduce_scatter(x[:15]), "multiple of 8 workers, got 15"),
    (lambda x: ONE.permute(x, [0] * 8), "must be 8 different ranks or None"),
    (lambda x: ONE.permute(x, [*range(7)]), "must be 8 different ranks or None"),
    (lambda x: Group(("a", "b", "w")).sum(x), "a pair"),
  ],
)
def test_what_does_not_fit_is_one_clear_line(ask, words):
  with pytest.raises(ValueError, match=words):
    jax.vmap(ask, axis_name="w")(VALUES)


# ---- the group that asks nobody

X = jax.ShapeDtypeStruct((16, 3), jnp.float32)
BYTES = 16 * 3 * 4


@pytest.mark.parametrize(
  "ask, sent, per_worker",
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
def test_a_recorder_keeps_what_it_is_asked(ask, sent, per_worker):
  result, shapes = record(ask, X, workers=8)
  assert result.sent == sent and result.used
  assert sum(op.per_worker(8) for op in result.sent) == per_worker
  real = jax.make_jaxpr(lambda x: ask(ONE, x), axis_env=[("w", 8)], return_shape=True)(X)[1]
  assert jax.tree.map(lambda x: (x.shape, x.dtype), shapes, is_leaf=lambda x: hasattr(x, "shape")) == jax.tree.map(
    lambda x: (x.shape, x.dtype), real, is_leaf=lambda x: hasattr(x, "shape")
  )


def test_nobody_is_asked_by_one_worker():
  assert record(lambda g, x: g.mean(x), X, workers=1)[0].sent == []
  assert not record(lambda g, x: x + g.size(), X, workers=8)[0].used


@pytest.mark.parametrize(
  "ask",
  [
    lambda g, x: jax.lax.scan(lambda c, _: (g.mean(c), None), x, length=5)[0],
    lambda g, x: jax.lax.fori_loop(0, 4, lambda _, c: g.mean(c), x),
    lambda g, x: jax.lax.cond(x[0, 0] > 0, g.mean, lambda x: x, x),
    lambda g, x: jax.jit(g.mean)(x),
  ],
)
def test_what_would_be_counted_once_is_refused(ask):
  with pytest.raises(ValueError, match=r"^a collective of an algorithm must be outside JAX's loops"):
    record(ask, X, workers=8)
