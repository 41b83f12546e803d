"""Run the process of one host: read requests from standard input and reply to each with a line of JSON.

python -m experiments.netbench.host_process WORKERS; WORKERS processes form one JAX job.

{"case": {"algorithm": {...}, "batch": 64, "overlap": true, "steps_per_call": 8}} builds and compiles a trainer.
{"steps": 8} runs 8 steps and replies with their seconds.
{"train": {"algorithm": ..., "steps": ...}, "workdir": "...", "overlap": true} trains on digits and must be the first
request.
"""

import json
import os
import sys
import warnings
from collections.abc import Callable, Mapping
from typing import Any

from ddl import memory
from ddl.config import default_experiment
from ddl.config.experiment import Experiment
from ddl.config.options import RunOptions
from ddl.costs.step_cost import synthetic, timed_steps
from ddl.run import build
from ddl.run.processes import start_devices
from experiments.netbench.cases import EXAMPLES, MODEL


def experiment_of(case: Mapping[str, Any], workers: int) -> Experiment:
  """Build the experiment of a case."""
  return default_experiment(
    algorithm=case["algorithm"], model=MODEL, workers=workers, batch=case["batch"],
    optimizer={"momentum": 0.9, "learning_rate": 0.01},
  )  # fmt: skip


def block_of(case: Mapping[str, Any], workers: int) -> Callable[[int], float]:
  """Compile a case with the trainer of `run.py train`; return a function: number of steps -> seconds."""
  options = RunOptions(overlap=case["overlap"], steps_per_call=case["steps_per_call"])
  with warnings.catch_warnings():
    warnings.simplefilter("ignore", UserWarning)  # about settings that train poorly: only speed matters here
    components = build.build(experiment_of(case, workers), synthetic("mlp", 8, EXAMPLES))
  trainer: Any = build.make_trainer(components, options)[0]
  return timed_steps(components, trainer)


def train(request: Mapping[str, Any], workers: int) -> dict[str, Any]:
  """Train on digits in the requested work folder; return the last line of metrics."""
  from ddl.run.train import train as ddl_train

  experiment = default_experiment(model=MODEL, data={"name": "digits"}, workers=workers, **request["train"])
  options = RunOptions(workdir=request["workdir"], overlap=request["overlap"], compilation_cache="off")
  return ddl_train(experiment, options)


def main() -> None:
  """Serve requests until standard input is closed."""
  workers, block, started = int(sys.argv[1]), None, False
  memory.keep_freed()  # as joined processes do, so that steps with and without communication are comparable
  replies = os.dup(1)  # a separate descriptor, because libraries also print to standard output
  os.dup2(2, 1)

  def reply(**values: Any) -> None:
    os.write(replies, (json.dumps(values) + "\n").encode())

  reply(ready=True)
  for line in sys.stdin:
    request = json.loads(line)
    if "case" in request:
      if not started:
        start_devices(workers, RunOptions())
      started = True
      block = block_of(request["case"], workers)
      reply(ready=True)
    elif "train" in request:
      reply(last=train(request, workers))
    else:
      assert block
      reply(seconds=block(request["steps"]))
  os._exit(0)  # skips JAX's shutdown barrier


if __name__ == "__main__":
  main()
