"""Pack small integers into bytes, so that a message has the size that the algorithm's paper states."""

import jax
import jax.numpy as jnp


def pack(codes: jax.Array, bits: int) -> jax.Array:
  """Pack integers in 0..2^bits - 1, lowest bit first: [...] -> [ceil(bits n / 8)] uint8, for n integers."""
  planes = jnp.arange(bits, dtype=codes.dtype)
  return jnp.packbits((codes.reshape(-1, 1) >> planes[None]) & 1)


def unpack(packed: jax.Array, bits: int, size: int) -> jax.Array:
  """Unpack the `size` integers of each row: [..., bytes] uint8 -> [..., size] int32."""
  planes = jnp.unpackbits(packed, axis=-1, count=bits * size).reshape(*packed.shape[:-1], size, bits)
  weights = 1 << jnp.arange(bits, dtype=jnp.int32)
  return jnp.sum(planes.astype(jnp.int32) * weights.reshape((1,) * (planes.ndim - 1) + (bits,)), -1, dtype=jnp.int32)
