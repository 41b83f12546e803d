"""Sparse messages: chunks, packed bits, SparseLoCo's equalities, its codebook and its bytes."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers.twins import INNER, build, close, drive, tree_of
from reference import collective as reference
from reference.sparse import sparseloco, two_bits

from ddl.algorithms import WRAPPERS
from ddl.algorithms.bits import pack, unpack
from ddl.algorithms.collective.sparseloco import levels_of
from ddl.algorithms.sparse import Chunks, Sparse, add_up, mean_of_senders, top_k
from ddl.engine import traffic

pytestmark = pytest.mark.usefixtures("x64")
HOW = {"period": 3, "kept": 1365, "decay": 1.0, "outer_learning_rate": 1.0, "quantize": False, "aggregate": "workers"}
DILOCO = {"period": 3, "outer_momentum": 0.0}


def run(algorithm, workers=8, steps=9, grad=None):
  x0, default = reference.problem(workers, steps)
  return drive(algorithm, x0, grad or default, workers=workers, steps=steps)


def sparse(inner="momentum", **how):
  return build("sparseloco", INNER[inner][0], **HOW | how)


def same(one, other):
  for ours, expected in zip(run(one)[:2], run(other)[:2], strict=True):
    close(ours, expected)


# ---- parts


@pytest.mark.parametrize("bits", [1, 3, 12])
def test_packed_integers_are_unpacked(bits):
  rows = np.random.default_rng(0).integers(2**bits, size=(3, 5), dtype=np.int32)
  packed = jnp.stack([pack(jnp.asarray(row), bits) for row in rows])
  assert packed.dtype == jnp.uint8 and packed.shape == (3, -(-5 * bits // 8))
  np.testing.assert_array_equal(unpack(packed, bits, 5), rows)


@pytest.mark.parametrize(
  "shape, sizes",
  [((), (1, 1)), ((128,), (1, 64)), ((67,), (1, 1)), ((96, 130), (48, 26)), ((3, 5, 2, 64), (30, 64)), ((4, 0), None)],
)
def test_chunks_are_blocks_of_a_matrix(shape, sizes):
  if sizes is None:
    with pytest.raises(ZeroDivisionError):
      Chunks(shape)
    return
  chunks, x = Chunks(shape), np.arange(np.prod(shape)).reshape(shape)
  assert chunks.sizes == sizes and chunks.values == sizes[0] * sizes[1]
  matrix = x.reshape(-1, shape[-1] if len(shape) > 1 else x.size)
  rows, columns = (range(0, n, d) for n, d in zip(matrix.shape, sizes, strict=True))
  blocks = [matrix[i : i + sizes[0], j : j + sizes[1]].ravel() for i in rows for j in columns]
  np.testing.assert_array_equal(chunks.split(jnp.asarray(x)), blocks)
  np.testing.assert_array_equal(chunks.join(jnp.asarray(blocks)), x)


def test_sums_and_means_of_messages():
  chunks = jnp.array([[[1.0, -3.0, 2.0], [0.0, 0.5, -0.5]], [[4.0, -1.0, 0.0], [0.0, 0.0, 7.0]]])  # of two workers
  messages = jax.vmap(lambda x: top_k(x, 2))(chunks)
  assert messages.places.dtype == jnp.int32
  assert [[sorted(row) for row in worker] for worker in messages.places.tolist()] == [
    [[1, 2], [1, 2]],
    [[0, 1], [0, 2]],
  ]
  close(add_up(messages, 3), [[4, -4, 2], [0, 0.5, 6.5]])
  close(mean_of_senders(messages, 3), [[4, -2, 2], [0, 0.5, 3.25]])
  zero = Sparse(jnp.array([[[0.0]], [[8.0]]]), jnp.zeros((2, 1, 1), jnp.int32))
  close(mean_of_senders(zero, 2), [[4, 0]])


def quantized(values):
  levels, table = levels_of(jnp.asarray(values))
  assert levels.dtype == jnp.int32 and table.shape == (4,)
  return np.asarray(table[levels])


@pytest.mark.parametrize("shift", [0.0, 3.0])
def test_four_levels_keep_the_mean(shift):
  values = np.random.default_rng(0).normal(shift, size=50) ** 3
  result = quantized(values.reshape(5, 10)).ravel()
  close(result, two_bits(values))
  close(result.mean(), values.mean())
  assert 2 <= len({*result}) <= 4 and np.abs(result - values).max() > 0.1
  close(quantized(0.3 * values), 0.3 * quantized(values))
  assert not np.allclose(quantized(-values), -quantized(values))  # two levels below the mean, one above


@pytest.mark.parametrize("values", [[5.0], [2.0, 2.0, 2.0], [0.0]])
def test_equal_values_are_quantized_exactly(values):
  np.testing.assert_array_equal(quantized(values), values)


# ---- equalities


@pytest.mark.parametrize("aggregate", ["senders", "workers"])
@pytest.mark.parametrize("decay", [0.6, 1.0])
@pytest.mark.sampled(2)
def test_sparseloco_that_sends_all_is_diloco_without_momentum(decay, aggregate):
  how = {"kept": 4096, "decay": decay, "aggregate": aggregate, "outer_learning_rate": 0.7}
  same(sparse(**how), build("diloco", INNER["momentum"][0], **DILOCO, outer_learning_rate=0.7))


def test_both_means_of_one_worker_are_equal():
  one, other = (run(sparse(kept=2730, quantize=True, aggregate=how), 1)[0] for how in ("senders", "workers"))
  close(one, other)
  assert not np.allclose(*(run(sparse(aggregate=how), 3)[0] for how in ("senders", "workers")))


def test_without_decay_and_local_steps_it_is_error_feedback():
  topk = WRAPPERS["topk"].factory(build("sync_sgd", INNER["sgd"][0]), share=0.34)
  same(sparse("sgd", period=1), topk)


def test_without_decay_it_is_qsparse_local_sgd():
  same(
    sparse(),
    WRAPPERS["topk"].factory(build("diloco", INNER["momentum"][0], **DILOCO, outer_learning_rate=1.0), share=0.34),
  )


@pytest.mark.parametrize("quantize", [True, False])
@pytest.mark.sampled(2)
def test_memories_hold_what_was_not_sent(quantize):
  """With SGD of rate 1, a round's change is the sum of its gradients."""
  table = jnp.asarray(np.random.default_rng(1).normal(size=(8, 6, 7)))
  algorithm = build("sparseloco", optax.sgd(1.0), **HOW | {"kept": 2730, "quantize": quantize})
  x, _, state = run(algorithm, 8, 6, lambda i, t, x: table[i, t])
  errors = np.concatenate([np.reshape(leaf, (8, -1)) for leaf in jax.tree.leaves(state.error)], axis=1)
  sent = reference.problem(8, 6)[0] - x[-1, 0]
  close(sent + errors.mean(axis=0), table.sum(axis=1).mean(axis=0))
  assert np.abs(errors).max() > 0.1


