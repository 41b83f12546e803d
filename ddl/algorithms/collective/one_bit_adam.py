"""1-bit Adam."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax

from ddl.algorithms.wrappers.vectors import all_to_all
from ddl.api import Algorithm, Exchange, FirstSteps, Spec, Taxonomy, Tree, descend
from ddl.group import Group
from ddl.precision import ravel, wide
from ddl.ranges import Momentum, PositiveFloat, PositiveInt, checked


class OneBitAdamState(NamedTuple):
  inner: optax.OptState  # equal on all workers
  momentum: Tree  # m, equal on all workers
  variance: Tree  # v, equal on all workers
  error: Tree  # e_i, of this worker
  strip_error: Tree  # d_i, of the strip that this worker owns; 0 elsewhere
  grads: Tree  # g_i, from the local step until the exchange after it


@checked
def one_bit_adam(
  inner: optax.GradientTransformation,
  *,
  freeze_step: PositiveInt = 400,
  b1: Momentum = 0.9,
  b2: Momentum = 0.999,
  eps: PositiveFloat = 1e-8,
) -> Algorithm:
  """Run Adam at first; then freeze its variance and send its momentum with 1 bit per value (1-bit Adam).

  Steps up to T_w: g = (1/p) sum_i g_i; m <- b1 m + (1 - b1) g; v <- b2 v + (1 - b2) g^2
  Later steps: a_i = b1 m + (1 - b1) g_i + e_i; e_i <- a_i - C(a_i); r = (1/p) sum_i C(a_i) + d; m <- C(r); d <- r - m
  All steps: x <- x + inner(m / (sqrt(v) + eps))
  Here C(a) = sign(a) |a|_2 / sqrt(n).

  Tang et al. 2021, arXiv 2102.02888. Adam is not linear in g, so its gradients cannot be sent with error feedback, but
  with a frozen v it is SGD with momentum. The values of m are divided into p strips of 8 ceil(n / (8 p)) values. Worker
  j owns strip j: it receives 1 bit per value and a scale from each worker, averages the decoded values, adds its error
  d, and sends C of the result, r, to all. As in the authors' code (DeepSpeed), there is no bias correction, and C has
  one scale for all values of a worker's message or of a strip. Two rules differ from that code. First, values with v =
  0, whose gradients were 0 on all workers in the first phase, do not move in the second phase and are left out of C;
  without this rule they would be multiplied by 1 / eps. (In DeepSpeed, users provide a mask for this.) Second,
  checkpoints contain e_i and d, which DeepSpeed drops. A sign bit cannot represent zero: zeros are sent as +1. C gives
  all values of m the same magnitude, so values whose v is almost 0, such as the weights of pixels that are almost
  always 0, take huge steps in the second phase. In this case, increase eps, for example to 1e-3 for the digits of
  `configs/digits.py`. Freezing v too early has the same effect. The evaluated model is x.

  Args:
    inner: optimizer that receives Adam's direction as its gradient, normally SGD without momentum; the same on all
      workers. The paper's decoupled weight decay is `optax.chain(optax.add_decayed_weights(wd),
      optax.scale_by_learning_rate(eta))`.
    freeze_step: steps of the first phase, with uncompressed means (T_w); the paper uses 15 to 25 % of the run. The
      default is that of the example in DeepSpeed's documentation; that of its class is 100,000.
    b1: decay of the momentum (beta_1).
    b2: decay of the variance (beta_2).
    eps: added to the root of the variance; limits the steps of values with a small variance.
  """

  def init(group: Group, params: Tree, key: Any) -> OneBitAdamState:
    zeros = jax.tree.map(jnp.zeros_like, params)
    return OneBitAdamState(inner.init(params), zeros, zeros, zeros, zeros, zeros)

  def local(group: Group, grads: Tree, state: OneBitAdamState, params: Tree) -> tuple[Tree, OneBitAdamState]:
    return params, state._replace(grads=grads)

  def moved(m: Tree, v: Tree, state: OneBitAdamState, params: Tree) -> tuple[Tree, OneBitAdamState]:
    direction = jax.tree.map(lambda m, v: m / (jnp.sqrt(v) + eps), m, v)
    params, inner_state = descend(inner, direction, state.inner, params)  # x <- x - eta m / (sqrt(v) + eps)
    return params, state._replace(inner=inner_state, momentum=m, variance=v)

  def send_gradients(group: Group, state: OneBitAdamState, params: Tree) -> tuple[Tree, OneBitAdamState]:
    return group.mean(state.grads), state  # g = (1/p) sum_i g_i

  def adam(group: Group, message: Tree, state: OneBitAdamState, params: Tree) -> tuple[Tree, OneBitAdamState]:
    m = jax.tree.map(lambda m, g: b1 * m + (1 - b1) * g, state.momentum, message)  # m <- b1 m + (1 - b1) g
    v = jax.tree.map(lambda v, g: b2 * v + (1 - b2) * g * g, state.variance, message)  # v <- b2 v + (1 - b2) g^2
    return moved(m, v, state, params)

  def send_momenta(group: Group, state: OneBitAdamState, params: Tree) -> tuple[Tree, OneBitAdamState]:
    own = jax.tree.map(lambda m, g: b1 * m + (1 - b1) * g, state.momentum, state.grads)  # b1 m + (1 - b1) g_i
    (vector, unpacked), live = ravel(own), ravel(state.variance)[0] > 0
    error, strip_error = (ravel(x)[0].astype(wide(vector.dtype)) for x in (state.error, state.strip_error))
    results = _one_bit_mean(group, vector.astype(wide(vector.dtype)), error, strip_error, live)
    m, error, strip_error = (unpacked(x.astype(vector.dtype)) for x in results)
    return m, state._replace(error=error, strip_error=strip_error)

  def frozen(group: Group, message: Tree, state: OneBitAdamState, params: Tree) -> tuple[Tree, OneBitAdamState]:
    return moved(message, state.variance, state, params)  # m <- C(r)

  def evaluate(group: Group, state: OneBitAdamState, params: Tree) -> Tree:
    return params

  phases = (
    Exchange(send_gradients, adam, FirstSteps(freeze_step)),
    Exchange(send_momenta, frozen, offset=freeze_step),
  )
  return Algorithm(init, local, phases, evaluate)


def _one_bit_mean(
  group: Group, vector: jax.Array, error: jax.Array, strip_error: jax.Array, live: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
  """Average vectors with 1 bit per value in each direction; return (mean, error, strip error), [n] each.

  live: [n] bool, the values to average; the results are 0 elsewhere. Strips have 8 ceil(n / (8 p)) values.
  """
  workers, size = group.size(), vector.size
  strip = 8 * -(-size // (8 * workers))

  def padded(x: jax.Array) -> jax.Array:
    return jnp.zeros(strip * workers, x.dtype).at[:size].set(x)

  def own_strip(x: jax.Array) -> jax.Array:
    return lax.dynamic_slice_in_dim(padded(x), group.index() * strip, strip)

  def compressed(a: jax.Array, live: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return which values of C(a) are negative, the scale [] of C(a), and the error a - C(a)."""
    count = jnp.maximum(jnp.sum(live, dtype=a.dtype), jnp.ones((), a.dtype))
    scale = jnp.sqrt(jnp.sum(a * a) / count)  # |a|_2 / sqrt(n)
    return a < 0, scale, masked(a - jnp.where(a < 0, -scale, scale), live)

  def masked(a: jax.Array, live: jax.Array) -> jax.Array:
    return jnp.where(live, a, jnp.zeros_like(a))

  def signed(bits: jax.Array, scales: jax.Array) -> jax.Array:
    """Return the values C(a) of rows: [rows, bytes], [rows] -> [rows, values]."""
    return scales[:, None] * (1 - 2 * jnp.unpackbits(bits, axis=1).astype(scales.dtype))

  negative, scale, error = compressed(masked(vector + error, live), live)  # C(a_i), e_i <- a_i - C(a_i)
  bits = jnp.packbits(padded(negative)).reshape(workers, strip // 8)
  received = signed(*all_to_all(group, (bits, jnp.broadcast_to(scale, (workers,)))))
  mean = jnp.sum(received, axis=0) / workers  # (1/p) sum_i C(a_i)
  own_live = own_strip(live)
  r = masked(mean + own_strip(strip_error), own_live)  # r = (1/p) sum_i C(a_i) + d
  negative, scale, left = compressed(r, own_live)  # C(r), d <- r - C(r)
  result = signed(*group.gather((jnp.packbits(negative), scale))).reshape(-1)[:size]
  whole = lax.dynamic_update_slice_in_dim(padded(jnp.zeros_like(error)), left, group.index() * strip, axis=0)
  return masked(result, live), error, whole[:size]


SPEC = Spec(
  factory=one_bit_adam,
  title="1-bit Adam",
  citation="Tang et al. 2021, arXiv 2102.02888",
  taxonomy=Taxonomy("data", "centralized", "synchronous", "all-reduce", "gradients"),
  symbols={"freeze_step": "T_w", "b1": "beta_1", "b2": "beta_2", "eps": "eps"},
  expects={"optimizer.clip_norm": (0, "it limits the norm of Adam's direction, not of the gradients")},
)
