"""Decide from jaxprs, without computing anything, whether functions of the parameters are element-wise.

An element-wise function computes each coordinate of its result from the same coordinate of its arguments, by one rule
for all coordinates. So it can be applied to all parameters as one vector, and to any slice of that vector. The elements
of each array in a jaxpr are described by an expression that does not depend on their number. A function is element-wise
if this expression is the same for all leaves of the tree and for parameter vectors of two sizes. Operations that are
not known to be element-wise (a norm, a random number, an index) have no expression. So functions with masks, clipping
by a norm, layer-wise rules or rules by name are rejected even if these have no effect in the first steps.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
import optax
from jax.extend import core

from ddl.api import Tree
from ddl.precision import ravel

Calls = Callable[[Tree], Sequence[tuple[Callable[..., Tree], tuple[Tree, ...]]]]  # params -> [(function, arguments)]

ELEMENTWISE = {
  "abs", "acos", "acosh", "add", "add_any", "and", "asin", "asinh", "atan", "atan2", "atanh", "cbrt", "ceil", "clamp",
  "convert_element_type", "copy", "copy_p", "cos", "cosh", "digamma", "div", "eq", "erf", "erf_inv", "erfc", "exp",
  "exp2", "expm1", "floor", "ge", "gt", "integer_pow", "is_finite", "le", "lgamma", "log", "log1p", "logistic", "lt",
  "max", "min", "mul", "ne", "neg", "nextafter", "not", "or", "pow", "reduce_precision", "rem", "round", "rsqrt",
  "select_n", "shift_left", "shift_right_arithmetic", "shift_right_logical", "sign", "sin", "sinh", "sqrt", "square",
  "stop_gradient", "sub", "tan", "tanh", "xor",
}  # fmt: skip
REDUCTIONS = {"reduce_sum", "reduce_max", "reduce_min", "reduce_prod", "reduce_and", "reduce_or"}
CALLED = {"closed_call", "core_call", "custom_jvp_call", "custom_vjp_call", "jit", "pjit", "remat2", "checkpoint"}


class Elements(NamedTuple):
  """A description of the elements of an array [*lead, *rest], where `rest` is () or the shape of a parameter leaf.

  Along `rest`, the elements are all equal (uniform), or each is computed from the leaf's element at the same position.
  """

  expression: int  # number of the expression in `_Expressions`
  lead: int  # number of axes in front of `rest`
  leaf: int | None  # index of the leaf whose shape is `rest`; None: uniform


class Trace(NamedTuple):
  """A function's jaxpr with the shapes of its arguments and results."""

  jaxpr: Any
  arguments: Tree
  result: Tree


def is_elementwise(inner: optax.GradientTransformation, params: Tree) -> bool:
  """Return whether an optimizer's `init` and `update` are known to be element-wise. params: arrays or shapes."""

  def calls(params: Tree) -> Any:
    state = jax.eval_shape(inner.init, params)
    return [(inner.init, (params,)), (inner.update, (params, state, params))]

  return are_elementwise(calls, params)


def are_elementwise(calls: Calls, params: Tree) -> bool:
  """Return whether functions are element-wise in arguments and results that have the parameters' shapes.

  These arrays may have additional leading axes. All other arguments and results must be the same for every slice of the
  parameter vector that the functions are applied to. Parameters of mixed types are promoted to their common type, as in
  a vector. The result does not depend on the caller's promotion settings.

  Args:
    calls: maps the parameters, as a tree or as one vector, to a list of (function, shapes of its arguments).
    params: arrays or shapes.
  """
  with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
    flat = jax.eval_shape(lambda tree: ravel(tree)[0], params)
    params = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, flat.dtype), params)
    sizes = [jax.ShapeDtypeStruct((flat.size + more,), flat.dtype) for more in (0, 1)]
    trees = [_trace(*call) for call in calls(params)]
    try:
      vectors = [[_trace(*call) for call in calls(size)] for size in sizes]
      expressions = _Expressions()
      for tree, short, long in zip(trees, *vectors, strict=True):
        lead_in, lead_out = (jax.tree.map(_lead, getattr(short, x), getattr(long, x)) for x in ("arguments", "result"))
        whole, *parts = (
          expressions.of(trace, lead_in, lead_out, jax.tree.leaves(like))
          for trace, like in zip((tree, short, long), (params, *sizes), strict=True)
        )
        if None in whole or any(part != whole for part in parts):
          return False
    except Exception:  # a rule written for the model's tree may raise anything when called with a vector
      return False
    return True


