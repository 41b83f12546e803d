"""A Ray actor that runs a worker's rounds and sends slices of its messages to the master's shards."""

import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ddl.api import Model, ServerAlgorithm, Tree, at_step
from ddl.asynchronous import ray_transport as wire
from ddl.asynchronous.flat_params import packed
from ddl.engine.local_step import make_local_step
from ddl.events.cluster import draw_peers
from ddl.precision import ravel

Take = Callable[[int, int], tuple[Tree, Tree]]  # (worker, step) -> (batch, key)
Make = Callable[[int], tuple[Model, Take]]  # worker -> (model, take), called in the worker's process


class RayWorker:
  """A Ray actor that runs one worker."""

  def __init__(self, worker: int, algorithm: ServerAlgorithm, make: Make, params: Tree, extra: Tree, **settings: Any):
    """Set the initial model.

    settings: `addresses` and `token` of the shards, number of `workers`, `seed` of the peers, and `barrier`.
    """
    self.worker, self.algorithm, self.settings, self.make = worker, algorithm, settings, make
    self.params, self.extra, self.peers = params, extra, np.zeros(0, np.int32)
    flat, self.unravel = ravel(params)
    self.size, self.dtype = flat.size, flat.dtype
    rule = packed(algorithm, params)
    self._init, self._merge = jax.jit(rule.init), jax.jit(rule.merge)
    self._request = jax.jit(lambda state, params: jax.tree.leaves(rule.request(state, params)))

  def prepare(self) -> None:
    """Build the model and data, connect to the shards, and compile, all before the first round."""
    model, self.take = self.make(self.worker)
    self._step = jax.jit(make_local_step(model, self.algorithm.local))
    addresses, token = self.settings["addresses"], self.settings["token"]
    self.exchange = wire.ShardConnections(self.algorithm, self.size, self.dtype, addresses, token)
    params, extra = jax.tree.map(jnp.asarray, (self.params, self.extra))
    state, _, reply = self._init(params)
    for _ in range(2):  # types may change after the first step
      params, state = self._merge(reply, state, params)
      (params, state, extra), _ = self._step((params, state, extra), self.take(self.worker, 0))
      jax.block_until_ready(self._request(state, params))

  def pid(self) -> int:
    """Return the process ID."""
    return os.getpid()

  def work(self, *starts: Any) -> None:
    """Run rounds until the first shard replies STOP. Raises ValueError if the training diverged.

    starts: the result of each shard's `begin`.
    """
    status, number, part, extra = starts[0]
    first, waits = number, self.settings["barrier"].bound < np.inf
    params = self.params if part is None else self.unravel(np.concatenate([start[2] for start in starts]))
    params, extra = jax.tree.map(jnp.asarray, (params, extra))
    state, _, reply = self._init(params)
    released, delay, period = time.time(), self.algorithm.delay, self.algorithm.period
    state, losses = at_step(state, number * period), list[Any]()

    def steps(first: int, count: int) -> None:
      nonlocal params, state, extra
      for step in range(first, first + count):
        (params, state, extra), loss = self._step((params, state, extra), self.take(self.worker, step))
        losses.append(loss)

    with ThreadPoolExecutor(1) as pool:
      while status == wire.GO:
        header = np.zeros(1, wire.REQUEST)
        header["worker"], header["round"], header["peer"] = self.worker, number, self._peer(number)
        header["released"] = released
        if self.algorithm.arrivals.round_robin or (waits and number > first):
          header["what"] = wire.ASK
          outdated = self.exchange.ask(header)
          if outdated and waits and not delay and self.algorithm.read:
            header["what"] = wire.READ
            reply = self.exchange.read(header)
          if waits and not delay:
            header["released"] = time.time()
        header["what"], header["start"] = wire.VISIT, time.time()
        if not delay:
          params, state = self._merge(reply, state, params)
          steps(number * period, period)
        done = np.zeros(period, np.float32)
        done[: len(losses)] = losses
        losses.clear()
        message = self._request(state, params)
        pending = pool.submit(self.exchange.visit, header, done, jax.tree.leaves(extra), message)
        steps(number * period, delay)
        status, reply = pending.result()
        if status == wire.DIVERGED:
          raise ValueError(f"worker {self.worker}, round {number}: a message, a reply or the center is not finite")
        released = time.time()
        if delay and status == wire.GO:
          params, state = self._merge(reply, state, params)
          steps(number * period + delay, period - delay)
        number += 1

  def _peer(self, number: int) -> int:
    arrivals, workers, seed = self.algorithm.arrivals, self.settings["workers"], self.settings["seed"]
    if number >= len(self.peers):
      rounds = np.arange(2 * number + 64)
      self.peers = draw_peers(np.full(len(rounds), self.worker), rounds, workers=workers, arrivals=arrivals, seed=seed)
    return int(self.peers[number])
