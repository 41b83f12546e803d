"""EF21 and EF21-SGDM, error feedback by compressed differences."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ddl.algorithms.sparse import array_of, largest, mean_of
from ddl.algorithms.wrappers.compressed import Compressor, compressed, compressible
from ddl.api import Algorithm, Tree, Wrapper
from ddl.group import Group
from ddl.ranges import Momentum, Share, checked, is_set


class EF21Memory(NamedTuple):
  """The memory of one array."""

  own: jax.Array  # h_i, of this worker
  mean: jax.Array  # h = (1/p) sum_i h_i, equal on all workers
  momentum: Any  # (v_i, whether v_i is set: [] bool) of this worker; () without momentum


@checked
def ef21(algorithm: Algorithm, *, share: Share = 0.01, momentum: Momentum = 0.9) -> Algorithm:
  """Send the largest changes of each worker's gradient estimate, and use the mean estimate (EF21, EF21-SGDM).

  mean(x) becomes h; v_i <- a v_i + (1 - a) x_i; c_i = the k largest of v_i - h_i in magnitude; h_i <- h_i + c_i;
  h <- h + (1/p) sum_i c_i

  Richtarik, Sokolov, Fatkhullin 2021, arXiv 2106.05203 (EF21, a = 0); Fatkhullin, Tyurin, Richtarik 2023,
  arXiv 2305.15155 (EF21-SGDM). h = (1/p) sum_i h_i always holds. Without momentum, EF21 needs large batches, because it
  does not average out the noise of small ones. v_i starts as the first x_i, and h_i as 0; in the papers, h_i may also
  start as the first x_i, which is then sent whole. The memory does not contain the learning rate, so schedules do not
  distort it. c_i is sent as in `topk`, as k values and k int32 indices, which all workers gather. x_i must be a
  gradient or a difference. EF21 needs a compressor that is a contraction, such as top-k; unbiased random rounding is
  not.

  Args:
    algorithm: a collective algorithm that uses only means and sums, with an optimizer without momentum if a > 0.
    share: share of each array's values to send, k = max(1, round(share n)); 1 sends all.
    momentum: momentum of each worker's estimate (a, which is 1 - eta in the paper); 0 is EF21.
  """
  moving = is_set(momentum)

  def init(arrays: list[Any], key: Any) -> Tree:
    def one(x: jax.Array) -> EF21Memory:
      zero = jnp.zeros_like(x)
      return EF21Memory(zero, zero, (zero, jnp.zeros((), bool)) if moving else ())

    return tuple(one(x) if compressible(x) else None for x in arrays)

  def mean(group: Group, arrays: list[Any], memory: Tree) -> tuple[list[Any], Tree]:
    after, sent = list(memory), {}
    for i, (x, before) in enumerate(zip(arrays, memory, strict=True)):
      if before is None:
        continue
      v, moments = x, ()
      if moving:
        last, started = before.momentum
        v = jnp.where(started, momentum * last + (1 - momentum) * x, x)  # v_i <- a v_i + (1 - a) x_i
        moments = v, jnp.ones_like(started)
      sent[i] = largest(v - before.own, share)  # c_i
      own = before.own + array_of(sent[i], x)  # h_i <- h_i + c_i
      after[i] = EF21Memory(own, before.mean, moments)
    whole = group.mean({i: x for i, x in enumerate(arrays) if i not in sent})
    for i, message in group.gather(sent).items():
      whole[i] = after[i].mean + mean_of(message, arrays[i])  # h <- h + (1/p) sum_i c_i
      after[i] = after[i]._replace(mean=whole[i])
    return [whole[i] for i in range(len(arrays))], tuple(after)

  exact = share == 1 and not moving
  return compressed(algorithm, Compressor("ef21", init, mean, models=lambda size: exact))


SPEC = Wrapper(
  factory=ef21,
  title="EF21-SGDM, compressed differences",
  citation="Richtarik et al. 2021, arXiv 2106.05203; Fatkhullin et al. 2023, arXiv 2305.15155",
  symbols={"share": "k / n", "momentum": "1 - eta"},
)