def _trace(function: Callable[..., Tree], arguments: tuple[Tree, ...]) -> Trace:
  jaxpr, result = jax.make_jaxpr(function, return_shape=True)(*arguments)
  return Trace(jaxpr, arguments, result)


def _lead(short: Any, long: Any) -> int:
  """Return an array's number of axes before the parameter axis, or -1 if it has no parameter axis.

  short, long: the array's shapes for parameter vectors of two lengths; they differ only in the parameter axis.
  """
  return -1 if short.shape == long.shape else len(short.shape) - 1


class _Expressions:
  """A table that assigns equal numbers to equal expressions."""

  def __init__(self):
    self._numbers = dict[Any, int]()
    self._alive = list[Any]()  # constants that are identified by their id, which must stay unique

  def of(self, trace: Trace, lead_in: Tree, lead_out: Tree, leaves: Sequence[Any]) -> list[Any]:
    """Return (expression, leading axes, type) of each result; None: not known to be element-wise.

    lead_in, lead_out: the number from `_lead` for each argument and result. leaves: the parameters' leaves.

    Raises:
      ValueError: if the structure or shapes of a tree do not match the parameters.
    """
    inputs = []
    for place, (lead, arrays) in enumerate(_slots(lead_in, trace.arguments, leaves)):
      for leaf, x in enumerate(arrays):
        axes = x.shape[: lead if lead >= 0 else None]
        number = self._number("input", place, axes, str(x.dtype))
        inputs.append(Elements(number, len(axes), leaf if lead >= 0 else None))
    outputs, entries = iter(self._run(trace.jaxpr, inputs)), []
    for lead, arrays in _slots(lead_out, trace.result, leaves):
      kinds = set()
      for leaf, (x, elements) in enumerate(zip(arrays, outputs, strict=False)):
        axes = x.shape[: lead if lead >= 0 else None]
        kinds.add((elements.expression, axes, str(x.dtype)) if elements and _fits(elements, lead, leaf) else None)
      entries.append(kinds.pop() if len(kinds) == 1 else None)
    return entries

  def _number(self, *expression: Any) -> int:
    return self._numbers.setdefault(expression, len(self._numbers))

  def _constant(self, value: Any, aval: Any) -> Elements:
    try:
      content: Any = np.asarray(value, aval.dtype).tobytes()
    except TypeError:  # for tracers of a surrounding function and for keys
      self._alive.append(value)
      content = id(value)
    return Elements(self._number("constant", aval.shape, str(aval.dtype), content), len(aval.shape), None)

  def _run(self, closed: Any, inputs: Sequence[Elements | None]) -> list[Elements | None]:
    jaxpr, constants = getattr(closed, "jaxpr", closed), getattr(closed, "consts", ())
    known = dict(zip(jaxpr.invars, inputs, strict=True))
    known |= {var: self._constant(x, var.aval) for var, x in zip(jaxpr.constvars, constants, strict=True)}

    def read(var: Any) -> Elements | None:
      return self._constant(var.val, var.aval) if isinstance(var, core.Literal) else known[var]

    for eqn in jaxpr.eqns:
      known |= zip(eqn.outvars, self._equation(eqn, [read(var) for var in eqn.invars]), strict=True)
    return [read(var) for var in jaxpr.outvars]

  def _equation(self, eqn: Any, inputs: list[Elements | None]) -> Sequence[Elements | None]:
    """Describe the elements of each result of one equation; None: not known to be element-wise."""
    name, unknown = eqn.primitive.name, [None] * len(eqn.outvars)
    if name in CALLED:
      return self._run(next(eqn.params[key] for key in ("jaxpr", "call_jaxpr") if key in eqn.params), inputs)
    if name == "cond":
      return self._branches(eqn, inputs)
    if any(x is None for x in inputs):
      return unknown
    shapes, out = [var.aval.shape for var in eqn.invars], eqn.outvars[0].aval.shape if eqn.outvars else ()
    rule = _RULES.get(name) or (_elementwise if name in ELEMENTWISE else _reduce if name in REDUCTIONS else None)
    if rule and (result := rule(eqn.params, shapes, out, inputs)):
      operation, used, lead, leaf = result
      numbers = [x.expression for x in inputs[:used] if x]
      number = self._number(name, operation, *numbers) if operation else numbers[0]
      return [Elements(number, lead, leaf)]
    if any(x.leaf is not None for x in inputs if x):
      return unknown
    known = name, str(eqn.params), tuple(shapes), tuple(x.expression for x in inputs if x)
    avals = [var.aval for var in eqn.outvars]
    return [Elements(self._number(*known, i, aval.shape), len(aval.shape), None) for i, aval in enumerate(avals)]

  def _branches(self, eqn: Any, inputs: list[Elements | None]) -> Sequence[Elements | None]:
    """Describe the elements of each result of a `cond`, from the results of all of its branches."""
    which, *operands = inputs
    results = zip(*(self._run(branch, operands) for branch in eqn.params["branches"]), strict=True)

    def one(branches: tuple[Elements | None, ...]) -> Elements | None:
      joined = _join(branches)
      if joined is None or which is None or which.leaf is not None:
        return None
      return Elements(self._number("cond", which.expression, *(x.expression for x in branches if x)), *joined)

    return [*map(one, results)]


