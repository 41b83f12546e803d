"""Each collective over devices x virtual workers equals the same over one axis of eight, and NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from ddl import collectives

LAYOUTS = [(1, 8), (2, 4), (4, 2), (8, 1)]
VALUES = np.random.default_rng(0).integers(-50, 50, size=(8, 16, 3)).astype(np.float32)  # sums are exact
STEPS = [0, 1, 2, 3, 5, 7, 8, 11, 24, -1, -3, -9]


def over_pair(fn, devices, *args):
  """fn of one worker over devices x virtual: [8, ...] -> [8, ...]."""
  mesh = jax.make_mesh((devices,), ("device",), axis_types=(AxisType.Auto,), devices=jax.devices()[:devices])
  lifted = jax.vmap(fn, axis_name="virtual")
  return jax.jit(jax.shard_map(lifted, mesh=mesh, in_specs=P("device"), out_specs=P("device"), check_vma=False))(*args)


CASES = {  # name: (function of one worker and the axis, the same of all workers in NumPy)
  "psum": (collectives.psum, lambda x: np.stack([x.sum(0)] * 8)),
  "pmean": (collectives.pmean, lambda x: np.stack([x.mean(0)] * 8)),
  "pmax": (collectives.pmax, lambda x: np.stack([x.max(0)] * 8)),
  "all_gather": (collectives.all_gather, lambda x: np.stack([x] * 8)),
  "psum_scatter": (collectives.psum_scatter, lambda x: x.sum(0).reshape(8, 2, 3)),
  "index": (lambda x, axis: collectives.index(axis) + 0 * x[0, 0].astype(jnp.int32), lambda x: np.arange(8)),
  "size": (lambda x, axis: collectives.size(axis) + 0 * x[0, 0], lambda x: np.full(8, 8)),
}


@pytest.mark.parametrize("devices, virtual", LAYOUTS)
@pytest.mark.parametrize("name", CASES)
def test_pair_equals_one_axis(name, devices, virtual):
  fn, numpy = CASES[name]
  one = jax.vmap(lambda x: fn(x, "w"), axis_name="w")(VALUES)
  pair = over_pair(lambda x: fn(x, ("device", "virtual")), devices, VALUES)
  np.testing.assert_array_equal(one, numpy(VALUES))
  np.testing.assert_array_equal(pair, numpy(VALUES))
  assert pair.sharding.mesh.shape["device"] == devices and 8 // devices == virtual


@pytest.mark.parametrize("devices, virtual", LAYOUTS)
def test_shift(devices, virtual):
  """All shifts in one program, on a tree."""
  del virtual

  def all_shifts(x, axis):
    return [collectives.shift({"a": x, "b": x[0]}, steps, axis) for steps in STEPS]

  one = jax.jit(jax.vmap(lambda x: all_shifts(x, "w"), axis_name="w"))(VALUES)
  pair = over_pair(lambda x: all_shifts(x, ("device", "virtual")), devices, VALUES)
  for steps, ours, theirs in zip(STEPS, pair, one, strict=True):
    expected = np.roll(VALUES, steps, axis=0)  # worker i holds the value of (i - steps) mod p
    for tree in (ours, theirs):
      np.testing.assert_array_equal(tree["a"], expected)
      np.testing.assert_array_equal(tree["b"], expected[:, 0])


@pytest.mark.parametrize("devices, virtual", LAYOUTS)
def test_trees_pass_leaf_by_leaf(devices, virtual):
  del virtual
  tree = {"a": VALUES, "b": [VALUES[:, 0, 0]]}
  for fn in (collectives.psum, collectives.pmean, collectives.pmax):
    pair = over_pair(lambda t, fn=fn: fn(t, ("device", "virtual")), devices, tree)
    one = jax.vmap(lambda t, fn=fn: fn(t, "w"), axis_name="w")(tree)
    jax.tree.map(np.testing.assert_array_equal, pair, one)


def test_a_size_is_a_python_integer():
  sizes = []
  jax.vmap(lambda x: sizes.append(collectives.size(("w",))) or x, axis_name="w")(jnp.zeros(8))
  assert sizes == [8] and type(sizes[0]) is int


def test_what_does_not_fit_is_one_clear_line():
  with pytest.raises(ValueError, match="8 workers do not divide 15 values"):
    jax.vmap(lambda x: collectives.psum_scatter(x, "w"), axis_name="w")(VALUES[:, :15])
  with pytest.raises(ValueError, match="one axis or a pair"):
    jax.vmap(lambda x: collectives.shift(x, 1, ("a", "b", "w")), axis_name="w")(VALUES)
