"""Comparisons with the NumPy references: inner optimizers, a small parameter tree, a training loop and a tolerance."""

import inspect
from functools import cache

import jax
import jax.extend.core
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree
from reference import collective as reference

from ddl.algorithms import COLLECTIVE, SERVER
from ddl.config.catalog import keywords
from ddl.group import Group
from ddl.ranges import ByWorkers

W = Group("w")


def lenient(inner):
  """Run an optimizer under standard dtype promotion, which the `b1**count` of optax.adam requires."""

  def standard(function):
    def call(*args):
      with jax.numpy_dtype_promotion("standard"):
        return function(*args)

    return call

  return optax.GradientTransformation(standard(inner.init), standard(inner.update))


def falling(step):
  """Return a learning rate that decreases linearly to 0 at step 20, in the test's precision (optax uses float32)."""
  if isinstance(step, (int, np.integer)):
    return 0.1 * max(0.0, 1 - step / 20)
  return 0.1 * jnp.maximum(0.0, 1 - jnp.asarray(step, jnp.result_type(float)) / 20)


def outer_cosine(step):
  """Return a cosine decay of an outer learning rate from 0.7 to 0 at outer step 4; computed in NumPy for an int."""
  if isinstance(step, (int, np.integer)):
    return 0.35 * (1 + np.cos(np.pi * min(step, 4) / 4))
  with jax.numpy_dtype_promotion("standard"):
    return optax.cosine_decay_schedule(0.7, 4)(step)


INNER = {  # (optimizer in optax, the same optimizer in NumPy)
  "sgd": (optax.sgd(0.1), reference.sgd(0.1)),
  "momentum": (optax.sgd(0.05, momentum=0.9), reference.heavy_ball(0.05, 0.9)),
  "nesterov": (optax.sgd(0.05, momentum=0.9, nesterov=True), reference.nesterov(0.05, 0.9)),
  "adam": (lenient(optax.adam(0.05)), reference.adam(0.05)),
  "adamw": (lenient(optax.adamw(0.05, weight_decay=0.1)), reference.adam(0.05, decay=0.1)),
  "decay": (
    optax.chain(optax.add_decayed_weights(0.1), optax.sgd(0.1)),
    reference.sgd(0.1, decay=0.1),
  ),
  "falling": (optax.sgd(falling, momentum=0.9), reference.scheduled(reference.heavy_ball(1.0, 0.9), falling)),
  "falling adam": (lenient(optax.adam(falling)), reference.scheduled(reference.adam(1.0), falling)),
  "injected": (
    lenient(optax.inject_hyperparams(optax.sgd)(falling, momentum=0.9)),
    reference.scheduled(reference.heavy_ball(1.0, 0.9), falling),
  ),
}
SHAPES = {"bias": (), "kernel": (2, 3)}  # 7 values: neither 2 nor 8 workers divide them


def tree_of(flat):
  """Unpack a vector [n] into the leaves of SHAPES, in the order of their names."""
  leaves, at = {}, 0
  for name, shape in SHAPES.items():
    count = int(np.prod(shape))
    leaves[name] = flat[at : at + count].reshape(shape)
    at += count
  return leaves


def flat_of(tree):
  """Pack a tree into a vector [n]."""
  return ravel_pytree(tree)[0]


def events(exchange, t):
  """Return whether a message is launched and whether one arrives after t steps, as `ddl.api.Exchange` defines it."""

  def launched(t):
    if isinstance(exchange.period, int):
      k, rest = divmod(t - exchange.offset, exchange.period)
      return t >= 0 and rest == 0 and k >= 1
    at, k = exchange.offset, 0
    while at < t or k == 0:
      at, k = at + exchange.period(k), k + 1
    return t >= 0 and at == t

  return launched(t), t >= exchange.delay and launched(t - exchange.delay)


