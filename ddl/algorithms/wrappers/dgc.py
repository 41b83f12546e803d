"""Deep gradient compression."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ddl.algorithms.sparse import Sparse, array_of, largest, mean_of
from ddl.algorithms.wrappers.compressed import Compressor, compressed, compressible
from ddl.api import Algorithm, Exchange, FirstSteps, Tree, Wrapper
from ddl.group import Group
from ddl.precision import wide
from ddl.ranges import Momentum, NonNegativeFloat, NonNegativeInt, Share, checked, is_set

STAGES = 5  # of the warm-up; the last stage already has the final share and does not end
MOMENTA = {"trace", "mu", "m", "ema"}  # fields of optax states that hold a momentum


class DGCMemory(NamedTuple):
  """This worker's memory of one array."""

  momentum: jax.Array  # u_i
  unsent: jax.Array | None  # v_i; None for an array that is sent whole


class DGCState(NamedTuple):
  algorithm: Tree
  grads: Tree  # g_i, from the local step until the exchange after it


@checked
def dgc(
  algorithm: Algorithm,
  *,
  share: Share = 0.001,
  momentum: Momentum = 0.9,
  masking: bool = True,
  clip_norm: NonNegativeFloat = 0.0,
  stage_steps: NonNegativeInt = 0,
) -> Algorithm:
  """Send only the largest values of each worker's accumulated momentum (deep gradient compression).

  mean(g) becomes (1/p) sum_i s_i; u_i <- r u_i + g_i; v_i <- v_i + u_i; s_i = the k largest of v_i in magnitude;
  v_i <- 0 and u_i <- 0 where v_i was sent

  Lin, Han, Mao, Wang, Dally 2017, arXiv 1712.01887. The wrapper applies momentum before it compresses, so it rejects
  optimizers with a momentum of their own. As in the authors' code, each array with two or more axes is compressed
  separately; u_i of other arrays is sent whole. Here the k largest values are determined exactly; the paper estimates
  them from a sample. s_i is sent as in `topk`, as k values and k int32 indices, which all workers gather.

  For arrays with two or more axes, a share of 1 with masking is plain SGD, because all momentum is cleared; without
  masking, it is SGD with momentum. The authors' code also has Nesterov momentum, and a momentum of the weight decay;
  here the momentum is not Nesterov's, and the optimizer's weight decay has none.

  Args:
    algorithm: a collective algorithm that averages only gradients, in its local step, and has no exchanges, such as
      `sync_sgd` with SGD without momentum.
    share: share of each array's values to send, k = max(1, round(share n)); 0.001 in the paper.
    momentum: momentum of each worker (r).
    masking: whether to clear u_i where v_i is sent (momentum factor masking).
    clip_norm: limits the global norm of each worker's gradient to clip_norm / sqrt(p); 0: no clipping.
    stage_steps: steps per stage of the warm-up; 0: no warm-up. Stage e = 1..4 sends share^(e/5) of the values (0.25,
      0.063, 0.016, 0.004 for a share of 0.001), and all later steps send `share`. In the paper, a stage is an epoch.
      These are the shares in the authors' README; their code has share^((e+1)/6) for e = 0..4, and then `share`.
  """
  clips = is_set(clip_norm)

  def init(arrays: list[Any], key: Any) -> Tree:
    def one(x: jax.Array) -> DGCMemory:
      return DGCMemory(jnp.zeros_like(x), jnp.zeros_like(x) if x.ndim > 1 else None)

    return tuple(one(x) if compressible(x) else None for x in arrays)

  def with_share(share: float) -> Algorithm:
    def mean(group: Group, arrays: list[Any], memory: Tree) -> tuple[list[Any], Tree]:
      after, sent, whole = list(memory), {}, dict(enumerate(arrays))
      factor = _clip_factor(group, arrays, clip_norm) if clips else None
      for i, before in enumerate(memory):
        if before is None:
          continue
        g = arrays[i] if factor is None else factor.astype(arrays[i].dtype) * arrays[i]
        u = momentum * before.momentum + g  # u_i <- r u_i + g_i
        if before.unsent is None:
          whole[i], after[i] = u, DGCMemory(u, None)
          continue
        del whole[i]
        v = before.unsent + u  # v_i <- v_i + u_i
        sent[i] = largest(v, share)  # s_i
        clear = array_of(Sparse(jnp.ones_like(sent[i].values), sent[i].places), v) > 0
        u = jnp.where(clear, jnp.zeros_like(u), u) if masking else u  # u_i <- 0 where v_i was sent
        after[i] = DGCMemory(u, jnp.where(clear, jnp.zeros_like(v), v))  # v_i <- 0 where v_i was sent
      means = group.mean(whole)
      for i, message in group.gather(sent).items():
        means[i] = mean_of(message, arrays[i])  # (1/p) sum_i s_i
      return [means[i] for i in range(len(arrays))], tuple(after)

    return compressed(algorithm, Compressor("dgc", init, mean))

  final = with_share(share)

  def checked_init(group: Group, params: Tree, key: Any) -> Tree:
    if not algorithm.exchanges and (states := momenta(algorithm.init(group, params, key))):
      condition = "must have an optimizer without momentum (the wrapper applies its own)"
      advice = "Use SGD without momentum (momentum=None in optax)."
      raise ValueError(f"dgc.algorithm {condition}, got {', '.join(states)}. {advice}")
    state = final.init(group, params, key)
    if algorithm.exchanges:
      raise ValueError(
        "dgc.algorithm must average only gradients, and only in its local step (as sync_sgd does), got an algorithm "
        "with nonempty `exchanges`."
      )
    return state

  if not stage_steps:
    return final._replace(init=checked_init)

  def init_stages(group: Group, params: Tree, key: Any) -> DGCState:
    return DGCState(checked_init(group, params, key), jax.tree.map(jnp.zeros_like, params))

  def local(group: Group, grads: Tree, state: DGCState, params: Tree) -> tuple[Tree, DGCState]:
    return params, state._replace(grads=grads)

  def stage(number: int) -> Exchange:
    last = number == STAGES
    sparser = final if last else with_share(share ** (number / STAGES))

    def launch(group: Group, state: DGCState, params: Tree) -> tuple[Tree, DGCState]:
      params, inner = sparser.local(group, state.grads, state.algorithm, params)
      return params, state._replace(algorithm=inner)

    def merge(group: Group, message: Tree, state: DGCState, params: Tree) -> tuple[Tree, DGCState]:
      return message, state

    return Exchange(launch, merge, 1 if last else FirstSteps(stage_steps), offset=(number - 1) * stage_steps)

  def evaluate(group: Group, state: DGCState, params: Tree) -> Tree:
    return final.evaluate(group, state.algorithm, params)

  return Algorithm(init_stages, local, tuple(map(stage, range(1, STAGES + 1))), evaluate)


def momenta(state: Tree) -> list[str]:
  """Return the names of the optax states in `state` that hold a momentum, such as TraceState and ScaleByAdamState."""

  def holds_momentum(node: Any) -> bool:
    return bool(MOMENTA & {*getattr(node, "_fields", ())})

  nodes = jax.tree.leaves(state, is_leaf=holds_momentum)
  return [type(node).__name__ for node in nodes if holds_momentum(node)]


def _clip_factor(group: Group, arrays: list[Any], clip_norm: Any) -> jax.Array:
  """Return the factor that limits the norm of this worker's arrays to clip_norm / sqrt(p)."""
  squares = [jnp.sum(jnp.square(x.astype(wide(x.dtype)))) for x in arrays if compressible(x)]
  norm, most = jnp.sqrt(sum(squares)), clip_norm / group.size() ** 0.5
  return jnp.minimum(1, most / jnp.maximum(norm, jnp.finfo(norm.dtype).tiny))


SPEC = Wrapper(
  factory=dgc,
  title="Deep gradient compression",
  citation="Lin et al. 2017, arXiv 1712.01887",
  symbols={"share": "k / n", "momentum": "r"},
)
