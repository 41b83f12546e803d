"""Derive PRNG keys from the key passed to `Algorithm.init`, the number of earlier draws and, if needed, the rank.

Hence random numbers do not depend on the type or number of devices.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from ddl.group import Group


class Draws(NamedTuple):
  """A stream of PRNG keys, equal on all workers."""

  key: jax.Array  # [2] uint32: the initial key as raw data, which a checkpoint can store
  count: jax.Array  # [] int32: number of keys drawn so far


def start(key: Any) -> Draws:
  """Create a stream of keys from an initial key."""
  return Draws(jax.random.key_data(key), jnp.zeros((), jnp.int32))


def draw(draws: Draws) -> tuple[Any, Draws]:
  """Return the next key, equal on all workers, and the remaining stream."""
  return jax.random.fold_in(jax.random.wrap_key_data(draws.key), draws.count), draws._replace(count=draws.count + 1)


def worker_key(key: Any, group: Group) -> Any:
  """Derive this worker's key from a key that all workers share."""
  return jax.random.fold_in(key, group.index())


def choose(key: Any, size: int, share: float) -> jax.Array:
  """Return k = max(1, round(share * size)) distinct indices, drawn uniformly from 0..size-1, as int32 [k]."""
  # Taking the k largest random numbers is 50 times faster on a CPU than `jax.random.choice`, which sorts.
  return lax.top_k(jax.random.uniform(key, (size,), jnp.float32), max(1, round(share * size)))[1]
