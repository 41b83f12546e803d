"""Wrapped algorithms: against NumPy, lossless against plain ones, their bytes and their error memories."""

import inspect
import math
from contextlib import nullcontext
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers.runs import HYPER, STEPS, each, feed, flat_rows, model, record
from helpers.twins import INNER, W, build, close, drive, flat_of, tree_of
from helpers.wrappers import (
  BASE,
  COMPRESSORS,
  LOSSLESS,
  LOSSY,
  OF_DIFFERENCES,
  as_started,
  optimizer,
  wrapped,
  wrapper_and_reference,
)
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P
from reference import collective as reference
from reference import compression

from ddl.algorithms import COLLECTIVE, WRAPPERS
from ddl.api import Algorithm, Exchange
from ddl.as_optax import as_optax
from ddl.engine import traffic
from ddl.engine.compiled_trainer import CompiledTrainer
from ddl.engine.execution import ExecutionConfig
from ddl.engine.workers import make_workers
from ddl.group import Present

REFUSED = {
  "sharded_sync_sgd": "reduce_scatter",
  "d_psgd": "shift",
  "distributed_lion": "shift",
  "one_bit_adam": "shift",
  "noloco": "permute",
  "sparseloco": "gather",
  "edit": "max",
  "sgp": "shift",
  "overlap_sgp": "shift",
  "gradient_tracking": "shift",
  "exact_diffusion": "shift",
  "quasi_global_momentum": "shift",
  "choco_sgd": "shift",
  "relay_sgd": "permute",
  "gossip_pga": "shift",
  "hierarchical_sgd": "permute",
}


OF_MODELS = [name for name, spec in COLLECTIVE.items() if spec.taxonomy.payload == "parameters" and name not in REFUSED]


def run(algorithm, workers=8, steps=8, grad=None, **how):
  x0, default = reference.problem(workers, steps)
  return drive(algorithm, x0, grad or default, workers=workers, steps=steps, **how)


@pytest.mark.parametrize("name", WRAPPERS)
def test_symbols_and_defaults_of_a_wrapper(name):
  keywords = [k for k in inspect.signature(WRAPPERS[name].factory).parameters.values() if k.kind is k.KEYWORD_ONLY]
  assert {k.name for k in keywords} >= set(WRAPPERS[name].symbols) and WRAPPERS[name].factory.__name__ == name
  assert all(k.default is not inspect.Parameter.empty for k in keywords)


# ---- against NumPy


@pytest.mark.parametrize("workers", [8, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 3))])
@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_a_wrapper_equals_its_reference(x64, wrapper, workers):
  algorithm, history = wrapper_and_reference(wrapper, workers, 8)
  params, evaluate, _ = run(algorithm, workers, compiled=jax.jit)
  close(params, history.params)
  close(evaluate[:, 0], history.evaluate)
  plain = run(build(BASE.get(wrapper, "sync_sgd"), optimizer(wrapper)[0]), workers)[0]
  # One worker averages nothing with sparta, and the scale of a strip with one value is that value.
  exact = {"sparta": 1, "int8": 8, "fp8": 8}
  assert np.allclose(plain, params) == (exact.get(wrapper) == workers)


def test_a_compressed_sum_equals_the_reference(x64):
  x0, grad = reference.problem(8, 6)
  params, evaluate, _ = run(wrapped("topk", "easgd", alpha=0.1, period=1), 8, 6, compiled=jax.jit)
  how = {"inner": INNER["momentum"][1], "alpha": 0.1, "compressor": compression.TopK(0.34)}
  history = compression.easgd(x0, grad, workers=8, steps=6, **how)
  close(params, history.params)
  close(evaluate[:, 0], history.evaluate)


MODES = ("vmap", "unroll", "map")
LAYOUTS = [
  (1, ExecutionConfig("vmap", "scan", 12)), (2, ExecutionConfig("unroll", "scan", 5)),
  (8, ExecutionConfig("vmap", "unroll", 2)),
]  # fmt: skip


