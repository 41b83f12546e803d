"""Collective algorithms as optax transformations, for custom training loops."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax

from ddl.api import Algorithm, AxisName, Exchange, ServerAlgorithm, Tree
from ddl.contract import of_collective
from ddl.errors import OptionError
from ddl.group import Group
from ddl.group_recorder import record
from ddl.schedule import Clock, check_in_flight


class Queue(NamedTuple):
  """The state of an exchange: its messages in flight (oldest first), and its launch steps if the period varies."""

  messages: tuple[Tree, ...]  # [slots]; free slots hold stale values
  clock: Any  # (launches so far [], next launch step [], launch steps of messages [max(delay, 1)] with -1 for a free
  # slot); () for a constant period


class AsOptaxState(NamedTuple):
  """One worker's state of `as_optax`; its leaves have no axis of workers."""

  count: jax.Array  # [] int32: finished steps
  algorithm: Tree
  queues: tuple[Queue, ...]  # one per exchange

  def evaluate(self, params: Tree) -> Tree:
    """Return the consensus model.

    Only the subclass in `as_optax` can compute it. An unpickled state is of this base class, which raises ValueError.
    """
    raise ValueError("the state passed to consensus must come from tx.init or tx.update, got an unpickled state.")

  def __reduce__(self) -> tuple[Any, ...]:
    return AsOptaxState, tuple(self)


def consensus(state: Any, params: Tree) -> Tree:
  """Return the model to evaluate, equal on all workers, such as EASGD's center or the mean of local SGD's models.

  Call this function where the named axis of the workers is bound, as for the transformation's `update`.

  Args:
    state: this worker's state of `as_optax`, or of a transformation that contains one, such as `optax.chain`.
    params: this worker's parameters.

  Raises:
    ValueError: if the state does not contain exactly one state of `as_optax`, or was unpickled.
  """
  nodes = jax.tree.leaves(state, is_leaf=lambda node: isinstance(node, AsOptaxState))
  states = [node for node in nodes if isinstance(node, AsOptaxState)]
  if len(states) != 1:
    raise OptionError("state", "an optimizer state with exactly one state of as_optax", f"{len(states)} such states")
  return states[0].evaluate(params)


def as_optax(algorithm: Algorithm, axis_name: AxisName, *, seed: int = 0) -> optax.GradientTransformationExtraArgs:
  """Wrap a collective algorithm as an optax transformation; call `update` once per step and worker.

  `update(grads, state, params)` takes this worker's gradients and returns (updates, state), with updates equal to
  (new params) - params. It must run where `axis_name` is bound: under `jax.vmap(axis_name=...)`, `jax.shard_map` or
  `jax.pmap`. `init` must run there too if the shapes of the state or of messages in flight depend on the number of
  workers, as in `sharded_sync_sgd`.

  Since the length of the run is unknown, the state always has room for every message in flight. A message that would
  arrive after the last step costs memory and compile time but has no effect.

  If an algorithm sets params to a mean, they become old + (mean - old), which is equal on all workers only up to
  rounding.

  Args:
    algorithm: from a factory such as `ddl.dasgd`. A period that is a function must also accept a traced round.
    axis_name: the workers' named axis, or a pair of axes.
    seed: seed of the key passed to the algorithm's `init`; must be the same on all workers.

  Returns:
    A transformation. `ddl.consensus(state, params)` returns the model to evaluate.

  Raises:
    ValueError: if the algorithm is not collective, or a period, delay or offset is invalid; from `init`, if too many
      messages are in flight; from `update`, if params are missing.
  """
  if isinstance(algorithm, ServerAlgorithm):
    advice = "Workers visit a server one at a time, so they have no common step."
    raise OptionError("algorithm", "a collective ddl.Algorithm", "a ddl.ServerAlgorithm", advice)
  group, algorithm = Group(axis_name), of_collective(algorithm)
  clocks = [Clock(exchange) for exchange in algorithm.exchanges]
  always = all(clock.every_step for clock in clocks)

  class State(AsOptaxState):
    def evaluate(self, params: Tree) -> Tree:
      return algorithm.evaluate(group, self.algorithm, params)

  def init(params: Tree) -> AsOptaxState:
    state = algorithm.init(group, params, jax.random.key(seed))
    # The types must be those that `update` returns, so that the state can be a scan's carry.
    vary = _varying((state, params))
    state = state if always else vary(state)  # conditions cast all leaves of their branches, including counters
    queues = tuple(vary(_queue(group, clock, state, params)) for clock in clocks)
    return State(jnp.zeros((), jnp.int32), state, queues)

  def update(updates: Tree, state: Any, params: Tree | None = None, **extra_args: Any) -> tuple[Tree, AsOptaxState]:
    del extra_args
    if params is None:
      raise ValueError("params must be passed to update, got None. Call tx.update(grads, state, params).")
    # The maximum makes each counter a single value for all workers. Under vmap, a condition on one value per worker
    # would become a select, and the collective would run at every step.
    times = (state.count, tuple(queue.clock for queue in state.queues))
    count, clocks_now = (0, [()] * len(clocks)) if always else group.max(times)
    cond, new, inner = _uniform_cond((updates, state, params)), params, state.algorithm
    flights = [
      _Flight(group, clock, count, queue._replace(clock=now), cond)
      for clock, queue, now in zip(clocks, state.queues, clocks_now, strict=True)
    ]
    for flight in flights:
      inner = flight.leave(inner, new)
    new, inner = algorithm.local(group, updates, inner, new)
    for flight in flights:
      new, inner = flight.arrive(inner, new)
    for flight in flights:
      new, inner = flight.exchange(inner, new)
    step = jax.tree.map(lambda x, old: x - old, new, params)
    vary = _varying((updates, state, params))
    queues = tuple(vary(flight.queue()) for flight in flights)
    return step, state._replace(count=state.count + 1, algorithm=inner, queues=queues)

  return optax.GradientTransformationExtraArgs(init, update)


