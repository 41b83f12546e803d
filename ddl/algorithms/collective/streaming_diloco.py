"""Streaming DiLoCo."""

from typing import Annotated, Any, NamedTuple

import jax
import optax

from ddl.api import MOST_EXCHANGES, Algorithm, Exchange, Spec, Taxonomy, Tree, descend, inner_step
from ddl.group import Group
from ddl.ranges import Momentum, NonNegativeInt, OuterRate, PositiveInt, UnitInterval, check, checked, integers


class StreamingDiLoCoState(NamedTuple):
  inner: optax.OptState
  anchor: Tree  # theta, equal on all workers
  outer: tuple[optax.OptState, ...]  # one per fragment, equal on all workers


@checked
def streaming_diloco(
  inner: optax.GradientTransformation,
  *,
  period: PositiveInt = 100,
  outer_learning_rate: OuterRate = 0.7,
  outer_momentum: Momentum = 0.9,
  fragments: Annotated[int, integers(1, MOST_EXCHANGES)] = 4,
  delay: NonNegativeInt = 1,
  keep: UnitInterval = 0.5,
) -> Algorithm:
  """Run DiLoCo on one fragment of the parameters at a time, overlapped with further steps (Streaming DiLoCo).

  m <- mu m + Delta_p; theta_p <- theta_p - eta_out (Delta_p + mu m); x_p <- alpha x_p + (1 - alpha) theta_p

  Douillard et al. 2025, arXiv 2501.18512. Array i of the parameters is in fragment i mod P; the paper assigns whole
  layers of a transformer. Each fragment has its own DiLoCo rounds of H steps, offset by H / P steps from the previous
  fragment. Delta_p = (1/M) sum_m (theta_p - x_m,p), the mean over the M workers, is computed when fragment p is sent;
  theta_p and x_p are updated tau steps later. Unlike in the paper, Delta_p is sent in the parameters' precision. With
  one fragment, delay = 0 and keep = 0 this is `diloco`; `streaming_diloco_with` takes any outer optimizer. Fragment
  p = 0..P-1 is first sent after floor((p + 1) H / P) steps.

  Args:
    inner: optimizer of each worker; its state is neither averaged nor reset.
    period: steps between two outer steps of a fragment (H).
    outer_learning_rate: rate of the outer steps (eta_out), or an optax schedule of it that counts each fragment's outer
      steps; 0.7 as in DiLoCo.
    outer_momentum: Nesterov momentum of the outer steps (mu); 0.9 as in DiLoCo.
    fragments: number of fragments (P), at most H; if there are fewer arrays, the last fragments are empty.
    delay: steps computed while a fragment is in flight (tau), at most H.
    keep: weight of the worker's parameters in the merge (alpha).
  """
  outer = optax.sgd(outer_learning_rate, outer_momentum, nesterov=True)
  return streaming_diloco_with(inner, outer, period=period, fragments=fragments, delay=delay, keep=keep)


@checked
def streaming_diloco_with(
  inner: optax.GradientTransformation,
  outer: optax.GradientTransformation,
  *,
  period: PositiveInt,
  fragments: Annotated[int, integers(1, MOST_EXCHANGES)],
  delay: NonNegativeInt,
  keep: UnitInterval,
) -> Algorithm:
  """Return `streaming_diloco` with any outer optimizer.

  The outer optimizer receives each fragment as the whole tree, with `optax.MaskedNode` in place of the arrays of other
  fragments.
  """
  check(f"streaming_diloco.fragments with period {period}", fragments, integers(1, period))
  # A fragment has to arrive before its next launch.
  check(f"streaming_diloco.delay with period {period}", delay, integers(0, period))

  def part(tree: Tree, p: int) -> Tree:
    leaves, structure = jax.tree.flatten(tree)
    return structure.unflatten([x if i % fragments == p else optax.MaskedNode() for i, x in enumerate(leaves)])

  def put(tree: Tree, new: Tree) -> Tree:
    return jax.tree.map(lambda x, y: x if isinstance(y, optax.MaskedNode) else y, tree, new)

  def init(group: Group, params: Tree, key: Any) -> StreamingDiLoCoState:
    outer_states = tuple(outer.init(part(params, p)) for p in range(fragments))
    return StreamingDiLoCoState(inner.init(params), params, outer_states)

  def exchange(p: int) -> Exchange:
    def launch(group: Group, state: StreamingDiLoCoState, params: Tree) -> tuple[Tree, StreamingDiLoCoState]:
      moved = jax.tree.map(lambda z, x: z - x, part(state.anchor, p), part(params, p))  # theta_p - x_m,p
      return group.mean(moved), state  # Delta_p = (1/M) sum_m (theta_p - x_m,p)

    def merge(
      group: Group, message: Tree, state: StreamingDiLoCoState, params: Tree
    ) -> tuple[Tree, StreamingDiLoCoState]:
      anchor, outer_state = descend(outer, message, state.outer[p], part(state.anchor, p))  # theta_p <- OuterOpt
      mixed = jax.tree.map(lambda x, z: keep * x + (1 - keep) * z, part(params, p), anchor)  # alpha, 1 - alpha
      outer_states = (*state.outer[:p], outer_state, *state.outer[p + 1 :])
      return put(params, mixed), StreamingDiLoCoState(state.inner, put(state.anchor, anchor), outer_states)

    return Exchange(launch, merge, period, delay, offset=(p + 1) * period // fragments - period)

  def evaluate(group: Group, state: StreamingDiLoCoState, params: Tree) -> Tree:
    return state.anchor

  return Algorithm(init, inner_step(inner), tuple(map(exchange, range(fragments))), evaluate)


SPEC = Spec(
  factory=streaming_diloco,
  title="Streaming DiLoCo",
  citation="Douillard et al. 2025, arXiv 2501.18512",
  taxonomy=Taxonomy("data", "decentralized", "delayed", "all-reduce", "differences"),
  symbols={
    "period": "H",
    "outer_learning_rate": "eta_out",
    "outer_momentum": "mu",
    "fragments": "P",
    "delay": "tau",
    "keep": "alpha",
  },
)
