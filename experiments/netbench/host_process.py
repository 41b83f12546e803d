"""The process of one host: it does what each line on its standard input says, and answers with a line of JSON.

python -m experiments.netbench.host_process WORKERS; hosts.processes() of them are one group, and one alone is a host
that asks nobody.

{"case": {"algorithm": {...}, "batch": 64, "overlap": true, "steps_per_call": 8}} builds and compiles a trainer.
{"steps": 8} makes so many steps and answers their seconds.
{"train": {"algorithm": ..., "steps": ...}, "workdir": "...", "overlap": true} makes a whole run on the digits, as the
first thing that the process does.
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
  """Return the experiment of a case, on so many workers."""
  return default_experiment(
    algorithm=case["algorithm"], model=MODEL, workers=workers, batch=case["batch"],
    optimizer={"momentum": 0.9, "learning_rate": 0.01},
  )  # fmt: skip


def block_of(case: Mapping[str, Any], workers: int) -> Callable[[int], float]:
  """Return the function of a number of steps to their seconds, through the trainer that `train` uses."""
  options = RunOptions(overlap=case["overlap"], steps_per_call=case["steps_per_call"])
  with warnings.catch_warnings():
    warnings.simplefilter("ignore", UserWarning)  # of settings that learn badly: only the speed counts here
    components = build.build(experiment_of(case, workers), synthetic("mlp", 8, EXAMPLES))
  trainer: Any = build.make_trainer(components, options)[0]
  return timed_steps(components, trainer)


def train(asked: Mapping[str, Any], workers: int) -> dict[str, Any]:
  """Train on the digits into a folder; return the last line of metrics."""
  from ddl.run.train import train as whole_run

  experiment = default_experiment(model=MODEL, data={"name": "digits"}, workers=workers, **asked["train"])
  return whole_run(experiment, RunOptions(workdir=asked["workdir"], overlap=asked["overlap"], compilation_cache="off"))


def main() -> None:
  """Answer until standard input ends."""
  workers, block, started = int(sys.argv[1]), None, False
  memory.keep_freed()  # as a process of a group does, so that those that are alone have the same steps
  answers = os.dup(1)  # for answers alone: libraries print on the standard output too
  os.dup2(2, 1)

  def say(**answer: Any) -> None:
    os.write(answers, (json.dumps(answer) + "\n").encode())

  say(ready=True)
  for line in sys.stdin:
    asked = json.loads(line)
    if "case" in asked:
      if not started:
        start_devices(workers, RunOptions())
      started = True
      block = block_of(asked["case"], workers)
      say(ready=True)
    elif "train" in asked:
      say(last=train(asked, workers))
    else:
      assert block
      say(seconds=block(asked["steps"]))
  os._exit(0)  # an ordinary exit would wait for the others


if __name__ == "__main__":
  main()
