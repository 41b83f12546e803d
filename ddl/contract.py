"""Check what the functions of user-defined algorithms and models return, whenever JAX traces one of them.

`of_collective`, `of_server` and `of_model` return a copy of the object with checked functions. If a function returns a
value whose structure, shape or type is not the one that `ddl.api` requires, a one-line error names the function.
Compiled programs run without checks.
"""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from ddl.api import Algorithm, Arrivals, Exchange, LockFree, Model, ServerAlgorithm, Tree, Visit
from ddl.ranges import check, integers
from ddl.schedule import Schedule

FAILURES = TypeError, AttributeError, LookupError, ArithmeticError  # raised by user code, like ValueError


def of_collective(algorithm: Algorithm) -> Algorithm:
  """Wrap a collective algorithm so that the results of its functions are checked.

  Raises:
    ValueError: if it is not an `Algorithm`, a required field is not a function, or its exchanges are not a tuple of
      valid `Exchange`s.
  """
  _is(algorithm, Algorithm, "the algorithm")
  for clock in Schedule(algorithm.exchanges).clocks:
    clock.period(0)
  _functions(algorithm, ("init", "local", "evaluate"))

  def init(group: Any, params: Tree, key: Any) -> Tree:
    return _arrays("init", _call("init", algorithm.init, group, params, key))

  def local(group: Any, grads: Tree, state: Tree, params: Tree) -> tuple[Tree, Tree]:
    returned = _call("local", algorithm.local, group, grads, state, params)
    return _like("local", returned, params=params, state=state)

  def checked(place: int, exchange: Exchange) -> Exchange:
    where = f" of exchange {place}" if len(algorithm.exchanges) > 1 else ""
    _functions(exchange, ("launch", "merge"))

    def launch(group: Any, state: Tree, params: Tree) -> tuple[Tree, Tree]:
      name = f"launch{where}"
      message, after = _pair(name, _call(name, exchange.launch, group, state, params), "message", "state")
      return _arrays(name, message), _same(name, "state", after, state)

    def merge(group: Any, message: Tree, state: Tree, params: Tree) -> tuple[Tree, Tree]:
      returned = _call(f"merge{where}", exchange.merge, group, message, state, params)
      return _like(f"merge{where}", returned, params=params, state=state)

    return exchange._replace(launch=launch, merge=merge)

  def evaluate(group: Any, state: Tree, params: Tree) -> Tree:
    return _same("evaluate", "params", _call("evaluate", algorithm.evaluate, group, state, params), params)

  exchanges = tuple(checked(place, exchange) for place, exchange in enumerate(algorithm.exchanges))
  return algorithm._replace(init=init, local=local, exchanges=exchanges, evaluate=evaluate)


