"""A server algorithm on the parameters as one vector, so that a visit sends and serves one array."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ddl.api import ServerAlgorithm, Tree, Visit
from ddl.precision import ravel

SCALES = (1e-3, 1.0, 1e3)  # of the messages of a trial, to reveal clipping


class VisitTrees(NamedTuple):
  """The trees of a visit, as shapes, for parameters that are one vector [size]."""

  message: Tree
  reply: Tree
  server: Tree


def flatten(params: Tree) -> tuple[np.ndarray, Callable[[Any], Tree]]:
  """Return the parameters as one vector [size] of the type that holds them all, and the inverse."""
  flat, unravel = ravel(params)
  return np.asarray(flat), unravel


def visit_trees(algorithm: ServerAlgorithm, size: int, dtype: Any) -> VisitTrees:
  """Return the trees for parameters of this size and type."""
  flat = jax.ShapeDtypeStruct((size,), dtype)
  state, server, reply = jax.eval_shape(algorithm.init, flat)
  return VisitTrees(jax.eval_shape(algorithm.request, state, flat), reply, server)


def leads_of(algorithm: ServerAlgorithm, size: int, dtype: Any) -> VisitTrees:
  """Return, for each leaf of `visit_trees`, the axes before the parameters' own; -1 if independent of their number."""
  here, more = visit_trees(algorithm, size, dtype), visit_trees(algorithm, size + 1, dtype)
  return jax.tree.map(lambda a, b: -1 if a.shape == b.shape else len(a.shape) - 1, here, more)


def packed(algorithm: ServerAlgorithm, params: Tree) -> ServerAlgorithm:
  """Return the same rule with server, messages and replies of parameters [size]; a worker's own stay a tree.

  Of parameters of several types the server's have the one that holds them all.

  Args:
    algorithm: one for which `divides` is true.
    params: arrays or shapes.
  """
  inverse: list[Callable[[Any], Tree]] = []

  def vector(params: Tree) -> jax.Array:
    flat, unravel = ravel(params)
    inverse.append(unravel)
    return flat

  flat = jax.eval_shape(vector, params)
  leads, unravel = leads_of(algorithm, flat.size, flat.dtype), inverse[0]

  def init(params: Tree) -> tuple[Tree, Tree, Tree]:
    _, server, reply = algorithm.init(ravel(params)[0])
    return algorithm.init(params)[0], server, reply

  def request(state: Tree, params: Tree) -> Tree:
    return _pack(algorithm.request(state, params), leads.message)

  def merge(reply: Tree, state: Tree, params: Tree) -> tuple[Tree, Tree]:
    whole = jax.tree.map(lambda lead, x: x if lead < 0 else unravel(x), leads.reply, reply)
    return algorithm.merge(whole, state, params)

  def evaluate(server: Tree) -> Tree:
    return unravel(algorithm.evaluate(server))

  return algorithm._replace(init=init, request=request, merge=merge, evaluate=evaluate)


def divides(algorithm: ServerAlgorithm, params: Tree) -> bool:
  """Return whether the server's rule works coordinate by coordinate, so that it applies to a vector and its parts.

  Found by trial on arrays cut to two along each axis, and on two halves of their vector: rules that depend on whole
  arrays (LARS), on all of them (a clipped global norm), on their axes or names (a mask of the weight decay) then give
  other values.
  """
  keys = iter(jax.random.split(jax.random.key(0), 10_000))
  kind = jax.eval_shape(lambda tree: ravel(tree)[0], params).dtype  # a server's, which no other rounding may hide
  params = jax.tree.map(lambda x: np.ones([min(n, 2) for n in x.shape], kind), params)
  try:
    flat, _ = flatten(params)
    leads = leads_of(algorithm, flat.size, flat.dtype)
    params = jax.tree.map(lambda x: _some(x, next(keys), 1.0), params)
    state, server, _ = algorithm.init(params)
    halves = [algorithm.init(half)[1] for half in _halves(_pack(params, 0), 0)]
    serve = jax.jit(algorithm.serve)
    for scale in SCALES:
      message = jax.tree.map(lambda x, scale=scale: _some(x, next(keys), scale), algorithm.request(state, params))
      visit = Visit(jnp.int32(0), jnp.int32(-1 if algorithm.arrivals.peers == "none" else 1))
      server, reply = serve(server, message, visit)
      parts = _halves(_pack(message, leads.message), leads.message)
      halves, replies = zip(*(serve(x, m, visit) for x, m in zip(halves, parts, strict=True)), strict=True)
      whole = _pack(server, leads.server), _pack(reply, leads.reply)
      if not all(map(_same, whole, (_joined(halves, leads.server), _joined(replies, leads.reply)))):
        return False
  except (ValueError, TypeError, KeyError):  # of rules that take the arrays of a model only
    return False
  return True


def _pack(tree: Tree, leads: Tree) -> Tree:
  """Return subtrees like the parameters as one array [..., size], other leaves unchanged."""

  def one(lead: int, part: Tree) -> Any:
    if lead < 0:
      return part
    with jax.numpy_dtype_promotion("standard"):
      return jnp.concatenate([x.reshape(*x.shape[:lead], -1) for x in jax.tree.leaves(part)], axis=-1)

  return jax.tree.map(one, leads, tree)


def _halves(tree: Tree, leads: Tree) -> list[Tree]:
  """Return the two halves of a result of `_pack`."""
  cut = jax.tree.map(lambda lead, x: (x, x) if lead < 0 else jnp.split(x, [x.shape[-1] // 2], axis=-1), leads, tree)
  return [jax.tree.map(lambda _, pair, k=k: pair[k], leads, cut) for k in (0, 1)]


def _joined(halves: Any, leads: Tree) -> Tree:
  return jax.tree.map(lambda lead, *x: x[0] if lead < 0 else jnp.concatenate(x, axis=-1), leads, *halves)


def _some(x: Any, key: jax.Array, scale: float) -> Any:
  return scale * jax.random.normal(key, x.shape, x.dtype) if jnp.issubdtype(x.dtype, jnp.floating) else x


def _same(a: Tree, b: Tree) -> bool:
  pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
  return all(np.allclose(np.float64(x), np.float64(y), rtol=1e-3, atol=1e-6, equal_nan=True) for x, y in pairs)
