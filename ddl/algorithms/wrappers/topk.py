"""Top-k sparsification."""

from typing import Any

from ddl.algorithms.sparse import array_of, largest, mean_of
from ddl.algorithms.wrappers.compressed import Compressor, compressed, unsent
from ddl.api import Algorithm, Tree, Wrapper
from ddl.group import Group
from ddl.ranges import Share, checked


@checked
def topk(algorithm: Algorithm, *, share: Share = 0.01) -> Algorithm:
  """Send only the k largest values of each array, with error feedback (top-k).

  mean(x) becomes (1/p) sum_i s_i; v_i = x_i + e_i; s_i = the k largest of v_i in magnitude; e_i <- v_i - s_i

  Stich, Cordonnier, Jaggi 2018, arXiv 1809.07599. s_i is sent as k values and k int32 indices, which all workers
  gather. This takes fewer bytes than an all-reduce only if the share is below about 1 / p. x_i must be a gradient or a
  difference; if it were a model, most of its values would be omitted.

  Args:
    algorithm: a collective algorithm that uses only means and sums.
    share: share of each array's values to send, k = max(1, round(share n)); 1 sends all.
  """

  def mean(group: Group, arrays: list[Any], memory: Tree) -> tuple[list[Any], Tree]:
    after, sent = list(memory), {}
    for i, (x, e) in enumerate(zip(arrays, memory, strict=True)):
      if e is None:
        continue
      v = x + e  # v_i = x_i + e_i
      sent[i] = largest(v, share)  # s_i
      after[i] = v - array_of(sent[i], v)  # e_i <- v_i - s_i
    whole = group.mean({i: x for i, x in enumerate(arrays) if i not in sent})
    for i, message in group.gather(sent).items():
      whole[i] = mean_of(message, arrays[i])  # (1/p) sum_i s_i
    return [whole[i] for i in range(len(arrays))], tuple(after)

  return compressed(
    algorithm, Compressor("topk", lambda arrays, key: unsent(arrays), mean, models=lambda size: share == 1)
  )


SPEC = Wrapper(
  factory=topk,
  title="Top-k with error feedback",
  citation="Stich et al. 2018, arXiv 1809.07599",
  symbols={"share": "k / n"},
)
