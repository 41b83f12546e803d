"""Detection of element-wise functions of the parameters."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers.twins import W, build, close, drive, lenient
from jax import lax
from reference import collective as reference

from ddl.elementwise import are_elementwise, is_elementwise

PARAMS = {"bias": jnp.ones(3), "kernel": jnp.ones((2, 3)), "scale": jnp.ones(())}
WARM = optax.linear_schedule(0.0, 0.1, 200)


def matrices(params):
  return jax.tree.map(lambda x: x.ndim > 1, params)


def named(params):
  return jax.tree_util.tree_map_with_path(lambda path, _: path[-1].key == "kernel", params)


def by_rank(params):
  return jax.tree.map(lambda x: "matrix" if x.ndim > 1 else "other", params)


def after(steps, first, then):
  """Switch from one stateless transformation to another after a number of steps."""

  def update(updates, count, params):
    def branch(tx):
      return lambda updates: tx.update(updates, tx.init(params), params)[0]

    return lax.cond(count < steps, branch(first), branch(then), updates), count + 1

  return optax.GradientTransformation(lambda params: jnp.zeros((), jnp.int32), update)


def of_arrays(function):
  """Return a transformation that maps a function over arrays."""
  return optax.stateless(lambda updates, params: jax.tree.map(function, updates, params))


def of_paths(function):
  """Return a transformation that maps a function over paths and arrays."""
  return optax.stateless(lambda updates, _: jax.tree_util.tree_map_with_path(function, updates))


ELEMENTWISE = {
  "momentum": optax.sgd(0.1, momentum=0.9, nesterov=True),
  "an array for a rate": optax.sgd(jnp.float32(0.1)),
  "decay of everything after a warm-up": optax.adamw(WARM, weight_decay=0.1),
  "injected": optax.inject_hyperparams(optax.adamw)(WARM, weight_decay=0.1),
  "clipped values": optax.chain(optax.clip(0.1), optax.rmsprop(WARM)),
  "several steps": optax.MultiSteps(optax.adam(0.1), 4).gradient_transformation(),
  "both branches": after(100, optax.add_decayed_weights(0.1), optax.identity()),
  "the same for all parts": optax.partition({"matrix": optax.sgd(0.1), "other": optax.sgd(0.1)}, by_rank),
  "a mask of everything": optax.masked(optax.sgd(0.1), lambda params: jax.tree.map(lambda _: True, params)),
  "a compiled function": of_arrays(jax.jit(lambda g, x: jnp.where(g > 0, g, jax.nn.relu(x)))),
  "a table of rates": optax.scale_by_schedule(lambda count: jnp.asarray(np.linspace(0, 1, 9))[count]),
}
OTHERS = {
  "decay of matrices after a warm-up": optax.adamw(WARM, weight_decay=0.1, mask=matrices),
  "decay by name": optax.chain(optax.add_decayed_weights(1e-9, named), optax.sgd(0.1)),
  "decay by a fixed mask": optax.lion(WARM, mask={"bias": False, "kernel": True, "scale": False}),
  "two optimizers": optax.partition({"matrix": optax.sgd(0.1), "other": optax.adam(0.1)}, by_rank),
  "a masked momentum": optax.masked(optax.trace(0.9), matrices),
  "a global norm": optax.chain(optax.clip_by_global_norm(1e9), optax.sgd(0.1)),
  "a norm of each array": optax.chain(optax.clip_by_block_rms(1e9), optax.sgd(0.1)),
  "adaptive clipping": optax.adaptive_grad_clip(1e9),
  "lars": optax.lars(WARM),
  "lamb": optax.lamb(WARM),
  "muon": optax.contrib.muon(WARM),
  "factored": optax.adafactor(WARM),
  "novograd": optax.novograd(WARM),
  "no update if one is not finite": optax.apply_if_finite(optax.sgd(0.1), 3),
  "centred": optax.centralize(),
  "noise": optax.add_noise(1e-9, 0.5, 0),
  "a branch with a norm": after(100, optax.identity(), optax.clip_by_global_norm(1.0)),
  "a branch with a mask": after(100, optax.identity(), optax.add_decayed_weights(0.1, matrices)),
  "a rate for each rank": of_arrays(lambda g, _: g * 0.5**g.ndim),
  "a rate for each size": of_arrays(lambda g, _: g / g.size),
  "a rate for each name": of_paths(lambda path, g: g * (0.1 if "bias" in jax.tree_util.keystr(path) else 1)),
  "a rate for each coordinate": of_arrays(lambda g, _: g * jnp.arange(1.0, 1 + g.size).reshape(g.shape)),
  "a mean": of_arrays(lambda g, _: g - 1e-9 * g.mean()),
  "sorted": of_arrays(lambda g, _: jnp.sort(g.reshape(-1)).reshape(g.shape)),
  "reversed": of_arrays(lambda g, _: g.reshape(-1)[::-1].reshape(g.shape)),
  "a cumulative sum": of_arrays(lambda g, _: jnp.cumsum(g.reshape(-1)).reshape(g.shape)),
  "the sum of two arrays": optax.stateless(lambda updates, _: {**updates, "bias": updates["bias"] + updates["scale"]}),
}


@pytest.mark.parametrize("name", ELEMENTWISE | OTHERS)
def test_optimizers(name):
  assert is_elementwise((ELEMENTWISE | OTHERS)[name], PARAMS) == (name in ELEMENTWISE)


def test_trees_of_vectors_and_single_vectors():
  flat = {"bias": jnp.ones(3), "scale": jnp.ones(())}
  assert is_elementwise(OTHERS["decay of matrices after a warm-up"], flat)  # PARAMS without its matrix
  assert not is_elementwise(OTHERS["a mean"], jnp.ones(3))  # the mean of a slice differs from the mean of the vector


def test_the_decision_needs_no_computation():
  """It also works on a traced learning rate and inside of jit."""
  results = []

  @jax.jit
  def step(rate, params):
    results.extend(is_elementwise(tx, params) for tx in (optax.adam(rate), optax.lars(rate)))
    return rate

  step(0.1, PARAMS)
  assert results == [True, False]
  big = {"kernel": jax.ShapeDtypeStruct((10**6, 10**6), jnp.float32)}
  assert is_elementwise(optax.adam(0.1), big)


def test_errors_of_the_optimizer_are_raised():
  with pytest.raises(KeyError):
    is_elementwise(optax.stateless(lambda updates, _: {"bias": updates["missing"]}), PARAMS)


@pytest.mark.parametrize(
  "elementwise, function",
  [
    (True, lambda board, i: jax.tree.map(lambda x: x.at[i].set(0.5 * (x[i] + x[0])), board)),
    (True, lambda board, i: jax.tree.map(lambda x: x.at[i].add(x.mean(0)), board)),
    (True, lambda board, i: jax.tree.map(lambda x: lax.dynamic_update_index_in_dim(x, x[i] * 2, 0, 0), board)),
    (True, lambda board, i: jax.tree.map(lambda x: jnp.zeros_like(x).at[i].set(x[1]), board)),
    (False, lambda board, i: jax.tree.map(lambda x: x.at[..., i].set(0.0) if x.ndim > 1 else x, board)),
    (False, lambda board, i: jax.tree.map(lambda x: x - x.mean(), board)),
    (False, lambda board, i: jax.tree.map(lambda x: x.at[i].set(x[i] * (x.ndim - 1)), board)),
  ],
)
def test_arrays_with_an_axis_of_workers(elementwise, function):
  def calls(params):
    board = jax.tree.map(lambda x: jax.ShapeDtypeStruct((4, *x.shape), x.dtype), params)
    return [(function, (board, jax.ShapeDtypeStruct((), jnp.int32)))]

  assert are_elementwise(calls, PARAMS) == elementwise


# ---- sharded synchronous SGD


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.sampled(9)
def test_other_optimizers_are_refused(name):
  algorithm = build("sharded_sync_sgd", OTHERS[name])
  workers = jax.tree.map(lambda x: jnp.stack([x] * 2), PARAMS)
  with pytest.raises(ValueError, match=r"^sharded_sync_sgd.inner must be element-wise, got .* Use SGD, Adam,") as error:
    jax.vmap(lambda params: algorithm.init(W, params, jax.random.key(0)), axis_name="w")(workers)
  assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["injected", pytest.param("momentum", marks=pytest.mark.slow)])
def test_a_sharded_optimizer_equals_the_whole_one(x64, name):
  x0, grad = reference.problem(3, 6)
  sharded, whole = (
    drive(build(algorithm, lenient(ELEMENTWISE[name])), x0, grad, workers=3, steps=6)[0]
    for algorithm in ("sharded_sync_sgd", "sync_sgd")
  )
  close(sharded, whole)
  assert np.abs(np.asarray(sharded)[-1] - x0).max() > 1e-4


def test_sharded_weight_decay_after_a_warm_up(x64):
  """Without gradients AdamW is x <- (1 - rate decay) x; the rates are exact in float32."""
  warm = lenient(optax.adamw(optax.linear_schedule(0.0, 0.125, 16), weight_decay=0.1))
  params = drive(build("sharded_sync_sgd", warm), np.ones(7), lambda i, t, x: 0 * x, workers=3, steps=30)[0]
  rates = np.minimum(np.arange(30) / 16, 1.0) * 0.125
  close(params, np.broadcast_to(np.cumprod(1 - 0.1 * rates)[:, None, None], (30, 3, 7)))
