"""Server algorithms in real time: one thread per worker, and the server in host memory.

The record of a run has the format of a schedule, in real seconds, and can be replayed in virtual time. With a lock, a
replay with one visit per wave is bit-exact if the workers' devices and the host's are of the same kind. Without a lock,
a replay repeats the operations on blocks in their recorded order; its results differ by rounding errors if a compiler
fuses the multiplication in the increment with the addition to the center (a fused multiply-add).
"""

import itertools
import threading
from collections.abc import Callable, Sequence
from functools import partial
from queue import SimpleQueue
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ddl import ranges
from ddl.api import Model, ServerAlgorithm, Tree
from ddl.asynchronous.flat_params import check_lock_free
from ddl.asynchronous.shared_server import SharedServer, compiled
from ddl.asynchronous.worker_round import Worker
from ddl.contract import of_model, of_server
from ddl.engine.consensus import Consensus, NotFinite, Progress, agree
from ddl.engine.local_step import make_local_step
from ddl.errors import OptionError
from ddl.events.barriers import Barrier, Quorum, check_round_robin, describe
from ddl.events.cluster import worker_periods
from ddl.events.operations import Operations
from ddl.events.record import Events, VisitRow
from ddl.group import Group

Take = Callable[[int, int], tuple[Tree, Any]]  # (worker, step) -> (batch, key); thread-safe
# (visits done, losses of the round, function that returns the consensus of the models) -> None
Watch = Callable[[int, np.ndarray, Callable[[], Consensus]], None]
STOP = -1


