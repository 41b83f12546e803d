"""Count the FLOP, the bytes read and written, and the memory of an experiment's step with XLA.

FLOP and bytes are also split by parameter array. The compiled program is one step of a single worker, including its
exchange; in place of the collectives among workers, local operations return arrays of the same shapes. XLA counts the
body of a loop only once, so the step has one microbatch; k microbatches cost k times as much.
"""

import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.extend import core

from ddl.api import Algorithm, Data, Model, ServerAlgorithm, Tree
from ddl.asynchronous.worker_round import FULL, Worker, make_worker_round
from ddl.config.catalog import factory, keywords
from ddl.config.experiment import initial_key, training_key
from ddl.costs.activations import PRODUCTS, activation_bytes
from ddl.costs.cluster_clock import ALONE, Members
from ddl.data import DATA
from ddl.engine import compiled_program
from ddl.engine.calls import Call, Kind
from ddl.engine.compiled_trainer import CompiledTrainer
from ddl.engine.execution import ExecutionConfig, compiled, options
from ddl.engine.placement import Placement
from ddl.engine.workers import Workers, nbytes, on_devices
from ddl.errors import OptionError
from ddl.group_recorder import Recorder
from ddl.perf.device import LayerWork
from ddl.perf.device_step import kind_of_model
from ddl.perf.layers import FLOAT, StepMemory
from ddl.perf.placement import Job
from ddl.run.build import Components, make_model, param_shapes, params_bytes, with_auto
from ddl.schedule import Due

# Sizes of models whose steps are counted and measured on synthetic data.
SIZES: dict[str, dict[str, Any]] = {
  "mlp": {"hidden": (512, 512)},
  "lenet": {"channels": (16, 32), "kernel": 5, "hidden": 128},
  "transformer": {"layers": 2, "width": 128, "heads": 4},
}


class Leaf(NamedTuple):
  """A parameter array."""

  name: str
  nbytes: int  # bytes of its gradient
  share: float  # share of the step's FLOP


def synthetic(model: str, pixels: int = 28, size: int = 8192) -> Data:
  """Return `size` random examples for a model.

  They are images [pixels, pixels, 1] of 10 classes or, for the transformer, 64 tokens of a vocabulary of 64.
  """
  if model == "transformer":
    return DATA["synthetic"](task="language", shape=(64,), num_outputs=64, examples=size)
  return DATA["synthetic"](shape=(pixels, pixels, 1), examples=size)


def loss_jaxpr(model: Model, batch: Tree) -> Any:
  """Return the jaxpr of the loss on a batch with the shapes of `batch`; its first inputs are the parameters."""
  key = jax.random.key(0)
  return jax.make_jaxpr(model.loss)(*jax.eval_shape(model.init, key), batch, key).jaxpr


def leaves(model: Model, batch: Tree) -> tuple[Leaf, ...]:
  """Return the parameter arrays in the order of their first use; their gradients are computed in the reverse order.

  An array's share is its fraction of the multiply-accumulates of the forward pass. A matrix product or convolution with
  the array uses each of its elements once per position of the result. Arrays that are in no product (biases, scales,
  embeddings) have share 0. Other work (products of activations, elementwise operations) is distributed in the same
  proportion. If no array is in a product, the shares are proportional to the sizes. The backward pass is assumed to
  take twice as long as the forward pass.
  """
  traced = loss_jaxpr(model, batch)
  arrays = jax.tree_util.tree_flatten_with_path(param_shapes(model))[0]
  index = {var: i for i, var in enumerate(traced.invars[: len(arrays)])}
  macs: dict[int, int] = {}
  for eqn in traced.eqns:
    for var in eqn.invars:
      if isinstance(var, core.Var) and var in index:
        i = index[var]
        positions = int(np.prod(eqn.outvars[0].aval.shape[:-1])) if any(products([eqn])) else 0
        macs[i] = macs.get(i, 0) + arrays[i][1].size * positions
  macs |= {i: 0 for i in range(len(arrays)) if i not in macs}  # unused arrays go last
  weights = macs if any(macs.values()) else {i: arrays[i][1].size for i in macs}
  total = sum(weights.values())
  return tuple(
    Leaf(
      jax.tree_util.keystr(arrays[i][0], simple=True, separator="/"),
      arrays[i][1].size * arrays[i][1].dtype.itemsize,
      weights[i] / total,
    )
    for i in macs
  )


