"""Seconds on this machine, with all processes computing at once: interleaved blocks, and their medians.

A block is a few consecutive calls. All is compiled before the first one, and blocks are interleaved, so that other load
on the machine affects all of them.
"""

import functools
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.experimental import multihost_utils

from ddl.api import Algorithm
from ddl.group import Group
from ddl.runtime.layout.packed_group import PackedGroup
from ddl.runtime.layout.workers import Workers
from ddl.runtime.rounds.calls import Kind
from ddl.runtime.rounds.rounds import worker_keys
from ddl.runtime.trainer import Trainer
from ddl.schedule import Due
from experiments.bench.workloads import synthetic
from experiments.config import default_experiment
from experiments.config.experiment import initial_key, training_key
from experiments.config.options import RunOptions
from experiments.costs.calibration.model_kinds import kind_of
from experiments.costs.param_flops import param_shapes
from experiments.costs.xla_cost import analyse
from experiments.train import build, trainers

BLOCK_SECONDS = 0.15
CALL_FLOP = 5e9  # of a compiled call: about a tenth of a second on a core


class Block(NamedTuple):
  """A measured unit of work."""

  run: Callable[[int], float]  # so many calls -> seconds
  units: int = 1  # steps, exchanges or passes in a call


class Case(NamedTuple):
  """A model with its sizes and the examples per worker."""

  model: str
  sizes: dict[str, Any]
  batch: int

  @property
  def name(self) -> str:
    """Label, e.g. mlp 512,512 x64."""
    sizes = " ".join(",".join(map(str, v)) if isinstance(v, tuple) else f"{k}={v}" for k, v in self.sizes.items())
    return " ".join(filter(None, [self.model, sizes, f"x{self.batch}"]))


class Step(NamedTuple):
  """Work of a step of a case."""

  flop: float  # of one worker, XLA's count
  moved: float  # bytes read and written, likewise
  messages: tuple[int, ...]  # bytes of each, of all parameters
  kind: str  # of its model
  fed: float = 0.0  # bytes of a worker's input


def in_turn(blocks: dict[str, Block], passes: int, seconds: float = BLOCK_SECONDS) -> dict[str, np.ndarray]:
  """Return the seconds per unit of each block: [passes, processes]. All processes call it with the same blocks.

  Each pass has an order of its own, so that a disturbance affects blocks of every kind.
  """
  counts = {}
  for name, block in blocks.items():
    block.run(1)
    count = np.int32(max(1, round(2 * seconds / max(block.run(2), 1e-6))))
    counts[name] = int(np.max(multihost_utils.process_allgather(count)) if jax.process_count() > 1 else count)
  names, order = list(blocks), np.random.default_rng(0)  # alike in all processes
  took = np.zeros((passes, len(names)), np.float32)
  for row in took:
    for i in order.permutation(len(names)):
      block, count = blocks[names[i]], counts[names[i]]
      if jax.process_count() > 1:
        multihost_utils.sync_global_devices("block")  # all processes begin at the same time
      row[i] = block.run(count) / (count * block.units)
  everyone = np.asarray(multihost_utils.process_allgather(took)) if jax.process_count() > 1 else took[None]
  return {name: everyone[:, :, i].T.astype(float) for i, name in enumerate(names)}


def typical(seconds: np.ndarray) -> float:
  """Return the median over passes of the mean over processes. seconds: [passes, processes]."""
  return float(np.median(seconds.mean(axis=1)))


def timed(call: Callable[[], Any]) -> Callable[[int], float]:
  """Return a function from a number of calls to their seconds, each awaited."""

  def run(count: int) -> float:
    began = time.perf_counter()
    for _ in range(count):
      jax.block_until_ready(call())
    return time.perf_counter() - began

  return run


