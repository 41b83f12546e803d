"""Streaming DiLoCo: DiLoCo by fragments of the parameters, one after the other, each hidden behind further steps.

Douillard et al. 2025, arXiv 2501.18512. The parameters are P fragments: array i of the tree is in fragment i mod P,
where the paper assigns whole layers of a transformer. Each has a DiLoCo round of its own, H steps long and H / P
after that of the fragment before. For fragment p:
sent at its t_p:   Delta_p = (1/M) sum_m (theta_p - theta_m,p)
tau steps later:   theta_p <- OuterOpt(theta_p, Delta_p),  theta_m,p <- alpha theta_m,p + (1 - alpha) theta_p.
Delta_p is of the time when it was sent; what is mixed in are the worker's parameters of now. Unlike the paper, ddl
sends Delta_p in the parameters' own precision.
"""

from typing import Annotated, Any, NamedTuple

import jax
import optax

from ddl.api import MOST_EXCHANGES, Algorithm, Exchange, Hyper, Spec, Taxonomy, Tree, descend
from ddl.group import Group
from ddl.ranges import Momentum, NonNegativeFloat, NonNegativeInt, PositiveInt, UnitInterval, check, checked, integers


class StreamingDiLoCoState(NamedTuple):
  inner: optax.OptState
  anchor: Tree  # theta, equal on all workers
  outer: tuple[optax.OptState, ...]  # of each fragment, equal on all workers


@checked
def streaming_diloco(
  inner: optax.GradientTransformation,
  *,
  period: PositiveInt,
  outer_learning_rate: NonNegativeFloat,
  outer_momentum: Momentum,
  fragments: Annotated[int, integers(1, MOST_EXCHANGES)],
  delay: NonNegativeInt,
  keep: UnitInterval,
) -> Algorithm:
  """m <- mu m + Delta_p; theta_p <- theta_p - eta_out (Delta_p + mu m); x_p <- alpha x_p + (1 - alpha) theta_p.

  One fragment without delay and keep is `diloco`; `streaming_diloco_with` takes any outer optimizer.

  Args:
    inner: optimizer of each worker; its state is neither averaged nor reset.
    period: steps between two outer steps of a fragment (H).
    outer_learning_rate: eta_out.
    outer_momentum: Nesterov momentum of the outer steps (mu).
    fragments: P, at most H and MOST_EXCHANGES; of a tree of fewer arrays the last ones are empty and send nothing.
    delay: steps that run while a fragment is in flight (tau), at most H; above H / P several fragments are.
    keep: weight of the worker's own parameters in the merge (alpha), 0..1.

  Returns:
    An `Algorithm` of P exchanges; fragment p = 0..P-1 leaves first after (p + 1) H / P steps, rounded down.

  Raises:
    ValueError: for fragments, a delay or a keep outside of these bounds.
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
  """`streaming_diloco` with any outer optimizer, which gets a fragment as a tree masked as `optax.masked` does."""
  check(f"streaming_diloco.fragments with period {period}", fragments, integers(1, period))
  # A fragment has to arrive before it leaves again.
  check(f"streaming_diloco.delay with period {period}", delay, integers(0, period))

  def part(tree: Tree, p: int) -> Tree:
    leaves, structure = jax.tree.flatten(tree)
    return structure.unflatten([x if i % fragments == p else optax.MaskedNode() for i, x in enumerate(leaves)])

  def put(tree: Tree, new: Tree) -> Tree:
    return jax.tree.map(lambda x, y: x if isinstance(y, optax.MaskedNode) else y, tree, new)

  def init(group: Group, params: Tree, key: Any) -> StreamingDiLoCoState:
    del group, key
    outer_states = tuple(outer.init(part(params, p)) for p in range(fragments))
    return StreamingDiLoCoState(inner.init(params), params, outer_states)

  def local(group: Group, grads: Tree, state: StreamingDiLoCoState, params: Tree) -> tuple[Tree, StreamingDiLoCoState]:
    del group
    params, inner_state = descend(inner, grads, state.inner, params)  # theta_m <- InnerOpt(theta_m, g_m)
    return params, state._replace(inner=inner_state)

  def exchange(p: int) -> Exchange:
    def launch(group: Group, state: StreamingDiLoCoState, params: Tree) -> tuple[Tree, StreamingDiLoCoState]:
      moved = jax.tree.map(lambda z, x: z - x, part(state.anchor, p), part(params, p))  # theta_p - theta_m,p
      return group.mean(moved), state  # Delta_p = (1/M) sum_m (theta_p - theta_m,p)

    def merge(
      group: Group, message: Tree, state: StreamingDiLoCoState, params: Tree
    ) -> tuple[Tree, StreamingDiLoCoState]:
      del group
      anchor, outer_state = descend(outer, message, state.outer[p], part(state.anchor, p))  # theta_p <- OuterOpt
      mixed = jax.tree.map(lambda x, z: keep * x + (1 - keep) * z, part(params, p), anchor)  # alpha, 1 - alpha
      outer_states = (*state.outer[:p], outer_state, *state.outer[p + 1 :])
      return put(params, mixed), StreamingDiLoCoState(state.inner, put(state.anchor, anchor), outer_states)

    return Exchange(launch, merge, period, delay, offset=(p + 1) * period // fragments - period)

  def evaluate(group: Group, state: StreamingDiLoCoState, params: Tree) -> Tree:
    del group, params
    return state.anchor

  return Algorithm(init, local, tuple(map(exchange, range(fragments))), evaluate)


SPEC = Spec(
  factory=streaming_diloco,
  title="Streaming DiLoCo",
  citation="Douillard et al. 2025, arXiv 2501.18512",
  taxonomy=Taxonomy("data", "decentralized", "delayed", "all-reduce", "differences"),
  hyper={
    "period": Hyper("H", 100, "steps between two outer steps of a fragment"),
    "outer_learning_rate": Hyper("eta_out", 0.7, "rate of the outer steps; 0.7 as in DiLoCo"),
    "outer_momentum": Hyper("mu", 0.9, "Nesterov momentum of the outer steps; 0.9 as in DiLoCo"),
    "fragments": Hyper("P", 4, "fragments of the parameters"),
    "delay": Hyper("tau", 1, "steps that run while a fragment is in flight"),
    "keep": Hyper("alpha", 0.5, "weight of the worker's own parameters in the merge"),
  },
)
