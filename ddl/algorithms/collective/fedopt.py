"""FedOpt: FedAdam, FedYogi and FedAdagrad."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from ddl.algorithms.collective.fedavg import restart, sampled_mean
from ddl.algorithms.draws import Draws, draw, start
from ddl.api import Algorithm, Exchange, Spec, Taxonomy, Tree, descend, inner_step
from ddl.group import Group
from ddl.ranges import Momentum, OuterRate, PositiveFloat, PositiveInt, Share, checked


class FedOptState(NamedTuple):
  inner: optax.OptState
  server: Tree  # z, equal on all workers
  outer: optax.OptState  # equal on all workers
  round: Draws  # determines the round's sample S, equal on all workers


class Moments(NamedTuple):
  """State of the server's adaptive optimizer."""

  mu: Tree  # m
  nu: Tree  # v


@checked
def fedadam(
  inner: optax.GradientTransformation,
  *,
  period: PositiveInt = 10,
  share: Share = 0.5,
  server_rate: OuterRate = 0.1,
  b1: Momentum = 0.9,
  b2: Momentum = 0.99,
  adaptivity: PositiveFloat = 1e-3,
) -> Algorithm:
  """Update the server's model with Adam, with the mean change of sampled workers as the gradient (FedAdam).

  D = (1/|S|) sum_{j in S} (z - x_j), after every K-th step; m <- b1 m + (1 - b1) D; v <- b2 v + (1 - b2) D^2;
  z <- z - eta m / (sqrt(v) + tau); x_i <- z

  Reddi, Charles, Zaheer, Garrett, Rush, Konecny, Kumar, McMahan 2020, arXiv 2003.00295, algorithm 2. As in the paper,
  the moments have no bias correction, and v starts at tau^2; `optax.adam` differs in both. D has the size of a round's
  change, not of a gradient, so a useful tau is much larger than the eps of Adam. Workers are sampled and optimizers are
  reset as in `fedavg`. The traffic is 2 n |S| / p bytes per worker and round on average. `fedopt_with` takes any outer
  optimizer: SGD of rate 1 gives `fedavg`. The evaluated model is z.

  Args:
    inner: optimizer of each worker, plain SGD in the paper; its state is reset in each round.
    period: local steps per round (K).
    share: share of the workers to sample in each round (C), at least one worker.
    server_rate: rate of the server's steps (eta), or an optax schedule of it.
    b1: decay of the first moment (beta_1); 0.9 in the paper.
    b2: decay of the second moment (beta_2); 0.99 in the paper.
    adaptivity: constant that limits the server's step where D is small (tau); 1e-3 in the paper.
  """

  def second(v: jax.Array, d: jax.Array) -> jax.Array:
    return b2 * v + (1 - b2) * d**2  # v <- b2 v + (1 - b2) D^2

  return fedopt_with(inner, _adaptive(second, server_rate, b1, adaptivity), period=period, share=share)


@checked
def fedyogi(
  inner: optax.GradientTransformation,
  *,
  period: PositiveInt = 10,
  share: Share = 0.5,
  server_rate: OuterRate = 0.01,
  b1: Momentum = 0.9,
  b2: Momentum = 0.99,
  adaptivity: PositiveFloat = 1e-3,
) -> Algorithm:
  """Update the server's model with Yogi, with the mean change of sampled workers as the gradient (FedYogi).

  As `fedadam`, with v <- v - (1 - b2) D^2 sign(v - D^2)

  Reddi et al. 2020, arXiv 2003.00295, algorithm 2. v changes by at most (1 - b2) D^2 per round, so after a large D it
  decreases more slowly than Adam's v. Messages and the evaluated model are those of `fedadam`.

  Args:
    inner: optimizer of each worker, plain SGD in the paper; its state is reset in each round.
    period: local steps per round (K).
    share: share of the workers to sample in each round (C), at least one worker.
    server_rate: rate of the server's steps (eta), or an optax schedule of it.
    b1: decay of the first moment (beta_1); 0.9 in the paper.
    b2: decay of the second moment (beta_2); 0.99 in the paper.
    adaptivity: constant that limits the server's step where D is small (tau); 1e-3 in the paper.
  """

  def second(v: jax.Array, d: jax.Array) -> jax.Array:
    return v - (1 - b2) * d**2 * jnp.sign(v - d**2)  # v <- v - (1 - b2) D^2 sign(v - D^2)

  return fedopt_with(inner, _adaptive(second, server_rate, b1, adaptivity), period=period, share=share)


