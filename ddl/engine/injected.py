"""Hyperparameters as arguments of the compiled program, so that runs trained by one program may differ in them.

As in `optax.inject_hyperparams`, the values are part of a worker's state, and the algorithm is rebuilt from them during
tracing. Only the values passed to `inject` determine the algorithm's structure (periods, delays, kinds of messages).
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ddl.api import Algorithm, Tree

Values = Mapping[str, Any]  # name -> hyperparameter, a number or an array []
Make = Callable[[Values], Algorithm]


class RunKey(NamedTuple):
  """A random key for the initial state of a run, with the run's hyperparameters."""

  key: Any
  values: Values | None  # None: the values that the algorithm was built with


class Injected(NamedTuple):
  """A worker's state with its hyperparameters."""

  values: dict[str, jax.Array]  # each []
  state: Tree  # the algorithm's state


def inject(make: Make, values: Mapping[str, float]) -> Algorithm:
  """Build an algorithm that stores its hyperparameters in its state.

  Args:
    make: hyperparameters -> the algorithm; it must not branch on their values.
    values: hyperparameters of runs that start from a plain key instead of a `RunKey`.
  """

  def init(group: Any, params: Tree, key: Any) -> Injected:
    key, run_values = key if isinstance(key, RunKey) else RunKey(key, None)
    hyperparameters = {name: jnp.asarray((run_values or values)[name], jnp.result_type(float)) for name in values}
    return Injected(hyperparameters, make(hyperparameters).init(group, params, key))

  def local(group: Any, grads: Tree, state: Injected, params: Tree) -> tuple[Tree, Injected]:
    params, inner = make(state.values).local(group, grads, state.state, params)
    return params, state._replace(state=inner)

  def launch(index: int, group: Any, state: Injected, params: Tree) -> tuple[Tree, Injected]:
    message, inner = make(state.values).exchanges[index].launch(group, state.state, params)
    return message, state._replace(state=inner)

  def merge(index: int, group: Any, message: Tree, state: Injected, params: Tree) -> tuple[Tree, Injected]:
    params, inner = make(state.values).exchanges[index].merge(group, message, state.state, params)
    return params, state._replace(state=inner)

  def evaluate(group: Any, state: Injected, params: Tree) -> Tree:
    return make(state.values).evaluate(group, state.state, params)

  plain = make(values)
  exchanges = tuple(
    exchange._replace(launch=partial(launch, index), merge=partial(merge, index))
    for index, exchange in enumerate(plain.exchanges)
  )
  return Algorithm(init, local, exchanges, evaluate, takes_step=plain.takes_step)
