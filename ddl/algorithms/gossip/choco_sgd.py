"""CHOCO-SGD."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from ddl.algorithms.gossip.graphs import from_neighbors, mixing_steps
from ddl.algorithms.sparse import array_of, largest
from ddl.algorithms.wrappers.compressed import compressible
from ddl.api import Algorithm, Exchange, Spec, Taxonomy, Tree, inner_step
from ddl.group import Group
from ddl.precision import wide
from ddl.ranges import PositiveInt, Share, UnitInterval, checked


class Copies(NamedTuple):
  """A worker's public copy xhat_i, and the weighted mean of all workers' copies minus xhat_i, for one matrix W."""

  public: Tree  # xhat_i, which all neighbors of worker i know
  difference: Tree  # sum_j W_ij xhat_j - xhat_i


class ChocoState(NamedTuple):
  inner: optax.OptState
  copies: tuple[Copies, ...]  # one for each matrix W of the graph


class Code(NamedTuple):
  """A compressor C of arrays: C(v) = decode(v, encode(v)). `decode` uses only the shape and type of its v."""

  encode: Callable[[jax.Array], Tree]
  decode: Callable[[jax.Array, Tree], jax.Array]


@checked
def choco_sgd(
  inner: optax.GradientTransformation,
  *,
  graph: str = "ring",
  compressor: str = "sign",
  share: Share = 0.01,
  consensus_rate: UnitInterval = 0.5,
  adapt_first: bool = True,
  workers: PositiveInt,
) -> Algorithm:
  """Mix public copies of the models, whose compressed changes are sent to the neighbors (CHOCO-SGD).

  x_i <- x_i + inner(g_i); xhat_i <- xhat_i + C(x_i - xhat_i); x_i <- x_i + gamma (sum_j W_ij xhat_j - xhat_i)

  Koloskova, Stich, Jaggi 2019, arXiv 1902.00340; deep learning: Koloskova, Lin, Stich, Jaggi 2019, ICLR 2020. C acts on
  each array: "sign" sends 1 bit per value and the mean magnitude, C(v) = mean(|v|) sign(v), with +1 for zeros; "topk"
  sends k values and k int32 indices. xhat_i starts as 0. A worker stores xhat_i and sum_j W_ij xhat_j - xhat_i instead
  of its neighbors' copies, for each of the graph's matrices, and sends C(x_i - xhat_i) to each neighbor in each step.
  Mixing conserves the mean of all models for every C. Without adapt_first the order is that of the authors' code for
  deep learning: a worker mixes with the copies from before the step, so C(x_i - xhat_i) can be sent during the next
  step. With C = top-k, a share of 1 and gamma = 1, this is D-PSGD, which mixes after the step if adapt_first is true,
  else before it. The evaluated model is the mean of the models. If workers leave or join an elastic run, all workers
  reset xhat_i to 0.

  Args:
    inner: optimizer of each worker; its state stays local.
    graph: a graph with mixing matrix W, as in `d_psgd`.
    compressor: "sign" or "topk" (C).
    share: share of each array's values that "topk" sends, k = max(1, round(share n)).
    consensus_rate: share of the difference to the neighbors' copies that is applied (gamma); 0.5 with "sign" in the
      authors' code. It must be smaller if C sends less; if it is too large, the models diverge.
    adapt_first: whether workers take the step before they compress and mix, as in the paper.
    workers: number of workers (p).
  """
  if compressor not in CODES:
    raise ValueError(f"choco_sgd.compressor must be one of {', '.join(CODES)}, got {compressor!r}.")
  steps, code = mixing_steps("choco_sgd", graph, workers), CODES[compressor](share)

  def init(group: Group, params: Tree, key: Any) -> ChocoState:
    zeros = jax.tree.map(jnp.zeros_like, params)
    return ChocoState(inner.init(params), (Copies(zeros, zeros),) * len(steps))

  def exchange(k: int) -> Exchange:
    def launch(group: Group, state: ChocoState, params: Tree) -> tuple[Tree, ChocoState]:
      copies = state.copies[k]
      message = jax.tree.map(lambda x, xhat: encode(x - xhat), params, copies.public)
      q = jax.tree.map(decode, params, message)  # q_i = C(x_i - xhat_i)
      change = jax.tree.map(jnp.zeros_like, q)
      for hop, received in from_neighbors(group, steps[k], message):
        weight = jnp.asarray(hop.weights)[group.index()]
        change = jax.tree.map(  # sum_j W_ij q_j - q_i, because each row of W sums to one
          lambda c, own, other, w=weight: c + w.astype(c.dtype) * (other - own),
          *(change, q, jax.tree.map(decode, params, received)),
        )
      public = jax.tree.map(lambda xhat, own: xhat + own, copies.public, q)  # xhat_i <- xhat_i + q_i
      return change, with_copies(state, k, copies._replace(public=public))

    def merge(group: Group, message: Tree, state: ChocoState, params: Tree) -> tuple[Tree, ChocoState]:
      copies = state.copies[k]
      difference = jax.tree.map(lambda s, c: s + c, copies.difference, message)  # sum_j W_ij xhat_j - xhat_i
      params = jax.tree.map(lambda x, s: x + consensus_rate * s, params, difference)  # x_i <- x_i + gamma (...)
      return params, with_copies(state, k, copies._replace(difference=difference))

    return Exchange(launch, merge, period=len(steps), delay=0 if adapt_first else 1, offset=k + 1 - len(steps))

  def encode(v: jax.Array) -> Tree:
    return code.encode(v) if compressible(v) else v

  def decode(v: jax.Array, message: Tree) -> jax.Array:
    return code.decode(v, message) if compressible(v) else message

  def evaluate(group: Group, state: ChocoState, params: Tree) -> Tree:
    return group.mean(params)

  def regroup(state: ChocoState) -> ChocoState:
    return state._replace(copies=jax.tree.map(jnp.zeros_like, state.copies))

  return Algorithm(init, inner_step(inner), tuple(map(exchange, range(len(steps)))), evaluate, regroup)


def with_copies(state: ChocoState, k: int, copies: Copies) -> ChocoState:
  """Return the state with the copies for the k-th matrix of the graph replaced by `copies`."""
  return state._replace(copies=(*state.copies[:k], copies, *state.copies[k + 1 :]))


def encode_sign(v: jax.Array) -> tuple[jax.Array, jax.Array]:
  """Return which values are negative, as bits [ceil(n / 8)] uint8, and the mean magnitude []."""
  return jnp.packbits(v.reshape(-1) < 0), jnp.mean(jnp.abs(v), dtype=wide(v.dtype)).astype(v.dtype)


def decode_sign(v: jax.Array, message: tuple[jax.Array, jax.Array]) -> jax.Array:
  """Return mean(|a|) sign(a) for the array a that `encode_sign` encoded; v provides only the shape and type of a."""
  bits, scale = message
  return scale * (1 - 2 * jnp.unpackbits(bits, count=v.size).astype(v.dtype)).reshape(v.shape)


CODES: dict[str, Callable[[float], Code]] = {  # name -> (share of the values to send -> compressor)
  "sign": lambda share: Code(encode_sign, decode_sign),
  "topk": lambda share: Code(partial(largest, share=share), lambda v, message: array_of(message, v)),
}

SPEC = Spec(
  factory=choco_sgd,
  title="CHOCO-SGD",
  citation="Koloskova et al. 2019, arXiv 1902.00340",
  taxonomy=Taxonomy("data", "decentralized", "synchronous", "peer to peer", "differences"),
  symbols={"graph": "W", "compressor": "C", "share": "k / n", "consensus_rate": "gamma"},
)