def products(equations: Iterable[Any]) -> Iterator[tuple[Any, int]]:
  """Yield (equation of a matrix product or convolution, number of executions), also from nested jaxprs and loops."""
  for eqn in equations:
    if eqn.primitive.name in PRODUCTS:
      yield eqn, 1
    repeats = eqn.params.get("length", 1) if eqn.primitive.name == "scan" else 1
    for called in core.jaxprs_in_params(eqn.params):
      yield from ((product, repeats * times) for product, times in products(called.eqns))


class Compiled(NamedTuple):
  """XLA's cost and memory analysis of a compiled program on this backend; memory in bytes."""

  flop: float  # all arithmetic, including additions and comparisons, without convolution taps on padding
  nbytes: float  # bytes read and written by the fused operations
  arguments: int
  outputs: int
  aliased: int  # outputs that reuse the buffers of donated arguments


def compiled_step(components: Components, examples: int, members: int = 1, sharding: str = "") -> Compiled:
  """Return XLA's analysis of `step_program`. With several devices (members) per worker, analyze one device."""
  return analyse(step_program(components, examples, members, sharding))


def step_program(components: Components, examples: int, members: int = 1, sharding: str = "") -> Any:
  """Compile the step of the experiment's algorithm, optimizer and model on one microbatch of `examples`.

  If a worker has several devices (members), they are the first ones of this process, and the model's rules named
  `sharding` shard the parameters over them. A collective algorithm with a delay has its message in flight during the
  step. The worker of a server algorithm merges a reply, computes the step and sends a request.
  """
  batch, model = batch_shapes(components, examples), components.model._replace(microbatches=1)
  if isinstance(components.algorithm, Algorithm):
    algorithm = _silent(components.algorithm, components.experiment.workers)
    model = with_auto(model, components.experiment, members)
    return _round(algorithm, model, batch, on_devices(1, jax.local_devices()[:members], members), sharding)
  return _worker_round(components.algorithm, model, batch)


def worker_members(components: Components, members: int, sharding: str) -> Members:
  """Compile a step of a worker with several devices (members); return the members and their collectives.

  Args:
    members: the number of devices per worker.
    sharding: as in `Placement`.

  Raises:
    ValueError: if this process has fewer devices than members.
  """
  if members == 1:
    return ALONE
  check_devices(members)
  workers = on_devices(1, jax.local_devices()[:members], members)
  experiment = components.experiment
  text = step_program(components, experiment.batch // experiment.microbatches, members, sharding).as_text()
  shapes = jax.tree.leaves(Placement(with_auto(components.model, experiment, members), workers, sharding).params)
  shard_bytes = sum(math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize for x in shapes)
  collectives = tuple(compiled_program.collectives(text, workers.mesh)) * experiment.microbatches
  return Members(members, collectives, members * shard_bytes / nbytes(shapes))


def check_devices(members: int) -> None:
  """Raise OptionError unless this process, which compiles the step, has all devices of a worker."""
  if members > len(jax.local_devices()):
    condition = f"at most the number of devices of each process ({len(jax.local_devices())}) if cluster is set"
    advice = "Use fewer processes, or predict the finished comparison in one process."
    raise OptionError("members", condition, members, advice)


def step_parts(components: Components, examples: int, step: Callable[[int], Compiled]) -> tuple[LayerWork, ...]:
  """Return XLA's count of a step's work on one microbatch, split by parameter array, for `ddl.perf.device`.

  The FLOP and the bytes that grow with the number of examples are distributed in proportion to `Leaf.share`. The other
  bytes, such as those of the optimizer's update, are distributed in proportion to the arrays' sizes.

  step: number of examples -> result of `compiled_step`.
  """
  arrays = leaves(components.model, batch_shapes(components, examples))
  one, two = step(examples), step(2 * examples)
  moved = max(0.0, two.nbytes - one.nbytes) / FLOAT
  fixed, size = max(0.0, one.nbytes / FLOAT - moved), sum(array.nbytes for array in arrays)
  return tuple(
    LayerWork(array.share * one.flop / examples, array.share * moved / examples, fixed * array.nbytes / size)
    for array in arrays
  )


def batch_shapes(components: Components, examples: int) -> Tree:
  """Return the shapes [examples, ...] of a batch."""
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
  )


