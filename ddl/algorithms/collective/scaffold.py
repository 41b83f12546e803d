"""SCAFFOLD."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from ddl.algorithms.collective.fedavg import restart, sample, sampled_mean, takes_part
from ddl.algorithms.draws import Draws, draw, start
from ddl.api import Algorithm, Exchange, Spec, Taxonomy, Tree, descend
from ddl.group import Group
from ddl.ranges import OuterRate, Period, Share, checked


class ScaffoldState(NamedTuple):
  inner: optax.OptState
  server: Tree  # x, equal on all workers
  own: Tree  # c_i, this worker's control variate
  all: Tree  # c, the mean control variate, equal on all workers
  total: Tree  # sum of the round's gradients g_i(y_i)
  steps: jax.Array  # steps of the round so far, [] int32
  round: Draws  # determines the round's sample S, equal on all workers
  outer: optax.OptState  # the count of rounds, if the server's rate is a schedule


class Moved(NamedTuple):
  """Mean changes of models and control variates over the workers sampled for a round."""

  model: Tree  # y_i - x
  control: Tree  # c_i' - c_i


@checked
def scaffold(
  inner: optax.GradientTransformation,
  *,
  period: Period = 10,
  share: Share = 0.5,
  server_rate: OuterRate = 1.0,
) -> Algorithm:
  """Correct each worker's gradients for their deviation from the mean gradient, which causes client drift (SCAFFOLD).

  y_i <- y_i + inner(g_i - c_i + c); after every tau-th step, with c_i' = (1/tau) sum of the round's g_i:
  x <- x + eta_g mean_S(y_i - x), c <- c + (m/p) mean_S(c_i' - c_i), y_i <- x; and c_i <- c_i' for i in S

  Karimireddy, Kale, Mohri, Reddi, Stich, Suresh 2019, arXiv 1910.06378, option II. For plain SGD the paper's c_i' = c_i
  - c + (x - y_i) / (tau eta) is the mean of the round's gradients; computing that mean directly needs no eta and works
  with every inner optimizer. c = (1/p) sum_i c_i always holds. Workers are sampled and optimizers are reset as in
  `fedavg`. A sampled worker downloads x and c (n bytes each) and uploads their changes: on average 4 (m/p) n bytes per
  worker and round. The evaluated model is x.

  Args:
    inner: optimizer of each worker, plain SGD in the paper; its state is reset in each round.
    period: local steps per round (tau), or a function of the round such as `ddl.qsr`.
    share: share of the workers to sample in each round (C), at least one worker; 0.2 in the paper's experiments.
    server_rate: rate of the server's steps (eta_g), or an optax schedule of it; 1 in the paper.
  """
  outer = optax.scale_by_learning_rate(server_rate, flip_sign=False)

  def init(group: Group, params: Tree, key: Any) -> ScaffoldState:
    zeros = jax.tree.map(jnp.zeros_like, params)
    steps = jnp.int32(0)
    return ScaffoldState(inner.init(params), params, zeros, zeros, zeros, steps, start(key), outer.init(params))

  def mean_gradient(state: ScaffoldState) -> Tree:
    return jax.tree.map(lambda s: s / state.steps.astype(s.dtype), state.total)  # c_i' = (1/tau) sum of the round's g_i

  def local(group: Group, grads: Tree, state: ScaffoldState, params: Tree) -> tuple[Tree, ScaffoldState]:
    total = jax.tree.map(lambda s, g: s + g, state.total, grads)
    corrected = jax.tree.map(lambda g, own, c: g - own + c, grads, state.own, state.all)  # g_i - c_i + c
    params, inner_state = descend(inner, corrected, state.inner, params)
    return params, state._replace(inner=inner_state, total=total, steps=state.steps + 1)

  def launch(group: Group, state: ScaffoldState, params: Tree) -> tuple[Moved, ScaffoldState]:
    model = jax.tree.map(lambda y, x: y - x, params, state.server)  # y_i - x
    control = jax.tree.map(lambda c, own: c - own, mean_gradient(state), state.own)  # c_i' - c_i
    return sampled_mean(group, state.round, share, Moved(model, control)), state

  def merge(group: Group, message: Moved, state: ScaffoldState, params: Tree) -> tuple[Tree, ScaffoldState]:
    present = sample(state.round, group.size(), share).size / group.size()  # m / p
    moved, outer_state = outer.update(message.model, state.outer)  # eta_g mean_S(y_i - x)
    server = jax.tree.map(lambda x, d: x + d, state.server, moved)
    mean_control = jax.tree.map(lambda c, d: c + present * d, state.all, message.control)
    inside = takes_part(group, state.round, share)
    own = jax.tree.map(lambda new, c: jnp.where(inside, new, c), mean_gradient(state), state.own)  # c_i <- c_i'
    total = jax.tree.map(jnp.zeros_like, state.total)
    inner_state = restart(inner, state.inner, params)
    steps, round_ = jnp.zeros_like(state.steps), draw(state.round)[1]
    after = ScaffoldState(inner_state, server, own, mean_control, total, steps, round_, outer_state)
    return server, after  # y_i <- x

  def evaluate(group: Group, state: ScaffoldState, params: Tree) -> Tree:
    return state.server

  return Algorithm(init, local, (Exchange(launch, merge, period),), evaluate)


SPEC = Spec(
  factory=scaffold,
  title="SCAFFOLD",
  citation="Karimireddy et al. 2019, arXiv 1910.06378",
  taxonomy=Taxonomy("data", "decentralized", "synchronous", "all-reduce", "differences"),
  symbols={"period": "tau", "share": "C", "server_rate": "eta_g"},
)
