"""RelaySGD."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from ddl.algorithms.gossip.graphs import from_neighbors, hops, own_zero
from ddl.api import Algorithm, Exchange, Spec, Taxonomy, Tree, inner_step
from ddl.group import Group
from ddl.ranges import PositiveInt, checked

TREES = ("chain", "binary_tree")


class Message(NamedTuple):
  """A sum of models that a worker receives from a neighbor."""

  total: Tree  # m_ji: sum of the models on the neighbor's side of the edge; those of distant workers are older
  count: jax.Array  # [] number of models in the sum


class RelayState(NamedTuple):
  inner: optax.OptState
  received: tuple[Message, ...]  # the last message received in each hop, from at most one neighbor


@checked
def relay_sgd(inner: optax.GradientTransformation, *, tree: str = "chain", workers: PositiveInt) -> Algorithm:
  """Relay models along a tree, so that each worker averages all models, with delays for distant ones (RelaySGD).

  x_i <- x_i + inner(g_i); m_ij <- x_i + sum_{k != j} m_ki; x_i <- ((p - sum_j c_ji) x_i + sum_j m_ji) / p

  Vogels, He, Koloskova, Lin, Karimireddy, Stich, Jaggi 2021, arXiv 2110.04175. Worker i sends m_ij to its neighbor j:
  the sum of its model and of the models that its other neighbors k sent in the step before. c_ij counts the models in
  m_ij; in the first steps not all models have arrived, and x_i replaces the missing ones, as in the authors' code for
  deep learning. With a constant rate and exact gradients all workers converge to the minimum of the mean loss. With two
  workers this is local SGD with period 1. Large learning rates need a tree of small diameter. A worker sends its model
  and a count (n + 4 bytes) to each neighbor in each step, and stores one model per neighbor. The evaluated model is the
  mean of the models. If workers leave or join an elastic run, all workers discard the messages that they have received.

  Args:
    inner: optimizer of each worker; its state stays local.
    tree: "chain" (ranks in order) or "binary_tree" (the parent of worker i is (i - 1) // 2).
    workers: number of workers (p).
  """
  if tree not in TREES:
    raise ValueError(f"relay_sgd.tree must be one of {', '.join(TREES)}, got {tree!r}.")
  edges = np.zeros((workers, workers))
  for i in range(1, workers):
    parent = i - 1 if tree == "chain" else (i - 1) // 2
    edges[i, parent] = edges[parent, i] = 1
  steps = hops(edges)
  sources = np.array([[-1 if s is None else s for s in hop.sources] for hop in steps]).reshape(len(steps), workers)
  # target[h, i]: the neighbor to which worker i sends in hop h, -1 for none
  target = np.full_like(sources, -1)
  for h, i in zip(*np.nonzero(sources >= 0), strict=True):
    target[h, sources[h, i]] = i

  def init(group: Group, params: Tree, key: Any) -> RelayState:
    none = Message(jax.tree.map(jnp.zeros_like, params), own_zero(params, jnp.float32))
    return RelayState(inner.init(params), (none,) * len(steps))

  def launch(group: Group, state: RelayState, params: Tree) -> tuple[tuple[Message, ...], RelayState]:
    own, rank = Message(params, jnp.ones((), jnp.float32)), group.index()
    messages = []
    for h, hop in enumerate(steps):
      relayed = own
      for old, message in enumerate(state.received):
        passes = jnp.asarray((sources[old] >= 0) & (sources[old] != target[h]))[rank]  # k != j
        relayed = jax.tree.map(
          lambda m, k, passes=passes: m + jnp.where(passes, k, jnp.zeros_like(k)), relayed, message
        )
      ((_, received),) = from_neighbors(group, [hop], relayed)  # m_ji = x_j + sum_{k != i} m_kj
      messages.append(received)
    return tuple(messages), state

  def merge(group: Group, messages: tuple[Message, ...], state: RelayState, params: Tree) -> tuple[Tree, RelayState]:
    count = sum(message.count for message in messages)

    def one(x: jax.Array, *received: jax.Array) -> jax.Array:  # ((p - sum_j c_ji) x_i + sum_j m_ji) / p
      return (jnp.asarray(workers - count, x.dtype) * x + sum(received)) / workers

    return jax.tree.map(one, params, *(message.total for message in messages)), state._replace(received=messages)

  def evaluate(group: Group, state: RelayState, params: Tree) -> Tree:
    return group.mean(params)

  def regroup(state: RelayState) -> RelayState:
    return state._replace(received=jax.tree.map(jnp.zeros_like, state.received))

  return Algorithm(init, inner_step(inner), (Exchange(launch, merge),), evaluate, regroup)


SPEC = Spec(
  factory=relay_sgd,
  title="RelaySGD",
  citation="Vogels et al. 2021, arXiv 2110.04175",
  taxonomy=Taxonomy("data", "decentralized", "synchronous", "peer to peer", "parameters"),
)