@checked
def fedadagrad(
  inner: optax.GradientTransformation,
  *,
  period: PositiveInt = 10,
  share: Share = 0.5,
  server_rate: OuterRate = 0.1,
  b1: Momentum = 0.0,
  adaptivity: PositiveFloat = 1e-3,
) -> Algorithm:
  """Update the server's model with Adagrad, with the mean change of sampled workers as the gradient (FedAdagrad).

  As `fedadam`, with v <- v + D^2

  Reddi et al. 2020, arXiv 2003.00295, algorithm 2. Messages and the evaluated model are those of `fedadam`.

  Args:
    inner: optimizer of each worker, plain SGD in the paper; its state is reset in each round.
    period: local steps per round (K).
    share: share of the workers to sample in each round (C), at least one worker.
    server_rate: rate of the server's steps (eta), or an optax schedule of it.
    b1: decay of the first moment (beta_1); 0, that is, no momentum, in the paper's experiments.
    adaptivity: constant that limits the server's step where D is small (tau); 1e-3 in the paper.
  """

  def second(v: jax.Array, d: jax.Array) -> jax.Array:
    return v + d**2  # v <- v + D^2

  return fedopt_with(inner, _adaptive(second, server_rate, b1, adaptivity), period=period, share=share)


@checked
def fedopt_with(
  inner: optax.GradientTransformation, outer: optax.GradientTransformation, *, period: PositiveInt, share: Share
) -> Algorithm:
  """Return `fedadam` with any outer optimizer: D is its gradient, z its parameters (FedOpt, algorithm 1)."""

  def init(group: Group, params: Tree, key: Any) -> FedOptState:
    return FedOptState(inner.init(params), params, outer.init(params), start(key))

  def launch(group: Group, state: FedOptState, params: Tree) -> tuple[Tree, FedOptState]:
    moved = jax.tree.map(lambda z, x: z - x, state.server, params)  # z - x_i
    return sampled_mean(group, state.round, share, moved), state  # D = (1/|S|) sum_{i in S} (z - x_i)

  def merge(group: Group, message: Tree, state: FedOptState, params: Tree) -> tuple[Tree, FedOptState]:
    server, outer_state = descend(outer, message, state.outer, state.server)  # z <- OuterOpt(z, D)
    inner_state = restart(inner, state.inner, params)
    return server, FedOptState(inner_state, server, outer_state, draw(state.round)[1])  # x_i <- z

  def evaluate(group: Group, state: FedOptState, params: Tree) -> Tree:
    return state.server

  return Algorithm(init, inner_step(inner), (Exchange(launch, merge, period),), evaluate)


def _adaptive(
  second: Callable[[jax.Array, jax.Array], jax.Array], rate: Any, b1: Any, adaptivity: Any
) -> optax.GradientTransformation:
  """Return an optimizer that divides a momentum by the root of a second moment. second: (v, D) -> the next v."""

  def init(params: Tree) -> Moments:
    zeros = jax.tree.map(jnp.zeros_like, params)
    return Moments(zeros, jax.tree.map(lambda x: jnp.full_like(x, adaptivity**2), params))  # v_0 = tau^2

  def update(updates: Tree, state: Any, params: Tree | None = None) -> tuple[Tree, Moments]:
    mu = jax.tree.map(lambda m, d: b1 * m + (1 - b1) * d, state.mu, updates)  # m <- b1 m + (1 - b1) D
    nu = jax.tree.map(second, state.nu, updates)
    step = jax.tree.map(lambda m, v: m / (jnp.sqrt(v) + adaptivity), mu, nu)  # m / (sqrt(v) + tau)
    return step, Moments(mu, nu)

  return optax.chain(optax.GradientTransformation(init, update), optax.scale_by_learning_rate(rate))


FEDADAM = Spec(
  factory=fedadam,
  title="FedAdam",
  citation="Reddi et al. 2020, arXiv 2003.00295",
  taxonomy=Taxonomy("data", "decentralized", "synchronous", "all-reduce", "differences"),
  symbols={"period": "K", "share": "C", "server_rate": "eta", "b1": "beta_1", "b2": "beta_2", "adaptivity": "tau"},
)
FEDYOGI = FEDADAM._replace(factory=fedyogi, title="FedYogi")
FEDADAGRAD = FEDADAM._replace(
  factory=fedadagrad,
  title="FedAdagrad",
  symbols={"period": "K", "share": "C", "server_rate": "eta", "b1": "beta_1", "adaptivity": "tau"},
)
