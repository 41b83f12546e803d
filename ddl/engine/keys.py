"""The PRNG keys that a run derives from its initial key and its training key (see `ddl.config.experiment`)."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def algorithm_key(key: jax.Array) -> jax.Array:
  """Return the key for the `init` of a collective algorithm. key: the initial key."""
  return jax.random.fold_in(key, 1)


def step_key(key: jax.Array, worker: Any, step: Any) -> jax.Array:
  """Return the key with which a worker computes the loss of a step. key: the training key."""
  return jax.random.fold_in(jax.random.fold_in(key, worker), step)


# Compiled calls compute `step_key` in two parts: `worker_keys` once per run, and `step_keys` on the devices.


def worker_keys(key: jax.Array, workers: Sequence[int]) -> jax.Array:
  """Fold the IDs of workers into `key`; return key data [len(workers), *key.shape, ...]."""
  ids = jnp.asarray(np.array(workers, np.int32))
  return jax.random.key_data(jax.vmap(lambda worker: _fold(key, worker))(ids))


def _fold(key: jax.Array, worker: jax.Array) -> jax.Array:
  return jax.random.fold_in(key, worker) if not key.ndim else jax.vmap(partial(_fold, worker=worker))(key)


def step_keys(keys: jax.Array, step: jax.Array, steps: int) -> jax.Array:
  """Fold the step numbers from `step` on into each key: key data [workers, ...] -> keys [workers, steps]."""
  numbers = step + jnp.arange(steps, dtype=step.dtype)
  return jax.vmap(lambda key: jax.vmap(partial(jax.random.fold_in, key))(numbers))(jax.random.wrap_key_data(keys))