@pytest.mark.parametrize("aggregate", ["senders", "workers"])
def test_the_authors_code_has_the_square_of_the_outer_rate(aggregate):
  x0, grad = reference.problem(3, 9)
  how = {"period": 3, "kept": 2730, "decay": 0.9, "quantize": True, "aggregate": aggregate}
  code = {"outer_learning_rate": 0.8, "memory_rate": 0.8}
  expected = sparseloco(x0, grad, workers=3, steps=9, inner=INNER["momentum"][1], **how, **code)
  close(run(sparse(**how, outer_learning_rate=0.64), 3)[0], expected.params)


# ---- bytes


@pytest.mark.parametrize("workers", [1, 4])
def test_bytes_of_sparseloco(workers):
  params = {"matrix": jnp.zeros((128, 64), jnp.float32), "vector": jnp.zeros(128, jnp.float32)}

  def sent(**how):
    result = traffic.of(build("sparseloco", optax.sgd(0.1), **how), params, workers)
    assert not result.local and not result.evaluate
    return result.sent(result.exchanges[0])

  others = workers - 1
  assert sent() == others * (2 * 112 + 16 + 3 + 1 + 16)  # 2 chunks of 4096, a table, 2 chunks of 64 with one value each
  assert sent(kept=32) == others * (2 * 56 + 16 + 3 + 1 + 16)
  assert sent(quantize=False) == others * (2 * (96 + 64 * 4) + 3 + 2 * 4)
  assert pytest.approx(146.3, abs=0.05) == 4096 * 4 / 112


def test_empty_arrays_are_averaged():
  params = {"none": jnp.zeros((0, 2)), "one": jnp.zeros(3)}
  result = traffic.of(build("sparseloco", optax.sgd(0.1)), params, 4)
  assert [op.kind for op in result.exchanges[0]] == ["all_gather", "all_reduce"]


def test_an_unknown_aggregate_is_refused():
  with pytest.raises(ValueError, match="aggregate must be one of senders, workers, got 'mean'"):
    traffic.of(sparse(aggregate="mean"), tree_of(jnp.zeros(7)), 2)
