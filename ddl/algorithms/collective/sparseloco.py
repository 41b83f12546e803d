"""SparseLoCo."""

from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from ddl.algorithms.bits import pack, unpack
from ddl.algorithms.sparse import Chunks, Sparse, add_up, dense, mean_of_senders, top_k
from ddl.algorithms.wrappers.compressed import compressible
from ddl.api import Algorithm, Exchange, Spec, Taxonomy, Tree, descend, inner_step
from ddl.group import Group
from ddl.precision import wide
from ddl.ranges import OuterRate, PositiveInt, UnitInterval, checked, integers

AGGREGATES = ("senders", "workers")
SIDE = 64  # maximum length of a chunk along each axis
WHOLE = SIDE**2  # values of a chunk of full size
PLACE_BITS = (WHOLE - 1).bit_length()
LEVELS, LEVEL_BITS = 4, 2
DEVIATIONS = 6.0  # standard deviations that the levels cover


class SparseLoCoState(NamedTuple):
  inner: optax.OptState
  anchor: Tree  # z, equal on all workers
  error: Tree  # e_i, of this worker
  outer: optax.OptState  # the count of outer steps, if the outer rate is a schedule


class Packed(NamedTuple):
  """A worker's message for one array."""

  places: jax.Array  # [bytes] uint8: PLACE_BITS per place
  values: jax.Array  # [chunks, k] values; if quantized, [bytes] uint8: LEVEL_BITS per value
  table: jax.Array | None  # [LEVELS], the value of each level; None: not quantized