class Threads:
  """A run of an algorithm on a model, with one thread per worker.

  After `run`, `server` is the final state of the server, and `params`, `state` and `extra` are lists with the final
  values of each worker.
  """

  def __init__(
    self, algorithm: ServerAlgorithm, model: Model, *, workers: int, seed: int, barrier: Barrier,
    step_times: Sequence[float] = (),
  ):  # fmt: skip
    """Assign worker w to local device w modulo the number of devices.

    algorithm: built for this number of workers. If it has a lock-free rule, visits work on `arrivals.blocks` blocks of
      the center without a lock; if the number of blocks is 0, they use a lock.
    seed: seed of the peers and the barrier's samples.
    barrier: a `Bounded`; a `Quorum` raises OptionError.
    step_times: mean step times of the workers, for `ServerAlgorithm.periods`; by default, all are equal.
    """
    if isinstance(barrier, Quorum):
      advice = "Threads cannot drop late messages."
      raise OptionError("config.barrier.name", "asp, bsp, ssp or psp with threads", describe(barrier), advice)
    if algorithm.arrivals.round_robin:
      check_round_robin(barrier)
    ranges.check("workers", workers, ranges.integers(1))
    ranges.check("blocks", algorithm.arrivals.blocks, ranges.integers(0))
    devices, model = jax.local_devices(), of_model(model)
    params = jax.eval_shape(model.init, jax.random.key(0))[0]
    self.algorithm, self.workers = of_server(algorithm, params), workers
    self.devices = [devices[worker % len(devices)] for worker in range(workers)]
    self.periods = worker_periods(algorithm, step_times or (1.0,) * workers)
    self._settings: Any = {"workers": workers, "seed": seed, "barrier": barrier, "periods": self.periods}
    self._step, self._compiled = jax.jit(make_local_step(model, algorithm.local)), compiled(self.algorithm)
    if self._compiled.lock_free:
      check_lock_free(self.algorithm, params)
    self._consensus = jax.jit(self._consensus_of)
    self._ended = SimpleQueue[int]()  # ranks of ended threads, or STOP

  def run(self, params: Tree, extra: Tree, take: Take, visits: int, watch: Watch) -> tuple[Events, Operations]:
    """Train until `visits` visits are served or `stop` is called. The clock starts after compilation.

    visits: length of the run. If workers have different periods, the workers' steps are counted instead, and the run is
      as long as `visits` rounds of `algorithm.period` steps.
    watch: called after each visit; no other visit ends before it returns.

    Returns the recorded events and server operations.

    Raises NotFinite if a loss is not finite, and re-raises other exceptions of threads, with a note that names the
    worker and its step. All threads have ended when `run` returns or raises, even after KeyboardInterrupt.
    """
    ranges.check("visits", visits, ranges.integers(1))
    self._take, self._watch, self._x64 = take, watch, jnp.result_type(float) == jnp.float64
    self._shared = SharedServer(self._compiled, params, visits=visits, **self._settings)
    state, _, self._first_reply = self.algorithm.init(params)
    start = [jax.device_put((params, state, extra), device) for device in self.devices]
    self.params, self.state, self.extra = map(list, zip(*start, strict=True))
    self._errors, self._at, running = list[BaseException](), [0] * self.workers, self.workers
    self._ready = threading.Barrier(self.workers, action=self._shared.open)
    threads = [threading.Thread(target=self._run_worker, args=(worker,), daemon=True) for worker in range(self.workers)]
    try:
      for thread in threads:
        thread.start()
      while running:
        # Not `join`: if Ctrl-C interrupts it, Python 3.11 assumes that the thread has ended.
        if self._ended.get() == STOP:
          self._halt()
        else:
          running -= 1
    finally:
      self._halt()
      for thread in threads:
        if thread.ident is not None:
          thread.join()
    if self._errors:
      raise self._errors[0]
    record = self._shared.record()
    self.server = self._shared.state()
    return record

  def progress(self) -> Progress:
    """Return the progress of the run. Call this only from `watch` or after the run."""
    return self._shared.progress()

  def stop(self) -> None:
    """End the run after the visits in progress. This is safe in a signal handler: `SimpleQueue.put` is reentrant."""
    self._ended.put(STOP)

  def _run_worker(self, worker: int) -> None:
    try:
      with jax.enable_x64(self._x64), np.errstate(all="ignore"):  # both settings are per thread
        self._worker_rounds(worker)
    except BaseException as error:  # reported unless the run has ended
      if not self._shared.gate.over:
        error.add_note(f"in the thread of worker {worker}, at its step {self._at[worker] + 1}")
        self._errors.append(error)
        self._halt()
    finally:
      self._ended.put(worker)

  def _halt(self) -> None:
    self._shared.gate.halt()
    self._ready.abort()

  def _worker_rounds(self, worker: int) -> None:
    delay, period, shared, device = self.algorithm.delay, self.periods[worker], self._shared, self.devices[worker]
    me = Worker(self.params[worker], self.state[worker], self.extra[worker])
    reply, losses = jax.device_put(self._first_reply, device), np.zeros(0)
    self._warm_up(worker, me, reply)
    self._ready.wait()
    for round_ in itertools.count():
      shared.gate.wait(worker)
      first, row = round_ * period, VisitRow(worker, round_, shared.now(), 0.0, 0.0, 0, 0.0, False, False, period)
      if not delay:
        me, results = self._steps(worker, self._merged(me, reply), first, period)
        losses = self._checked(worker, first, results)
      message = self._compiled.request(me.state, me.params)
      ahead, before = self._steps(worker, me, first, delay)  # dispatched, not awaited, to hide the exchange
      if not shared.visit(row, message, lambda done, me=me, losses=losses: self._visited(worker, me, done, losses)):
        return
      reply = shared.reply(row, message, device)
      jax.block_until_ready((ahead, reply))
      row.released = shared.now()
      if delay:
        me, after = self._steps(worker, self._merged(ahead, reply), first + delay, period - delay)
        losses = self._checked(worker, first, before + after)
        jax.block_until_ready(me)
      shared.leave(worker)

  def _merged(self, me: Worker, reply: Tree) -> Worker:
    params, state = self._compiled.merge(reply, me.state, me.params)
    return me._replace(params=params, state=state)

  def _steps(self, worker: int, me: Worker, first: int, count: int) -> tuple[Worker, list[jax.Array]]:
    """Run steps first, ..., first + count - 1; stop early if the run ends."""
    carry, losses = tuple(me), []
    for step in range(first, first + count):
      if self._shared.gate.over:
        break
      self._at[worker] = step
      carry, loss = self._step(carry, jax.device_put(self._take(worker, step), self.devices[worker]))
      losses.append(loss)
    return Worker(*carry), losses

  def _checked(self, worker: int, first: int, losses: list[jax.Array]) -> np.ndarray:
    values = np.array([float(loss) for loss in losses])
    bad = np.flatnonzero(~np.isfinite(values))
    if bad.size:
      raise NotFinite(f"worker {worker}: the loss is {values[bad[0]]} at its step {first + bad[0] + 1}")
    return values

  def _warm_up(self, worker: int, me: Worker, reply: Tree) -> None:
    """Compile the functions of a round by calling them twice, because types may change after the first round."""
    for _ in range(2):
      me, _ = self._steps(worker, self._merged(me, reply), 0, 1)
      reply = self._shared.warm_up(worker, self._compiled.request(me.state, me.params), self.devices[worker])
    jax.block_until_ready(me)

  def _visited(self, worker: int, me: Worker, done: int, losses: np.ndarray) -> None:
    """Publish the worker's state and call `watch`. The caller must hold the lock."""
    self.params[worker], self.state[worker], self.extra[worker] = me[:3]
    self._watch(done, losses, self._snapshot)

  def _snapshot(self) -> Consensus:
    shared = self._shared
    return self._consensus(shared.state(), *jax.device_put((self.params, self.extra), shared.host))

  def _consensus_of(self, server: Tree, params: list[Tree], extra: list[Tree]) -> Consensus:
    stacked = jax.tree.map(lambda *x: jnp.stack(x), *zip(params, extra, strict=True))
    agreed = jax.vmap(partial(agree, Group("workers")), axis_name="workers")(*stacked)
    return Consensus(self.algorithm.evaluate(server), *jax.tree.map(lambda x: x[0], agreed))
