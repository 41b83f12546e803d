"""`ddl.build`: custom training loops that repeat the runs of `ddl.train`."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers import streams
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

import ddl
from ddl.errors import OptionError

WORKERS, STEPS = 4, 10
DRAWS = {"name": "fedavg", "period": 3, "share": 0.5}  # draws the workers that take part in a round
SETTINGS = {
  "model": {"hidden": (12,), "dropout": 0.2},
  "optimizer": {"learning_rate": 0.1, "momentum": 0.9, "weight_decay": 0.01},
  "schedule": {"name": "cosine", "warmup": 3},
  "workers": WORKERS,
  "batch": 16,
  "steps": STEPS,
  "eval_every": STEPS,
  "seed": 5,
}


@pytest.fixture(autouse=True)
def as_users_run():
  """Users' scripts do not set strict promotion."""
  with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
    yield


def on_workers(fn):
  """Run fn of one worker on a device per worker; all leaves are [workers, ...]."""

  def shard(*args):
    return jax.tree.map(lambda x: x[None], fn(*jax.tree.map(lambda x: x[0], args)))

  mesh = Mesh(jax.devices()[:WORKERS], ("worker",))
  return jax.jit(jax.shard_map(shard, mesh=mesh, in_specs=P("worker"), out_specs=P("worker")))


def trained_by_hand(setup):
  """Return the consensus parameters after a loop that uses only public functions."""
  tx = ddl.as_optax(setup.algorithm, "worker")

  @on_workers
  def step(carry, batch, key):
    params, extra, state = carry
    (_, extra), grads = jax.value_and_grad(setup.model.loss, has_aux=True)(params, extra, batch, key)
    updates, state = tx.update(grads, state, params)
    return optax.apply_updates(params, updates), extra, state

  params, extra = jax.tree.map(lambda x: jnp.stack([x] * WORKERS), setup.init())
  state = on_workers(tx.init)(params)
  for t in range(STEPS):
    params, extra, state = step((params, extra, state), setup.batch(t), setup.key(t))
  return jax.tree.map(lambda x: x[0], on_workers(ddl.consensus)(state, params))


def close(first, second):
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=1e-6), first, second)


@pytest.mark.parametrize(
  "changes",
  [
    {"algorithm": "sync_sgd"},
    {"algorithm": {"name": "local_sgd", "period": 4}},
    {"algorithm": {"name": "dasgd", "period": 4, "delay": 2}},
    {"algorithm": {"name": "diloco", "period": 4}},
    pytest.param({"algorithm": DRAWS}, marks=pytest.mark.slow),
  ],
)
@pytest.mark.sampled(4)
def test_a_custom_loop_ends_with_the_parameters_of_train(tmp_path, changes):
  setup = ddl.build(**SETTINGS, **changes)
  trained = ddl.train(workdir=tmp_path / "a", **SETTINGS, **changes)
  close(trained_by_hand(setup), trained.params)
  assert ddl.build(**trained.config).experiment == setup.experiment


def test_the_algorithm_draws_with_the_key_of_the_run():
  drawn = [
    ddl.build(algorithm=DRAWS, **SETTINGS | {"seed": seed}).algorithm.init(None, jnp.zeros(3), jax.random.key(key))
    for seed, key in ((1, 0), (1, 7), (2, 0))
  ]
  first, same, other = [state.round.key.tolist() for state in drawn]
  assert first == same != other


@pytest.mark.slow
def test_a_server_algorithm_with_one_worker_is_its_optimizer(tmp_path):
  settings = {**SETTINGS, "algorithm": "async_sgd", "workers": 1}
  setup = ddl.build(**settings)
  params, extra = setup.init()
  state = setup.optimizer.init(params)

  @jax.jit
  def step(params, extra, state, batch, key):
    grads, extra = jax.grad(setup.model.loss, has_aux=True)(params, extra, batch, key)
    updates, state = setup.optimizer.update(grads, state, params)
    return optax.apply_updates(params, updates), extra, state

  for t in range(STEPS):
    params, extra, state = step(params, extra, state, setup.batch(t, 0), setup.key(t, 0))
  close(params, ddl.train(workdir=tmp_path / "a", **settings).params)