@pytest.mark.parametrize("devices, how", LAYOUTS)
@pytest.mark.parametrize("wrapper", WRAPPERS)
@pytest.mark.sampled(14)
def test_compiled_rounds_equal_the_reference(x64, wrapper, devices, how):
  history = wrapper_and_reference(wrapper, 8, STEPS, as_started)[1]
  trainer = CompiledTrainer(wrapped(wrapper, BASE.get(wrapper, "sync_sgd")), model(), make_workers(8, devices), how)
  # The trainer stores one copy per device, because a compressed mean is equal on all workers.
  assert any(jax.tree.leaves(trainer.replication.params)) == (wrapper == "sparta")
  result = record(trainer)
  close(result.params, history.params[np.array(result.ends) - 1])


@pytest.mark.parametrize("wrapper", ["topk", "powersgd", "int8", "sparta"])
@pytest.mark.sampled(4)
def test_compiled_rounds_keep_the_memory_of_each_exchange(x64, wrapper):
  algorithm = wrapped(wrapper, "streaming_diloco")
  expected = run(as_started(algorithm), steps=STEPS)[0]
  result = record(CompiledTrainer(algorithm, model(), make_workers(8, 2), ExecutionConfig("vmap", "scan", 3)))
  close(result.params, np.asarray(expected)[np.array(result.ends) - 1])


@pytest.mark.slow
@pytest.mark.parametrize("workers, gradients", [(8, "unroll"), (18, "map")])
def test_a_memory_without_vectors_in_each_gradient_mode(x64, workers, gradients):
  """PowerSGD has no memory for vectors; a CPU loops over more than 16 workers per device."""
  algorithm = wrapped("powersgd", "diloco")
  expected = run(as_started(algorithm), workers, 6)[0]
  trainer = CompiledTrainer(
    algorithm, model(workers, 6), make_workers(workers, 1), ExecutionConfig(gradients, "scan", 6)
  )
  *_, (_, carry, _) = trainer.run(
    trainer.start(jax.random.key(0)), trainer.plan(0, 6, 6), partial(feed, workers=range(workers)), jax.random.key(1)
  )
  close(flat_rows(each(trainer, carry.params, trainer.replication.params)), expected[-1])


SENT = {name: algorithm.taxonomy.payload for name, algorithm in COLLECTIVE.items() if name not in REFUSED}
OF = {wrapper: [name for name in SENT if SENT[name] in ("gradients", "differences")] for wrapper in OF_DIFFERENCES}
OF |= {
  "sign": ["sync_sgd"],
  "dgc": ["sync_sgd"],
  "sparta": ["independent", "sync_sgd"],
}  # wrapper -> algorithms that it accepts
SHAPE_CASES = [
  (wrapper, name, MODES[i % 3]) for i, (wrapper, name) in enumerate((w, name) for w in OF for name in OF[w])
]


@pytest.mark.parametrize("wrapper, name, gradients", SHAPE_CASES)
@pytest.mark.sampled(20)
def test_a_round_keeps_all_shapes(x64, wrapper, name, gradients):
  trainer = CompiledTrainer(wrapped(wrapper, name), model(), make_workers(8, 2), ExecutionConfig(gradients, "scan", 3))
  batch = {key: jax.ShapeDtypeStruct((1,), jnp.int32) for key in ("worker", "step")}
  for call in {call.kind: call for call in trainer.plan(0, STEPS, STEPS)}.values():
    after, _ = jax.eval_shape(trainer.rounds.make_call(call.kind), *trainer.shapes(call, batch))
    same = jax.tree.map(lambda x, before: (x.shape, x.dtype) == (before.shape, before.dtype), after, trainer.carry)
    assert all(jax.tree.leaves(same))


def vmapped(fn):
  return jax.jit(jax.vmap(fn, axis_name="w"))


def mapped(fn):
  mesh = jax.make_mesh((8,), ("w",), axis_types=(AxisType.Auto,), devices=jax.devices()[:8])

  def one(*args):
    return jax.tree.map(lambda x: x[None], fn(*jax.tree.map(lambda x: x[0], args)))

  return jax.jit(jax.shard_map(one, mesh=mesh, in_specs=P("w"), out_specs=P("w")))