def _slots(leads: Tree, tree: Tree, leaves: Sequence[Any]) -> list[tuple[int, list[Any]]]:
  """Return (lead, arrays) for each leaf of `leads`: one array if lead is -1, else one array per parameter leaf."""
  slots = []
  for lead, part in zip(jax.tree.leaves(leads), jax.tree.structure(leads).flatten_up_to(tree), strict=True):
    arrays = jax.tree.leaves(part)
    if len(arrays) != (1 if lead < 0 else len(leaves)):
      raise ValueError("a tree must have one array per parameter, or a single array if it has no parameter axis.")
    if lead >= 0 and any(x.shape[lead:] != leaf.shape for x, leaf in zip(arrays, leaves, strict=True)):
      raise ValueError(f"each array must have the shape of its parameter after {lead} leading axes.")
    slots.append((lead, arrays))
  return slots


def _fits(x: Elements, lead: int, leaf: int) -> bool:
  """Return whether a result is uniform or belongs to leaf number `leaf`; with `lead` = -1, it must be uniform."""
  if lead < 0:
    return x.leaf is None
  return x.lead <= lead if x.leaf is None else (x.lead, x.leaf) == (lead, leaf)


def _join(inputs: Sequence[Elements | None]) -> tuple[int, int | None] | None:
  """Return the common (lead, leaf) of inputs that are combined element by element, or None if they do not match."""
  if any(x is None for x in inputs):
    return None
  lead = max((x.lead for x in inputs if x), default=0)
  leaves = {(x.lead, x.leaf) for x in inputs if x and x.leaf is not None}
  if len(leaves) > 1 or (leaves and lead > min(leaves)[0]):
    return None
  return lead, next((leaf for _, leaf in leaves), None)


# Rules: (params of the equation, shapes of its inputs, shape of its result, inputs) -> (operation, number of inputs
# used, lead, leaf), or None if the equation is not known to be element-wise. `operation` excludes the axes after
# `lead`, in which trees and vectors differ, and is empty if the elements do not change.


def _elementwise(params: Any, shapes: Any, out: Any, inputs: Any) -> Any:
  joined = _join(inputs)
  if joined is None or any(s != out for s, x in zip(shapes, inputs, strict=True) if x.leaf is not None):
    return None
  return ("of elements", *((key, str(value)) for key, value in sorted(params.items()))), len(inputs), *joined