@pytest.mark.parametrize("algorithm", ["local_sgd", "async_easgd"])
def test_batches_and_keys_of_one_worker(algorithm):
  setup = ddl.build(algorithm=algorithm, **SETTINGS)
  examples, keys = setup.batch(7), setup.key(7)
  assert examples["x"].shape[:2] == (WORKERS, 16) and examples["y"].shape == (WORKERS, 16) and keys.shape == (WORKERS,)
  for worker in range(WORKERS):
    jax.tree.map(
      np.testing.assert_array_equal, setup.batch(7, worker), {name: x[worker] for name, x in examples.items()}
    )
    assert setup.key(7, worker) == keys[worker]
  assert len({*map(str, [*keys, *setup.key(8), setup.key(9, 0)])}) == 2 * WORKERS + 1
  traced = on_workers(lambda step: setup.key(step, jax.lax.axis_index("worker")))(np.full(WORKERS, 7))
  assert (traced == keys).all()
  assert not np.array_equal(setup.batch(8)["x"], examples["x"]) and repr(setup).count("\n") == 0


def test_schedule_and_decay_mask():
  """The optimizer decays the weights by the learning rate of the step, but not the biases."""
  setup = ddl.build(**SETTINGS | {"optimizer": {"learning_rate": 0.1, "weight_decay": 0.01}})
  expected = optax.warmup_cosine_decay_schedule(0.0, 0.1, 3, STEPS)
  params = jax.tree.map(jnp.ones_like, setup.init()[0])
  state = setup.optimizer.init(params)
  update, zeros = jax.jit(setup.optimizer.update), jax.tree.map(jnp.zeros_like, params)
  for t in range(STEPS):
    assert setup.schedule(t) == pytest.approx(float(expected(t)), rel=1e-5, abs=1e-8)
    updates, state = update(zeros, state, params)
    for layer in updates.values():
      np.testing.assert_allclose(layer["kernel"], np.full_like(layer["kernel"], -0.01 * setup.schedule(t)), rtol=1e-5)
      assert not layer["bias"].any()
  assert ddl.build(optimizer={"learning_rate": 0.3}).schedule(7) == 0.3


def test_a_stream_is_read_in_order():
  settings = {**SETTINGS, "data": f"{streams.__file__}:digits"}
  setup = ddl.build(**settings)
  whole = [setup.batch(t) for t in range(2)]
  feed = setup.components.feed([*range(WORKERS)])
  np.testing.assert_array_equal(np.stack([batch["x"] for batch in whole], axis=1), feed(0, 2)["x"])
  np.testing.assert_array_equal(setup.batch(0, 3)["x"], whole[0]["x"][3])
  np.testing.assert_array_equal(setup.batch(1, 3)["x"], whole[1]["x"][3])
  with pytest.raises(OptionError) as error:
    setup.batch(1)
  assert (error.value.option, error.value.condition[0], error.value.value) == ("step", "2", 1)


@pytest.mark.parametrize("arguments, option", [((-1,), "step"), ((0.5,), "step"), ((0, WORKERS), "worker")])
def test_invalid_steps_and_workers(arguments, option):
  with pytest.raises(OptionError) as error:
    ddl.build(**SETTINGS).batch(*arguments)
  assert (error.value.option, error.value.value) == (option, str(arguments[-1]))


def test_as_optax_refuses_a_server_algorithm():
  with pytest.raises(OptionError) as error:
    ddl.as_optax(ddl.build(algorithm="async_easgd", **SETTINGS).algorithm, "worker")
  assert error.value.option == "algorithm" and "\n" not in str(error.value)