@pytest.mark.parametrize("lift", [vmapped, mapped])
@pytest.mark.parametrize("wrapper", WRAPPERS)
@pytest.mark.sampled(6)
def test_as_optax_equals_the_reference(x64, wrapper, lift):
  algorithm, history = wrapper_and_reference(wrapper, 8, 6)
  tx, (x0, grad) = as_optax(algorithm, "w"), reference.problem(8, 6)

  def step(worker, t, state, params):
    updates, state = tx.update(tree_of(grad(worker, t, flat_of(params))), state, params)
    return state, optax.apply_updates(params, updates)

  step, params = lift(step), jax.tree.map(lambda x: jnp.stack([x] * 8), tree_of(x0))
  state = lift(tx.init)(params)
  for t in range(6):
    state, params = step(np.arange(8), np.full(8, t), state, params)
    close(jax.vmap(flat_of)(params), history.params[t])


@pytest.mark.slow
@pytest.mark.parametrize(
  "wrapper, name", [*((w, "sync_sgd") for w in COMPRESSORS), *((w, "diloco") for w in (*OF_DIFFERENCES, "sparta"))]
)
@pytest.mark.sampled(3)
def test_a_scan_inside_checked_shard_map(x64, wrapper, name):
  """The initial memories must vary over the workers, as the memories after a step do."""
  algorithm, (x0, grad) = wrapped(wrapper, name), reference.problem(8, 6)
  tx = as_optax(algorithm, "w")

  def loop(worker, x):
    def step(carry, t):
      x, state = carry
      updates, state = tx.update(tree_of(grad(worker, t, flat_of(x))), state, x)
      x = optax.apply_updates(x, updates)
      return (x, state), flat_of(x)

    return jax.lax.scan(step, (tree_of(x), tx.init(tree_of(x))), jnp.arange(6))[1]

  history = mapped(loop)(np.arange(8), np.stack([x0] * 8))
  close(np.swapaxes(history, 0, 1), run(algorithm, steps=6)[0])


# ---- lossless


@cache
def plain(name):
  return run(build(name, INNER["momentum"][0], **HYPER.get(name, {})))[:2]


@pytest.mark.slow
@pytest.mark.parametrize(
  "wrapper, name",
  [
    (wrapper, name)
    for wrapper in LOSSLESS
    for name in COLLECTIVE
    if name not in REFUSED and not (name in OF_MODELS and wrapper in ("powersgd", "demo"))
  ],
)
def test_a_lossless_wrapper_changes_nothing(x64, wrapper, name):
  for ours, expected in zip(run(wrapped(wrapper, name, hyper=LOSSLESS))[:2], plain(name), strict=True):
    close(ours, expected)


@pytest.mark.parametrize(
  "wrapper, name", [*(("topk", name) for name in REFUSED), *((w, "noloco") for w in COMPRESSORS if w != "topk")]
)
@pytest.mark.sampled(2)
def test_algorithms_with_other_collectives_are_refused(x64, wrapper, name):
  algorithm = wrapped(wrapper, name)
  with pytest.raises(ValueError, match=f"^{wrapper}.*`{REFUSED[name]}`"):
    traffic.of(algorithm, tree_of(jnp.zeros(7)), 8)
  with pytest.raises(ValueError, match=f"^{wrapper}.*`{REFUSED[name]}`"):
    run(algorithm, steps=1)


@pytest.mark.parametrize(
  "wrapper, name", [*(("int8", name) for name in OF_MODELS), *((w, "local_sgd") for w in COMPRESSORS if w != "int8")]
)
@pytest.mark.sampled(4)
def test_only_rounding_wrappers_accept_means_of_models(x64, wrapper, name):
  algorithm = wrapped(wrapper, name)
  if wrapper in ("int8", "fp8", "qsgd"):
    assert np.isfinite(run(algorithm, steps=3)[0]).all()
    return
  for call in (lambda: traffic.of(algorithm, tree_of(jnp.zeros(7)), 8), lambda: run(algorithm, steps=1)):
    with pytest.raises(ValueError, match=rf"^{wrapper}\.algorithm must average ") as refused:
      call()
    assert "\n" not in str(refused.value)


