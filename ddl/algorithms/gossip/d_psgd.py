"""D-PSGD."""

import jax
import optax

from ddl.algorithms.collective.independent import independent
from ddl.algorithms.gossip.graphs import mixing_change, mixing_steps
from ddl.api import Algorithm, Exchange, Spec, Taxonomy, Tree
from ddl.group import Group
from ddl.ranges import PositiveInt, checked


@checked
def d_psgd(inner: optax.GradientTransformation, *, graph: str = "ring", workers: PositiveInt) -> Algorithm:
  """Average each model with those of its neighbors on a graph, while the gradient is computed (D-PSGD).

  x_i <- sum_j W_ij x_j + inner(g_i), with x_j from before the step

  Lian et al. 2017, arXiv 1705.09056. W is doubly stochastic, and W_ij > 0 only if j sends to i. The gradient is that of
  the model before mixing. Mixing conserves the mean of all models. W is symmetric in the paper; here it need not be,
  which allows directed graphs. The exponential graphs are those of Assran et al. 2018, arXiv 1811.10792.

  Args:
    inner: optimizer of each worker; its state stays local.
    graph: the name of a graph on which a worker and its neighbors have equal weights, or a file with a doubly
      stochastic matrix W [p, p]. Names: "ring" (two neighbors), "torus" (four neighbors, on a grid as square as p
      allows; a ring if p is prime), "exponential" (ceil(log2 p) neighbors) and "one_peer_exponential" (one neighbor,
      2^k ranks lower, with k = step mod log2 p; p must be a power of two, and without gradients all workers reach the
      mean after log2 p steps). Files: .npy, or text with commas (.csv) or whitespace (.txt) between the numbers.
    workers: number of workers (p).
  """
  worker = independent(inner)  # x_i <- x_i - eta g_i, evaluated at the mean of the models
  return worker._replace(exchanges=mixing_while_computing("d_psgd", graph, workers))


def mixing_while_computing(algorithm: str, graph: str, workers: int) -> tuple[Exchange, ...]:
  """Return the exchanges that mix the models from before each step, while the step's gradient is computed.

  algorithm: the algorithm's name, for errors.
  """
  steps = mixing_steps(algorithm, graph, workers)

  def exchange(k: int) -> Exchange:
    def launch(group: Group, state: Tree, params: Tree) -> tuple[Tree, Tree]:
      return mixing_change(group, steps[k], params), state  # sum_j W_ij x_j - x_i

    return Exchange(launch, merge, period=len(steps), delay=1, offset=k - len(steps))

  def merge(group: Group, message: Tree, state: Tree, params: Tree) -> tuple[Tree, Tree]:
    return jax.tree.map(lambda x, c: x + c, params, message), state  # sum_j W_ij x_j - eta g_i(x_i)

  return tuple(map(exchange, range(len(steps))))


SPEC = Spec(
  factory=d_psgd,
  title="D-PSGD (decentralized parallel SGD)",
  citation="Lian et al. 2017, arXiv 1705.09056",
  taxonomy=Taxonomy("data", "decentralized", "synchronous", "peer to peer", "parameters"),
  symbols={"graph": "W"},
)
