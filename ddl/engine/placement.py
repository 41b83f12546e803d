"""Placement of a run on devices: workers over mesh rows, and parameters within a row by the model's sharding rules."""

from functools import cache, partial
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from ddl.api import Batch, Model, Tree
from ddl.engine.workers import Workers, placed
from ddl.errors import OptionError
from ddl.precision import cast
from ddl.sharding import BATCH, SPLIT, WHOLE, Rules, activations, fsdp, like, named, specs

FSDP = Rules(activations={BATCH: SPLIT}, gather=True)  # rules that every model supports


class Placement:
  """The shardings of a model's parameters, batches and training state on the devices of `Workers`."""

  def __init__(self, model: Model, workers: Workers, sharding: str):
    """Find the sharding rules and the shardings of the parameters.

    Args:
      model: the model.
      workers: the workers and their devices.
      sharding: "fsdp" or a key of `Model.rules`; ignored if each worker has only one device.

    Raises:
      ValueError: if the model has no such rules or they do not fit its parameters.
    """
    self.workers, self.sharding, self.rules = workers, sharding, Rules()
    self._shapes, _ = jax.eval_shape(model.init, jax.random.key(0))
    if workers.members == 1:
      self.model, self._specs, self._batch = model, jax.tree.map(lambda _: WHOLE, self._shapes), WHOLE
      return
    rules = self.rules = find_rules(model, sharding)
    by_size = rules.gather and not rules.params
    self._specs = (fsdp if by_size else partial(specs, rules))(self._shapes, workers.members)
    self._batch = rules.batch
    self.model = _following(model, rules, self._specs)

  @property
  def params(self) -> Tree:
    """Return the shapes of one worker's parameters with their shardings over the devices of a mesh row."""
    return placed(self._shapes, jax.tree.map(lambda spec: NamedSharding(self.workers.mesh, spec), self._specs))

  @property
  def batch(self) -> tuple[str | None, ...]:
    """Return the partition spec of a worker's batches [steps, batch, ...]."""
    return (None, *self._batch)

  def carry(self, shapes: Tree) -> Tree:
    """Add shardings to the shapes of a tree [copies, ...]; leaves that match a parameter are sharded like it."""
    one = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), shapes)
    return placed(shapes, jax.tree.map(self.workers.split, like(one, self._shapes, self._specs)))

  def one_copy(self, x: jax.Array) -> jax.Array:
    """View an array [rows, ...] that is equal on all mesh rows as a replicated array [1, ...], without a copy."""
    return _same_memory(x, 1, NamedSharding(self.workers.mesh, PartitionSpec(None, *_inside(x))))

  def copies(self, x: jax.Array) -> jax.Array:
    """View an array [1, ...] that is replicated over the mesh rows as an array [rows, ...], without a copy."""
    return _same_memory(x, self.workers.rows, self.workers.split(_inside(x)))


def find_rules(model: Model, name: str) -> Rules:
  """Return the model's sharding rules of this name. Raises OptionError if it has none."""
  if name in model.rules:
    return model.rules[name]
  if name == "fsdp":
    return FSDP
  known = ", ".join(sorted({"fsdp", *model.rules}))
  raise OptionError("sharding", f"one of {known} (the rules of this model)", repr(name))


def shardings(tree: Tree) -> Tree:
  """Return the shardings of a tree of arrays or shapes."""
  return jax.tree.map(lambda x: x.sharding, tree)


def local(tree: Tree) -> Tree:
  """Return each array as stored on one device of this process; if any array is sharded, return all unchanged."""
  whole = all(x.is_fully_replicated for x in jax.tree.leaves(tree))
  return jax.tree.map(lambda x: x.addressable_data(0), tree) if whole else tree


def is_split(params: Tree) -> bool:
  """Return whether parameters returned by `local` are sharded; if so, programs that use them contain collectives."""
  return isinstance(jax.tree.leaves(params)[0].sharding, NamedSharding)


def place_like(batch: Any, params: Tree) -> Any:
  """Place examples on the devices of parameters from `local`, sharded if they divide evenly among these devices.

  batch: host arrays [examples, ...], equal in all processes.
  """
  if not is_split(params):
    return jax.device_put(batch)
  sharding: Any = jax.tree.leaves(params)[0].sharding

  def one(x: Any) -> jax.Array:
    over = PartitionSpec(sharding.mesh.axis_names if x.shape[0] % sharding.mesh.size == 0 else None)
    return jax.make_array_from_callback(x.shape, NamedSharding(sharding.mesh, over), x.__getitem__)

  return jax.tree.map(one, batch)


def gather(tree: Tree) -> Tree:
  """Return the arrays as NumPy arrays in all processes, gathering those that are sharded across processes."""

  def one(x: Any) -> Any:
    if not isinstance(x, jax.Array) or x.is_fully_addressable or x.is_fully_replicated:
      return x
    sharding: Any = x.sharding
    return np.asarray(_everywhere(sharding.mesh)(x))  # convert at once, so that devices hold only one whole array

  return jax.device_get(jax.tree.map(one, tree))


def _inside(x: Any) -> tuple[str | None, ...]:
  """Return an array's partition spec without the leading axis."""
  return tuple(x.sharding.spec)[1:]


def _same_memory(x: jax.Array, lead: int, sharding: NamedSharding) -> jax.Array:
  parts = [shard.data for shard in x.addressable_shards]
  return jax.make_array_from_single_device_arrays((lead, *x.shape[1:]), sharding, parts)


@cache
def _everywhere(mesh: Any) -> Any:
  return jax.jit(lambda x: x, out_shardings=NamedSharding(mesh, PartitionSpec()))


def _following(model: Model, rules: Rules, of_params: Tree) -> Model:
  """Return the model with a loss that applies the sharding rules to parameters and activations."""

  def loss(params: Tree, extra: Tree, batch: Batch, key: Any) -> tuple[Any, Tree]:
    with activations(rules):
      batch = jax.tree.map(lambda x: named(x, BATCH), dict(batch))
      params = params if model.compute_dtype is None else cast(params, model.compute_dtype)  # cast before gathering
      return model.loss(jax.tree.map(_placed_for_use(rules.gather), params, of_params), extra, batch, key)

  return model._replace(loss=loss)


def _placed_for_use(gather: bool) -> Any:
  """Return a function that gathers or shards a parameter for the loss, and shards its gradient like the parameter."""

  def used(x: jax.Array, spec: PartitionSpec) -> jax.Array:
    def placed(x: jax.Array) -> jax.Array:
      return jax.lax.with_sharding_constraint(x, WHOLE if gather else spec)

    use = jax.custom_vjp(placed)
    use.defvjp(lambda x: (placed(x), None), lambda _, g: (jax.lax.with_sharding_constraint(g, spec),))
    return use(x)

  return used
