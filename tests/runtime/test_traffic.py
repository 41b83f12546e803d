"""Bytes and messages per worker, counted from the trace, against numbers worked out by hand."""

import jax
import jax.numpy as jnp
import optax
import pytest
from jax import lax

from ddl import collectives
from ddl.algorithms import COLLECTIVE
from ddl.runtime import traffic
from ddl.runtime.calls import plan
from ddl.runtime.traffic import Traffic
from ddl.runtime.workers import AXIS

PARAMS = {"kernel": jax.ShapeDtypeStruct((10, 3), jnp.float32), "bias": jax.ShapeDtypeStruct((3,), jnp.float32)}
BYTES = 33 * 4  # of two leaves
X = jax.ShapeDtypeStruct((33,), jnp.float32)


def meter(name, workers, **hyper):
  algorithm = COLLECTIVE[name].factory(optax.sgd(0.1, momentum=0.9), axis_name=AXIS, **hyper)
  axes = [(AXIS[0], workers), (AXIS[1], 1)]
  state = jax.make_jaxpr(algorithm.init, axis_env=axes, return_shape=True)(PARAMS)[1]
  return algorithm, traffic.meter(algorithm, state, PARAMS, workers)


def sent(name, steps, workers=8, longest=64, **hyper):
  algorithm, counted = meter(name, workers, **hyper)
  total = Traffic()
  for call in plan(algorithm, 0, steps, 1000, longest):
    total += counted.of(call.unit).times(call.repeat)
  return total


def all_reduce(workers=8):
  return 2 * BYTES * (workers - 1) / workers


@pytest.mark.parametrize("workers", [1, 2, 8])
def test_a_step_of_each(workers):
  one = Traffic(all_reduce(workers), 2) if workers > 1 else Traffic()
  none = Traffic()
  assert meter("sync_sgd", workers)[1] == (one, none)
  assert meter("independent", workers)[1] == (none, none)
  assert meter("local_sgd", workers, period=5)[1] == (none, one)
  assert meter("post_local_sgd", workers, period=5, start=3)[1] == (none, one)
  assert meter("dasgd", workers, period=5, delay=2, keep=0.5)[1] == (none, one)
  assert meter("easgd", workers, period=5, alpha=0.1)[1] == (none, one)
  assert meter("eamsgd", workers, period=5, alpha=0.1, momentum=0.9)[1] == (none, one)
  assert meter("round_robin_easgd", workers, alpha=0.1)[1] == (none, one)


@pytest.mark.parametrize("workers, padded", [(2, 34), (4, 36), (8, 40)])
def test_sharded_sends_the_padded_vector_twice(workers, padded):
  """A reduce-scatter and an all-gather of n = padded values: each n (p-1)/p, together what an all-reduce sends."""
  assert meter("sharded_sync_sgd", workers)[1] == (Traffic(2 * padded * 4 * (workers - 1) / workers, 2), Traffic())


def test_every_algorithm_is_counted():
  assert set(COLLECTIVE) == {
    "sync_sgd", "sharded_sync_sgd", "local_sgd", "post_local_sgd", "dasgd", "easgd", "eamsgd", "round_robin_easgd",
    "independent",
  }, "count the new one by hand above"  # fmt: skip


@pytest.mark.parametrize("longest", [1, 3, 64])
def test_a_run_pays_for_its_exchanges(longest):
  def exchanges(name, steps, **hyper):
    total = sent(name, steps, longest=longest, **hyper)
    assert total.messages * all_reduce() == total.nbytes * 2
    return total.messages / 2

  assert exchanges("sync_sgd", 100) == 100
  assert exchanges("local_sgd", 100, period=10) == 10
  assert exchanges("local_sgd", 109, period=10) == 10
  assert exchanges("post_local_sgd", 100, period=10, start=30) == 30 + 7
  assert exchanges("dasgd", 100, period=10, delay=2, keep=0.5) == 9  # none in the first round
  assert exchanges("dasgd", 101, period=10, delay=2, keep=0.5) == 10  # one that has left and not arrived
  assert exchanges("dasgd", 100, period=10, delay=0, keep=0.5) == 10
  assert exchanges("easgd", 100, period=10, alpha=0.1) == 10
  assert exchanges("easgd", 101, period=10, alpha=0.1) == 11  # at steps 0, 10, ..., 100
  assert exchanges("round_robin_easgd", 100, alpha=0.1) == 100
  assert exchanges("independent", 100) == 0


# ---- the rules


def count(fn, *args, workers=8):
  return traffic.count(fn, *(args or (X,)), workers=workers)


def test_a_shift_sends_the_value_once():
  assert count(lambda x: collectives.shift(x, 1, AXIS)) == Traffic(BYTES, 1)
  assert count(lambda x: collectives.shift(x, 1, AXIS) + collectives.shift(x, -1, AXIS)) == Traffic(2 * BYTES, 2)
  assert count(lambda x: collectives.shift(x, 8, AXIS)) == Traffic()


def test_gather_and_scatter():
  assert count(lambda x: collectives.all_gather(x, AXIS)) == Traffic(7 * BYTES, 1)
  assert count(lambda x: collectives.psum_scatter(x[:32], AXIS)) == Traffic(32 * 4 * 7 / 8, 1)
  assert count(lambda x: collectives.pmax(x, AXIS)) == Traffic(all_reduce(), 1)
  assert count(lambda x: collectives.index(AXIS) + collectives.size(AXIS)) == Traffic()


def test_the_type_counts():
  assert count(lambda x: collectives.psum(x.astype(jnp.bfloat16), AXIS)) == Traffic(all_reduce() / 2, 1)


def test_a_loop_counts_its_steps():
  def scanned(x):
    return lax.scan(lambda c, _: (collectives.pmean(c, AXIS), None), x, length=5)[0]

  assert count(scanned) == Traffic(5 * all_reduce(), 5)
  assert count(lambda x: lax.scan(lambda c, _: (scanned(c), None), x, length=3)[0]) == Traffic(15 * all_reduce(), 15)
  assert count(lambda x: lax.fori_loop(0, 4, lambda _, c: collectives.pmean(c, AXIS), x)) == Traffic(
    4 * all_reduce(), 4
  )


def test_of_a_condition_the_dearest_branch():
  def branches(x):
    few, many = lambda x: collectives.psum(x, AXIS), lambda x: collectives.psum(collectives.psum(x, AXIS), AXIS)
    return lax.switch(jnp.int32(x[0]), [lambda x: x, many, few], x)

  assert count(branches) == Traffic(2 * all_reduce(), 2)


def test_inside_of_other_functions():
  assert count(jax.jit(jax.jit(lambda x: collectives.psum(x, AXIS)))) == Traffic(all_reduce(), 1)
  assert count(jax.checkpoint(lambda x: collectives.psum(x, AXIS))) == Traffic(all_reduce(), 1)

  @jax.custom_vjp
  def custom(x):
    return collectives.psum(x, AXIS)

  custom.defvjp(lambda x: (custom(x), None), lambda _, g: (g,))
  assert count(custom) == Traffic(all_reduce(), 1)


def test_a_loop_of_unknown_length_cannot_be_counted():
  def unknown(x):
    return lax.while_loop(lambda c: c[0] < 3, lambda c: collectives.psum(c, AXIS), x)

  with pytest.raises(ValueError, match="while loop"):
    count(unknown)
  count(lambda x: lax.while_loop(lambda c: c[0] < 3, lambda c: c + 1, x))  # without a collective it may
