"""Measurements of a calibration: interleaved blocks of steps, collectives, a product and a copy, and their medians.

All processes compute at once. A block is a few consecutive calls. All is compiled before the first one, and blocks are
interleaved, so that other load on the machine affects all of them.
"""

import functools
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import lax
from jax.experimental import multihost_utils

from ddl import hosts
from ddl.api import Algorithm
from ddl.config import default_experiment
from ddl.config.experiment import initial_key, training_key
from ddl.config.options import RunOptions
from ddl.costs.step_cost import analyse, param_shapes
from ddl.costs.workloads import ATTENTION, CONVOLUTION, DENSE, kind_of, synthetic
from ddl.engine.calls import Kind
from ddl.engine.compiled_trainer import CompiledTrainer
from ddl.engine.rounds import worker_keys
from ddl.engine.workers import AXIS as AXES
from ddl.engine.workers import PackedGroup, Workers, make_workers
from ddl.group import Group
from ddl.perf import patterns
from ddl.perf.hardware.cluster import Link, Network
from ddl.perf.patterns import Op
from ddl.run import build, processes
from ddl.schedule import Due

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


class MeasuredStep(NamedTuple):
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


def trainer_blocks(trainer: CompiledTrainer, components: build.Components) -> tuple[Block, Block]:
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


def _keys(trainer: CompiledTrainer) -> jax.Array:
  """Key data of each worker, as `CompiledTrainer.run` draws them."""
  return trainer.workers.put(np.asarray(worker_keys(training_key(0), trainer.workers.local)))


def make_trainer(
  case: Case, algorithm: str, hyper: dict[str, Any], workers: Workers, step: MeasuredStep | None = None
) -> tuple[CompiledTrainer, build.Components, MeasuredStep]:
  """Return the project's own trainer of a case, in calls of up to about a tenth of a second, and its step's work.

  step: its work if known already; it is the same for all algorithms.
  """
  experiment = default_experiment(
    algorithm={"name": algorithm, **hyper}, model={"name": case.model, **case.sizes}, workers=workers.count,
    batch=case.batch, optimizer={"momentum": 0.9, "learning_rate": 0.01},
  )  # fmt: skip
  components = build.build(experiment, _data(case.model))
  assert isinstance(components.algorithm, Algorithm)
  execution = build.execution(components, workers, RunOptions())
  trainer = CompiledTrainer(components.algorithm, components.model, workers, execution)
  step = step or _describe(trainer, components, case.model)
  longest = max(trainer.schedule.cycle(0)[1], min(execution.steps_per_call, int(CALL_FLOP / max(step.flop, 1.0))))
  trainer.execution = execution._replace(steps_per_call=longest)
  return trainer, components, step


_data = functools.cache(synthetic)


def _describe(trainer: CompiledTrainer, components: build.Components, model: str) -> MeasuredStep:
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
  return MeasuredStep(counted.flop, counted.nbytes, messages(leaves, trainer.workers.group), kind_of(model), fed)


def messages(leaves: Sequence[int], group: Group) -> tuple[int, ...]:
  """Return the bytes of the messages of a mean of arrays of so many bytes: small ones go together in some groups."""
  if not isinstance(group, PackedGroup):
    return tuple(leaves)
  small = sum(n for n in leaves if n < group.below)
  return (*([small] if small else []), *(n for n in leaves if n >= group.below))


AXIS = AXES[0]
SIZES = tuple(2**k for k in range(10, 25, 2))  # bytes: 1 kB to 16 MB
CALL_BYTES = 8 * 2**20  # of one compiled loop
CALL_LENGTH = 16  # exchanges at most


