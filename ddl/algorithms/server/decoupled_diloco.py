"""Decoupled DiLoCo."""

from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax

from ddl.api import ServerAlgorithm, Spec, Taxonomy, Tree, Visit, descend
from ddl.precision import ravel, wide
from ddl.ranges import (
  ByWorkers,
  Momentum,
  NonNegativeInt,
  OuterRate,
  PositiveInt,
  UnitInterval,
  check,
  checked,
  integers,
)

QUORUM: Any = ByWorkers("p", lambda p: p)
AVERAGES = ("radial", "mean")
MOST_FRAGMENTS = 64  # each one takes time to compile


class LearnerState(NamedTuple):
  inner: optax.OptState
  base: Tree  # x_q when fragment q was last sent, or Theta_q when it was last received
  step: jax.Array  # [] int32: finished steps
  since: jax.Array  # [fragments] int32: finished steps when each fragment's base was set


class Progress(NamedTuple):
  """A learner's message."""

  moved: jax.Array  # [size] D_q, padded to the size of the largest fragment
  fragment: jax.Array  # [] int32: q
  steps: jax.Array  # [] int32: number of steps in which the learner made D_q


class Update(NamedTuple):
  """The syncer's reply."""

  values: jax.Array  # [size] Theta of a fragment, padded
  fragment: jax.Array  # [] int32: that fragment; -1: none
  sent: jax.Array  # [] int32: the fragment of the learner's message; -1: none


class Syncer(NamedTuple):
  center: Tree  # Theta
  momentum: Tree  # m
  moved: Tree  # [workers, ...]: each learner's D since the last merge of the fragment
  steps: jax.Array  # [workers, fragments] int32: number of steps in which it was made
  version: jax.Array  # [fragments] int32: number of merges
  taken: jax.Array  # [workers, fragments] int32: the last version that each learner received


