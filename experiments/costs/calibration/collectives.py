"""Blocks of one collective over all processes, in a compiled loop as in an algorithm, and of one device's peaks."""

from collections.abc import Callable

import jax
import numpy as np
from jax import lax

from ddl.perf.comm import patterns
from ddl.perf.comm.patterns import Op
from ddl.perf.hardware.network import Link, Network
from ddl.runtime.layout.workers import AXIS as AXES
from ddl.runtime.layout.workers import Workers
from experiments.costs.calibration.microbench import Block, timed

AXIS = AXES[0]
SIZES = tuple(2**k for k in range(10, 25, 2))  # bytes: 1 kB to 16 MB
CALL_BYTES = 8 * 2**20  # of one compiled loop
CALL_LENGTH = 16  # exchanges at most


def _strip(x: jax.Array) -> jax.Array:
  return x[: x.shape[0] // lax.axis_size(AXIS)]


def _put(x: jax.Array, strip: jax.Array) -> jax.Array:
  return lax.dynamic_update_slice(x, strip, (0,))


def _permute(x: jax.Array) -> jax.Array:
  count = lax.axis_size(AXIS)
  return lax.ppermute(x, AXIS, [(i, (i + 1) % count) for i in range(count)])


# Each takes and returns the whole vector of a worker, [n], with as little other work as JAX allows: the mean for
# all_reduce, and the copy of a strip.
COLLECTIVES: dict[str, Callable[[jax.Array], jax.Array]] = {
  "all_reduce": lambda x: lax.pmean(x, AXIS),
  "reduce_scatter": lambda x: _put(x, lax.psum_scatter(x, AXIS, tiled=True) / lax.axis_size(AXIS)),
  "all_gather": lambda x: _put(x, _strip(lax.all_gather(_strip(x), AXIS, tiled=True))),
  "permute": _permute,
}


def cost(name: str, workers: int) -> Callable[[float, Link], float]:
  """Return the model's cost of a collective, (bytes, link) -> seconds, of the cheapest algorithm."""
  return lambda nbytes, link: patterns.seconds([Op(name, nbytes)], workers, Network(link))


def exchange_block(name: str, nbytes: int, workers: Workers) -> Block:
  """Return the block of a collective, per exchange."""
  values = -(-nbytes // 4 // workers.count) * workers.count
  length = max(1, min(CALL_LENGTH, CALL_BYTES // nbytes))
  collective = COLLECTIVES[name]

  def device(x: jax.Array) -> jax.Array:
    return lax.scan(lambda carry, _: (collective(carry), None), x[0], None, length=length)[0][None]

  fn = jax.jit(workers.lift(device, True, True), donate_argnums=0)
  state = {"x": workers.put(np.ones((1, values), np.float32))}

  def call() -> jax.Array:
    state["x"] = fn(state["x"])
    return state["x"]

  return Block(timed(call), length)


def product_block(side: int = 1024) -> tuple[Block, float]:
  """Return (a product of two square matrices, its FLOP): this device's peak rate."""
  return _local(lambda x: x @ x, np.ones((side, side), np.float32)), 2.0 * side**3


def copy_block(nbytes: int = 2**25) -> tuple[Block, float]:
  """Return (a pass over a vector, the bytes read and written): this device's peak memory bandwidth."""
  return _local(lambda x: x * 0.5 + 1.0, np.ones(nbytes // 4, np.float32)), 2.0 * nbytes


def _local(fn: Callable[[jax.Array], jax.Array], values: np.ndarray) -> Block:
  x, jitted = jax.device_put(values, jax.local_devices()[0]), jax.jit(fn)
  return Block(timed(lambda: jitted(x)))
