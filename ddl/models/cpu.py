"""Matrix products and convolutions with gradients that are fast on XLA:CPU, also inside scan, cond and vmap.

Up to rounding, the results equal those of the standard operations, which other backends use.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from ddl.errors import OptionError

NHWC = ("NHWC", "HWIO", "NHWC")
THIN = 4  # maximum number of input channels for which a matrix product beats a convolution
COLUMNS = 4  # output pixels per row of the matrix product in `_thin`


def dot_general(x: jax.Array, kernel: jax.Array, dimensions: Any, **kwargs: Any) -> jax.Array:
  """Multiply x [..., in] by kernel [in, out]; for `nn.Dense(dot_general=...)`."""
  if jax.default_backend() != "cpu":
    return lax.dot_general(x, kernel, dimensions, **kwargs)
  return _matmul(x, kernel)


@jax.custom_vjp
def _matmul(x: jax.Array, kernel: jax.Array) -> jax.Array:
  return x @ kernel


def _matmul_backward(saved: tuple[jax.Array, jax.Array], g: jax.Array) -> tuple[jax.Array, jax.Array]:
  # Materialize x^T: Eigen is up to 1.7 times slower if it reads x by columns ([512, 512] x [512, 128]).
  x, kernel = saved
  xt = lax.optimization_barrier(x.reshape(-1, x.shape[-1]).T)
  return g @ kernel.T, xt @ g.reshape(-1, g.shape[-1])


_matmul.defvjp(lambda x, kernel: (x @ kernel, (x, kernel)), _matmul_backward)


def convolve(x: jax.Array, kernel: jax.Array, strides: tuple[int, ...], padding: str, **kwargs: Any) -> jax.Array:
  """Convolve x [batch, h, w, in] with kernel [kh, kw, in, out]; for `nn.Conv(conv_general_dilated=...)`.

  Only "SAME" padding is supported (else ValueError). For every stride, the first window is centered on pixel 0, as for
  stride 1 and in He et al. XLA:CPU has a fast kernel only for plain forward convolutions, and converts gradients to
  that form only outside loops: the weight gradient of LeNet's second layer takes 1.6 ms, but 79 ms in a scan. Here both
  gradients are forward convolutions, and vmap over workers runs one convolution per worker instead of a grouped one.
  """
  if padding != "SAME":
    raise OptionError("padding of convolve", "SAME", padding)
  if jax.default_backend() != "cpu":
    return lax.conv_general_dilated(x, kernel, strides, _pads(kernel), **kwargs)
  return _convolve(x, kernel)[:, :: strides[0], :: strides[1]]


def _pads(kernel: jax.Array) -> tuple[tuple[int, int], ...]:
  return tuple(((size - 1) // 2, size // 2) for size in kernel.shape[:2])


@functools.cache
def _forward(pads: tuple[tuple[int, int], ...]) -> Any:
  """Return a stride-1 convolution; under vmap it runs once per worker, or once if the workers share the kernel."""

  @jax.custom_batching.custom_vmap
  def forward(x: jax.Array, kernel: jax.Array) -> jax.Array:
    return lax.conv_general_dilated(x, kernel, (1, 1), pads, dimension_numbers=NHWC)

  @forward.def_vmap
  def _(count: int, batched: Any, x: jax.Array, kernel: jax.Array) -> tuple[jax.Array, bool]:
    if not batched[1]:
      y = forward(x.reshape(-1, *x.shape[2:]), kernel)
      return y.reshape(*x.shape[:2], *y.shape[1:]), True
    ys = [forward(x[i] if batched[0] else x, kernel[i]) for i in range(count)]
    return jnp.stack(ys), True

  return forward


def _thin(x: jax.Array, kernel: jax.Array) -> jax.Array:
  """Convolve by one matrix product, [batch * h * w / m, k] @ [k, m * out] with k = kh * (m + kw - 1) * in.

  Each row of the product holds m neighboring output pixels. With few input channels XLA's convolution reaches only 8 %
  of this speed.
  """
  (batch, height, width, _), (rows, columns, _, out), m = x.shape, kernel.shape, COLUMNS
  blocks = -(-width // m)
  top_bottom, (left, right) = _pads(kernel)
  x = jnp.pad(x, ((0, 0), top_bottom, (left, blocks * m - width + right), (0, 0)))
  x = jnp.stack([x[:, :, m * i : m * i + m + columns - 1] for i in range(blocks)], axis=2)
  x = jnp.stack([x[:, i : i + height] for i in range(rows)], axis=3)
  band = jnp.stack([jnp.pad(kernel, ((0, 0), (i, m - 1 - i), (0, 0), (0, 0))) for i in range(m)], axis=3)
  y = x.reshape(batch * height * blocks, -1) @ band.reshape(-1, m * out)
  return y.reshape(batch, height, blocks * m, out)[:, :, :width]


@jax.custom_vjp
def _convolve(x: jax.Array, kernel: jax.Array) -> jax.Array:
  if kernel.shape[2] <= THIN:
    return _thin(x, kernel)
  return _forward(_pads(kernel))(x, kernel)


def _convolve_backward(saved: tuple[jax.Array, jax.Array], g: jax.Array) -> tuple[jax.Array, jax.Array]:
  x, kernel = saved
  pads = _pads(kernel)
  mirrored = tuple((high, low) for low, high in pads)
  dx = _forward(mirrored)(g, kernel[::-1, ::-1].swapaxes(2, 3))  # full correlation with the flipped kernel
  # The weight gradient sums over examples, so batch and channels are swapped.
  dkernel = _forward(pads)(x.transpose(3, 1, 2, 0), g.transpose(1, 2, 0, 3))
  return dx, dkernel.transpose(1, 2, 0, 3)


_convolve.defvjp(lambda x, kernel: (_convolve(x, kernel), (x, kernel)), _convolve_backward)