@checked
def decoupled_diloco(
  inner: optax.GradientTransformation,
  *,
  quorum: PositiveInt = QUORUM,
  average: str = "radial",
  fragments: Annotated[int, integers(1, MOST_FRAGMENTS)] = 4,
  period: PositiveInt = 6,
  delay: NonNegativeInt = 2,
  keep: UnitInterval = 0.0,
  outer_learning_rate: OuterRate = 0.7,
  outer_momentum: Momentum = 0.9,
  workers: PositiveInt,
) -> ServerAlgorithm:
  """Merge each fragment of the parameters once a quorum of learners has sent its progress (Decoupled DiLoCo).

  x_i <- x_i + inner(g); every H / P steps learner i sends D_i,q = base_i,q - x_i,q of the next fragment q; when K
  learners have sent theirs, D = average_i(D_i,q; weights w_i), m <- mu m + D, Theta_q <- Theta_q - e (D + mu m);
  a learner receives a merged fragment tau steps after one of its messages: x_i,q <- a x_i,q + (1 - a) Theta_q

  Douillard et al. 2026, arXiv 2604.21428; the rule follows third-party descriptions, because no code by the authors is
  available. Learners never wait for each other. The paper's weights are w_i = tokens^2 / steps, counted since the last
  merge of q. As all batches have the same size, w_i is the number of steps in which D_i,q was made. The radial average
  keeps the norm: D = r u / |u| per array, with r the mean of |D_i| and u the mean of D_i / |D_i|. It is longer than the
  mean of nearly orthogonal D_i, so a rate e tuned for one average does not fit the other. The paper takes the mean for
  embeddings; ddl takes the same average for all arrays.

  In the printed rule, D_i,q is the difference from the current Theta_q, so a late learner would pull Theta_q back to
  the learner's starting point. Here D_i,q is the difference from the learner's own base: x_i,q when it was last sent,
  or Theta_q when it was last received, whichever is later. With a = 0, progress counts at most once, because a merged
  fragment overwrites what the learner did between its message and the reply. If a learner sends q again before the
  merge, its new progress is added to its D. There is no grace time: the K-th message starts the merge. Each reply
  contains at most one merged fragment that the learner lacks: the one just sent, or else the one that the learner sent
  most recently before it. Array i of the parameters is in fragment i mod P. Messages and replies have the size of the
  largest fragment plus two integers. The syncer stores p + 2 models. With K = p, a bsp barrier, P = 1, tau = 0, a = 0
  and the mean this is DiLoCo. The evaluated model is Theta.

  Args:
    inner: optimizer of each learner; its state stays local and is not reset.
    quorum: learners per merge (K), by default p; 1 to 8 in the paper. A run has p / K times as many outer steps as with
      K = p, so a small quorum needs a smaller rate e.
    average: "radial" or "mean".
    fragments: number of fragments (P); 24 in the paper. If there are fewer arrays, the last fragments are empty.
    period: steps between two messages of a learner (H / P); 1 in the paper, where H = P = 24.
    delay: steps from a message to the merge of its reply (tau), at most `period`; 2 in the paper.
    keep: weight of the learner's own parameters when it receives a fragment (a).
    outer_learning_rate: rate of the outer steps (e), or an optax schedule of it that counts each fragment's merges.
    outer_momentum: Nesterov momentum of the outer steps (mu).
    workers: number of learners (p).
  """
  check(f"decoupled_diloco.quorum with {workers} workers", quorum, integers(1, workers))
  check(f"decoupled_diloco.delay with period {period}", delay, integers(0, period))
  if average not in AVERAGES:
    raise ValueError(f"decoupled_diloco.average must be one of {', '.join(AVERAGES)}, got {average!r}.")
  numbers = np.arange(fragments, dtype=np.int32)
  combine = radial_average if average == "radial" else mean_average

  def part(tree: Tree, q: int) -> list[jax.Array]:
    return jax.tree.leaves(tree)[q::fragments]

  def put(tree: Tree, q: int, new: list[jax.Array]) -> Tree:
    leaves, structure = jax.tree.flatten(tree)
    leaves[q::fragments] = new
    return structure.unflatten(leaves)

  def vector(tree: Tree, q: Any) -> jax.Array:
    """Return fragment q as a vector, padded with zeros to the size of the largest fragment."""
    dtype = jax.eval_shape(lambda tree: ravel(tree)[0], tree).dtype
    flat = [ravel(part(tree, k))[0] if part(tree, k) else jnp.zeros(0, dtype) for k in range(fragments)]
    size = max(x.size for x in flat)
    return lax.switch(q, [lambda x=x: jnp.pad(x.astype(dtype), (0, size - x.size)) for x in flat])

  def arrays(values: jax.Array, tree: Tree, q: int) -> list[jax.Array]:
    """Invert `vector`: return the arrays of fragment q. tree: has the shapes and types of the parameters."""
    if not part(tree, q):
      return []
    flat, unravel = ravel(part(tree, q))
    return unravel(values[: flat.size].astype(flat.dtype))

  def due(step: jax.Array) -> jax.Array:
    return (step // period - 1) % fragments  # q, after a multiple of H / P steps

  def rebased(state: LearnerState, params: Tree, q: jax.Array) -> LearnerState:
    """Set fragment q's base to the parameters and its `since` to the current step; for q = -1, change nothing."""
    base = state.base
    for k in range(fragments):
      base = put(base, k, [jnp.where(q == k, x, b) for x, b in zip(part(params, k), part(base, k), strict=True)])
    return state._replace(base=base, since=jnp.where(numbers == q, state.step, state.since))

  def init(params: Tree) -> tuple[LearnerState, Syncer, Update]:
    none, zero = jnp.full((), -1, jnp.int32), jnp.zeros((), jnp.int32)
    state = LearnerState(inner.init(params), params, zero, jnp.zeros(fragments, jnp.int32))
    several = jax.tree.map(lambda x: jnp.zeros((workers, *x.shape), x.dtype), params)
    counts, zeros = jnp.zeros((workers, fragments), jnp.int32), jax.tree.map(jnp.zeros_like, params)
    syncer = Syncer(params, zeros, several, counts, jnp.zeros(fragments, jnp.int32), counts)
    return state, syncer, Update(jnp.zeros_like(vector(params, 0)), none, none)

  def local(grads: Tree, state: LearnerState, params: Tree) -> tuple[Tree, LearnerState]:
    if delay:  # the message was sent just before the step
      state = rebased(state, params, jnp.where(state.step % period == 0, due(state.step), -1))
    params, inner_state = descend(inner, grads, state.inner, params)  # x_i <- x_i - eta g
    return params, state._replace(inner=inner_state, step=state.step + 1)

  def request(state: LearnerState, params: Tree) -> Progress:
    q = due(state.step)
    moved = jax.tree.map(lambda b, x: b - x, state.base, params)  # D_i,q = base_i,q - x_i,q
    return Progress(vector(moved, q), q, state.step - state.since[q])

  def serve(server: Syncer, message: Progress, visit: Visit) -> tuple[Syncer, Update]:
    i, q = visit.worker, message.fragment
    steps = server.steps.at[i, q].add(message.steps)
    ready = jnp.sum(steps[:, q] > 0) >= quorum
    rate = outer_learning_rate(server.version[q]) if callable(outer_learning_rate) else outer_learning_rate

    def add(k: int) -> Tree:
      new = arrays(message.moved, server.center, k)
      return put(server.moved, k, [a.at[i].add(d) for a, d in zip(part(server.moved, k), new, strict=True)])

    def merge_fragment(k: int) -> tuple[Tree, Tree, Tree]:
      center, momentum, rest = [], [], []
      for z, m, d in zip(*(part(tree, k) for tree in (server.center, server.momentum, moved)), strict=True):
        mean = combine(d, steps[:, k])  # D
        momentum.append(outer_momentum * m + mean)  # m <- mu m + D
        center.append(z - jnp.asarray(rate, z.dtype) * (mean + outer_momentum * momentum[-1]))  # Theta_q <- ...
        rest.append(jnp.zeros_like(d))
      return put(server.center, k, center), put(server.momentum, k, momentum), put(moved, k, rest)

    moved = lax.switch(q, [lambda k=k: add(k) for k in range(fragments)])
    merges = [lambda k=k: merge_fragment(k) for k in range(fragments)]
    unchanged = (server.center, server.momentum, moved)
    center, momentum, moved = lax.cond(ready, lambda: lax.switch(q, merges), lambda: unchanged)
    steps = jnp.where(ready & (numbers == q), 0, steps)
    version = server.version.at[q].add(ready.astype(jnp.int32))
    none = jnp.full_like(q, -1)
    return reply_of(Syncer(center, momentum, moved, steps, version, server.taken), i, q, none)

  def reply_of(server: Syncer, i: jax.Array, sent: jax.Array, again: jax.Array) -> tuple[Syncer, Update]:
    """Reply with fragment `again` or, if that is -1, with the next fragment that learner i lacks, if any."""
    lacks = server.version > server.taken[i]
    order = (sent - numbers) % fragments  # q, q - 1, ...
    following = jnp.where(lacks.any(), order[jnp.argmax(lacks[order])], -1)
    f = jnp.where(again >= 0, again, following)
    taken = server.taken.at[i].set(jnp.where(numbers == f, server.version, server.taken[i]))
    return server._replace(taken=taken), Update(vector(server.center, jnp.maximum(f, 0)), f, sent)

  def read(server: Syncer, reply: Update, visit: Visit) -> tuple[Syncer, Update]:
    return reply_of(server, visit.worker, reply.sent, reply.fragment)

  def merge(reply: Update, state: LearnerState, params: Tree) -> tuple[Tree, LearnerState]:
    if not delay:
      state = rebased(state, params, reply.sent)
    center = params
    for k in range(fragments):
      center = put(center, k, arrays(reply.values, params, k))
    state = rebased(state, center, reply.fragment)  # base_i,q <- Theta_q
    for k in range(fragments):
      pairs = zip(part(params, k), part(center, k), strict=True)
      params = put(params, k, [jnp.where(reply.fragment == k, keep * x + (1 - keep) * z, x) for x, z in pairs])
    return params, state  # x_i,q <- a x_i,q + (1 - a) Theta_q

  def evaluate(server: Syncer) -> Tree:
    return server.center

  return ServerAlgorithm(init, local, request, serve, merge, evaluate, period, delay, read, averages=False)


def mean_average(moved: jax.Array, weights: jax.Array) -> jax.Array:
  """Return the weighted mean over the first axis."""
  return jnp.tensordot(_shares(moved, weights), moved, 1)


def radial_average(moved: jax.Array, weights: jax.Array) -> jax.Array:
  """Return the weighted mean direction of arrays [n, ...], scaled to the weighted mean of their norms.

  D = r u / |u|, r = sum_i w_i |D_i|, u = sum_i w_i D_i / |D_i|, for weights that sum to 1. If the directions
  cancel, so that u is 0 up to rounding, return the weighted mean.
  """
  d = moved.astype(wide(moved.dtype))
  shares, norms = _shares(d, weights), jnp.sqrt(jnp.sum(jnp.square(d.reshape(len(d), -1)), axis=1))
  directions = d / jnp.where(norms > 0, norms, 1).reshape(-1, *[1] * (d.ndim - 1))
  direction = jnp.tensordot(shares, directions, 1)  # u
  length = jnp.sqrt(jnp.sum(jnp.square(direction)))  # |u|
  valid = length > 100 * jnp.finfo(d.dtype).eps
  radial = direction * (shares @ norms / jnp.where(valid, length, 1))  # r u / |u|
  return jnp.where(valid, radial, mean_average(d, weights)).astype(moved.dtype)


def _shares(moved: jax.Array, weights: jax.Array) -> jax.Array:
  weights = weights.astype(moved.dtype)
  return weights / jnp.sum(weights)


SPEC = Spec(
  factory=decoupled_diloco,
  title="Decoupled DiLoCo",
  citation="Douillard et al. 2026, arXiv 2604.21428",
  taxonomy=Taxonomy("data", "decentralized", "asynchronous", "parameter server", "differences"),
  symbols={
    "quorum": "K",
    "average": "RDA",
    "fragments": "P",
    "period": "H / P",
    "delay": "tau",
    "keep": "a",
    "outer_learning_rate": "e",
    "outer_momentum": "mu",
  },
)