def _reduce(params: Any, shapes: Any, out: Any, inputs: Any) -> Any:
  del shapes, out
  (x,), axes = inputs, params["axes"]
  return (tuple(axes), 1, x.lead - len(axes), x.leaf) if all(axis < x.lead for axis in axes) else None


def _broadcast(params: Any, shapes: Any, out: Any, inputs: Any) -> Any:
  (x,), (shape,), axes = inputs, shapes, params["broadcast_dimensions"]
  if x.leaf is None:
    lead = axes[x.lead - 1] + 1 if x.lead else 0
  else:
    lead = len(out) - len(shape) + x.lead
    if tuple(axes[x.lead :]) != tuple(range(lead, len(out))) or shape[x.lead :] != out[lead:]:
      return None
  same = shape[: x.lead] == out[:lead]
  return () if same else (out[:lead], tuple(axes[: x.lead])), 1, lead, x.leaf


def _squeeze(params: Any, shapes: Any, out: Any, inputs: Any) -> Any:
  del shapes, out
  (x,), axes = inputs, params["dimensions"]
  leading = tuple(axis for axis in axes if axis < x.lead)
  return (leading, 1, x.lead - len(leading), x.leaf) if x.leaf is None or len(leading) == len(axes) else None


def _reshape(params: Any, shapes: Any, out: Any, inputs: Any) -> Any:
  del params
  (x,), (shape,) = inputs, shapes
  return ((), 1, x.lead, x.leaf) if out == shape or (x.leaf is None and out[: x.lead] == shape[: x.lead]) else None


def _slice(params: Any, shapes: Any, out: Any, inputs: Any) -> Any:
  (x,), (shape,) = inputs, shapes
  cuts = [*zip(params["start_indices"], params["limit_indices"], params["strides"] or [1] * len(out), strict=True)]
  return (tuple(cuts[: x.lead]), 1, x.lead, x.leaf) if x.leaf is None or out[x.lead :] == shape[x.lead :] else None


def _dynamic_slice(params: Any, shapes: Any, out: Any, inputs: Any) -> Any:
  del out
  (x, *starts), sizes = inputs, tuple(params["slice_sizes"])
  if any(start.leaf is not None for start in starts) or (x.leaf is not None and sizes[x.lead :] != shapes[0][x.lead :]):
    return None
  return sizes[: x.lead], 1 + x.lead, x.lead, x.leaf


def _dynamic_update_slice(params: Any, shapes: Any, out: Any, inputs: Any) -> Any:
  del params
  (_, _, *starts), joined = inputs, _join(inputs[:2])
  if joined is None or any(start.leaf is not None for start in starts) or shapes[1][joined[0] :] != out[joined[0] :]:
    return None
  return ("update", shapes[1][: joined[0]]), 2 + joined[0], *joined


def _scatter(params: Any, shapes: Any, out: Any, inputs: Any) -> Any:
  (x, indices, update), numbers = inputs, params["dimension_numbers"]
  rest = min(len(out) - x.lead, len(shapes[2]) - update.lead)
  lead, front = len(out) - rest, len(shapes[2]) - rest
  window, others = tuple(numbers.update_window_dims), len(numbers.update_window_dims) - rest
  moved = (*numbers.inserted_window_dims, *numbers.scatter_dims_to_operand_dims, *numbers.operand_batching_dims)
  followed = {(y.leaf, y.lead - axes) for y, axes in ((x, lead), (update, front)) if y.leaf is not None}
  if indices.leaf is not None or any(axis >= lead for axis in moved) or shapes[2][front:] != out[lead:]:
    return None
  if window[others:] != tuple(range(front, len(shapes[2]))) or len(followed) > 1 or any(more for _, more in followed):
    return None
  return (window[:others], moved, str(params["mode"])), 3, lead, next((leaf for leaf, _ in followed), None)


_RULES = {
  "broadcast_in_dim": _broadcast,
  "squeeze": _squeeze,
  "reshape": _reshape,
  "slice": _slice,
  "dynamic_slice": _dynamic_slice,
  "dynamic_update_slice": _dynamic_update_slice,
  "scatter": _scatter,
  "scatter-add": _scatter,
}
