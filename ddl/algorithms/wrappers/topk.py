"""Top-k sparsification with error feedback: of each array only the k largest values are sent, the rest waits.

Stich, Cordonnier, Jaggi 2018, arXiv 1809.07599. For the value x_i that worker i would send, with its memory e_i:
v_i = x_i + e_i;  s_i = the k values of v_i of the largest magnitude, with their places;  e_i <- v_i - s_i.
What is received is (1/p) sum_i s_i. The paper keeps the memory of eta g_i within SGD; here it is that of whatever an
algorithm averages. That has to be a gradient or a difference: most of a model's own values would be left out.
All p workers get all messages, so that fewer bytes are sent than by an all-reduce only with a share below about 1 / p.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from ddl.algorithms.wrappers.compressed import Compressor, compressed, unsent
from ddl.api import Algorithm, Hyper, Tree, Wrapper
from ddl.group import Group
from ddl.ranges import Share, checked


@checked
def topk(algorithm: Algorithm, *, share: Share) -> Algorithm:
  """mean(x) becomes (1/p) sum_i s_i: k values of each array and k int32 places, gathered from all workers.

  Args:
    algorithm: one that uses means and sums of its group alone.
    share: of the values of each array that are sent, k = max(1, round(share n)); above 0, and 1 sends all.

  Returns:
    An `Algorithm` whose `init` raises ValueError for an algorithm with other collectives, or that averages models
    unless the share is 1. Arrays of integers, and empty ones, are sent as they are.

  Raises:
    ValueError: if the share is not above 0 and at most 1.
  """

  def init(arrays: list[Any], key: Any) -> Tree:
    del key
    return unsent(arrays)

  def mean(group: Group, arrays: list[Any], memory: Tree) -> tuple[list[Any], Tree]:
    after, sent = list(memory), {}
    for i, (x, e) in enumerate(zip(arrays, memory, strict=True)):
      if e is None:
        continue
      v = (x + e).reshape(-1)  # v_i = x_i + e_i
      _, places = lax.top_k(jnp.abs(v), max(1, round(share * v.size)))
      sent[i] = v[places], places  # s_i
      after[i] = v.at[places].set(jnp.zeros_like(sent[i][0])).reshape(x.shape)  # e_i <- v_i - s_i
    whole = group.mean({i: x for i, x in enumerate(arrays) if i not in sent})
    for i, message in group.gather(sent).items():
      whole[i] = (_add_up(arrays[i].size, *message) / group.size()).reshape(arrays[i].shape)  # (1/p) sum_i s_i
    return [whole[i] for i in range(len(arrays))], tuple(after)

  return compressed(algorithm, Compressor("topk", init, mean, models=lambda size: share == 1))


def _add_up(size: int, values: jax.Array, places: jax.Array) -> jax.Array:
  """[workers, k] values and places -> their sum [size]."""
  start = jnp.zeros(size, values.dtype).at[places[0]].set(values[0], unique_indices=True)

  def add(total: jax.Array, message: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
    # Worker by worker: a GPU adds to one place in any order, and the sums of two workers would differ by rounding.
    return total.at[message[1]].add(message[0], unique_indices=True), None

  return lax.scan(add, start, (values[1:], places[1:]))[0]


SPEC = Wrapper(
  factory=topk,
  title="Top-k with error feedback",
  citation="Stich et al. 2018, arXiv 1809.07599",
  hyper={"share": Hyper("k / n", 0.01, "share of the values of each array that are sent")},
)