def trainer_blocks(trainer: Trainer, components: build.Components) -> tuple[Block, Block]:
  """Return blocks of (steps through the trainer, input included; the same compiled calls on one input)."""
  feed, key = components.training_feed(trainer.workers.local), training_key(0)
  state: dict[str, Any] = {"carry": trainer.start(initial_key(0)), "step": 0}
  _, cycle = trainer.schedule.cycle(0)
  whole = trainer.execution.steps_per_call // cycle * cycle or cycle

  def loop(count: int) -> float:
    first = state["step"]
    calls = trainer.plan(first, first + count * whole, 10**9)
    began = time.perf_counter()
    for _, carry, _losses in trainer.run(state["carry"], calls, feed, key):
      state["carry"] = carry
    jax.block_until_ready(state["carry"])
    state["step"] += count * whole
    return time.perf_counter() - began

  def compute(count: int) -> float:
    first = state["step"]
    (call,) = trainer.plan(first, first + whole, 10**9)
    batches, step = trainer.workers.put(feed(first, whole)), trainer.workers.replicate(np.int32(first))
    data = _keys(trainer)
    fn = trainer.compiled(call.kind, state["carry"], batches, step, data, ())
    jax.block_until_ready((state["carry"], batches))

    def run() -> Any:
      state["carry"], losses = fn(state["carry"], batches, step, data, ())
      return state["carry"], losses

    return timed(run)(count)

  return Block(loop, whole), Block(compute, whole)


def _keys(trainer: Trainer) -> jax.Array:
  """Key data of each worker, as `Trainer.run` draws them."""
  return trainer.workers.put(np.asarray(worker_keys(training_key(0), trainer.workers.local)))


def make_trainer(
  case: Case, algorithm: str, hyper: dict[str, Any], workers: Workers, step: Step | None = None
) -> tuple[Trainer, build.Components, Step]:
  """Return the project's own trainer of a case, in calls of up to about a tenth of a second, and its step's work.

  step: its work if known already; it is the same for all algorithms.
  """
  experiment = default_experiment(
    algorithm={"name": algorithm, **hyper}, model={"name": case.model, **case.sizes}, workers=workers.count,
    batch=case.batch, optimizer={"momentum": 0.9, "learning_rate": 0.01},
  )  # fmt: skip
  components = build.build(experiment, _data(case.model))
  assert isinstance(components.algorithm, Algorithm)
  execution = trainers.execution(components, workers, RunOptions())
  trainer = Trainer(components.algorithm, components.model, workers, execution)
  step = step or _describe(trainer, components, case.model)
  longest = max(trainer.schedule.cycle(0)[1], min(execution.steps_per_call, int(CALL_FLOP / max(step.flop, 1.0))))
  trainer.execution = execution._replace(steps_per_call=longest)
  return trainer, components, step


_data = functools.cache(synthetic)


def _describe(trainer: Trainer, components: build.Components, model: str) -> Step:
  """FLOP and bytes as XLA counts them in a compiled call of one step without an exchange: it counts loops once."""
  carry = trainer.start(initial_key(0))
  given = components.training_feed(trainer.workers.local)(0, 1)
  fed = sum(x.nbytes for x in jax.tree.leaves(given)) / len(trainer.workers.local)
  batches = trainer.workers.put(given)
  key = _keys(trainer)
  kind = Kind((Due(),), 1, (0,) * len(trainer.schedule.clocks))
  program = trainer.compiled(kind, carry, batches, trainer.workers.replicate(np.int32(0)), key, ())
  counted = analyse(program)
  leaves = [x.size * x.dtype.itemsize for x in jax.tree.leaves(param_shapes(components.model))]
  return Step(counted.flop, counted.nbytes, messages(leaves, trainer.workers.group), kind_of(model), fed)


def messages(leaves: Sequence[int], group: Group) -> tuple[int, ...]:
  """Return the bytes of the messages of a mean of arrays of so many bytes: small ones go together in some groups."""
  if not isinstance(group, PackedGroup):
    return tuple(leaves)
  small = sum(n for n in leaves if n < group.below)
  return (*([small] if small else []), *(n for n in leaves if n >= group.below))
