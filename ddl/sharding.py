"""Rules by which the devices of one worker hold its parameters and activations in pieces, as data.

Axis "member" of the mesh are the devices of a worker. Inside of a worker XLA partitions the program (GSPMD, arXiv
2105.04663) so that inputs, parameters and the activations that a model names are where the rules say.
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
SMALL = 2**10  # values of a parameter below which `fsdp` leaves it whole: a message costs more than it holds


class Rules(NamedTuple):
  """What is split over a worker's members; the first pattern that is found in a parameter's path decides.

  A path is "Dense_0/kernel". Parameters and activations without a rule stay whole. The activation "batch" is that of
  all inputs, [batch, ...]. Parameters are gathered where they are used if `gather` is set, as in `fsdp`.
  """

  params: tuple[tuple[str, PartitionSpec], ...] = ()  # (regular expression, of which axes)
  activations: Mapping[str, PartitionSpec] = {}  # name -> of which axes
  gather: bool = False
  if_even: bool = False  # a parameter whose axis the members do not divide stays whole; False: that is an error
  layers: tuple[str, ...] = ()  # the dense layers that `columns` splits
  note: str = ""  # on how they were chosen

  @property
  def batch(self) -> PartitionSpec:
    """Of the inputs."""
    return self.activations.get(BATCH, WHOLE)

  @property
  def splits_batch(self) -> bool:
    """Whether the members share a worker's examples."""
    return tuple(self.batch)[:1] == (MEMBER,)


def columns(layers: Sequence[str], batch: PartitionSpec = SPLIT, split: Sequence[str] | None = None) -> Rules:
  """Return rules that split dense layers by outputs, as the model parallelism of Das et al., arXiv 1602.06709.

  The inputs of a layer are gathered, and their gradients reduced, over the members. The model names the inputs and
  outputs of each layer "layer/in" and "layer/out". batch: of the inputs of the model, split for the layers before;
  split: those of the layers that are, if not all; of the others the members share the examples.
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
  """Return rules that split dense layers by outputs and inputs in turn: one sum for two layers (arXiv 1909.08053).

  The last of an odd number stays whole. Names are those of `columns`.
  """
  params, places = [], {}
  for first, second in zip(layers[::2], layers[1::2], strict=False):
    params += [(f"^{first}/kernel$", PartitionSpec(None, MEMBER)), (f"^{first}/bias$", SPLIT)]
    params += [(f"^{second}/kernel$", SPLIT)]
    places |= {f"{first}/out": PartitionSpec(None, MEMBER), f"{second}/out": WHOLE}
  return Rules(tuple(params), places, if_even=True)


_active: ContextVar[Mapping[str, PartitionSpec] | None] = ContextVar("activations", default=None)


def named(x: jax.Array, name: str) -> jax.Array:
  """Return x, placed as the rules of a run say for activations of this name; without members it is x itself."""
  spec = (_active.get() or {}).get(name)
  return x if spec is None else lax.with_sharding_constraint(x, spec)


@contextlib.contextmanager
def activations(rules: Rules) -> Iterator[None]:
  """Let `named` follow the rules within the context."""
  token = _active.set(rules.activations)
  try:
    yield
  finally:
    _active.reset(token)


def fsdp(params: Any, members: int) -> Any:
  """Split each large parameter along its longest axis that the members divide: a tree of `PartitionSpec`."""

  def one(x: Any) -> PartitionSpec:
    fits = [axis for axis, size in enumerate(x.shape) if size % members == 0]
    if not fits or x.size < SMALL:
      return WHOLE
    axis = max(fits, key=lambda axis: x.shape[axis])
    return PartitionSpec(*[None] * axis, MEMBER)

  return jax.tree.map(one, params)


def specs(rules: Rules, params: Any, members: int) -> Any:
  """Return the tree of `PartitionSpec` that the rules give to parameters, as arrays or shapes.

  Raises:
    ValueError: if a rule names more axes than a parameter has or one that the members do not divide.
  """

  def one(path: Any, x: Any) -> PartitionSpec:
    name = path_text(path)
    spec = next((spec for pattern, spec in rules.params if re.search(pattern, name)), WHOLE)
    if len(spec) > len(x.shape):
      condition = f"of at most {len(x.shape)} axes, as its shape is {list(x.shape)}"
      raise OptionError(f"the sharding rule for {name}", condition, spec)
    for axis, over in enumerate(spec):
      if over is not None and x.shape[axis] % members:
        if rules.if_even:
          return WHOLE
        fits = ", ".join(str(n) for n in range(1, x.shape[axis] + 1) if x.shape[axis] % n == 0)
        raise ValueError(
          f"{name} of shape {list(x.shape)} cannot be split over {members} members along axis {axis}; members that "
          f"divide it: {fits}"
        )
    return spec

  return jax.tree_util.tree_map_with_path(one, params)


def like(tree: Any, params: Any, of_params: Any) -> Any:
  """Return the specs of a tree that has copies of the parameters in it (momentum, a center, a message): theirs.

  A leaf is a copy if its path ends as that of a parameter of its shape; others stay whole.
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
  """Return a path in a tree as "Dense_0/kernel"."""
  return jax.tree_util.keystr(path, simple=True, separator="/")
