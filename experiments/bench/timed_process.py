"""Run one side of a benchmark as a process, which times a block of steps for each line of standard input.

python -m experiments.bench.timed_process ddl "mlp 8x64" local_sgd [RunOptions as JSON]
"""

import itertools
import json
import resource
import sys
import time
import warnings
from typing import Any

BEGAN = time.perf_counter()  # before JAX is imported

from ddl import hosts  # noqa: E402
from ddl.costs.step_cost import synthetic  # noqa: E402
from experiments.bench.workloads import ALGORITHMS, ASYNCHRONOUS, WORKLOADS, Block, Workload  # noqa: E402

BLOCK_SECONDS = 1.0
FIRST_STEPS = 100  # steps of the first block, included in the time of the whole process
SCHEDULE = 1200  # steps per worker in the event schedule of an asynchronous algorithm; blocks repeat this schedule


def _prepare(workload: Workload, algorithm: str, settings: dict[str, Any]) -> tuple[Any, Any]:
  """Build and return components and trainer as `train` does."""
  from ddl.config import default_experiment
  from ddl.config.options import RunOptions
  from ddl.run import build
  from ddl.run.processes import start_devices

  optimizer, clock = {"momentum": 0.9, "learning_rate": 0.01}, {}
  if algorithm in ASYNCHRONOUS:
    optimizer["learning_rate"] = 0.001
    clock = {"steps": SCHEDULE, "times": {"jitter": 0.1}}
  experiment = default_experiment(
    algorithm={"name": algorithm, **(ALGORITHMS | ASYNCHRONOUS)[algorithm]},
    model={"name": workload.model, **workload.sizes}, workers=workload.workers, batch=workload.batch,
    microbatches=workload.microbatches, optimizer=optimizer, **clock,
  )  # fmt: skip
  options = RunOptions(**settings, members=workload.members)
  start_devices(experiment.workers, options)
  with warnings.catch_warnings():
    warnings.simplefilter("ignore", UserWarning)  # they warn of settings that train poorly, but only speed matters here
    components = build.build(experiment, synthetic(workload.model, workload.pixels))
  return components, build.make_trainer(components, options)[0]


def ddl_side(workload: Workload, algorithm: str, settings: dict[str, Any]) -> tuple[Block, Any]:
  """Return a `Block` that times steps and their input with the trainer that `train` uses; also return the trainer."""
  from ddl.costs.step_cost import timed_steps

  components, trainer = _prepare(workload, algorithm, settings)
  if algorithm not in ASYNCHRONOUS:
    return timed_steps(components, trainer), trainer
  return _waves(components, trainer), trainer


def _waves(components: Any, trainer: Any) -> Block:
  """Return a `Block` that repeats the compiled calls of one event schedule.

  Each call computes a wave: visits to the server that are concurrent.
  """
  import jax

  from ddl.config.experiment import initial_key, training_key

  feed, key = components.training_feed(trainer.workers.local), training_key(0)
  carry, waves = trainer.start(initial_key(0)), itertools.cycle(trainer.plan(0, SCHEDULE, SCHEDULE))

  def block(steps: int) -> float:
    nonlocal carry
    calls = []
    while sum(call.steps for call in calls) < steps:
      calls.append(next(waves))
    began = time.perf_counter()
    for _, latest, _losses in trainer.run(carry, calls, feed, key):
      carry = latest
    jax.block_until_ready(carry)
    return (time.perf_counter() - began) * steps / sum(call.steps for call in calls)

  return block