def _silent(algorithm: Algorithm, workers: int) -> Algorithm:
  """Return the algorithm as one of `workers` workers runs it, but with collectives that send nothing."""

  def with_recorder(fn: Callable[..., Any]) -> Callable[..., Any]:
    return lambda group, *args: fn(Recorder(workers), *args)

  exchanges = tuple(
    x._replace(launch=with_recorder(x.launch), merge=with_recorder(x.merge)) for x in algorithm.exchanges
  )
  init, local, evaluate = map(with_recorder, (algorithm.init, algorithm.local, algorithm.evaluate))
  return Algorithm(init, local, exchanges, evaluate)


def _round(algorithm: Algorithm, model: Model, batch: Tree, workers: Workers, sharding: str) -> Any:
  """Compile one step of the trainer, with the launch and merge of all exchanges."""
  trainer = CompiledTrainer(algorithm, model, workers, ExecutionConfig("unroll", "unroll", 1, sharding=sharding))
  delayed = tuple(i for i, exchange in enumerate(algorithm.exchanges) if exchange.delay)
  at_once = tuple(i for i, exchange in enumerate(algorithm.exchanges) if not exchange.delay)
  due = (Due(launch=delayed, merge=delayed, exchange=at_once),)
  kind = Kind(due, 1, (0,) * len(algorithm.exchanges))
  carry, batches, step, key, _ = trainer.shapes(Call(0, kind, due, ()), batch)
  return _analysable(trainer.lowered(kind, carry, batches, step, key, ()), workers.device)


def _worker_round(algorithm: ServerAlgorithm, model: Model, batch: Tree) -> Any:
  """Compile one step of a server algorithm's worker: merge of the reply, gradient, local update, request."""
  algorithm = algorithm._replace(period=1, delay=min(1, algorithm.delay))
  worker_round = make_worker_round(algorithm, model, "unroll", drops=False, varies=False)

  def start(key: jax.Array) -> tuple[Worker, Tree]:
    params, extra = model.init(key)
    state, _, reply = algorithm.init(params)
    return Worker(params, state, extra), reply

  def step(worker: Worker, reply: Tree, batches: Tree, keys: jax.Array) -> tuple[Worker, Tree]:
    worker, _ = worker_round(FULL, np.int32(0), np.int32(1), worker, reply, None, lambda: (batches, keys))
    return worker, algorithm.request(worker.state, worker.params)

  batches = jax.tree.map(lambda x: jax.ShapeDtypeStruct((1, *x.shape), x.dtype), batch)
  keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), 1))
  lowered = jax.jit(step, donate_argnums=0).lower(*jax.eval_shape(start, jax.random.key(0)), batches, keys)
  return _analysable(lowered, jax.local_devices()[0])


def _analysable(lowered: jax.stages.Lowered, device: Any) -> jax.stages.Compiled:
  """Compile a program only for its analysis: on a CPU, its machine code is not optimized.

  This halves the compile time. XLA's optimizations of the program, and therefore its FLOP, bytes and buffers, are the
  same as for a program that runs. device: a `jax.Device`.
  """
  return compiled(lowered, {"xla_backend_optimization_level": "0"} if device.platform == "cpu" else options(device))