@checked
def sparseloco(
  inner: optax.GradientTransformation,
  *,
  period: PositiveInt = 30,
  kept: Annotated[int, integers(1, WHOLE)] = 64,
  decay: UnitInterval = 0.95,
  outer_learning_rate: OuterRate = 1.0,
  quantize: bool = True,
  aggregate: str = "senders",
) -> Algorithm:
  """Send the largest values of each chunk of the local progress, with a decaying error memory (SparseLoCo).

  e_i <- beta e_i + z - x_i; s_i = Q(TopK(e_i)); e_i <- e_i - s_i; z <- z - alpha mean(s_i); x_i <- z,
  after every H-th step

  Sarfi, Therien, Lidin, Belilovsky 2025, arXiv 2508.15706; defaults as for Covenant-72B, arXiv 2603.08163. There is no
  outer momentum; the error memory takes its place. Matrices are cut into chunks of up to 64 x 64 values, vectors into
  chunks of up to 64. Of a chunk of n values, max(1, round(n k / 4096)) are sent, with 12 bits per place and 2 bits per
  value: 112 bytes per chunk of 4096 with k = 64, instead of 16384. All workers gather all messages, so the bytes that a
  worker receives grow with p. Q rounds the sent values of an array to 4 levels, which cover 6 standard deviations
  around their mean, and replaces each by the mean of the values at its level; this table of 4 numbers is sent too. e_i
  keeps the error of Q. Empty and integer arrays are averaged uncompressed.

  The authors' code multiplies z - x_i by alpha too, so that its effective rate is alpha^2. Here alpha enters
  once; for the authors' alpha, set `outer_learning_rate` to alpha^2. With k = 4096, without Q, this is `diloco` without
  outer momentum for any beta. With beta = 1 and aggregate="workers" it is error feedback as in `topk`. The evaluated
  model is z.

  Args:
    inner: optimizer of each worker, AdamW in the paper; its state is neither averaged nor reset.
    period: local steps per round (H); 15 to 30 in the paper.
    kept: values sent per 4096 values of a chunk (k).
    decay: decay of the error memory per round (beta); with 1 nothing is forgotten.
    outer_learning_rate: rate of the outer steps (alpha), or an optax schedule of it.
    quantize: whether values are rounded to 4 levels (Q); the authors' code can also use 256.
    aggregate: how a value is averaged: over the workers that sent it ("senders", as in the authors' code) or over all
      ("workers"); with "senders", outer steps can be up to p times larger.
  """
  if aggregate not in AGGREGATES:
    raise ValueError(f"sparseloco.aggregate must be one of {', '.join(AGGREGATES)}, got {aggregate!r}.")
  outer = optax.sgd(outer_learning_rate)

  def count(chunks: Chunks) -> int:
    return max(1, round(chunks.values * kept / WHOLE))

  def init(group: Group, params: Tree, key: Any) -> SparseLoCoState:
    return SparseLoCoState(inner.init(params), params, jax.tree.map(jnp.zeros_like, params), outer.init(params))

  def launch(group: Group, state: SparseLoCoState, params: Tree) -> tuple[Tree, SparseLoCoState]:
    moved = jax.tree.map(lambda z, x: z - x, state.anchor, params)  # z - x_i
    differences, structure = jax.tree.flatten(moved)
    errors, sent, whole = jax.tree.leaves(state.error), {}, {}
    for i, (d, e) in enumerate(zip(differences, errors, strict=True)):
      if not compressible(d):
        whole[i] = d
        continue
      chunks = Chunks(d.shape, SIDE)
      e = decay * e + d  # e_i <- beta e_i + z - x_i
      message = top_k(chunks.split(e), count(chunks))  # TopK(e_i)
      places, values, table = pack(message.places, PLACE_BITS), message.values, None
      if quantize:
        levels, table = levels_of(values)
        values, message = pack(levels, LEVEL_BITS), message._replace(values=table[levels])  # Q
      sent[i] = Packed(places, values, table)
      errors[i] = e - chunks.join(dense(message, chunks.values))  # e_i <- e_i - s_i
    return (group.gather(sent), group.mean(whole)), state._replace(error=structure.unflatten(errors))

  def merge(group: Group, message: Tree, state: SparseLoCoState, params: Tree) -> tuple[Tree, SparseLoCoState]:
    (sent, whole), (arrays, structure) = message, jax.tree.flatten(state.anchor)
    means = dict(whole)
    for i, packed in sent.items():
      chunks = Chunks(arrays[i].shape, SIDE)
      messages = _unpacked(packed, arrays[i].size // chunks.values, count(chunks))  # s_j of all workers
      if aggregate == "senders":
        mean = mean_of_senders(messages, chunks.values)
      else:
        mean = add_up(messages, chunks.values) / group.size()  # (1/p) sum_j s_j
      means[i] = chunks.join(mean)
    step = structure.unflatten([means[i] for i in range(len(arrays))])
    anchor, outer_state = descend(outer, step, state.outer, state.anchor)  # z <- z - alpha mean(s_j)
    return anchor, state._replace(anchor=anchor, outer=outer_state)  # x_i <- z

  def evaluate(group: Group, state: SparseLoCoState, params: Tree) -> Tree:
    return state.anchor

  return Algorithm(init, inner_step(inner), (Exchange(launch, merge, period),), evaluate)


def levels_of(values: jax.Array) -> tuple[jax.Array, jax.Array]:
  """Return the level of each value, [...] int32 in 0..LEVELS - 1, and the mean value of each level, [LEVELS]."""
  v = values.astype(wide(values.dtype))
  centered = v - jnp.mean(v)
  deviation = jnp.sqrt(jnp.sum(centered * centered) / max(v.size - 1, 1))
  scale = DEVIATIONS * deviation / LEVELS
  scaled = centered / jnp.where(scale > 0, scale, jnp.ones_like(scale))
  levels = jnp.clip(jnp.round(scaled + LEVELS // 2), 0, LEVELS - 1).astype(jnp.int32)
  at_level = levels.reshape(-1, 1) == jnp.arange(LEVELS, dtype=jnp.int32)[None]  # [values, LEVELS]
  sums = jnp.sum(jnp.where(at_level, v.reshape(-1, 1), jnp.zeros((1, 1), v.dtype)), axis=0)
  table = sums / jnp.maximum(jnp.sum(at_level, axis=0, dtype=v.dtype), jnp.ones((1,), v.dtype))
  return levels, table.astype(values.dtype)


def _unpacked(packed: Packed, chunks: int, k: int) -> Sparse:
  """Return the messages of all workers for one array, [workers, chunks, k]."""
  values = packed.values
  if packed.table is not None:
    values = jnp.take_along_axis(packed.table, unpack(values, LEVEL_BITS, chunks * k), axis=1)
  shape = (-1, chunks, k)
  return Sparse(values.reshape(shape), unpack(packed.places, PLACE_BITS, chunks * k).reshape(shape))


SPEC = Spec(
  factory=sparseloco,
  title="SparseLoCo",
  citation="Sarfi et al. 2025, arXiv 2508.15706",
  taxonomy=Taxonomy("data", "decentralized", "synchronous", "all-reduce", "differences"),
  symbols={"period": "H", "kept": "k", "decay": "beta", "outer_learning_rate": "alpha"},
)