def of_server(algorithm: ServerAlgorithm, params: Tree) -> ServerAlgorithm:
  """Wrap a server algorithm so that the results of its functions are checked, and trace each function once.

  Args:
    algorithm: the server algorithm.
    params: the model's parameters, as arrays or shapes.

  Raises:
    ValueError: if it is not a `ServerAlgorithm` or a function breaks the contract.
  """
  check_server(algorithm)

  def init(params: Tree) -> tuple[Tree, Tree, Tree]:
    returned = _call("init", algorithm.init, params)
    if not isinstance(returned, tuple) or len(returned) != 3:
      raise ValueError(f"init must return (worker state, server, reply), got {_kind(returned)}.")
    return _arrays("init", returned)

  def local(grads: Tree, state: Tree, params: Tree) -> tuple[Tree, Tree]:
    return _like("local", _call("local", algorithm.local, grads, state, params), params=params, state=state)

  def request(state: Tree, params: Tree) -> Tree:
    return _arrays("request", _call("request", algorithm.request, state, params))

  def serve(server: Tree, message: Tree, visit: Visit) -> tuple[Tree, Tree]:
    after, reply = _pair("serve", _call("serve", algorithm.serve, server, message, visit), "server", "reply")
    return _same("serve", "server", after, server), _arrays("serve", reply)

  def merge(reply: Tree, state: Tree, params: Tree) -> tuple[Tree, Tree]:
    return _like("merge", _call("merge", algorithm.merge, reply, state, params), params=params, state=state)

  def evaluate(server: Tree) -> Tree:
    return _arrays("evaluate", _call("evaluate", algorithm.evaluate, server))

  def read(server: Tree, reply: Tree, visit: Visit) -> tuple[Tree, Tree]:
    assert algorithm.read
    return _like("read", _call("read", algorithm.read, server, reply, visit), server=server, reply=reply)

  checked = algorithm._replace(
    init=init, local=local, request=request, serve=serve, merge=merge, evaluate=evaluate,
    read=algorithm.read and read,
  )  # fmt: skip

  def trace_all(params: Tree) -> None:
    state, server, reply = init(params)
    visit = Visit(jnp.int32(0), jnp.int32(0 if algorithm.arrivals.peers == "none" else 1))
    local(params, state, params)
    served = serve(server, request(state, params), visit)
    _same("serve", "reply", served[1], reply)  # must match the initial reply from init
    merge(reply, state, params)
    _same("evaluate", "params", evaluate(server), params)
    if algorithm.read:
      read(server, reply, visit)

  jax.eval_shape(trace_all, params)
  return checked


def check_server(algorithm: ServerAlgorithm) -> None:
  """Check a server algorithm's fields without calling its functions. Raises ValueError."""
  _is(algorithm, ServerAlgorithm, "the algorithm")
  _functions(algorithm, ("init", "local", "request", "serve", "merge", "evaluate"))
  check("period of the algorithm", algorithm.period, integers(1))
  check("delay of the algorithm", algorithm.delay, integers(0))
  _is(algorithm.arrivals, Arrivals, "arrivals of the algorithm")
  if algorithm.lock_free is not None:
    _is(algorithm.lock_free, LockFree, "lock_free of the algorithm")


def of_model(model: Model) -> Model:
  """Wrap a model so that the results of its functions are checked. Raises ValueError if it is not a `Model`."""
  _is(model, Model, "the model")
  _functions(model, ("init", "loss"))

  def init(key: Any) -> tuple[Tree, Tree]:
    returned = _call("init of the model", model.init, key)
    _pair("init of the model", returned, "params", "extra")
    return _arrays("init of the model", returned)

  def loss(params: Tree, extra: Tree, batch: Any, key: Any) -> tuple[Any, Tree]:
    name = "loss of the model"
    returned = _call(name, model.loss, params, extra, batch, key)
    value, after = _pair(name, returned, "loss", "extra")
    if jnp.shape(value) != () or not jnp.issubdtype(jnp.result_type(_arrays(name, value)), jnp.floating):
      raise ValueError(f"{name} must return a floating-point scalar as the loss, got {_kind(value)}.")
    return value, _same(name, "extra", after, extra)

  def metrics(params: Tree, extra: Tree, batch: Any) -> Mapping[str, Any]:
    assert model.metrics
    name = "metrics of the model"
    returned = _call(name, model.metrics, params, extra, batch)
    size = len(jax.tree.leaves(batch)[0])
    if not isinstance(returned, Mapping) or "loss" not in returned:
      raise ValueError(f"{name} must return a dict with the key 'loss', got {_kind(returned)}.")
    for key, value in returned.items():
      if jnp.shape(_arrays(name, value)) != (size,):
        raise ValueError(f"{name} must return '{key}' of shape [{size}] (one value per example), got {_kind(value)}.")
    return returned

  return model._replace(init=init, loss=loss, metrics=model.metrics and metrics)


def trace_model(model: Model, batch: Any) -> None:
  """Trace a model's functions once on a batch [examples, ...]. Raises ValueError if a check of `of_model` fails."""

  def trace_all(key: Any) -> None:
    params, extra = model.init(key)
    model.loss(params, extra, batch, key)
    if model.metrics:
      model.metrics(params, extra, batch)

  jax.eval_shape(trace_all, jax.random.key(0))


