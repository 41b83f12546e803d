"""Wrapped algorithms and their NumPy references, with the same random numbers."""

import jax
import jax.numpy as jnp
import numpy as np
from helpers.runs import HYPER
from helpers.twins import INNER, W, build, tree_of
from reference import collective as reference
from reference import compression, momenta, quantization

from ddl.algorithms import WRAPPERS

LOSSLESS = {  # for a kernel [2, 3]
  "topk": {"share": 1.0}, "randomk": {"share": 1.0}, "powersgd": {"rank": 2},
  "demo": {"decay": 0.9, "kept": 6, "chunk": 64}, "ef21": {"share": 1.0, "momentum": 0.0},
}  # fmt: skip
LOSSY = {
  "topk": {"share": 0.34}, "randomk": {"share": 0.34}, "powersgd": {"rank": 1},  # 2 of 6 values
  "sign": {"momentum": 0.9}, "qsgd": {"levels": 3, "block": 4}, "int8": {"block": 2},
  "fp8": {"format": "e4m3", "block": 2}, "demo": {"decay": 0.9, "kept": 1, "chunk": 2}, "sparta": {"share": 0.34},
  "ef21": {"share": 0.34, "momentum": 0.9}, "dgc": {"share": 0.34, "momentum": 0.8},
}  # fmt: skip
COMPRESSORS = [name for name in WRAPPERS if name != "sparta"]  # of means, by `ddl.algorithms.wrappers.compressed`
OF_DIFFERENCES = [name for name in COMPRESSORS if name not in ("sign", "dgc")]
BASE = {"sparta": "independent"}  # the algorithm in a wrapper's reference, by default sync_sgd
OPTIMIZER = {"dgc": "sgd"}  # the optimizer of a wrapper's algorithm, by default with momentum


def optimizer(wrapper):
  """Return the inner optimizer of a wrapper's tests: in optax, in NumPy."""
  return INNER[OPTIMIZER.get(wrapper, "momentum")]


def wrapped(wrapper, name, inner=None, hyper=LOSSY, **more):
  """Wrap an algorithm that has the hyperparameters of `helpers.runs`."""
  algorithm = build(name, (INNER[inner] if inner else optimizer(wrapper))[0], **(more or HYPER.get(name, {})))
  return WRAPPERS[wrapper].factory(algorithm, **hyper[wrapper])


def as_started(algorithm):
  """Use the key that a `CompiledTrainer` passes to `init` in a run with key 0."""
  return algorithm._replace(init=lambda group, params, key: algorithm.init(group, params, jax.random.fold_in(key, 1)))


def first_state(algorithm):
  """Return the initial state, after checking that it is equal on two workers."""
  params = jax.tree.map(lambda x: jnp.stack([x] * 2), tree_of(jnp.zeros(7)))
  state = jax.vmap(lambda x: algorithm.init(W, x, jax.random.key(0)), axis_name="w")(params)
  jax.tree.map(lambda x: np.testing.assert_array_equal(x[0], x[1]), state)
  return jax.tree.map(lambda x: x[0], state)


def shared_key(draws, time):
  """Return the key that all workers share in draw number `time`."""
  return jax.random.fold_in(jax.random.wrap_key_data(draws.key), time)


def chooser(draws):
  """Return the function that chooses the indices of `RandomK`."""

  def choose(time, part, size, count):
    numbers = jax.random.uniform(jax.random.fold_in(shared_key(draws, time), part), (size,), jnp.float32)
    return np.argsort(-np.asarray(numbers), kind="stable")[:count]

  return choose


def numbers(draws, time, worker, shape, stage=None):
  """Return a worker's uniform numbers, in one of two stages."""
  key = jax.random.fold_in(shared_key(draws, time), worker)
  key = key if stage is None else jax.random.split(key)[stage]
  return np.asarray(jax.random.uniform(key, shape, jnp.float64))


def compressor(wrapper, memory):
  """Create the reference of a compressor with the hyperparameters LOSSY, from its initial memory."""

  def staged(time, worker, stage, shape):
    return numbers(memory, time, worker, shape, stage)

  return {
    "topk": lambda: compression.TopK(0.34),
    "randomk": lambda: compression.RandomK(0.34, chooser(memory.draws)),
    "powersgd": lambda: compression.PowerSGD(np.array(memory[1].q)),
    "sign": lambda: quantization.MajorityVote(0.9),
    "qsgd": lambda: quantization.QSGD(3, 4, lambda *args: numbers(memory, *args)),
    "int8": lambda: quantization.Quantized(quantization.integers(), 2, staged),
    "fp8": lambda: quantization.Quantized(quantization.floats("float8_e4m3fn"), 2, staged),
    "demo": lambda: compression.DeMo(0.9, 1, 2),
    "ef21": lambda: momenta.EF21(0.34, 0.9),
    "dgc": lambda: momenta.DGC(0.34, 0.8),
  }[wrapper]()


def wrapper_and_reference(wrapper, workers, steps, started=lambda algorithm: algorithm):
  """Return the wrapper around its BASE and the history of its reference."""
  x0, grad = reference.problem(workers, steps)
  algorithm = started(wrapped(wrapper, BASE.get(wrapper, "sync_sgd")))
  state, how = first_state(algorithm), {"workers": workers, "steps": steps, "inner": optimizer(wrapper)[1]}
  if wrapper == "sparta":
    return algorithm, compression.sparta(x0, grad, share=0.34, choose=chooser(state.draws), **how)
  (memory,) = state.memory.local
  return algorithm, compression.sync_sgd(x0, grad, compressor=compressor(wrapper, memory), **how)
