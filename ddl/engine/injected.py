"""Hyperparameters as arguments of the compiled program, so that the runs of a batch may differ in them.

As in `optax.inject_hyperparams`, the values are part of a worker's state, and the algorithm is built from them where it
is traced. Its structure (periods, delays, kinds of messages) is that of the first values.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ddl.api import Algorithm, Tree

Values = Mapping[str, Any]  # hyperparameters by name: numbers, or arrays []
Make = Callable[[Values], Algorithm]


class RunKey(NamedTuple):
  """The key of a run's initial state, with the hyperparameters of the run."""

  key: Any
  values: Values | None  # None: those of the algorithm


class Injected(NamedTuple):
  """The state of a worker, with its hyperparameters."""

  values: dict[str, jax.Array]  # [] each
  state: Tree  # of the algorithm


def inject(make: Make, values: Mapping[str, float]) -> Algorithm:
  """Return the algorithm of these hyperparameters, which its state holds.

  Args:
    make: hyperparameters -> the algorithm; it must not branch on their values.
    values: of a run whose key is no `RunKey`.
  """

  def init(group: Any, params: Tree, key: Any) -> Injected:
    key, own = key if isinstance(key, RunKey) else RunKey(key, None)
    hyperparameters = {name: jnp.asarray((own or values)[name], jnp.result_type(float)) for name in values}
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

  exchanges = tuple(
    exchange._replace(launch=partial(launch, index), merge=partial(merge, index))
    for index, exchange in enumerate(make(values).exchanges)
  )
  return Algorithm(init, local, exchanges, evaluate)