@cache
def gradients(grad):
  """Return a compiled function (step, params of all workers) -> their gradients."""

  def one(worker, step, params):
    return tree_of(grad(worker, step, flat_of(params)))

  lifted = jax.jit(jax.vmap(one, in_axes=(0, None, 0)))
  return lambda step, params: lifted(jnp.arange(params["bias"].shape[0]), step, params)


def traced(fn):
  """Run a function operation by operation, but trace it only once per structure, shapes and types of its arguments."""
  output = {}

  def call(*args):
    leaves, structure = jax.tree.flatten(args)
    kind = structure, *((jnp.shape(x), jnp.result_type(x)) for x in leaves)
    if kind not in output:
      jaxpr, shapes = jax.make_jaxpr(fn, return_shape=True)(*args)
      output[kind] = jax.extend.core.jaxpr_as_fun(jaxpr), jax.tree.structure(shapes)
    run, result = output[kind]
    return jax.tree.unflatten(result, run(*leaves))

  return call


def drive(algorithm, x0, grad, *, workers, steps, prepare=lambda state: state, group=W, compiled=None):
  """Train and return (params, evaluated params: [steps, workers, n] each, state).

  Args:
    x0: initial params, [n] or [workers, n].
    group: a group, or a function rank -> group.
    compiled: how to compile functions. By default operations run one by one for 8 workers, because most are already
      compiled, and functions are compiled as a whole for other numbers of workers.
  """
  compiled = compiled or (traced if workers == 8 else jax.jit)

  @cache
  def everywhere(fn):
    def one(rank, *args):
      return fn(group(rank) if callable(group) else group, *args)

    return compiled(lambda *args: jax.vmap(one, axis_name="w")(jnp.arange(workers), *args))

  flat = everywhere(lambda _, tree: flat_of(tree))
  params = everywhere(lambda _, x: tree_of(x))(jnp.broadcast_to(jnp.asarray(x0), (workers, np.shape(x0)[-1])))
  state = prepare(everywhere(lambda g, x: algorithm.init(g, x, jax.random.key(0)))(params))
  in_flight, history, evaluated = [[] for _ in algorithm.exchanges], [], []
  for t in range(steps + 1):
    if t:
      params, state = everywhere(algorithm.local)(gradients(grad)(t - 1, params), state, params)
    for i, exchange in enumerate(algorithm.exchanges):
      if exchange.delay and events(exchange, t)[1]:
        params, state = everywhere(exchange.merge)(in_flight[i].pop(0), state, params)
    for exchange in algorithm.exchanges:
      if not exchange.delay and events(exchange, t)[0]:
        message, state = everywhere(exchange.launch)(state, params)
        params, state = everywhere(exchange.merge)(message, state, params)
    if t:
      history.append(flat(params))
      evaluated.append(flat(everywhere(algorithm.evaluate)(state, params)))
    for i, exchange in enumerate(algorithm.exchanges):
      if exchange.delay and events(exchange, t)[0]:
        message, state = everywhere(exchange.launch)(state, params)
        in_flight[i].append(message)
  return jnp.stack(history), jnp.stack(evaluated), state


def defaults(name, workers):
  """Return the default hyperparameters of an algorithm."""
  parameters = keywords((COLLECTIVE | SERVER)[name].factory).items()
  values = {key: parameter.default for key, parameter in parameters if parameter.default is not parameter.empty}
  return {key: value.value(workers) if isinstance(value, ByWorkers) else value for key, value in values.items()}


def build(name, inner, workers=8, **hyper):
  """Build a collective algorithm; pass `workers` to factories that take it."""
  factory = COLLECTIVE[name].factory
  more = {"workers": workers} if "workers" in inspect.signature(factory).parameters else {}
  return factory(inner, **hyper, **more)


def close(actual, expected):
  """Assert equality to a relative tolerance of 1e-12."""
  # The values are of size one; a coordinate that passes through zero has no relative precision.
  np.testing.assert_allclose(actual, expected, rtol=1e-12, atol=1e-13)