def test_qsgd_accepts_models_only_with_small_buckets():
  base = build("local_sgd", optax.sgd(0.1), period=2)
  for levels, block, valid in ((5, 25, True), (5, 26, False), (6, 512, True)):  # 33 values
    algorithm = WRAPPERS["qsgd"].factory(base, levels=levels, block=block)
    with nullcontext() if valid else pytest.raises(ValueError, match="averages models"):
      traffic.of(algorithm, PARAMS, 8)


@pytest.mark.parametrize("wrapper", ["topk", "powersgd"])
def test_the_advised_diloco_equals_local_sgd(x64, wrapper):
  hyper = {"period": 3, "outer_learning_rate": 1.0, "outer_momentum": 0.0}
  ours = run(wrapped(wrapper, "diloco", hyper=LOSSLESS, **hyper))[0]
  close(ours, run(build("local_sgd", INNER["momentum"][0], period=3))[0])


@pytest.mark.parametrize("alpha, stable", [(0.025, True), (0.2, False)])
def test_random_k_of_easgd_is_stable_only_below_the_limit(x64, alpha, stable):
  """The limit of 8 alpha is 2 c / (2 - c) = 0.41; the loss is quadratic."""
  base = build("easgd", optax.sgd(0.1), alpha=alpha, period=1)
  algorithm = WRAPPERS["randomk"].factory(base, share=0.34)
  center = run(algorithm, steps=40, grad=lambda worker, step, x: x)[1][:, 0]
  assert np.abs(center[-1]).max() < 0.5 * np.abs(center[0]).max() if stable else np.abs(center[-1]).max() > 100


@pytest.mark.parametrize("shape", [(3, 2), (2, 2, 3), (1, 4)])
@pytest.mark.sampled(3)
def test_powersgd_of_full_rank_is_exact(x64, shape):
  rng = np.random.default_rng(0)
  algorithm = WRAPPERS["powersgd"].factory(build("sync_sgd", optax.sgd(1.0)), rank=9)
  params = {"a": jnp.zeros((4, *shape))}
  state = jax.vmap(lambda x: algorithm.init(W, x, jax.random.key(0)), axis_name="w")(params)
  for _ in range(3):
    grads = {"a": jnp.asarray(rng.normal(size=(4, *shape)))}
    new, state = jax.vmap(partial(algorithm.local, W), axis_name="w")(grads, state, params)
    close(params["a"] - new["a"], np.stack([grads["a"].mean(axis=0)] * 4))
    params = new


# ---- error feedback


def errors(wrapper, memory):
  """Return the error memory of each array, or the estimate that is subtracted from it."""
  if wrapper == "randomk":
    return memory.error
  if wrapper == "ef21":
    return [m and m.own for m in memory]
  return [m and m.error for m in memory] if wrapper == "powersgd" else memory


@pytest.mark.parametrize("wrapper", ["topk", "randomk", "powersgd"])
def test_error_memories_hold_the_unsent_gradients(x64, wrapper):
  """All sent gradients plus the mean of the memories are the mean of all gradients."""
  x0, steps = np.zeros(7), 4
  table = np.random.default_rng(1).normal(size=(8, steps, 7))
  algorithm = WRAPPERS[wrapper].factory(build("sync_sgd", optax.sgd(1.0)), **LOSSY[wrapper])
  for t in (1, steps):
    x, _, state = drive(algorithm, x0, lambda i, t, x: jnp.asarray(table)[i, t], workers=8, steps=t)
    error = errors(wrapper, state.memory.local[0])
    error = np.concatenate([np.zeros((8, 1)) if e is None else np.reshape(e, (8, -1)) for e in error], axis=1)
    close((x0 - x[-1, 0]) + error.mean(axis=0), table[:, :t].sum(axis=1).mean(axis=0))
    assert np.abs(error).max() > 0.1