def one_by_one_side(workload: Workload, algorithm: str, settings: dict[str, Any]) -> Block:
  """Return a `Block` that processes the visits of a server algorithm one at a time in a Python loop."""
  import jax

  from ddl.api import Visit
  from ddl.asynchronous.worker_round import first_step, visit_step
  from ddl.config.experiment import initial_key, training_key
  from ddl.engine.local_step import make_local_step

  components, trainer = _prepare(workload, algorithm, settings)
  rule, model, count = components.algorithm, components.model, components.experiment.workers
  step, merge, request, serve = map(jax.jit, (make_local_step(model, rule.local), rule.merge, rule.request, rule.serve))
  params, extra = jax.jit(model.init)(initial_key(0))
  state, server, reply = rule.init(params)
  workers, replies, key = [(params, state, extra)] * count, [reply] * count, training_key(0)
  feeds = [components.feed([worker]) for worker in range(count)]
  visits = itertools.cycle(zip(trainer.events.worker.tolist(), trainer.events.round.tolist(), strict=True))

  def steps(worker: int, first: int, number: int) -> None:
    for t in range(first, first + number):
      batch = {k: x[0, 0] for k, x in feeds[worker](t, 1).items()}
      workers[worker], _ = step(workers[worker], (batch, key))

  def visit(worker: int, round_: int) -> None:
    nonlocal server
    if not rule.delay or round_:
      first = first_step(rule.delay, round_, rule.period)
      steps(worker, first, rule.delay)
      params, state, extra = workers[worker]
      workers[worker] = (*merge(replies[worker], state, params), extra)
      steps(worker, first + rule.delay, rule.period - rule.delay)
    params, state, _ = workers[worker]
    place = Visit(worker, -1, visit_step(rule.delay, round_, rule.period))
    server, replies[worker] = serve(server, request(state, params), jax.tree.map(jax.numpy.int32, place))

  def block(steps: int) -> float:
    began, number = time.perf_counter(), max(steps * count // rule.period, 1)
    for worker, round_ in itertools.islice(visits, number):
      visit(worker, round_)
    jax.block_until_ready((workers, server))
    return (time.perf_counter() - began) * steps * count / rule.period / number

  return block


def _side(side: str, workload: Workload, algorithm: str, settings: dict[str, Any]) -> tuple[Block, Any]:
  """Return the side's `Block`, and the trainer if the side is ddl."""
  from experiments.bench import rivals

  match side:
    case "ddl":
      return ddl_side(workload, algorithm, settings)
    case "one":
      return one_by_one_side(workload, algorithm, settings), None
    case "plain":
      return rivals.plain_side(workload), None
    case "torch":
      return rivals.torch_side(workload, algorithm), None
    case layout:
      return rivals.jax_side(workload, algorithm, layout), None


def _reason(trainer: Any) -> str:
  """Return why gradients are computed as in `trainer.execution`."""
  from ddl.config import default_experiment
  from ddl.engine.execution import choose_gradients

  return choose_gradients(trainer.workers, trainer.model, default_experiment().steps).reason


def main() -> None:
  """Print {"ready": true, ...}, then {"rate": examples per second} for each line on standard input."""
  hosts.follow_launcher()
  side, name, algorithm, *settings = sys.argv[1:]
  workload = WORKLOADS[name]
  options = json.loads(settings[0]) if settings else {}
  block, trainer = _side(side, workload, algorithm, options)
  workers = 1 if side == "plain" else workload.workers
  block(FIRST_STEPS)
  whole = time.perf_counter() - BEGAN
  peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
  steps = 20
  block(steps)  # compiles the calls for this number of steps
  while (seconds := block(steps)) < BLOCK_SECONDS / 2:
    steps = max(steps + 20, int(steps * BLOCK_SECONDS / seconds) // 20 * 20)
    block(steps)
  figures: dict[str, Any] = {"whole_s": whole, "peak_mb": peak}
  if trainer and algorithm in ALGORITHMS:
    figures["compile_s"] = trainer.compile_seconds
    figures["how"] = f"{trainer.workers.devices} dev, {'/'.join(trainer.execution[:2])}"
    figures["why"] = _reason(trainer) if options["virtual_grad"] == "auto" else "as requested"
  print(json.dumps({"ready": True, **figures}), flush=True)
  for _line in sys.stdin:
    print(json.dumps({"rate": steps * workers * workload.batch / block(steps)}), flush=True)


if __name__ == "__main__":
  main()
