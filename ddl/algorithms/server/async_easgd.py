"""Asynchronous elastic averaging SGD."""

from typing import Any

import jax
import optax

from ddl.algorithms.collective.easgd import ALPHA
from ddl.api import ServerAlgorithm, Spec, Taxonomy, Tree, Visit, descend
from ddl.ranges import ElasticRate, PositiveInt, Range, check, checked


def check_elastic_rate(name: str, alpha: float, workers: int) -> None:
  """Raise OptionError, with the algorithm's name, unless p alpha is in 0..2."""
  check(f"{name}.alpha with {workers} workers", alpha, Range(0, 2 / workers))


@checked
def async_easgd(
  inner: optax.GradientTransformation, *, alpha: ElasticRate = ALPHA, period: PositiveInt = 1, workers: PositiveInt
) -> ServerAlgorithm:
  """Pull one worker at a time and a center towards each other, first come, first served (Async EASGD).

  W <- W + inner(g) - alpha (W - Wb); Wb <- Wb + alpha (W - Wb);
  the terms with alpha only at the first of every tau steps of a worker

  You, Buluc, Demmel 2017, arXiv 1708.02983; Zhang, Choromanska, LeCun 2014, arXiv 1412.6651. W is the worker's model,
  Wb the center. Both updates use W and Wb from before the exchange (Jacobi form), and the worker computes its next
  gradient during the exchange. The server replies with W - Wb. Without gradients sum_i W^i + Wb is conserved, in any
  order of arrival. A worker never restarts from the center. p alpha must be in 0..2 and should not exceed 1, because p
  simultaneous pulls multiply the center by 1 - p alpha.

  Args:
    inner: optimizer of each worker; the elastic term is not part of its momentum.
    alpha: elastic rate (eta rho); by default 0.9 / p, as in Zhang et al. 2014.
    period: steps per exchange (tau).
    workers: number of workers (p); p alpha must be in 0..2.
  """
  check_elastic_rate("async_easgd", alpha, workers)

  def init(params: Tree) -> tuple[Any, Tree, Tree]:
    return inner.init(params), params, jax.tree.map(lambda x: x - x, params)

  def local(grads: Tree, state: Any, params: Tree) -> tuple[Tree, Any]:
    return descend(inner, grads, state, params)  # W <- W - eta g

  def request(state: Any, params: Tree) -> Tree:
    return params  # W

  def serve(server: Tree, message: Tree, visit: Visit) -> tuple[Tree, Tree]:
    diff = jax.tree.map(lambda w, z: w - z, message, server)  # W - Wb
    return jax.tree.map(lambda z, d: z + alpha * d, server, diff), diff  # Wb <- Wb + alpha (W - Wb)

  def merge(reply: Tree, state: Any, params: Tree) -> tuple[Tree, Any]:
    return jax.tree.map(lambda w, d: w - alpha * d, params, reply), state  # W <- W - alpha (W - Wb)

  def evaluate(server: Tree) -> Tree:
    return server

  return ServerAlgorithm(init, local, request, serve, merge, evaluate, period=period, delay=1)


SPEC = Spec(
  factory=async_easgd,
  title="Async EASGD",
  citation="You et al. 2017, arXiv 1708.02983; Zhang et al. 2014, arXiv 1412.6651",
  taxonomy=Taxonomy("data", "decentralized", "asynchronous", "parameter server", "parameters"),
  symbols={"alpha": "alpha", "period": "tau"},
)
