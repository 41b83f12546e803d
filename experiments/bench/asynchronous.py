"""Sides of `bench --asynchronous`: a server algorithm in waves, and the same events one at a time."""

import time
import warnings
from collections.abc import Callable
from typing import Any

from experiments.bench.workloads import Workload, synthetic
from experiments.config.options import RunOptions

ASYNCHRONOUS: dict[str, tuple[dict[str, Any], str]] = {  # its settings, its synchronous counterpart
  "async_sgd": ({}, "sync_sgd"),
  "async_easgd": ({"period": 10}, "easgd"),
  "downpour": ({"period": 10}, "local_sgd"),
}
STEPS = 1200  # of each worker: one schedule, gone through again and again
Block = Callable[[int], float]


def _prepare(workload: Workload, algorithm: str, options: RunOptions) -> tuple[Any, Any]:
  from experiments.config import default_experiment
  from experiments.train import build
  from experiments.train.processes import start_devices

  experiment = default_experiment(
    algorithm={"name": algorithm, **ASYNCHRONOUS[algorithm][0]}, model={"name": workload.model, **workload.sizes},
    workers=workload.workers, batch=workload.batch, steps=STEPS, times={"jitter": 0.1},
    optimizer={"momentum": 0.9, "learning_rate": 0.001},
  )  # fmt: skip
  start_devices(experiment.workers, options)
  with warnings.catch_warnings():
    warnings.simplefilter("ignore", UserWarning)  # of settings that learn badly: only the speed counts here
    components = build.build(experiment, synthetic(workload.model, workload.pixels))
  return components, build.make_trainer(components, options)


def waves_side(workload: Workload, algorithm: str, options: RunOptions) -> tuple[Block, Callable[[], dict[str, Any]]]:
  """Through the simulator that `train` uses."""
  import jax

  from experiments.config.experiment import initial_key, training_key

  components, trainer = _prepare(workload, algorithm, options)
  calls, feed, key = trainer.plan(0, STEPS, STEPS), components.training_feed([]), training_key(0)
  state = {"carry": trainer.start(initial_key(0)), "next": 0}

  def block(steps: int) -> float:
    chosen, made = [], 0
    while made < steps:
      chosen.append(calls[state["next"]])
      made += chosen[-1].steps
      state["next"] = (state["next"] + 1) % len(calls)
    began = time.perf_counter()
    for _, carry, _losses in trainer.run(state["carry"], chosen, feed, key):
      state["carry"] = carry
    jax.block_until_ready(state["carry"])
    return (time.perf_counter() - began) * steps / made

  return block, lambda: {"compile_s": trainer.compile_seconds, "how": f"{trainer.workers.devices} dev, waves"}


def one_side(workload: Workload, algorithm: str, options: RunOptions) -> tuple[Block, Callable[[], dict[str, Any]]]:
  """One event at a time, in plain Python, on the same devices' cores."""
  import jax

  from ddl.runtime.virtual.sequential import Sequential
  from experiments.config.experiment import initial_key, training_key

  components, trainer = _prepare(workload, algorithm, options)
  workers, rule = components.experiment.workers, components.algorithm
  runner = Sequential(rule, components.model, trainer.events, trainer.operations, workers)
  runner.start(*jax.jit(components.model.init)(initial_key(0)))
  key, at = training_key(0), [0]
  feeds = [components.feed([worker]) for worker in range(workers)]

  def take(worker: int, step: int) -> Any:
    batch = {k: x[0, 0] for k, x in feeds[worker](step, 1).items()}
    return batch, key

  def block(steps: int) -> float:
    left = visits = max(steps * workers // rule.period, 1)
    began = time.perf_counter()
    while left:
      first = at[0] % len(trainer.operations.kind)
      if not first:
        runner.begun.clear()
      last = min(first + left, len(trainer.operations.kind))
      runner.run(first, last, take)
      left, at[0] = left - (last - first), last
    jax.block_until_ready((runner.params, runner.server))
    return (time.perf_counter() - began) * steps * workers / rule.period / visits

  return block, dict
