"""Count the activations that a loss saves for its backward pass, as a compiler for GPUs or TPUs stores them.

JAX saves every array that the backward pass reads. A compiler stores fewer arrays: it fuses element-wise operations
into the backward pass, which recomputes their results from stored arrays. Therefore, only two kinds of arrays are
stored: operands of matrix products and convolutions, and results of operations that are not element-wise, if saved
arrays are computed from them. For a transformer without dropout, these are the arrays that arXiv 2205.05198 counts.
With `jax.checkpoint`, the inputs of all blocks are stored, and the arrays inside one block at a time.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
from jax.core import eval_jaxpr
from jax.extend import core

from ddl.api import Model, Tree
from ddl.elementwise import CALLED, ELEMENTWISE

PRODUCTS = ("dot_general", "conv_general_dilated")
CHECKPOINTS = ("checkpoint", "remat2")
FUSED = ELEMENTWISE | {
  "broadcast_in_dim", "concatenate", "expand_dims", "iota", "one_minus_square", "pad", "reshape", "rev", "slice",
  "split", "squeeze", "stack", "transpose",
}  # fmt: skip

Roots = frozenset[int]  # numbers of the stored arrays from which fused operations compute an array


def activation_bytes(model: Model, batch: Tree) -> float:
  """Return the bytes of a microbatch's activations, without the batch itself. batch: shapes [examples, ...]."""
  with mock.patch.object(jax, "default_backend", lambda: "gpu"):  # models use other operations on a CPU
    key = jax.random.key(0)
    params, extra = jax.eval_shape(model.init, key)
    return _saved_bytes(lambda *arguments: model.loss(*arguments)[0], params, extra, batch, key)


def _saved_bytes(function: Callable[..., Any], *arguments: Any) -> float:
  """Return the bytes that a function stores between its forward pass and its backward pass.

  The function is differentiated with respect to its first argument.
  """
  forward = jax.make_jaxpr(lambda first, *rest: jax.vjp(lambda x: function(x, *rest), first)[1])(*arguments).jaxpr
  blocks = _blocks(jax.make_jaxpr(function)(*arguments).jaxpr)
  return _ForwardPass().stored_bytes(forward) + max(map(_block_bytes, blocks), default=0.0)


class _ForwardPass:
  """The arrays from which all others can be computed by fused operations."""

  def __init__(self):
    self.nbytes = list[float]()  # by number

  def stored_bytes(self, jaxpr: Any) -> float:
    """Return the bytes of the arrays that are stored for the results of a jaxpr; its arguments are not counted."""
    stored = set[int]()
    saved = {x for x in jaxpr.outvars if isinstance(x, core.Var)}

    def store(variable: Any, roots: Roots) -> Roots:
      """Return a variable's roots; if it is saved, store its roots, or the variable if several roots are larger."""
      if variable not in saved:
        return roots
      missing = roots - stored
      if len(missing) > 1 and _nbytes(variable) < sum(self.nbytes[root] for root in missing):  # such as a residual sum
        roots = self._new(variable)
      stored.update(roots)
      return roots

    self._results(jaxpr, [frozenset()] * len(jaxpr.invars), store)
    return sum(self.nbytes[root] for root in stored)

  def _results(
    self, jaxpr: Any, arguments: list[Roots], store: Callable[[Any, Roots], Roots] = lambda variable, roots: roots
  ) -> list[Roots]:
    """Return the roots of the results, given those of the arguments.

    store: (computed variable, its roots) -> the roots to use for it.
    """
    roots: dict[Any, Roots] = dict(zip(jaxpr.invars, arguments, strict=True))
    read = {id(x) for equation in jaxpr.eqns if equation.primitive.name in PRODUCTS for x in equation.invars}

    def of(variable: Any) -> Roots:
      return frozenset() if isinstance(variable, core.Literal) else roots.get(variable, frozenset())

    for equation in jaxpr.eqns:
      name, operands = equation.primitive.name, [*map(of, equation.invars)]
      if name in CALLED:
        (called,) = core.jaxprs_in_params(equation.params)
        results = self._results(called, operands)
      elif name in FUSED:
        results = [frozenset[int]().union(*operands)] * len(equation.outvars)
      else:
        results = [*map(self._new, equation.outvars)]
      for variable, result in zip(equation.outvars, results, strict=True):
        materialized = bool(result) and id(variable) in read  # unless it is computed from the arguments only
        roots[variable] = store(variable, self._new(variable) if materialized else result)
    return [*map(of, jaxpr.outvars)]

  def _new(self, variable: Any) -> Roots:
    self.nbytes.append(_nbytes(variable))
    return frozenset({len(self.nbytes) - 1})


def _nbytes(variable: Any) -> float:
  return math.prod(variable.aval.shape) * variable.aval.dtype.itemsize


def _blocks(jaxpr: Any) -> Iterator[Any]:
  """Yield the jaxprs of the blocks to which `jax.checkpoint` applies."""
  for equation in jaxpr.eqns:
    for inner in core.jaxprs_in_params(equation.params):
      if equation.primitive.name in CHECKPOINTS:
        yield inner
      else:
        yield from _blocks(inner)


def _block_bytes(jaxpr: Any) -> float:
  """Return the bytes that a block of `jax.checkpoint` stores while the backward pass recomputes it."""
  shapes = {i: jax.ShapeDtypeStruct(x.aval.shape, x.aval.dtype) for i, x in enumerate(jaxpr.invars)}
  real = {i: x for i, x in shapes.items() if jnp.issubdtype(x.dtype, jnp.floating)}
  others = {i: x for i, x in shapes.items() if i not in real}
  return _saved_bytes(lambda real, others: eval_jaxpr(jaxpr, (), *map((real | others).get, shapes)), real, others)
