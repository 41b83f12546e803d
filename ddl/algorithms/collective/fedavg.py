"""FedAvg."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from ddl.algorithms.draws import Draws, choose, draw, start
from ddl.api import Algorithm, Exchange, Spec, Taxonomy, Tree, inner_step, step_count
from ddl.group import Group
from ddl.ranges import Period, Share, checked


class FedAvgState(NamedTuple):
  inner: optax.OptState
  round: Draws  # determines the round's sample S, equal on all workers


@checked
def fedavg(inner: optax.GradientTransformation, *, period: Period = 10, share: Share = 0.5) -> Algorithm:
  """Average the models of a random sample of the workers in each round (FedAvg).

  x_i <- x_i + inner(g_i); after every tau-th step x_i <- (1/m) sum_{j in S} x_j, and the state of inner is reset

  McMahan, Moore, Ramage, Hampson, Aguera y Arcas 2016, arXiv 1602.05629. The sample S of m = max(1, round(C p)) workers
  is drawn from a key that all workers share. The paper weights x_i by worker i's number of examples; here all weights
  are equal. Momentum is reset each round; learning-rate schedules and the hyperparameters of `optax.inject_hyperparams`
  are not. With C = 1 and plain SGD this is local SGD. Workers outside the sample also take steps and take part in the
  all-reduce, because all run the same program. Traffic is counted as in the paper: a sampled worker downloads the model
  (n bytes) and uploads x_i, on average 2 (m/p) n bytes per worker and round. The evaluated model is the mean of the
  models in the round's sample.

  Args:
    inner: optimizer of each worker, plain SGD in the paper.
    period: local steps per round (tau), or a function of the round such as `ddl.qsr`.
    share: share of the workers to sample in each round (C), at least one worker; 0.1 in the paper, with 100 or more
      workers.
  """

  def init(group: Group, params: Tree, key: Any) -> FedAvgState:
    return FedAvgState(inner.init(params), start(key))

  def launch(group: Group, state: FedAvgState, params: Tree) -> tuple[Tree, FedAvgState]:
    return sampled_mean(group, state.round, share, params), state  # z = (1/m) sum_{i in S} x_i

  def merge(group: Group, message: Tree, state: FedAvgState, params: Tree) -> tuple[Tree, FedAvgState]:
    return message, FedAvgState(restart(inner, state.inner, params), draw(state.round)[1])  # x_i <- z

  def evaluate(group: Group, state: FedAvgState, params: Tree) -> Tree:
    return sampled_mean(group, state.round, share, params)

  return Algorithm(init, inner_step(inner), (Exchange(launch, merge, period),), evaluate)


def sample(round_: Draws, workers: int, share: float) -> jax.Array:
  """Return the ranks of the workers sampled for a round: [m] int32."""
  return choose(draw(round_)[0], workers, share)


def takes_part(group: Group, round_: Draws, share: float) -> jax.Array:
  """Return whether this worker is in the round's sample: [] bool."""
  return jnp.any(sample(round_, group.size(), share) == group.index())


def sampled_mean(group: Group, round_: Draws, share: float, tree: Tree) -> Tree:
  """Return the mean of a tree over the round's sample: (1/m) sum_{i in S} x_i."""
  count, inside = sample(round_, group.size(), share).size, takes_part(group, round_, share)
  total = group.partial_sum(tree, inside, count)
  return jax.tree.map(lambda x: x / count, total)


def restart(inner: optax.GradientTransformation, state: optax.OptState, params: Tree) -> optax.OptState:
  """Reset the inner optimizer's state, except for injected hyperparameters and the step counts of schedules."""

  def with_rates(old: Any, new: Any) -> Any:
    if not hasattr(old, "_fields"):  # an array
      return new
    node = type(new)(*map(restarted, old, new))
    rates = {step_count(old)} | {field for field in old._fields if field.startswith("hyperparams")}
    return node._replace(**{field: getattr(old, field) for field in rates if field})

  def restarted(old: optax.OptState, new: optax.OptState) -> optax.OptState:
    return jax.tree.map(with_rates, old, new, is_leaf=lambda node: hasattr(node, "_fields"))

  return restarted(state, inner.init(params))


SPEC = Spec(
  factory=fedavg,
  title="FedAvg",
  citation="McMahan et al. 2016, arXiv 1602.05629",
  taxonomy=Taxonomy("data", "decentralized", "synchronous", "all-reduce", "parameters"),
  symbols={"period": "tau", "share": "C"},
)