def _is(value: Any, kind: type, what: str) -> None:
  if not isinstance(value, kind):
    raise ValueError(f"{what} must be a ddl.api.{kind.__name__}, got {_kind(value)}.")


def _functions(value: Any, names: tuple[str, ...]) -> None:
  for name in names:
    if not callable(returned := getattr(value, name)):
      raise ValueError(f"{name} of {type(value).__name__} must be a function, got {_kind(returned)}.")


def _call(name: str, function: Callable[..., Any], *arguments: Any) -> Any:
  """Call a user-defined function; raise a one-line ValueError if it raises ValueError or one of FAILURES."""
  try:
    return function(*arguments)
  except (*FAILURES, ValueError) as error:
    first, *more = str(error).splitlines() or [""]
    if isinstance(error, ValueError) and not more:  # already one line
      raise
    raise ValueError(f"{name} failed ({type(error).__name__}: {first}).") from error


def _pair(name: str, returned: Any, first: str, second: str) -> tuple[Any, Any]:
  if not isinstance(returned, tuple) or len(returned) != 2:
    raise ValueError(f"{name} must return ({first}, {second}), got {_kind(returned)}.")
  return returned


def _like(name: str, returned: Any, **expected: Tree) -> tuple[Any, Any]:
  """Check that a function returned a pair of trees that match the expected ones; return the pair."""
  (first, one), (second, other) = expected.items()
  pair = _pair(name, returned, first, second)
  _same(name, first, pair[0], one)
  _same(name, second, pair[1], other)
  return pair


def _same(name: str, what: str, returned: Tree, expected: Tree) -> Tree:
  """Check that a tree has the structure, shapes and types of the expected one; return it."""
  if jax.tree.structure(returned) != jax.tree.structure(expected):
    returned_names, expected_names = _names(returned), _names(expected)
    differ = [f"a tree without {key}" for key in expected_names if key not in returned_names]
    differ += [f"a tree with {key}" for key in returned_names if key not in expected_names]
    detail = differ[0] if differ else f"{type(returned).__name__} instead of {type(expected).__name__}"
    raise ValueError(f"{name} must return {what} with the structure of the initial {what}, got {detail}.")
  pairs = zip(jax.tree.leaves_with_path(returned), jax.tree.leaves(expected), strict=True)
  for (path, x), like in pairs:
    if jnp.shape(x) != jnp.shape(like) or jnp.result_type(x) != jnp.result_type(like):
      at = f"{what}{jax.tree_util.keystr(path)}"
      raise ValueError(f"{name} must return {at} as {_kind(like)}, got {_kind(x)}.")
  return returned


def _arrays(name: str, tree: Tree) -> Tree:
  """Check that all leaves of a tree are arrays or numbers; return the tree."""
  for path, x in jax.tree.leaves_with_path(tree):
    if not hasattr(x, "dtype") and not isinstance(x, bool | int | float | complex):
      place = f" at {jax.tree_util.keystr(path)}" * bool(path)
      raise ValueError(f"{name} must return arrays, got {_kind(x)}{place}.")
  return tree


def _names(tree: Tree) -> list[str]:
  return [jax.tree_util.keystr(path) or "a single array" for path, _ in jax.tree.leaves_with_path(tree)]


def _kind(value: Any) -> str:
  """Describe a value briefly: float32[3, 4], None, tuple of 3."""
  if value is None or isinstance(value, bool | int | float | str):
    return repr(value)
  if hasattr(value, "dtype") and hasattr(value, "shape"):
    return f"{value.dtype}{list(value.shape)}"
  if isinstance(value, Mapping):
    return f"a dict with the keys {', '.join(map(repr, value))}" if value else "an empty dict"
  if isinstance(value, tuple | list):
    return f"{type(value).__name__} of {len(value)}"
  return type(value).__name__