def _strip(x: jax.Array) -> jax.Array:
  return x[: x.shape[0] // lax.axis_size(AXIS)]


def _put(x: jax.Array, strip: jax.Array) -> jax.Array:
  return lax.dynamic_update_slice(x, strip, (0,))


def _permute(x: jax.Array) -> jax.Array:
  count = lax.axis_size(AXIS)
  return lax.ppermute(x, AXIS, [(i, (i + 1) % count) for i in range(count)])


# Each takes and returns the whole vector of a worker, [n], with as little other work as JAX allows: the mean for
# all_reduce, and the copy of a strip.
COLLECTIVES: dict[str, Callable[[jax.Array], jax.Array]] = {
  "all_reduce": lambda x: lax.pmean(x, AXIS),
  "reduce_scatter": lambda x: _put(x, lax.psum_scatter(x, AXIS, tiled=True) / lax.axis_size(AXIS)),
  "all_gather": lambda x: _put(x, _strip(lax.all_gather(_strip(x), AXIS, tiled=True))),
  "permute": _permute,
}


def cost(name: str, workers: int) -> Callable[[float, Link], float]:
  """Return the model's cost of a collective, (bytes, link) -> seconds, of the cheapest algorithm."""
  return lambda nbytes, link: patterns.seconds([Op(name, nbytes)], workers, Network(link))


def exchange_block(name: str, nbytes: int, workers: Workers) -> Block:
  """Return the block of a collective, per exchange."""
  values = -(-nbytes // 4 // workers.count) * workers.count
  length = max(1, min(CALL_LENGTH, CALL_BYTES // nbytes))
  collective = COLLECTIVES[name]

  def device(x: jax.Array) -> jax.Array:
    return lax.scan(lambda carry, _: (collective(carry), None), x[0], None, length=length)[0][None]

  fn = jax.jit(workers.lift(device, True, True), donate_argnums=0)
  state = {"x": workers.put(np.ones((1, values), np.float32))}

  def call() -> jax.Array:
    state["x"] = fn(state["x"])
    return state["x"]

  return Block(timed(call), length)


def product_block(side: int = 1024) -> tuple[Block, float]:
  """Return (a product of two square matrices, its FLOP): this device's peak rate."""
  return _local(lambda x: x @ x, np.ones((side, side), np.float32)), 2.0 * side**3


def copy_block(nbytes: int = 2**25) -> tuple[Block, float]:
  """Return (a pass over a vector, the bytes read and written): this device's peak memory bandwidth."""
  return _local(lambda x: x * 0.5 + 1.0, np.ones(nbytes // 4, np.float32)), 2.0 * nbytes


def _local(fn: Callable[[jax.Array], jax.Array], values: np.ndarray) -> Block:
  x, jitted = jax.device_put(values, jax.local_devices()[0]), jax.jit(fn)
  return Block(timed(lambda: jitted(x)))


CURVES = {  # where the efficiency of each kind of models is fitted
  DENSE: tuple(Case("mlp", {"hidden": (256, 256)}, batch) for batch in (16, 64, 256)),
  CONVOLUTION: tuple(Case("lenet", {"channels": (16, 32)}, batch) for batch in (8, 32, 96)),
  ATTENTION: tuple(Case("transformer", {"layers": 1, "width": 64}, batch) for batch in (2, 8)),
}
CASES = (
  Case("linear", {}, 256),
  Case("mlp", {"hidden": (1024, 1024)}, 32),
  *(case for curve in CURVES.values() for case in curve),
)
# Also measured under synchronous SGD: how long messages take between steps.
TOGETHER = (CASES[1], CURVES[DENSE][1], *CURVES[CONVOLUTION][:2], CURVES[ATTENTION][1])
MOST = 64  # processes


class Plan(NamedTuple):
  """Blocks of a calibration."""

  blocks: dict[str, Block]
  steps: dict[str, MeasuredStep]  # by the cases' names
  sizes: tuple[int, ...]
  workers: int
  product_flop: float
  copy_bytes: float


def launch(command: str, count: int = 2) -> int:
  """Run this command in so many processes, 2 or more, joined as those of a run; return the exit code."""
  if not 2 <= count <= MOST:
    raise ValueError(f"--processes={count}: {command} measures the links between processes; give 2 to {MOST}")
  return hosts.launch(count, hosts.command_line())


def join() -> Workers:
  """Return one worker per process, on a device of its own."""
  processes.start_devices(hosts.processes(), RunOptions())
  return make_workers(hosts.processes())


def progress(text: str) -> None:
  """Print progress on stderr, from the main process."""
  if hosts.is_main():
    print(text, file=sys.stderr, flush=True)


def prepare(workers: Workers, cases: tuple[Case, ...] = CASES, sizes: tuple[int, ...] = SIZES) -> Plan:
  """Compile all blocks. cases: two of a curve at least, and one of TOGETHER."""
  blocks, steps = {}, {}
  for i, case in enumerate(cases):
    progress(f"compiling {case.name} ({i + 1} of {len(cases)} models)")
    trainer, experiment, steps[case.name] = make_trainer(case, "independent", {}, workers)
    blocks[f"loop {case.name}"], blocks[f"compute {case.name}"] = trainer_blocks(trainer, experiment)
    if case in TOGETHER:
      trainer, experiment, _ = make_trainer(case, "sync_sgd", {}, workers, steps[case.name])
      blocks[f"sync_sgd {case.name}"], _ = trainer_blocks(trainer, experiment)
  blocks["product"], flop = product_block()
  blocks["copy"], moved = copy_block()
  for name in COLLECTIVES:
    for nbytes in sizes:
      blocks[f"{name} {nbytes}"] = exchange_block(name, nbytes, workers)
  return Plan(blocks, steps, sizes, workers.count, flop, moved)
