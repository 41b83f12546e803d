"""Each algorithm as an optax transformation in other training loops, against its NumPy reference."""

import pickle
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers import runs
from helpers.runs import HYPER
from helpers.twins import INNER, build, close, flat_of, outer_cosine, tree_of
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P
from reference import collective as reference

from ddl.algorithms import COLLECTIVE
from ddl.as_optax import as_optax, consensus
from ddl.engine.execution import ExecutionConfig

WORKERS, STEPS = 8, 8


def mesh(name, count):
  return jax.make_mesh((count,), (name,), axis_types=(AxisType.Auto,), devices=jax.devices()[:count])


def one_of_each(fn):
  """Apply fn of one worker to shards with a leading axis of length 1."""

  def on_shards(*args):
    return jax.tree.map(lambda x: x[None], fn(*jax.tree.map(lambda x: x[0], args)))

  return on_shards


def lift_vmap(fn):
  return jax.jit(jax.vmap(fn, axis_name="w"))


def lift_shard_map(fn, check=False):
  lifted = one_of_each(fn)
  return jax.jit(jax.shard_map(lifted, mesh=mesh("w", 8), in_specs=P("w"), out_specs=P("w"), check_vma=check))


def lift_pmap(fn):
  return jax.pmap(fn, axis_name="w")


def lift_pair(fn):
  lifted = jax.vmap(fn, axis_name="v")
  return jax.jit(jax.shard_map(lifted, mesh=mesh("d", 4), in_specs=P("d"), out_specs=P("d"), check_vma=False))


LOOPS = {  # (how a loop maps a function over the workers, the workers' axis)
  "vmap": (lift_vmap, "w"),
  "shard_map": (lift_shard_map, "w"),
  "checked shard_map": (partial(lift_shard_map, check=True), "w"),
  "pmap": (lift_pmap, "w"),
  "shard_map of vmap": (lift_pair, ("d", "v")),
}


def transformation(name, inner="momentum", axis="w", **hyper):
  return as_optax(build(name, INNER[inner][0], WORKERS, **(hyper or HYPER.get(name, {}))), axis)


def train(lift, tx, evaluate, *, extra=None, steps=STEPS):
  """Run a loop that uses only optax; return params and results of `evaluate`: [steps, workers, n] each."""
  x0, grad = reference.problem(WORKERS, steps)

  def step(worker, t, state, params):
    grads = tree_of(grad(worker, t, flat_of(params)))
    updates, state = tx.update(grads, state, params, **(extra or {}))
    params = optax.apply_updates(params, updates)
    return state, params, flat_of(params), flat_of(evaluate(state, params))

  step = lift(step)
  params = jax.tree.map(lambda x: jnp.stack([x] * WORKERS), tree_of(x0))
  state = lift(tx.init)(params)
  history, evaluated = [], []
  for t in range(steps):
    state, params, x, z = step(np.arange(WORKERS), np.full(WORKERS, t), state, params)
    history.append(x)
    evaluated.append(z)
  return np.array(history), np.array(evaluated), step


def reference_of(name, inner="momentum", **hyper):
  x0, grad = reference.problem(WORKERS, STEPS)
  hyper = hyper or HYPER.get(name, {})
  return reference.TWINS[name](x0, grad, workers=WORKERS, steps=STEPS, inner=INNER[inner][1], **hyper)


CASES = [(name, "vmap") for name in COLLECTIVE]
CASES += [(name, [*LOOPS][1 + i % 4]) for i, name in enumerate(COLLECTIVE)]


@pytest.mark.parametrize("name, loop", CASES)
@pytest.mark.sampled(12)
def test_other_loops_equal_the_reference(x64, name, loop):
  lift, axis = LOOPS[loop]
  tx = transformation(name, axis=axis)
  params, evaluated, _ = train(lift, tx, consensus)
  expected = reference_of(name)
  close(params, expected.params)
  close(evaluated, np.repeat(expected.evaluate[:, None], WORKERS, axis=1))


@pytest.mark.parametrize("name", ["streaming_diloco", "noloco"])
@pytest.mark.parametrize("loop", ["vmap", "checked shard_map"])
@pytest.mark.sampled(2)
def test_a_schedule_of_the_outer_rate(x64, name, loop):
  lift, axis = LOOPS[loop]
  hyper = HYPER[name] | {"outer_learning_rate": outer_cosine}
  tx = transformation(name, axis=axis, **hyper)
  close(train(lift, tx, consensus)[0], reference_of(name, **hyper).params)


@pytest.mark.parametrize("delay", [0, 4, *(pytest.param(delay, marks=pytest.mark.slow) for delay in (3, 8))])
def test_all_delays(x64, delay):
  hyper = {"period": 3, "delay": delay, "keep": 0.25}
  tx = transformation("dasgd", "adam", **hyper)
  close(train(lift_vmap, tx, consensus)[0], reference_of("dasgd", "adam", **hyper).params)


