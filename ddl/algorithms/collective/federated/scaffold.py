"""SCAFFOLD: FedAvg whose workers correct each gradient by how theirs have differed from everybody's.

Karimireddy, Kale, Mohri, Reddi, Stich, Suresh 2019, arXiv 1910.06378, option II. Round r, of a sample S of m workers:
y_i <- x;  tau times y_i <- y_i - eta (g_i(y_i) - c_i + c);
c_i' = c_i - c + (x - y_i) / (tau eta);
x <- x + eta_g (1/m) sum_{i in S} (y_i - x),  c <- c + (1/p) sum_{i in S} (c_i' - c_i),  c_i <- c_i' for i in S.
The steps of y_i sum up to (x - y_i) / (tau eta) = mean(g_i) - c_i + c, so that c_i' is the mean of the round's own
gradients. It is computed as that, which needs no rate eta and gives c_i the same meaning for every inner optimizer; the
paper's is plain SGD. c = (1/p) sum_i c_i stays, whoever is in S. Samples and optimizers are those of FedAvg, and so is
the count of bytes: the sample downloads x and c and uploads what both move by, 4 C n per worker and round on average.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from ddl.algorithms.collective.federated.fedavg import restart, sample, sampled_mean, takes_part
from ddl.algorithms.draws import Draws, draw, start
from ddl.api import Algorithm, Exchange, Hyper, Spec, Taxonomy, Tree, descend
from ddl.group import Group
from ddl.ranges import NonNegativeFloat, PositiveInt, Share, checked


class ScaffoldState(NamedTuple):
  inner: optax.OptState
  server: Tree  # x, equal on all workers
  own: Tree  # c_i
  all: Tree  # c, equal on all workers
  total: Tree  # sum of the round's gradients g_i(y_i)
  round: Draws  # equal on all workers


class Moved(NamedTuple):
  """Means over the sample."""

  model: Tree  # y_i - x
  control: Tree  # c_i' - c_i


@checked
def scaffold(
  inner: optax.GradientTransformation, *, period: PositiveInt, share: Share, server_rate: NonNegativeFloat
) -> Algorithm:
  """y_i <- y_i + inner(g_i - c_i + c); after every tau-th step x <- x + eta_g mean_S(y_i - x) and y_i <- x.

  Args:
    inner: optimizer of each worker, plain SGD in the paper; its state starts anew in each round.
    period: local steps per round (tau).
    share: of the workers that count in a round, above 0 to 1; at least one worker does.
    server_rate: eta_g.

  Returns:
    An `Algorithm` that sends differences of parameters and of control variates once per period, tested at x.

  Raises:
    ValueError: if share is not in 0..1, without 0.
  """

  def init(group: Group, params: Tree, key: Any) -> ScaffoldState:
    del group
    zeros = jax.tree.map(jnp.zeros_like, params)
    return ScaffoldState(inner.init(params), params, zeros, zeros, zeros, start(key))

  def local(group: Group, grads: Tree, state: ScaffoldState, params: Tree) -> tuple[Tree, ScaffoldState]:
    del group
    total = jax.tree.map(lambda s, g: s + g, state.total, grads)
    corrected = jax.tree.map(lambda g, own, c: g - own + c, grads, state.own, state.all)  # g_i - c_i + c
    params, inner_state = descend(inner, corrected, state.inner, params)
    return params, state._replace(inner=inner_state, total=total)

  def launch(group: Group, state: ScaffoldState, params: Tree) -> tuple[Moved, ScaffoldState]:
    model = jax.tree.map(lambda y, x: y - x, params, state.server)  # y_i - x
    control = jax.tree.map(lambda s, own: s / period - own, state.total, state.own)  # c_i' - c_i
    return sampled_mean(group, state.round, share, Moved(model, control)), state

  def merge(group: Group, message: Moved, state: ScaffoldState, params: Tree) -> tuple[Tree, ScaffoldState]:
    present = sample(state.round, group.size(), share).size / group.size()  # m / p
    server = jax.tree.map(lambda x, d: x + server_rate * d, state.server, message.model)
    everybody = jax.tree.map(lambda c, d: c + present * d, state.all, message.control)
    inside = takes_part(group, state.round, share)
    own = jax.tree.map(lambda s, c: jnp.where(inside, s / period, c), state.total, state.own)  # c_i <- c_i'
    total = jax.tree.map(jnp.zeros_like, state.total)
    inner_state = restart(inner, state.inner, params)
    return server, ScaffoldState(inner_state, server, own, everybody, total, draw(state.round)[1])  # y_i <- x

  def evaluate(group: Group, state: ScaffoldState, params: Tree) -> Tree:
    del group, params
    return state.server

  return Algorithm(init, local, (Exchange(launch, merge, period),), evaluate)


SPEC = Spec(
  factory=scaffold,
  title="SCAFFOLD",
  citation="Karimireddy et al. 2019, arXiv 1910.06378",
  taxonomy=Taxonomy("data", "decentralized", "synchronous", "all-reduce", "differences"),
  hyper={
    "period": Hyper("tau", 10, "local steps per round"),
    "share": Hyper("C", 0.5, "share of the workers that count in a round; 0.2 in the paper's experiments"),
    "server_rate": Hyper("eta_g", 1.0, "rate of the server's steps; the authors' choice is 1"),
  },
)