class _Flight:
  """One exchange during the step that follows `count` finished steps."""

  def __init__(self, group: Group, clock: Clock, count: Any, queue: Queue, cond: Callable[..., Any]):
    self.group, self.clock, self.count, self.cond, self.times = group, clock, count, cond, queue.clock
    self.messages: Any = queue.messages  # has `capacity` slots during the step

  def leave(self, state: Tree, params: Tree) -> Tree:
    """Launch a message if one is due and the exchange has a delay; return the state."""
    if not self.clock.delay:
      return state
    group, clock, launch = self.group, self.clock, self.clock.exchange.launch
    spare = clock.capacity - clock.slots
    self.messages += (_message(group, clock.exchange, state, params),) * spare if spare else ()
    due, place = self._launches(self.count)

    def yes(state: Tree, params: Tree, messages: tuple[Tree, ...]) -> tuple[Tree, tuple[Tree, ...]]:
      message, state = launch(group, state, params)
      if len(messages) == 1:
        return state, (message,)
      put = [jax.tree.map(lambda new, old, k=k: jnp.where(place == k, new, old), message, old)
             for k, old in enumerate(messages)]  # fmt: skip
      return state, tuple(put)

    state, self.messages = self.cond(due, yes, lambda s, _, m: (s, m), state, params, self.messages)
    return state

  def arrive(self, state: Tree, params: Tree) -> tuple[Tree, Tree]:
    """Merge the oldest message if it is due and the exchange has a delay."""
    if not self.clock.delay:
      return params, state
    group, merge, arrived = self.group, self.clock.exchange.merge, self.count + 1 - self.clock.delay

    def yes(state: Tree, params: Tree, messages: tuple[Tree, ...]) -> tuple[Tree, Tree, tuple[Tree, ...]]:
      message, *rest = messages
      params, state = merge(group, message, state, params)
      return params, state, (*rest, message)

    params, state, self.messages = self.cond(
      self._leaves(arrived), yes, lambda s, x, m: (x, s, m), state, params, self.messages
    )
    self.messages = self.messages[: self.clock.slots]
    return params, state

  def exchange(self, state: Tree, params: Tree) -> tuple[Tree, Tree]:
    """Launch and merge a message if one is due and the exchange has no delay."""
    if self.clock.delay:
      return params, state
    group, (launch, merge, *_) = self.group, self.clock.exchange

    def yes(state: Tree, params: Tree) -> tuple[Tree, Tree]:
      message, state = launch(group, state, params)
      return merge(group, message, state, params)

    due, _ = self._launches(self.count + 1)
    return self.cond(due, yes, lambda state, params: (params, state), state, params)

  def queue(self) -> Queue:
    """Return the state of the exchange for the next step."""
    return Queue(self.messages, self.times)

  def _launches(self, step: Any) -> tuple[Any, Any]:
    """Record a launch if one is due after `step` steps; return (whether it is due, number of messages in flight)."""
    clock = self.clock
    if clock.steady:
      if clock.every_step:
        return True, 0
      return self._leaves(step), self._launched(step - 1) - self._launched(step - clock.delay)
    round_, next_, left = self.times
    due, place = next_ == step, jnp.sum(left >= 0, dtype=jnp.int32)
    period = jnp.asarray(clock.exchange.period(round_ + 1), jnp.int32)  # type: ignore[operator]
    left = jnp.where(due & (jnp.arange(left.size, dtype=jnp.int32) == place), step, left)
    self.times = (round_ + due.astype(jnp.int32), next_ + jnp.where(due, period, jnp.int32(0)), left)
    return due, place

  def _launched(self, step: Any) -> jax.Array:
    """Return the number of launches that are due after at most `step` steps, for a constant period."""
    clock = self.clock
    return jnp.where(step < clock.first, 0, (step - clock.first) // clock.steady + 1)

  def _leaves(self, step: Any) -> Any:
    """Return whether a message is launched after `step` steps: True, not traced, if one is launched at every step.

    If the period varies, also delete the record of that launch.
    """
    clock = self.clock
    if clock.steady is None:
      left = self.times[2]
      due = (left[0] == step) & (step >= 0)
      self.times = (*self.times[:2], jnp.where(due, jnp.append(left[1:], jnp.int32(-1)), left))
      return due
    if clock.every_step:
      return True
    return (step >= clock.first) & ((step - clock.first) % clock.steady == 0)


def _queue(group: Group, clock: Clock, state: Tree, params: Tree) -> Queue:
  messages = ()
  if clock.slots:
    message = _message(group, clock.exchange, state, params)
    check_in_flight(clock, message)
    messages = (message,) * clock.slots
  if clock.steady:
    return Queue(messages, ())
  return Queue(messages, (jnp.int32(0), jnp.int32(clock.first), jnp.full(max(clock.delay, 1), -1, jnp.int32)))


def _message(group: Group, exchange: Exchange, state: Tree, params: Tree) -> Tree:
  """Trace `launch` without communication; return zeros with the shapes and types of its message."""
  try:
    workers = group.size()
  except NameError:
    workers = 1  # the axis is not bound; few messages depend on the number of workers
  _, (shapes, _) = record(exchange.launch, state, params, workers=workers)
  return jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)


def _uniform_cond(inputs: Tree) -> Callable[..., Any]:
  """Return a `lax.cond` whose branches return results that vary over the same axes, as `shard_map` requires.

  These are all axes over which any of `inputs` varies. A condition that is a Python bool is decided during tracing.
  """
  cast = _varying(inputs)

  def cond(due_now: Any, yes: Callable[..., Tree], no: Callable[..., Tree], *operands: Tree) -> Tree:
    if isinstance(due_now, bool):
      return yes(*operands) if due_now else no(*operands)
    return lax.cond(due_now, lambda args: cast(yes(*args)), lambda args: cast(no(*args)), operands)

  return cond


def _varying(inputs: Tree) -> Callable[[Tree], Tree]:
  """Return a function that casts the leaves of a tree to vary over all axes over which any of `inputs` varies."""
  vary = frozenset().union(*(_varies(x) for x in jax.tree.leaves(inputs)))

  def cast(tree: Tree) -> Tree:
    return jax.tree.map(
      lambda x: lax.pcast(x, tuple(missing), to="varying") if (missing := vary - _varies(x)) else x, tree
    )

  return cast


def _varies(x: Any) -> frozenset[Any]:
  return jax.typeof(x).manual_axis_type.varying