COUNTING = ("relay_sgd",)  # its state has numbers that differ between workers; first, so that it is not left out


@pytest.mark.parametrize(
  "name, inner", [*((name, "momentum") for name in dict.fromkeys((*COUNTING, *COLLECTIVE))), ("local_sgd", "adam")]
)
@pytest.mark.sampled(9)
def test_a_scan_inside_shard_map(x64, name, inner):
  """The carry must keep its type, including the axes over which it varies."""
  x0, grad = reference.problem(WORKERS, STEPS)
  tx = transformation(name, inner)

  def loop(worker, x):
    def step(carry, t):
      x, state = carry
      updates, state = tx.update(tree_of(grad(worker[0], t, flat_of(x))), state, x)
      x = optax.apply_updates(x, updates)
      return (x, state), flat_of(x)

    start = tree_of(x[0])
    return jax.lax.scan(step, (start, tx.init(start)), jnp.arange(STEPS))[1][None]

  run = jax.jit(jax.shard_map(loop, mesh=mesh("w", 8), in_specs=P("w"), out_specs=P("w")))
  history = run(np.arange(WORKERS), np.stack([x0] * WORKERS))
  close(np.swapaxes(history, 0, 1), reference_of(name, inner).params)


# ---- requirements of optax


@pytest.mark.parametrize("name", ["sync_sgd", "post_local_sgd", "streaming_diloco"])
def test_update_compiles_once_and_ignores_unknown_arguments(x64, name):
  tx = transformation(name)
  params, _, step = train(lift_vmap, tx, consensus, extra={"value": 1.0, "unknown": None})
  assert step._cache_size() == 1
  close(params, reference_of(name).params)


@pytest.mark.parametrize("name", COLLECTIVE)
@pytest.mark.sampled(4)
def test_update_keeps_shapes_and_dtypes(name):
  params = {"a": jnp.zeros((8, 3), "float32"), "b": jnp.zeros((8,), "bfloat16")}
  tx = transformation(name)
  state = jax.eval_shape(jax.vmap(tx.init, axis_name="w"), params)
  updates, after = jax.eval_shape(jax.vmap(tx.update, axis_name="w"), params, state, params)
  assert jax.tree.map(jax.typeof, after) == jax.tree.map(jax.typeof, state)
  assert jax.tree.map(jax.typeof, updates) == jax.tree.map(jax.typeof, params)


@pytest.mark.parametrize("name", sorted(set(COLLECTIVE) - {"sharded_sync_sgd"}))  # its init needs the bound axis
@pytest.mark.sampled(3)
def test_map_params_finds_copies_of_params(name):
  tx = transformation(name)
  state = jax.vmap(tx.init, axis_name="w")(jnp.zeros((8, 3)))
  after = optax.tree.map_params(tx, lambda x: x + 1, state)
  for old, new in zip(*map(jax.tree.leaves, (state, after)), strict=True):
    is_copy = old.dtype == jnp.float32 and old.shape == (8, 3)  # momenta, center, message; not weights, counters
    np.testing.assert_array_equal(new, old + 1 if is_copy else old)


def test_update_without_params_is_refused():
  tx = transformation("local_sgd")
  grads = jnp.zeros((8, 3))
  state = jax.vmap(tx.init, axis_name="w")(grads)
  with pytest.raises(ValueError, match="params must be passed to update"):
    jax.vmap(tx.update, axis_name="w")(grads, state)


def test_a_negative_delay_is_refused():
  with pytest.raises(ValueError, match=r"dasgd.delay must be an integer >= 0, got -1\."):
    transformation("dasgd", period=3, delay=-1, keep=0.5)


@pytest.mark.parametrize("name", ["local_sgd", "easgd", "diloco", "fedavg", "noloco"])
@pytest.mark.sampled(5)
def test_the_consensus_is_the_trainers(x64, name):
  tx = transformation(name)
  evaluated = train(lift_vmap, tx, consensus, steps=runs.STEPS)[1]
  trainers = runs.record(runs.make(name, 2, ExecutionConfig("vmap", "scan", 3), **HYPER[name]))
  close(evaluated[-1], np.repeat(trainers.evaluate[-1:], WORKERS, axis=0))


def test_the_consensus_inside_another_transformation(x64):
  """A chain's state contains that of `as_optax`, also after compiled updates."""
  tx = optax.chain(optax.scale(2.0), transformation("easgd"), optax.scale(0.5))
  params = jnp.arange(24.0).reshape(8, 3)
  state = jax.vmap(tx.init, axis_name="w")(params)
  update = jax.jit(jax.vmap(tx.update, axis_name="w"))
  for _ in range(3):  # the third step ends a round
    updates, state = update(params, state, params)
    params = optax.apply_updates(params, updates)
  evaluated = jax.jit(jax.vmap(consensus, axis_name="w"))(state, params)
  np.testing.assert_array_equal(evaluated, state[1].algorithm.center)
  assert not np.allclose(evaluated, params)  # the center differs from the workers


