"""FedAvg: in each round a random sample of the workers trains from one model, which becomes the mean of theirs.

McMahan, Moore, Ramage, Hampson, Aguera y Arcas 2016, arXiv 1602.05629. Round r, of a set S_r of m = max(1, round(C p))
workers, each set as likely, drawn from a key that all workers share:
x_i <- z;  tau times x_i <- x_i - eta g_i(x_i), for i in S_r;
z <- (1/m) sum_{i in S_r} x_i.
The paper weighs x_i by its number of examples, which are equal here. A worker outside of the sample steps along, since
all run one compiled program, and nobody hears of it. In the paper only the sample downloads z and uploads x_i: 2 C n
bytes per worker and round on average, of n bytes of parameters, and these are counted (C = 1: those of an all-reduce).
The program here sends more, as all workers take part in the all-reduce.
A round's optimizers are new: momentum does not outlive the round, as it does in local SGD and in much public code. A
learning-rate schedule that is part of the optimizer goes on, and so do the hyper-parameters of
`optax.inject_hyperparams`.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from ddl.algorithms.draws import Draws, choose, draw, start
from ddl.api import Algorithm, Exchange, Hyper, Spec, Taxonomy, Tree, descend
from ddl.group import Group
from ddl.ranges import PositiveInt, Share, checked


class FedAvgState(NamedTuple):
  inner: optax.OptState
  round: Draws  # equal on all workers


@checked
def fedavg(inner: optax.GradientTransformation, *, period: PositiveInt, share: Share) -> Algorithm:
  """x_i <- x_i + inner(g_i); after every tau-th step x_i <- (1/m) sum_{j in S} x_j, and inner starts anew.

  With share = 1 and plain SGD this is local SGD.

  Args:
    inner: optimizer of each worker, plain SGD in the paper; its state starts anew in each round.
    period: local steps per round (tau).
    share: of the workers that count in a round (C), above 0 to 1; at least one worker does.

  Returns:
    An `Algorithm` that sends parameters once per period, tested at the mean of the models of the round's sample. Its
    traffic is counted as that of the sample.

  Raises:
    ValueError: if share is not in 0..1, without 0.
  """

  def init(group: Group, params: Tree, key: Any) -> FedAvgState:
    del group
    return FedAvgState(inner.init(params), start(key))

  def local(group: Group, grads: Tree, state: FedAvgState, params: Tree) -> tuple[Tree, FedAvgState]:
    del group
    params, inner_state = descend(inner, grads, state.inner, params)  # x_i <- x_i - eta g_i
    return params, state._replace(inner=inner_state)

  def launch(group: Group, state: FedAvgState, params: Tree) -> tuple[Tree, FedAvgState]:
    return sampled_mean(group, state.round, share, params), state  # z = (1/m) sum_{i in S} x_i

  def merge(group: Group, message: Tree, state: FedAvgState, params: Tree) -> tuple[Tree, FedAvgState]:
    del group
    return message, FedAvgState(restart(inner, state.inner, params), draw(state.round)[1])  # x_i <- z

  def evaluate(group: Group, state: FedAvgState, params: Tree) -> Tree:
    return sampled_mean(group, state.round, share, params)

  return Algorithm(init, local, (Exchange(launch, merge, period),), evaluate)


def sample(round_: Draws, workers: int, share: float) -> jax.Array:
  """The ranks of the workers of a round, [m] int32."""
  return choose(draw(round_)[0], workers, share)


def takes_part(group: Group, round_: Draws, share: float) -> jax.Array:
  """Whether this worker is of the round's sample: [] bool."""
  return jnp.any(sample(round_, group.size(), share) == group.index())


def sampled_mean(group: Group, round_: Draws, share: float, tree: Tree) -> Tree:
  """(1/m) sum_{i in S} of the workers' trees."""
  count, inside = sample(round_, group.size(), share).size, takes_part(group, round_, share)
  total = group.partial_sum(tree, inside, count)
  return jax.tree.map(lambda x: x / count, total)


def restart(inner: optax.GradientTransformation, state: optax.OptState, params: Tree) -> optax.OptState:
  """Return a new inner state with the learning rates of the old one: counts of schedules, injected hyper-parameters."""

  def scheduled(part: Any) -> bool:
    return isinstance(part, optax.ScaleByScheduleState | optax.InjectStatefulHyperparamsState)

  def one(old: Any, new: Any) -> Any:
    if isinstance(old, optax.InjectStatefulHyperparamsState):
      return old._replace(inner_state=anew(old.inner_state, new.inner_state))
    return old if scheduled(old) else new

  def anew(old: optax.OptState, new: optax.OptState) -> optax.OptState:
    return jax.tree.map(one, old, new, is_leaf=scheduled)

  return anew(state, inner.init(params))


SPEC = Spec(
  factory=fedavg,
  title="FedAvg",
  citation="McMahan et al. 2016, arXiv 1602.05629",
  taxonomy=Taxonomy("data", "decentralized", "synchronous", "all-reduce", "parameters"),
  hyper={
    "period": Hyper("tau", 10, "local steps per round"),
    "share": Hyper("C", 0.5, "share of the workers that count in a round; 0.1 in the paper, of 100 and more"),
  },
)