def timed_steps(components: Components, trainer: CompiledTrainer) -> Callable[[int], float]:
  """Return a function: number of steps -> seconds to run them as `train` does, including the input pipeline."""
  feed, key = components.training_feed(trainer.workers.local), training_key(0)
  carry, first = trainer.start(initial_key(0)), 0

  def seconds(steps: int) -> float:
    nonlocal carry, first
    calls = trainer.plan(first, first + steps, 10**9)
    first += steps
    began = time.perf_counter()
    for _, latest, _losses in trainer.run(carry, calls, feed, key):
      carry = latest
    jax.block_until_ready(carry)
    return time.perf_counter() - began

  return seconds


def experiment_job(components: Components, workers: int | None = None) -> Job:
  """Return the job of an experiment, with XLA's counts of FLOP and bytes for a microbatch, and memory by `step_memory`.

  Args:
    components: the objects of the experiment.
    workers: the number of workers; by default that of the experiment.

  Raises:
    ValueError: if there are more workers than examples.
  """
  config, model = components.experiment, components.experiment.model
  count, size, k = workers or config.workers, components.data.train.size, config.microbatches
  least, step = config.batch // k, cache(partial(compiled_step, components))
  if count > size:
    raise OptionError("workers", f"at most {size} (the number of examples of {config.data.short_name})", count)

  def rematerialized() -> StepMemory:
    changed = replace(config, model=replace(model, settings={**model.settings, "remat": True}))
    return step_memory(components._replace(model=make_model(changed, components.data)), step(least), least)

  meta = components.data.meta
  language = meta.get("task") == "language"
  has_remat = "remat" in keywords(factory("model", model.name)) and not model.get("remat")
  return Job(
    title=f"{model_title(components)} on {config.data.short_name}",
    params_bytes=params_bytes(components.model),
    step=step_parts(components, least, step),
    memory=step_memory(components, step(least), least),
    kind=kind_of_model(str(model.name)),
    remat=rematerialized if has_remat else None,
    least=least,
    most=size // (count * k),
    data=size,
    language=language,
    tokens=int(np.prod(meta["shape"])) if language else 0,
  )


def model_title(components: Components) -> str:
  """Return the model's name and sizes, such as "mlp 784-512-512-10" or "lenet channels 16,32, kernel 5"."""
  part, meta = components.experiment.model, components.data.meta
  name, sizes, hidden = part.short_name, part.settings, part.get("hidden")
  if isinstance(hidden, list | tuple):  # an MLP: the widths of all layers, including input and output
    return f"{name} {'-'.join(map(str, (int(np.prod(meta['shape'])), *hidden, meta['num_outputs'])))}"
  words = (f"{k} {','.join(map(str, v)) if isinstance(v, list | tuple) else v}" for k, v in sizes.items())
  return f"{name} {', '.join(words)}".strip()


def step_memory(components: Components, compiled: Compiled, examples: int) -> StepMemory:
  """Return the memory of a step on a GPU or TPU: arguments, new messages, gradients and activations.

  XLA's count of temporary buffers on a CPU is not used, because it includes arrays that GPUs and TPUs do not store
  but fuse or recompute (`jax.checkpoint`). With several microbatches, the result is a function of the examples per
  microbatch, and a step also stores the sum of the gradients and the examples of all microbatches.

  Args:
    components: the objects of the experiment.
    compiled: the analysis of the step on a microbatch of `examples`.
  """
  model, k = components.model, components.experiment.microbatches
  one, two = (activation_bytes(model, batch_shapes(components, count)) for count in (1, 2))
  example, weights = nbytes(batch_shapes(components, 1)), params_bytes(model)
  gradients = weights * (2 if k > 1 else 1)
  copy = weights // 2 if model.compute_dtype is not None else 0  # the parameters in 16 bits
  state = compiled.arguments - examples * example + compiled.outputs - compiled.aliased
  return StepMemory(two - one + k * example, state + gradients + copy + 2 * one - two)
