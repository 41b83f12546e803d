"""Convert server algorithms so that the server, messages and replies store the parameters as one vector."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ddl.api import ServerAlgorithm, Tree, Visit
from ddl.elementwise import are_elementwise
from ddl.precision import ravel


class VisitTrees(NamedTuple):
  """Shapes, or other properties, of the arrays in a worker's visit to the server.

  The parameters are one vector [size]. `server` is the server's state.
  """

  message: Tree
  reply: Tree
  server: Tree


def visit_trees(algorithm: ServerAlgorithm, size: int, dtype: Any) -> VisitTrees:
  """Return the shapes and types of a visit's arrays if the parameters are one vector of this size and type."""
  flat = jax.ShapeDtypeStruct((size,), dtype)
  state, server, reply = jax.eval_shape(algorithm.init, flat)
  return VisitTrees(jax.eval_shape(algorithm.request, state, flat), reply, server)


def leading_axes(algorithm: ServerAlgorithm, size: int, dtype: Any) -> VisitTrees:
  """Return, for each leaf of `visit_trees`, the number of axes before the axis [size]; -1 for a leaf without it."""
  trees, larger_trees = visit_trees(algorithm, size, dtype), visit_trees(algorithm, size + 1, dtype)
  return jax.tree.map(lambda a, b: -1 if a.shape == b.shape else len(a.shape) - 1, trees, larger_trees)


def packed(algorithm: ServerAlgorithm, params: Tree) -> ServerAlgorithm:
  """Convert an algorithm so that server, messages and replies store the parameters as a vector [size].

  The workers' own parameters stay a tree. The vector has the type to which JAX promotes the types of all parameters.
  The algorithm must satisfy `is_elementwise`.
  """
  inverse: list[Callable[[Any], Tree]] = []

  def vector(params: Tree) -> jax.Array:
    flat, unravel = ravel(params)
    inverse.append(unravel)
    return flat

  flat = jax.eval_shape(vector, params)
  leads, unravel = leading_axes(algorithm, flat.size, flat.dtype), inverse[0]

  def init(params: Tree) -> tuple[Tree, Tree, Tree]:
    _, server, reply = algorithm.init(ravel(params)[0])
    return algorithm.init(params)[0], server, reply

  def request(state: Tree, params: Tree) -> Tree:
    return _pack(algorithm.request(state, params), leads.message)

  def merge(reply: Tree, state: Tree, params: Tree) -> tuple[Tree, Tree]:
    reply_tree = jax.tree.map(lambda lead, x: x if lead < 0 else unravel(x), leads.reply, reply)
    return algorithm.merge(reply_tree, state, params)

  def evaluate(server: Tree) -> Tree:
    return unravel(algorithm.evaluate(server))

  return algorithm._replace(init=init, request=request, merge=merge, evaluate=evaluate)


def is_elementwise(algorithm: ServerAlgorithm, params: Tree) -> bool:
  """Return whether the server's functions (`init`, `serve`, `read`, `evaluate`) are known to be element-wise."""

  def calls(params: Tree) -> Any:
    state, server, reply = jax.eval_shape(algorithm.init, params)
    message = jax.eval_shape(algorithm.request, state, params)
    visit = Visit(*[jax.ShapeDtypeStruct((), np.int32) for _ in Visit._fields])
    read = [(algorithm.read, (server, reply, visit))] if algorithm.read else []
    return [
      (lambda params: algorithm.init(params)[1:], (params,)),
      (algorithm.serve, (server, message, visit)),
      (algorithm.evaluate, (server,)),
      *read,
    ]

  return are_elementwise(calls, params)


def check_lock_free(algorithm: ServerAlgorithm, params: Tree) -> None:
  """Raise ValueError if `LockFree.increment`, which is applied to single blocks, is not known to be element-wise."""
  rule = algorithm.lock_free
  if rule and not are_elementwise(lambda params: [(rule.increment, (params, params))], params):
    raise ValueError(
      "LockFree.increment must be element-wise, got a function that is not known to be. "
      "Set lock_free=None to use a lock."
    )


def _pack(tree: Tree, leads: Tree) -> Tree:
  """Concatenate each subtree that has the parameters' structure into an array [..., size]; keep all other leaves."""

  def concatenate(lead: int, part: Tree) -> Any:
    if lead < 0:
      return part
    with jax.numpy_dtype_promotion("standard"):
      return jnp.concatenate([x.reshape(*x.shape[:lead], -1) for x in jax.tree.leaves(part)], axis=-1)

  return jax.tree.map(concatenate, leads, tree)