@pytest.mark.slow
def test_each_mean_has_its_own_memory(x64):
  """A step has two means, one of them with an integer, and a merge has a sum."""

  def local(group, grads, state, params):
    one, two = group.mean(grads), group.mean({"twice": jax.tree.map(lambda g: 2 * g, grads), "count": jnp.int32(3)})
    return jax.tree.map(lambda x, a, b: x - a - b, params, one, two["twice"]), state + two["count"].astype(state.dtype)

  def launch(group, state, params):
    return jnp.ones_like(params["kernel"]), state

  def merge(group, message, state, params):
    return params | {"kernel": group.sum(message)}, state

  algorithm = Algorithm(
    lambda group, params, key: jnp.zeros(()),
    local,
    (Exchange(launch, merge, 100),),
    lambda group, state, params: params,
  )
  for wrapper in OF_DIFFERENCES:
    state = run(WRAPPERS[wrapper].factory(algorithm, **LOSSY[wrapper]), steps=3)[2]
    close(state.algorithm, np.full(8, 9.0))  # integers are exact
    one, two = state.memory.local
    assert [len(result) for result in (*state.memory.launch, *state.memory.merge)] == [0, 1]
    if wrapper in ("qsgd", "int8", "fp8"):
      assert (one.count == 3).all() and (two.count == 3).all() and (one.key != two.key).any()
      continue
    if wrapper == "demo":
      close(two[-1], 2 * one[-1])
      continue
    one, two = errors(wrapper, one), errors(wrapper, two)
    assert len(one) == 2 and len(two) == 3 and two[0] is None
    kernels = [memory[-1] for memory in (one, two)]
    close(kernels[1], 2 * kernels[0]) if wrapper == "topk" else None
    assert np.abs(kernels[1]).max() > 1.5 * np.abs(kernels[0]).max() > 0


# ---- bytes


PARAMS = {"kernel": jax.ShapeDtypeStruct((10, 3), jnp.float32), "bias": jax.ShapeDtypeStruct((3,), jnp.float32)}


@pytest.mark.parametrize("workers", [1, 8])
def test_bytes_of_each_wrapper(workers):
  def sent(wrapper, **hyper):
    algorithm = WRAPPERS[wrapper].factory(build("sync_sgd", optax.sgd(0.1)), **hyper)
    result = traffic.of(algorithm, PARAMS, workers)
    return result.sent(result.local), result.sent(result.evaluate)

  # 3 of 30 values and 1 of 3, with int32 indices, to all other workers
  assert sent("topk", share=0.1) == (4 * (4 + 4) * (workers - 1), 0)
  # as many values in an all-reduce, and no indices
  assert sent("randomk", share=0.1) == (2 * 4 * 4 * (workers - 1) / workers, 0)
  # P [10, 2] with the bias, then Q [3, 2]
  assert sent("powersgd", rank=2) == pytest.approx((2 * (20 + 3 + 6) * 4 * (workers - 1) / workers, 0))
  # strips of whole bytes, in both directions
  assert sent("sign", momentum=0.9) == (2 * (workers - 1) * math.ceil(33 / 8 / workers), 0)
  # 33 values of 4, 2 and 3 bits in whole bytes, and a norm for every 33, 33 and 9 values, to all other workers
  assert sent("qsgd", levels=7, block=512) == ((17 + 4) * (workers - 1), 0)
  assert sent("qsgd", levels=1, block=512) == ((9 + 4) * (workers - 1), 0)
  assert sent("qsgd", levels=2, block=10) == ((13 + 4 * 4) * (workers - 1), 0)
  # a strip and its scale, in both directions
  strip = math.ceil(33 / workers)
  assert sent("int8", block=512) == (2 * (strip + 4) * (workers - 1), 0)
  assert sent("fp8", format="e5m2", block=512) == (2 * (strip + 4) * (workers - 1), 0)
  # 2 values of each of the 3 chunks, 5 x 3, 5 x 3 and 3, with indices of 2 bytes
  assert sent("demo", decay=0.9, kept=2, chunk=5) == (3 * 2 * (4 + 2) * (workers - 1), 0)


