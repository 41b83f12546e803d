"""Random numbers of the wrappers: functions of (seed, time), and of the worker where workers draw separately.

Time is the number of draws before, and the seed the key that `init` gets: neither the devices nor their number matter.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from ddl.group import Group


class Draws(NamedTuple):
  """A stream of keys, equal on all workers."""

  key: jax.Array  # [2] uint32: a key's data, as a checkpoint stores it
  count: jax.Array  # [] int32: keys drawn before


def start(key: Any) -> Draws:
  """Return the stream of a key."""
  return Draws(jax.random.key_data(key), jnp.zeros((), jnp.int32))


def draw(draws: Draws) -> tuple[Any, Draws]:
  """Return the next key, which all workers share, and the stream after it."""
  return jax.random.fold_in(jax.random.wrap_key_data(draws.key), draws.count), draws._replace(count=draws.count + 1)


def worker_key(key: Any, group: Group) -> Any:
  """Return this worker's key, derived from one that all share."""
  return jax.random.fold_in(key, group.index())


def choose(key: Any, size: int, share: float) -> jax.Array:
  """Return k = max(1, round(share size)) different places of 0..size-1, each set of k as likely: [k] int32."""
  # Those of the k largest of `size` random numbers: fifty times as fast on a CPU as `jax.random.choice`, which sorts.
  return lax.top_k(jax.random.uniform(key, (size,), jnp.float32), max(1, round(share * size)))[1]
