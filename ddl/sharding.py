"""Rules, as data, for sharding the parameters and activations of one worker over its devices.

The mesh axis "member" spans the devices of a worker. Within a worker XLA partitions the program (GSPMD, arXiv
2105.04663) so that inputs, parameters and named activations are sharded according to the rules.
"""

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, NamedTuple

import jax
from jax import lax
from jax.sharding import PartitionSpec

from ddl.errors import OptionError

MEMBER, BATCH = "member", "batch"
SPLIT, WHOLE = PartitionSpec(MEMBER), PartitionSpec()
SMALL = 2**10  # `fsdp` does not split parameters with fewer values: latency would dominate


class Rules(NamedTuple):
  """Sharding rules over the devices of a worker; the first pattern that matches a parameter's path applies.

  Paths look like "Dense_0/kernel". Parameters and activations without a rule are replicated. The activation named
  "batch" stands for all inputs, [batch, ...]. With `gather`, parameters are gathered where they are used, as in `fsdp`.
  """

  params: tuple[tuple[str, PartitionSpec], ...] = ()  # (regular expression, spec)
  activations: Mapping[str, PartitionSpec] = {}  # name -> spec
  gather: bool = False
  if_even: bool = False  # replicate a parameter if the number of devices does not divide its axis; False: raise
  layers: tuple[str, ...] = ()  # the dense layers that `columns` splits
  note: str = ""  # how the rules were chosen

  @property
  def batch(self) -> PartitionSpec:
    """Return the spec of the inputs."""
    return self.activations.get(BATCH, WHOLE)

  @property
  def splits_batch(self) -> bool:
    """Return whether a worker's examples are split over its devices."""
    return tuple(self.batch)[:1] == (MEMBER,)


def columns(layers: Sequence[str], batch: PartitionSpec = SPLIT, split: Sequence[str] | None = None) -> Rules:
  """Return rules that split dense layers by outputs: the model parallelism of Das et al., arXiv 1602.06709.

  The inputs of a layer are gathered over the devices, and the gradients of these inputs are reduced. The model must
  call `named` on the inputs and outputs of each layer, with the names "<layer>/in" and "<layer>/out".

  Args:
    layers: the dense layers, in order.
    batch: spec of the model's inputs; by default split along the batch, for data-parallel layers before the dense ones.
      It has no effect if the first dense layer is not split: the inputs are then split along the batch.
    split: the dense layers to split, by default all. The other layers are data parallel over the devices.
  """
  sharded = [name for name in layers if split is None or name in split]
  params = [(f"^{name}/kernel$", PartitionSpec(None, MEMBER)) for name in sharded]
  params += [(f"^{name}/bias$", SPLIT) for name in sharded]
  places = {f"{name}/{end}": SPLIT for name in layers for end in ("in", "out")}
  places |= {f"{name}/in": WHOLE for name in sharded} | {f"{name}/out": PartitionSpec(None, MEMBER) for name in sharded}
  places |= {f"{layers[-1]}/out": WHOLE} if layers[-1] in sharded else {}
  places[BATCH] = batch if layers[0] in sharded else SPLIT
  return Rules(tuple(params), places, if_even=True, layers=tuple(sharded))


def pairs(layers: Sequence[str]) -> Rules:
  """Return rules that split dense layers alternately by outputs and by inputs (arXiv 1909.08053).

  Each pair of layers takes one all-reduce of its outputs. The last of an odd number of layers is replicated. Layers are
  named as in `columns`.
  """
  params, places = [], {}
  for first, second in zip(layers[::2], layers[1::2], strict=False):
    params += [(f"^{first}/kernel$", PartitionSpec(None, MEMBER)), (f"^{first}/bias$", SPLIT)]
    params += [(f"^{second}/kernel$", SPLIT)]
    places |= {f"{first}/out": PartitionSpec(None, MEMBER), f"{second}/out": WHOLE}
  return Rules(tuple(params), places, if_even=True)


_active: ContextVar[Mapping[str, PartitionSpec] | None] = ContextVar("activations", default=None)


def named(x: jax.Array, name: str) -> jax.Array:
  """Constrain an activation's sharding by the active rules for its name, if there are any."""
  spec = (_active.get() or {}).get(name)
  return x if spec is None else lax.with_sharding_constraint(x, spec)


@contextlib.contextmanager
def activations(rules: Rules) -> Iterator[None]:
  """Activate rules for `named` within the context."""
  token = _active.set(rules.activations)
  try:
    yield
  finally:
    _active.reset(token)


def fsdp(params: Any, members: int) -> Any:
  """Return specs that split each large parameter along its longest axis whose size is a multiple of `members`."""

  def one(x: Any) -> PartitionSpec:
    fits = [axis for axis, size in enumerate(x.shape) if size % members == 0]
    if not fits or x.size < SMALL:
      return WHOLE
    axis = max(fits, key=lambda axis: x.shape[axis])
    return PartitionSpec(*[None] * axis, MEMBER)

  return jax.tree.map(one, params)


def specs(rules: Rules, params: Any, members: int) -> Any:
  """Return the tree of `PartitionSpec` that the rules assign to parameters, given as arrays or shapes.

  Raises:
    ValueError: if a rule names more axes than a parameter has, or, without `if_even`, splits an axis whose size is not
      a multiple of `members`, the number of devices.
  """

  def one(path: Any, x: Any) -> PartitionSpec:
    name = path_text(path)
    spec = next((spec for pattern, spec in rules.params if re.search(pattern, name)), WHOLE)
    if len(spec) > len(x.shape):
      condition = f"a spec of at most {len(x.shape)} axes (the parameter has shape {list(x.shape)})"
      raise OptionError(f"the sharding rule for {name}", condition, spec)
    for axis, over in enumerate(spec):
      if over is not None and x.shape[axis] % members:
        if rules.if_even:
          return WHOLE
        fits = ", ".join(str(n) for n in range(1, x.shape[axis] + 1) if x.shape[axis] % n == 0)
        raise ValueError(
          f"members must be one of {fits} (to divide axis {axis} of {name} with shape {list(x.shape)}), got {members}."
        )
    return spec

  return jax.tree_util.tree_map_with_path(one, params)


def like(tree: Any, params: Any, of_params: Any) -> Any:
  """Return the specs of a tree that contains copies of the parameters (momentum, a center, a message).

  A leaf whose path ends with the path of a parameter of the same shape gets that parameter's spec. Other leaves are
  replicated. of_params: the specs of the parameters.
  """
  by_path = {
    path_text(path): (x.shape, spec)
    for (path, x), spec in zip(jax.tree_util.tree_leaves_with_path(params), jax.tree.leaves(of_params), strict=True)
  }

  def one(path: Any, x: Any) -> PartitionSpec:
    names = path_text(path).split("/")
    for start in range(len(names) + 1):
      shape, spec = by_path.get("/".join(names[start:]), (None, WHOLE))
      if shape == x.shape:
        return spec
    return WHOLE

  return jax.tree_util.tree_map_with_path(one, tree)


def path_text(path: Any) -> str:
  """Format a path in a tree as "Dense_0/kernel"."""
  return jax.tree_util.keystr(path, simple=True, separator="/")
