"""XLA's analysis of the project's own compiled step: FLOP, bytes and memory, without data and without running it.

The step is that of one of the experiment's workers, alone on one device, with its exchange, whose collectives return
what the worker gave to them. XLA counts a loop's body once, so the step is unrolled and alone, and has one microbatch:
a step of k microbatches costs as much as k steps.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from ddl.api import Algorithm, Model, ServerAlgorithm, Tree
from ddl.group_recorder import Recorder
from ddl.perf import checks
from ddl.perf.hardware.device import Part
from ddl.perf.tables.totals import FLOAT
from ddl.runtime.execution import ExecutionConfig
from ddl.runtime.layout.workers import Workers, on_devices
from ddl.runtime.rounds.calls import Call, Kind
from ddl.runtime.rounds.worker_round import FULL, Worker, make_worker_round
from ddl.runtime.trainer import Trainer
from ddl.schedule import Due
from experiments.costs.param_flops import leaves
from experiments.train.auto_sharding import with_auto
from experiments.train.build import Components


class Compiled(NamedTuple):
  """A compiled program on this backend; memory in bytes."""

  flop: float  # all arithmetic, additions and comparisons too; taps of a convolution on padding are left out
  nbytes: float  # read and written by the fused operations
  arguments: int
  outputs: int
  aliased: int  # outputs in the place of donated arguments
  temporary: int
  code: int

  @property
  def peak(self) -> int:
    """Bytes while it runs: arguments + outputs - aliased + temporary + code.

    XLA's own peak is not it: on a CPU that leaves out the temporary buffers.
    """
    return self.arguments + self.outputs - self.aliased + self.temporary + self.code


def compiled_step(components: Components, examples: int, members: int = 1, sharding: str = "") -> Compiled:
  """Analyse `step_program`; with members the figures are those of one of them."""
  return analyse(step_program(components, examples, members, sharding))


def step_program(components: Components, examples: int, members: int = 1, sharding: str = "") -> Any:
  """Compile the step of the experiment's algorithm, optimizer and model on one microbatch of so many examples.

  Members, this process's first devices, hold the worker's parameters as the model's rules of that name say. A
  collective algorithm with a delay has its message in flight during the step; a server algorithm's worker merges a
  reply, makes the step and sends a request.
  """
  batch, model = batch_shapes(components, examples), components.model._replace(microbatches=1)
  if isinstance(components.algorithm, Algorithm):
    algorithm = _silent(components.algorithm, components.experiment.workers)
    model = with_auto(model, components.experiment, members)
    return _round(algorithm, model, batch, on_devices(1, jax.local_devices()[:members], members), sharding)
  return _worker_round(components.algorithm, model, batch)


def step_parts(components: Components, examples: int, members: int = 1, sharding: str = "") -> tuple[Part, ...]:
  """Return a microbatch's step by arrays of parameters, for `ddl.perf.hardware.device`'s roofline, as XLA counts it.

  The additional bytes of twice the examples are shared out as `leaves` shares the FLOP; the rest, such as passes over
  parameters and the optimizer's update, by the arrays' sizes.
  """
  arrays = leaves(components.model, batch_shapes(components, examples))
  one, two = (compiled_step(components, n, members, sharding) for n in (examples, 2 * examples))
  moved = max(0.0, two.nbytes - one.nbytes) / FLOAT
  held, size = max(0.0, one.nbytes / FLOAT - moved), sum(array.nbytes for array in arrays)
  return tuple(
    Part(array.share * one.flop / examples, array.share * moved / examples, held * array.nbytes / size)
    for array in arrays
  )


def batch_shapes(components: Components, examples: int) -> Tree:
  """Return the shapes [examples, ...] of one batch, of 1 example or more."""
  checks.count("number of examples", examples)
  one = components.data.train.take(np.arange(1))
  return {name: jax.ShapeDtypeStruct((examples, *x.shape[1:]), x.dtype) for name, x in one.items()}


def analyse(compiled: Any) -> Compiled:
  """Return XLA's cost and memory analysis of a compiled function (`jax.stages.Compiled`)."""
  cost, memory = compiled.cost_analysis(), compiled.memory_analysis()
  return Compiled(
    flop=cost.get("flops", 0.0),
    nbytes=cost.get("bytes accessed", 0.0),
    arguments=memory.argument_size_in_bytes,
    outputs=memory.output_size_in_bytes,
    aliased=memory.alias_size_in_bytes,
    temporary=memory.temp_size_in_bytes,
    code=memory.generated_code_size_in_bytes,
  )


def _silent(algorithm: Algorithm, workers: int) -> Algorithm:
  """The algorithm of one of so many workers, whose collectives send nothing: one of its own groups would not fit."""

  def alone(fn: Callable[..., Any]) -> Callable[..., Any]:
    return lambda group, *args: fn(Recorder(workers), *args)

  exchanges = tuple(x._replace(launch=alone(x.launch), merge=alone(x.merge)) for x in algorithm.exchanges)
  init, local, evaluate = map(alone, (algorithm.init, algorithm.local, algorithm.evaluate))
  return Algorithm(init, local, exchanges, evaluate)


def _round(algorithm: Algorithm, model: Model, batch: Tree, workers: Workers, sharding: str) -> Any:
  """One step of the trainer's own call, with a launch and a merge where the algorithm has them."""
  trainer = Trainer(algorithm, model, workers, ExecutionConfig("unroll", "unroll", 1), sharding)
  delayed = tuple(i for i, exchange in enumerate(algorithm.exchanges) if exchange.delay)
  at_once = tuple(i for i, exchange in enumerate(algorithm.exchanges) if not exchange.delay)
  due = (Due(launch=delayed, merge=delayed, exchange=at_once),)
  kind = Kind(due, 1, (0,) * len(algorithm.exchanges))
  carry, batches, step, key, _ = trainer.shapes(Call(0, kind, due, ()), batch)
  return trainer.compiled(kind, carry, batches, step, key, ())


def _worker_round(algorithm: ServerAlgorithm, model: Model, batch: Tree) -> Any:
  """One step of a worker: the reply merged, the gradient, the local update, the request."""
  algorithm = algorithm._replace(period=1, delay=min(1, algorithm.delay))
  worker_round = make_worker_round(algorithm, model, "unroll", drops=False)

  def start(key: jax.Array) -> tuple[Worker, Tree]:
    params, extra = model.init(key)
    state, _, reply = algorithm.init(params)
    return Worker(params, state, extra), reply

  def step(worker: Worker, reply: Tree, batches: Tree, keys: jax.Array) -> tuple[Worker, Tree]:
    worker, _ = worker_round(FULL, np.int32(0), worker, reply, None, lambda: (batches, keys))
    return worker, algorithm.request(worker.state, worker.params)

  batches = jax.tree.map(lambda x: jax.ShapeDtypeStruct((1, *x.shape), x.dtype), batch)
  keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), 1))
  return jax.jit(step, donate_argnums=0).lower(*jax.eval_shape(start, jax.random.key(0)), batches, keys).compile()
