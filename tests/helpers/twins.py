"""For comparisons with the NumPy twins: inner optimizers, a tree of leaves, a plain loop, a tolerance."""

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
  """The optimizer under standard dtype promotion: optax.adam's `b1**count` is not strict. ddl's own code stays so."""

  def standard(function):
    def call(*args):
      with jax.numpy_dtype_promotion("standard"):
        return function(*args)

    return call

  return optax.GradientTransformation(standard(inner.init), standard(inner.update))


def falling(step):
  """A rate that is 0 from step 20 on; in the precision of the test, unlike optax's."""
  if isinstance(step, (int, np.integer)):
    return 0.1 * max(0.0, 1 - step / 20)
  return 0.1 * jnp.maximum(0.0, 1 - jnp.asarray(step, jnp.result_type(float)) / 20)


INNER = {  # the same optimizer twice: for ddl and for the twin
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
  """[n] -> a tree of leaves of several shapes, packed in the order of their names."""
  leaves, at = {}, 0
  for name, shape in SHAPES.items():
    count = int(np.prod(shape))
    leaves[name] = flat[at : at + count].reshape(shape)
    at += count
  return leaves


def flat_of(tree):
  return ravel_pytree(tree)[0]


def events(exchange, t):
  """(whether a message leaves, whether one arrives) after t steps: the contract of `ddl.api.Exchange`, word by word."""

  def leaves(t):
    if isinstance(exchange.period, int):
      k, rest = divmod(t - exchange.offset, exchange.period)
      return t >= 0 and rest == 0 and k >= 1
    at, k = exchange.offset, 0
    while at < t or k == 0:
      at, k = at + exchange.period(k), k + 1
    return t >= 0 and at == t

  return leaves(t), t >= exchange.delay and leaves(t - exchange.delay)


@cache
def gradients(grad):
  """(step, params) of all workers -> their gradients, compiled once per gradient function."""

  def one(worker, step, params):
    return tree_of(grad(worker, step, flat_of(params)))

  lifted = jax.jit(jax.vmap(one, in_axes=(0, None, 0)))
  return lambda step, params: lifted(jnp.arange(params["bias"].shape[0]), step, params)


def traced(fn):
  """The function, operation by operation, traced once for arguments of one structure, shapes and types."""
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


def drive(algorithm, x0, grad, *, workers, steps, prepare=lambda state: state, group=W):
  """Return (params, evaluate: [steps, workers, n], state); x0 is [n], or [workers, n] to start apart.

  The algorithm runs without jit, because compiling it costs more than ten such steps, but is traced once. group: one,
  or a function of the worker's rank.
  """

  @cache
  def everywhere(fn):
    def one(rank, *args):
      return fn(group(rank) if callable(group) else group, *args)

    return traced(lambda *args: jax.vmap(one, axis_name="w")(jnp.arange(workers), *args))

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
      history.append(jax.vmap(flat_of)(params))
      evaluated.append(jax.vmap(flat_of)(everywhere(algorithm.evaluate)(state, params)))
    for i, exchange in enumerate(algorithm.exchanges):
      if exchange.delay and events(exchange, t)[0]:
        message, state = everywhere(exchange.launch)(state, params)
        in_flight[i].append(message)
  return jnp.stack(history), jnp.stack(evaluated), state


def defaults(name, workers):
  """Return the hyper-parameters that an experiment starts from; what has no default is left out."""
  keys = keywords((COLLECTIVE | SERVER)[name].factory).items()
  values = {key: each.default for key, each in keys if each.default is not each.empty}
  return {key: value.value(workers) if isinstance(value, ByWorkers) else value for key, value in values.items()}


def build(name, inner, workers=8, **hyper):
  """Return the algorithm; `workers` goes to factories that take it."""
  factory = COLLECTIVE[name].factory
  more = {"workers": workers} if "workers" in inspect.signature(factory).parameters else {}
  return factory(inner, **hyper, **more)


def close(actual, expected):
  # The values are of size one; a coordinate that passes through zero has no relative precision.
  np.testing.assert_allclose(actual, expected, rtol=1e-12, atol=1e-13)