@pytest.mark.parametrize("count", [0, 2])
def test_consensus_needs_one_state(count):
  state = jax.vmap(transformation("easgd").init, axis_name="w")(jnp.zeros((8, 3)))
  with pytest.raises(ValueError, match=rf"state must be .*, got {count} such states\."):
    consensus((optax.EmptyState(),) + (state,) * count, jnp.zeros((8, 3)))


def test_a_pickled_state_continues(x64):
  tx = transformation("easgd")
  params = jnp.arange(24.0).reshape(8, 3)
  state = jax.vmap(tx.init, axis_name="w")(params)
  pickled = pickle.loads(pickle.dumps(state))
  update = jax.vmap(tx.update, axis_name="w")
  jax.tree.map(np.testing.assert_array_equal, *(tuple(update(params, s, params)[1]) for s in (state, pickled)))
  with pytest.raises(ValueError, match=r"the state passed to consensus must come from tx\.init"):
    consensus(pickled, params)


def test_inject_hyperparams(x64):
  def make(rate):
    inner = optax.sgd(rate, momentum=0.9)
    return as_optax(COLLECTIVE["local_sgd"].factory(inner, **HYPER["local_sgd"]), "w")

  tx = optax.inject_hyperparams(make)(rate=0.05)
  close(train(lift_vmap, tx, lambda state, params: params)[0], reference_of("local_sgd").params)


def test_in_a_chain(x64):
  tx = optax.chain(optax.scale(0.5), transformation("easgd"))
  x0, grad = reference.problem(WORKERS, STEPS)
  half = lambda i, t, x: 0.5 * grad(i, t, x)  # noqa: E731
  expected = reference.easgd(x0, half, workers=WORKERS, steps=STEPS, inner=INNER["momentum"][1], **HYPER["easgd"])
  close(train(lift_vmap, tx, lambda state, params: params)[0], expected.params)


# ---- collectives are inside of conditions


COLLECTIVES = ("psum", "pmax", "pmin", "all_gather", "reduce_scatter", "all_to_all", "ppermute")


def equations(jaxpr, inside=False):
  """Yield (equation, whether it is inside of a condition) for all equations, also of nested programs."""
  for eqn in jaxpr.eqns:
    yield eqn, inside
    for sub in jax.tree.leaves(tuple(eqn.params.values()), is_leaf=lambda x: hasattr(x, "eqns")):
      sub = getattr(sub, "jaxpr", sub)
      if hasattr(sub, "eqns"):
        yield from equations(sub, inside or eqn.primitive.name == "cond")


def values(eqn):
  return max((v.aval.size for v in eqn.invars if hasattr(v.aval, "size")), default=0)


def program(name, loop):
  lift, axis = LOOPS[loop]
  tx = transformation(name, axis=axis)
  params = jnp.zeros((8, 1000))
  state = jax.eval_shape(lift(tx.init), params)
  return list(equations(jax.make_jaxpr(lift(tx.update))(params, state, params).jaxpr))


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("name", ["local_sgd", "post_local_sgd", "dasgd", "easgd"])
@pytest.mark.sampled(2)
def test_a_step_without_exchange_sends_only_the_clock(name, loop):
  """The params are sent inside of a condition, which must not become a select under vmap."""
  result = program(name, loop)
  sent = [(values(e), inside) for e, inside in result if e.primitive.name.startswith(COLLECTIVES)]
  assert sum(size for size, inside in sent if not inside) <= 32  # under vmap the sizes include the workers
  assert max(size for size, inside in sent if inside) >= 1000
  assert not any(e.primitive.name == "select_n" and values(e) >= 1000 for e, _ in result)


@pytest.mark.parametrize("name", ["sync_sgd", "sharded_sync_sgd", "round_robin_easgd", "independent"])
def test_period_one_needs_no_condition(name):
  assert not any(e.primitive.name == "cond" for e, _ in program(name, "shard_map"))


@pytest.mark.parametrize(
  "name, hyper",
  [("cocod", {"period": 10**6}), ("dasgd", {"period": 10**6, "delay": 1_999_999, "keep": 0.5})],
)
def test_the_program_size_depends_on_the_messages_in_flight_but_not_on_the_delay(name, hyper):
  tx, x = as_optax(build(name, INNER["sgd"][0], **hyper), "w"), tree_of(jnp.zeros(7))

  def step(x):
    return tx.update(x, tx.init(x), x)[0]

  jaxpr = jax.make_jaxpr(step, axis_env=[("w", WORKERS)])(x)
  assert len(jaxpr.eqns) < 200


def test_too_many_messages_in_flight_are_refused():
  tx = as_optax(build("dasgd", INNER["sgd"][0], period=1, delay=10_000, keep=0.5), "w")
  with pytest.raises(ValueError, match="must keep at most 2048 messages of 2 arrays in flight, got 10000 messages"):
    tx.init(tree_of(jnp.zeros(7)))
