"""Random-k sparsification."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ddl.algorithms.draws import Draws, choose, draw, start
from ddl.algorithms.wrappers.compressed import Compressor, compressed, unsent
from ddl.api import Algorithm, Tree, Wrapper
from ddl.group import Group
from ddl.ranges import Share, checked


class RandomKMemory(NamedTuple):
  draws: Draws  # equal on all workers
  error: tuple[jax.Array | None, ...]  # e_i of each array; None: sent uncompressed


@checked
def randomk(algorithm: Algorithm, *, share: Share = 0.01) -> Algorithm:
  """Send only k random values of each array, at the same indices on all workers, with error feedback (random-k).

  mean(x) becomes (1/p) sum_i s_i; v_i = x_i + e_i; s_i = v_i at the k indices J, else 0; e_i <- v_i - s_i

  Stich, Cordonnier, Jaggi 2018, arXiv 1809.07599; Karimireddy et al. 2019, arXiv 1901.09847. All workers draw J from
  one seed, so the mean is an ordinary all-reduce of values. Values are not scaled by n / k, as error feedback
  compensates for the omitted values. x_i must be a gradient or a difference. An elastic algorithm such as `easgd` sends
  the difference between a worker's model and the center z. This difference is not reset after it is sent, so the error
  memory accumulates it. With a share c = k / n and m workers that pull z in an exchange, z diverges in mean square if
  m alpha > 2 c / (2 - c), for small alpha and without gradients; if z has momentum mu, as in `sma`, the limit is
  multiplied by about 1 - mu.

  Args:
    algorithm: a collective algorithm that uses only means and sums.
    share: share of each array's values to send, k = max(1, round(share n)); 1 sends all.
  """

  def init(arrays: list[Any], key: Any) -> RandomKMemory:
    return RandomKMemory(start(key), unsent(arrays))

  def mean(group: Group, arrays: list[Any], memory: Tree) -> tuple[list[Any], Tree]:
    key, draws = draw(memory.draws)
    sent, after, places = list(arrays), list(memory.error), {}
    for i, (x, e) in enumerate(zip(arrays, memory.error, strict=True)):
      if e is None:
        continue
      v = (x + e).reshape(-1)  # v_i = x_i + e_i
      places[i] = choose(jax.random.fold_in(key, i), v.size, share)  # J
      sent[i] = v[places[i]]  # s_i
      after[i] = v.at[places[i]].set(jnp.zeros_like(sent[i]), unique_indices=True).reshape(x.shape)  # e_i <- v_i - s_i
    out = group.mean(sent)  # (1/p) sum_i s_i
    for i, at in places.items():
      x = arrays[i]
      out[i] = jnp.zeros(x.size, x.dtype).at[at].set(out[i], unique_indices=True).reshape(x.shape)
    return out, RandomKMemory(draws, tuple(after))

  return compressed(algorithm, Compressor("randomk", init, mean, models=lambda size: share == 1))


SPEC = Wrapper(
  factory=randomk,
  title="Random-k with error feedback",
  citation="Stich et al. 2018, arXiv 1809.07599; Karimireddy et al. 2019, arXiv 1901.09847",
  symbols={"share": "k / n"},
)
