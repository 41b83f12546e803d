"""A model of the project as a sequence of parameter arrays, for timelines: gradient bytes, and shares of the FLOP."""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.extend import core

from ddl.api import Model, Tree

PRODUCTS = ("dot_general", "conv_general_dilated")


class Leaf(NamedTuple):
  """A parameter array."""

  name: str
  nbytes: int  # of its gradient
  share: float  # of the step's FLOP


def param_shapes(model: Model) -> Tree:
  """Return the shapes of a model's parameters."""
  return jax.eval_shape(model.init, jax.random.key(0))[0]


def loss_jaxpr(model: Model, batch: Tree) -> Any:
  """Return the traced loss of a batch of these shapes; its first inputs are the parameters."""
  key = jax.random.key(0)
  return jax.make_jaxpr(model.loss)(*jax.eval_shape(model.init, key), batch, key).jaxpr


def leaves(model: Model, batch: Tree) -> tuple[Leaf, ...]:
  """Return the parameter arrays in the order of their first use in the forward pass; gradients appear in the reverse.

  An array's share is that of its products among all arrays' multiply-accumulates in the forward pass, where each of
  its elements is used once per position of the result. Arrays without a product (biases, scales, embeddings) have 0;
  work of no array (products of activations, elementwise work) is thereby spread in the same proportion. If no array
  is in a product, shares are those of the sizes. The backward pass takes twice the forward pass, array by array.

  Args:
    model: its loss is traced.
    batch: shapes of a batch.
  """
  traced = loss_jaxpr(model, batch)
  arrays = jax.tree_util.tree_flatten_with_path(param_shapes(model))[0]
  index = {var: i for i, var in enumerate(traced.invars[: len(arrays)])}
  macs: dict[int, int] = {}
  for eqn in traced.eqns:
    for var in eqn.invars:
      if isinstance(var, core.Var) and var in index:
        i = index[var]
        positions = int(np.prod(eqn.outvars[0].aval.shape[:-1])) if any(products([eqn])) else 0
        macs[i] = macs.get(i, 0) + arrays[i][1].size * positions
  macs |= {i: 0 for i in range(len(arrays)) if i not in macs}  # unused arrays come last
  weights = macs if any(macs.values()) else {i: arrays[i][1].size for i in macs}
  total = sum(weights.values())
  return tuple(
    Leaf(
      jax.tree_util.keystr(arrays[i][0], simple=True, separator="/"),
      arrays[i][1].size * arrays[i][1].dtype.itemsize,
      weights[i] / total,
    )
    for i in macs
  )


def products(equations: Iterable[Any]) -> Iterator[tuple[Any, int]]:
  """Yield (matrix product or convolution, number of runs), through all functions and loops of these equations."""
  for eqn in equations:
    if eqn.primitive.name in PRODUCTS:
      yield eqn, 1
    repeats = eqn.params.get("length", 1) if eqn.primitive.name == "scan" else 1
    for called in jax.tree.leaves(eqn.params, is_leaf=_is_jaxpr):
      if _is_jaxpr(called):
        yield from ((product, repeats * times) for product, times in products(getattr(called, "jaxpr", called).eqns))


def _is_jaxpr(x: Any) -> bool:
  return isinstance(x, core.Jaxpr | core.ClosedJaxpr)
