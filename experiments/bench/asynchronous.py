"""Sides of `bench --asynchronous`: a server algorithm in waves, and the same events one at a time."""

import time
import warnings
from collections.abc import Callable
from typing import Any

from experiments.bench.workloads import Workload, synthetic

ASYNCHRONOUS: dict[str, tuple[dict[str, Any], str]] = {  # its settings, its synchronous counterpart
  "async_sgd": ({}, "sync_sgd"),
  "async_easgd": ({"period": 10}, "easgd"),
  "downpour": ({"period": 10}, "local_sgd"),
}
STEPS = 1200  # of each worker: one schedule, gone through again and again
Block = Callable[[int], float]


def _prepare(workload: Workload, algorithm: str) -> tuple[Any, Any, Any]:
  from experiments.config import experiment as configs
  from experiments.train import build

  config = configs.base()
  config.algorithm.update({"name": algorithm, **ASYNCHRONOUS[algorithm][0]})
  config.model.update({"name": workload.model, **workload.sizes})
  config.workers, config.batch, config.steps = workload.workers, workload.batch, STEPS
  config.times.jitter = 0.1
  config.optimizer.momentum, config.optimizer.learning_rate = 0.9, 0.001
  build.start_devices(config.workers)
  with warnings.catch_warnings():
    warnings.simplefilter("ignore", UserWarning)  # of settings that learn badly: only the speed counts here
    experiment = configs.build(config, synthetic(workload.model, workload.pixels))
  return config, experiment, build.make_trainer(experiment, config)


def waves_side(workload: Workload, algorithm: str) -> tuple[Block, Callable[[], dict[str, Any]]]:
  """Through the simulator that `train` uses."""
  import jax

  from experiments.config import experiment as configs

  _, experiment, trainer = _prepare(workload, algorithm)
  calls, feed, key = trainer.plan(0, STEPS, STEPS), experiment.training_feed([]), configs.training_key(0)
  state = {"carry": trainer.start(configs.initial_key(0)), "next": 0}

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


def one_side(workload: Workload, algorithm: str) -> tuple[Block, Callable[[], dict[str, Any]]]:
  """One event at a time, in plain Python, on the same devices' cores."""
  import jax

  from ddl.runtime.virtual.sequential import Sequential
  from experiments.config import experiment as configs

  config, experiment, trainer = _prepare(workload, algorithm)
  runner = Sequential(experiment.algorithm, experiment.model, trainer.events, trainer.operations, config.workers)
  runner.start(*jax.jit(experiment.model.init)(configs.initial_key(0)))
  key, at = configs.training_key(0), [0]
  feeds = [experiment.feed([worker]) for worker in range(config.workers)]

  def take(worker: int, step: int) -> Any:
    batch = {k: x[0, 0] for k, x in feeds[worker](step, 1).items()}
    return batch, key

  def block(steps: int) -> float:
    left = visits = max(steps * config.workers // experiment.algorithm.period, 1)
    began = time.perf_counter()
    while left:
      first = at[0] % len(trainer.operations.kind)
      if not first:
        runner.begun.clear()
      last = min(first + left, len(trainer.operations.kind))
      runner.run(first, last, take)
      left, at[0] = left - (last - first), last
    jax.block_until_ready((runner.params, runner.server))
    return (time.perf_counter() - began) * steps * config.workers / experiment.algorithm.period / visits

  return block, dict
