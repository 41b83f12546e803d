"""A worker of the cluster: its rounds, and its messages cut among the master's shards."""

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
from ddl.asynchronous.flat_params import flatten, leads_of, packed, visit_trees
from ddl.engine.local_step import make_local_step
from ddl.events.cluster import draw_peers

Take = Callable[[int, int], tuple[Tree, Tree]]  # (worker, step) -> (batch, key)
Make = Callable[[int], tuple[Model, Take]]  # worker -> what is built in its process


class ShardConnections:
  """A worker's connections to the shards."""

  def __init__(self, algorithm: ServerAlgorithm, size: int, dtype: Any, addresses: list[tuple[str, int]], token: bytes):
    """For parameters [size]."""
    self.parts = wire.cut(size, len(addresses))
    leads = leads_of(algorithm, size, dtype)
    self.cut, self.cut_reply = ([lead == 0 for lead in jax.tree.leaves(x)] for x in (leads.message, leads.reply))
    self.reply = visit_trees(algorithm, size, dtype).reply
    self.connections = [wire.connect(address, token) for address in addresses]
    self.answer = np.zeros(1, wire.REPLY)

  def visit(self, header: np.ndarray, losses: np.ndarray, extra: list[Any], message: list[Any]) -> tuple[int, Tree]:
    """(status, reply): each shard is sent its part, and answers when it has served it."""
    extra, leaves = [np.asarray(x) for x in extra], [np.asarray(x) for x in message]
    for k, (connection, part) in enumerate(zip(self.connections, self.parts, strict=True)):
      own = [x[part] if is_cut else x for x, is_cut in zip(leaves, self.cut, strict=True)]
      wire.send(connection, [header, losses, *(extra if k == 0 else ()), *own])
    return self._answers()

  def ask(self, header: np.ndarray) -> bool:
    """Wait until the first shard lets a round begin; return whether the last reply may be old by then."""
    wire.send(self.connections[0], [header])
    wire.receive(self.connections[0], [self.answer])
    return len(self.connections) > 1 or int(self.answer["status"][0]) == wire.OLD  # one shard knows of itself alone

  def read(self, header: np.ndarray) -> Tree:
    """The reply as the shards would give it now."""
    for connection in self.connections:
      wire.send(connection, [header])
    return self._answers()[1]

  def _answers(self) -> tuple[int, Tree]:
    statuses, whole = [], wire.buffers(self.reply)  # new ones: JAX may go on with their memory
    for connection, part in zip(self.connections, self.parts, strict=True):
      room = [x[part] if is_cut else x for x, is_cut in zip(whole, self.cut_reply, strict=True)]
      wire.receive(connection, [self.answer, *room])
      statuses.append(int(self.answer["status"][0]))
    status = wire.DIVERGED if wire.DIVERGED in statuses else statuses[0]
    return status, jax.tree.unflatten(jax.tree.structure(self.reply), whole)


class RayWorker:
  """One worker. A Ray actor, but it does not use Ray."""

  def __init__(self, worker: int, algorithm: ServerAlgorithm, make: Make, params: Tree, extra: Tree, **settings: Any):
    """params, extra: the initial model. settings: addresses, token, workers, seed (of peers), barrier."""
    self.worker, self.algorithm, self.settings = worker, algorithm, settings
    self.params, self.extra = params, extra
    flat, self.unravel = flatten(params)
    self.size, self.dtype = flat.size, flat.dtype
    self.make, rule = make, packed(algorithm, params)
    self._init, self._merge = jax.jit(rule.init), jax.jit(rule.merge)
    self._request = jax.jit(lambda state, params: jax.tree.leaves(rule.request(state, params)))

  def prepare(self) -> None:
    """Make its model and data, connect, and compile before the first round begins."""
    model, self.take = self.make(self.worker)
    self._step = jax.jit(make_local_step(model, self.algorithm.local))
    where = self.settings["addresses"], self.settings["token"]
    self.exchange = ShardConnections(self.algorithm, self.size, self.dtype, *where)
    params, extra = jax.tree.map(jnp.asarray, (self.params, self.extra))
    state, _, reply = self._init(params)
    for _ in range(2):  # what a first step gives may have other types
      params, state = self._merge(reply, state, params)
      (params, state, extra), _ = self._step((params, state, extra), self.take(self.worker, 0))
      jax.block_until_ready(self._request(state, params))

  def pid(self) -> int:
    """Its process."""
    return os.getpid()

  def work(self, *begun: Any) -> None:
    """Make rounds until the first shard replies STOP; begun: of each shard. ValueError if the master diverged."""
    status, number, part, extra = begun[0]
    first, waits = number, self.settings["barrier"].bound < np.inf
    params = self.params if part is None else self.unravel(np.concatenate([b[2] for b in begun]))
    params, extra = jax.tree.map(jnp.asarray, (params, extra))
    state, _, reply = self._init(params)
    released, delay, period = time.time(), self.algorithm.delay, self.algorithm.period
    state = at_step(state, number * period)
    losses: list[Any] = []

    def steps(first: int, count: int) -> None:
      nonlocal params, state, extra
      for step in range(first, first + count):
        (params, state, extra), loss = self._step((params, state, extra), self.take(self.worker, step))
        losses.append(loss)

    with ThreadPoolExecutor(1) as pool:
      while status == wire.GO:
        header = self._header(number, released)
        if self.algorithm.arrivals.round_robin or (waits and number > first):
          old = self.exchange.ask(_for(wire.ASK, header))
          if old and waits and not delay and self.algorithm.read:
            reply = self.exchange.read(_for(wire.READ, header))
          if waits and not delay:
            header["released"] = time.time()
        header["start"] = time.time()
        if not delay:
          params, state = self._merge(reply, state, params)
          steps(number * period, period)
        done = np.zeros(period, np.float32)
        done[: len(losses)] = losses
        losses.clear()
        message = self._request(state, params)
        pending = pool.submit(self.exchange.visit, header, done, jax.tree.leaves(extra), message)
        steps(number * period, delay)
        status, told = pending.result()
        if status == wire.DIVERGED:
          raise ValueError(f"worker {self.worker}, round {number}: a message or the center is not finite")
        reply, released = told, time.time()
        if delay and status == wire.GO:
          params, state = self._merge(reply, state, params)
          steps(number * period + delay, period - delay)
        number += 1

  def _header(self, number: int, released: float) -> np.ndarray:
    header = np.zeros(1, wire.REQUEST)
    header["what"], header["worker"], header["round"], header["released"] = wire.VISIT, self.worker, number, released
    header["peer"] = self._peer(number)
    return header

  def _peer(self, number: int) -> int:
    if self.algorithm.arrivals.peers == "none":
      return -1
    if number >= len(self._peers):
      numbers = np.arange(2 * number + 64)
      self._peers = draw_peers(
        np.full(len(numbers), self.worker),
        numbers,
        workers=self.settings["workers"],
        arrivals=self.algorithm.arrivals,
        seed=self.settings["seed"],
      )
    return int(self._peers[number])

  _peers = np.zeros(0, np.int32)


def _for(what: int, header: np.ndarray) -> np.ndarray:
  header = header.copy()
  header["what"] = what
  return header
