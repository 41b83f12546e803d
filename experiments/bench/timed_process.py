"""One side of a measurement, a process of its own; runs a block of steps for each line it reads.

python -m experiments.bench.timed_process ddl "mlp 8x64" local_sgd [RunOptions as JSON]
"""

import itertools
import json
import resource
import sys
import time
from collections.abc import Callable
from typing import Any

BEGAN = time.perf_counter()
BLOCK_SECONDS = 1.0
FIRST_STEPS = 100  # of the whole-process time


def ddl_side(
  workload: Any, algorithm: str, settings: dict[str, Any]
) -> tuple[Callable[[int], float], Callable[[], dict[str, Any]]]:
  """A block through the runner that `train` uses, input included."""
  import jax

  from experiments.bench.workloads import ALGORITHMS, synthetic
  from experiments.config import default_experiment
  from experiments.config.experiment import initial_key, training_key
  from experiments.config.options import RunOptions
  from experiments.train import build
  from experiments.train.processes import start_devices

  options = RunOptions(**settings)
  experiment = default_experiment(
    algorithm={"name": algorithm, **ALGORITHMS[algorithm]}, model={"name": workload.model, **workload.sizes},
    workers=workload.workers, batch=workload.batch, optimizer={"momentum": 0.9, "learning_rate": 0.01},
  )  # fmt: skip
  start_devices(experiment.workers, options)
  components = build.build(experiment, synthetic(workload.model, workload.pixels))
  trainer = build.make_trainer(components, options)
  feed, key = components.training_feed(trainer.workers.local), training_key(0)
  state = {"carry": trainer.start(initial_key(0)), "step": 0}

  def block(steps: int) -> float:
    first = state["step"]
    calls = trainer.plan(first, first + steps, 10**9)
    began = time.perf_counter()
    for _, carry, _losses in trainer.run(state["carry"], calls, feed, key):
      state["carry"] = carry
    jax.block_until_ready(state["carry"])
    state["step"] += steps
    return time.perf_counter() - began

  def compiled() -> dict[str, Any]:
    return {
      "compile_s": trainer.compile_seconds,
      "how": f"{trainer.workers.devices} dev, {'/'.join(trainer.execution[:2])}",
    }

  return block, compiled


def plain_side(workload: Any) -> tuple[Callable[[int], float], Callable[[], dict[str, Any]]]:
  """A block of the loop that one would write with JAX and optax alone: one worker, one jitted step."""
  import jax
  import numpy as np
  import optax

  from ddl.models import MODELS
  from experiments.bench.workloads import synthetic

  data = synthetic(workload.model, workload.pixels)
  model = MODELS[workload.model](data.meta, **workload.sizes)
  tx = optax.sgd(0.01, momentum=0.9)
  params, extra = jax.jit(model.init)(jax.random.key(0))

  def step(params: Any, opt: Any, extra: Any, batch: Any, key: Any) -> Any:
    (loss, extra), grads = jax.value_and_grad(model.loss, has_aux=True)(params, extra, batch, key)
    updates, opt = tx.update(grads, opt, params)
    return optax.apply_updates(params, updates), opt, extra, loss

  jitted = jax.jit(step, donate_argnums=(0, 1, 2))
  everything = data.train.take(np.arange(data.train.size))
  starts = itertools.cycle(range(0, data.train.size, workload.batch))
  key = jax.random.key(1)
  state = [params, tx.init(params), extra]

  def block(steps: int) -> float:
    began = time.perf_counter()
    loss = None
    for start in itertools.islice(starts, steps):
      batch = {k: v[start : start + workload.batch] for k, v in everything.items()}
      *state[:], loss = jitted(*state, batch, key)
    jax.block_until_ready(loss)
    return time.perf_counter() - began

  return block, dict


def _side(
  side: str, workload: Any, algorithm: str, settings: dict[str, Any]
) -> tuple[Callable[[int], float], Callable[[], dict[str, Any]]]:
  if side == "plain":
    return plain_side(workload)
  if side == "ddl":
    return ddl_side(workload, algorithm, settings)
  if side in ("waves", "one"):
    from experiments.bench import asynchronous
    from experiments.config.options import RunOptions

    return (asynchronous.waves_side if side == "waves" else asynchronous.one_side)(
      workload, algorithm, RunOptions(**settings)
    )
  from experiments.bench import rivals

  if side == "torch":
    return rivals.torch_side(workload, algorithm), dict
  return rivals.jax_side(workload, algorithm, side), dict


def main() -> None:
  """Says {"ready": figures}, then answers each line on standard input with {"examples": ..., "seconds": ...}."""
  from experiments.bench.workloads import WORKLOADS

  side, name, algorithm = sys.argv[1:4]
  workload = WORKLOADS[name]
  settings = json.loads(sys.argv[4]) if len(sys.argv) > 4 else {}
  block, figures = _side(side, workload, algorithm, settings)
  workers = 1 if side == "plain" else workload.workers
  block(FIRST_STEPS)
  whole = time.perf_counter() - BEGAN
  peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
  steps = 20
  block(steps)  # other numbers of steps are other calls, to be compiled first
  while (seconds := block(steps)) < BLOCK_SECONDS / 2:
    steps = max(steps + 20, int(steps * BLOCK_SECONDS / seconds) // 20 * 20)
    block(steps)
  _answer({"ready": True, "whole_s": whole, "peak_mb": peak, **figures()})
  for _line in sys.stdin:
    seconds = block(steps)
    _answer({"rate": steps * workers * workload.batch / seconds})


def _answer(figures: dict[str, Any]) -> None:
  print(json.dumps(figures), flush=True)


if __name__ == "__main__":
  main()