@pytest.mark.parametrize(
  "shape, rank, sent",
  [((2, 4), 1, 6), ((2, 2), 1, 4), ((9, 1), 1, 9), ((2, 4), 10**6, 8)],
)
def test_powersgd_never_sends_more_values_than_a_matrix_has(x64, shape, rank, sent):
  """A matrix that is sent whole is averaged exactly and has no memory."""
  algorithm = WRAPPERS["powersgd"].factory(build("sync_sgd", optax.sgd(1.0)), rank=rank)
  params = {"a": jnp.zeros((4, *shape))}
  result = traffic.of(algorithm, jax.tree.map(lambda x: x[0], params), 4)
  assert result.sent(result.local) == 2 * 8 * sent * 3 / 4
  state = everywhere(lambda x: algorithm.init(W, x, jax.random.key(0)))(params)
  whole = sent == math.prod(shape)
  assert (state.memory.local == ((None,),)) == whole
  grads = {"a": jnp.asarray(np.random.default_rng(0).normal(size=(4, *shape)))}
  new, _ = everywhere(partial(algorithm.local, W))(grads, state, params)
  exact = np.allclose(-new["a"], np.mean(grads["a"], axis=0), rtol=1e-12, atol=0)
  assert exact == whole


KINDS = {"powersgd": ["all_reduce"] * 2, "randomk": ["all_reduce"], "topk": ["all_gather"], "demo": ["all_gather"]}


@pytest.mark.parametrize("wrapper", KINDS)
def test_all_arrays_are_sent_in_one_message(wrapper):
  """The cost model charges a latency for each message."""
  algorithm = WRAPPERS[wrapper].factory(build("sync_sgd", optax.sgd(0.1)), **LOSSY[wrapper])
  assert [op.kind for op in traffic.of(algorithm, PARAMS, 4).local] == KINDS[wrapper]
  more_params = PARAMS | {"none": jax.ShapeDtypeStruct((0,), jnp.float32)}
  more = [] if wrapper in ("powersgd", "randomk") else ["all_reduce"]
  assert [op.kind for op in traffic.of(algorithm, more_params, 4).local] == more + KINDS[wrapper]


@pytest.mark.parametrize("workers", [1, 8])
def test_sparta_sends_a_share_of_the_parameters_after_each_step(workers):
  algorithm = WRAPPERS["sparta"].factory(build("independent", optax.sgd(0.1)), share=0.1)
  sent = traffic.of(algorithm, PARAMS, workers)
  assert sent.sent(sent.local) == 0 and [exchange.period for exchange in algorithm.exchanges] == [1]
  assert [sent.sent(ops) for ops in sent.exchanges] == [2 * 4 * 4 * (workers - 1) / workers]


def test_the_mean_for_evaluation_is_not_compressed():
  algorithm = WRAPPERS["topk"].factory(
    build("eager_diloco", optax.sgd(0.1), period=2, outer_learning_rate=0.7, outer_momentum=0.9), share=0.1
  )
  sent = traffic.of(algorithm, PARAMS, 8)
  assert sent.sent(sent.evaluate) == 2 * 33 * 4 * 7 / 8


# ---- errors


@pytest.mark.parametrize("outer, wrapper", [*zip(COMPRESSORS, COMPRESSORS[1:] + COMPRESSORS[:1], strict=True)])
def test_a_compressed_algorithm_cannot_be_compressed_again(outer, wrapper):
  twice = WRAPPERS[outer].factory(wrapped(wrapper, "sync_sgd", "sgd"), **LOSSY[outer])
  with pytest.raises(ValueError, match=rf"^{outer}\.algorithm must be uncompressed"):
    traffic.of(twice, PARAMS, 8)


def test_compression_with_absent_workers_is_refused(x64):
  with pytest.raises(ValueError, match="topk must contain all workers"):
    run(wrapped("topk", "sync_sgd"), steps=1, group=lambda rank: Present(W, rank != 3))


@pytest.mark.parametrize("collective", ["max", "gather", "permute"])
def test_other_collectives_in_an_exchange_are_refused(collective):
  call = {
    "max": lambda group, x: group.max(x), "gather": lambda group, x: jax.tree.map(lambda y: y[0], group.gather(x)),
    "permute": lambda group, x: group.permute(x, [*range(8)]),
  }[collective]  # fmt: skip
  base = build("local_sgd", optax.sgd(0.1), period=2)
  merge = base.exchanges[0]._replace(merge=lambda group, message, state, params: (call(group, params), state))
  launch = base.exchanges[0]._replace(launch=lambda group, state, params: (call(group, params), state))
  for exchange in (merge, launch):
    algorithm = WRAPPERS["topk"].factory(base._replace(exchanges=(exchange,)), share=0.5)
    with pytest.raises(ValueError, match=f"^topk.*`{collective}`") as refused:
      traffic.of(algorithm, PARAMS, 8)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
  "wrapper, hyper, words",
  [
    ("topk", {"share": 0.0}, r"share must be in \(0, 1\], got 0"),
    ("topk", {"share": 1.5}, "share must be .* got 1.5"),
    ("topk", {"share": float("nan")}, "share must be .* got nan"),
    ("powersgd", {"rank": 0}, "rank must be an integer >= 1, got 0"),
    ("randomk", {"share": 0.0}, "share must be .* got 0"),
    ("sign", {"momentum": 1.0}, "momentum must be .* got 1"),
    ("qsgd", {"levels": 0, "block": 4}, "levels must be .* got 0"),
    ("qsgd", {"levels": 128, "block": 4}, "levels must be .* got 128"),
    ("qsgd", {"levels": 4, "block": 0}, "block must be .* got 0"),
    ("int8", {"block": 0}, "block must be .* got 0"),
    ("fp8", {"format": "e3m4", "block": 4}, "format must be one of e4m3, e5m2, got 'e3m4'"),
    ("fp8", {"format": "e4m3", "block": 0}, "block must be .* got 0"),
    ("demo", {"decay": 1.0, "kept": 1, "chunk": 64}, "decay must be .* got 1"),
    ("demo", {"decay": 0.9, "kept": 0, "chunk": 64}, "kept must be .* got 0"),
    ("demo", {"decay": 0.9, "kept": 100, "chunk": 4}, r"kept with chunk 4 must be an integer in \[1, 16\], got 100"),
    ("demo", {"decay": 0.9, "kept": 1, "chunk": 257}, "chunk must be .* got 257"),
    ("sparta", {"share": 1.5}, "share must be .* got 1.5"),
  ],
)
def test_invalid_hyperparameters_are_refused(wrapper, hyper, words):
  with pytest.raises(ValueError, match=words):
    WRAPPERS[wrapper].factory(build("sync_sgd", optax.sgd(0.1)), **hyper)


@pytest.mark.parametrize("dtype", ["bfloat16", pytest.param("float32", marks=pytest.mark.slow)])
@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_a_step_keeps_shapes_and_dtypes(wrapper, dtype):
  params = {"a": jnp.ones((8, 4, 3), dtype), "b": jnp.ones((8,), dtype), "c": jnp.ones((8, 0, 2), dtype)}
  algorithm = wrapped(wrapper, BASE.get(wrapper, "sync_sgd"), "sgd")
  state = jax.eval_shape(everywhere(lambda x: algorithm.init(W, x, jax.random.key(0))), params)
  if wrapper == "sparta":
    message, new = jax.eval_shape(everywhere(partial(algorithm.exchanges[0].launch, W)), state, params)
    after, new = jax.eval_shape(everywhere(partial(algorithm.exchanges[0].merge, W)), message, new, params)
  else:
    after, new = jax.eval_shape(everywhere(partial(algorithm.local, W)), params, state, params)
  assert jax.tree.map(jax.typeof, new) == jax.tree.map(jax.typeof, state)
  assert jax.tree.map(jax.typeof, after) == jax.tree.map(jax.typeof, params)


def everywhere(fn):
  return jax.jit(jax.vmap(fn, axis_name="w"))
